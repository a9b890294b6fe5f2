#include "outbox.h"

#include <algorithm>
#include <cstring>

namespace {
constexpr size_t SLOTS = 32;
constexpr size_t PART_BYTES = SLOT_BYTES - HEAD_BYTES;
} // namespace

void Outbox::add(std::string message, Notifier *notifier) {
    waiting += cost_of(message.size());
    queue.push_back(std::make_unique<Message>(Message{std::move(message), 0, notifier}));
}

void Outbox::withdraw(const Notifier &notifier) {
    for (Slot &slot : slots) {
        if (slot.message != nullptr && slot.message->notifier == &notifier) {
            slot.message->notifier = nullptr;
        }
    }
    for (auto message = queue.begin(); message != queue.end();) {
        if ((*message)->notifier != &notifier) {
            ++message;
        } else if ((*message)->posted > 0) {
            (*message++)->notifier = nullptr;
        } else {
            waiting -= cost_of((*message)->bytes.size());
            message = queue.erase(message);
        }
    }
}

void Outbox::pump(polyrail_domain *domain, polyrail_peers *peers, uint64_t peer) {
    if (queue.empty()) {
        return;
    }
    if (memory == nullptr) {
        memory = std::make_unique<Slots>(domain, SLOTS);
        slots = std::vector<Slot>(SLOTS);
        for (size_t slot = SLOTS; slot-- > 0;) {
            slots[slot].outbox = this;
            free.push_back(slot);
        }
    }
    while (!queue.empty() && !free.empty() && post(peers, peer, free.back())) {
    }
}

// Returns whether the peer's program has taken enough for the next part of this message.
bool Outbox::fits(const Message &message) const {
    const uint64_t untaken = sent - taken;
    return message.posted > 0 || untaken <= WINDOW_STEP || untaken + cost_of(message.bytes.size()) <= WINDOW_COST;
}

void Outbox::take(uint64_t total) {
    if (total < taken || total > sent) {
        throw Failure(NIXL_ERR_MISMATCH, "the peer claims to have taken notifications of " + std::to_string(total) +
                                             " bytes, but " + std::to_string(sent) + " were sent, and " +
                                             std::to_string(taken) + " taken before");
    }
    taken = total;
}

// Posts the next part of the first message. Returns whether there was room.
bool Outbox::post(polyrail_peers *peers, uint64_t peer, size_t slot) {
    Message &message = *queue.front();
    if (!fits(message)) {
        return false;
    }
    const size_t part = std::min(message.bytes.size() - message.posted, PART_BYTES);
    const bool is_last = message.posted + part == message.bytes.size();
    const uint32_t head = is_last ? IS_LAST : GOES_ON;
    std::memcpy(memory->at(slot), &head, HEAD_BYTES);
    std::memcpy(memory->at(slot) + HEAD_BYTES, message.bytes.data() + message.posted, part);

    polyrail_request request{};
    request.id = slots[slot].id();
    request.opcode = POLYRAIL_OPCODE_SEND;
    request.region = memory->region();
    request.offset = slot * SLOT_BYTES;
    request.length = static_cast<uint32_t>(HEAD_BYTES + part);
    if (!check(polyrail_peers_post(peers, peer, &request), "sending a notification")) {
        return false;
    }
    free.pop_back();
    unacknowledged += 1;
    if (message.posted == 0) {
        sent += cost_of(message.bytes.size());
        waiting -= cost_of(message.bytes.size());
    }
    message.posted += part;
    if (is_last) {
        slots[slot].message = std::move(queue.front());
        queue.pop_front();
    }
    return true;
}

void Outbox::Slot::reported(const polyrail_completion &completion) {
    outbox->unacknowledged -= 1;
    if (completion.status != POLYRAIL_STATUS_SUCCESS) {
        // The connection ends, and drops it then.
        return;
    }
    outbox->free.push_back(static_cast<size_t>(this - outbox->slots.data()));
    const std::unique_ptr<Message> done = std::move(message);
    if (done != nullptr && done->notifier != nullptr) {
        done->notifier->notified();
    }
}

size_t Outbox::clear() {
    const auto is_lost = [](const std::unique_ptr<Message> &message) {
        return message != nullptr && message->notifier == nullptr;
    };
    const auto slot_is_lost = [&](const Slot &slot) { return is_lost(slot.message); };
    const auto lost = std::count_if(slots.begin(), slots.end(), slot_is_lost) +
                      std::count_if(queue.begin(), queue.end(), is_lost);
    queue.clear();
    slots.clear();
    free.clear();
    memory.reset();
    waiting = unacknowledged = 0;
    return static_cast<size_t>(lost);
}
