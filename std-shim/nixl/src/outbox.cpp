#include "outbox.h"

#include <algorithm>
#include <cstring>

namespace {
constexpr size_t SLOTS = 32;
constexpr size_t PART_BYTES = SLOT_BYTES - HEAD_BYTES;
} // namespace

void Outbox::add(std::string message, Notifier *notifier) {
    waiting += message.size();
    queue.push_back(std::make_unique<Message>(Message{std::move(message), 0, notifier}));
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

// Posts the next part of the first message. Returns whether there was room.
bool Outbox::post(polyrail_peers *peers, uint64_t peer, size_t slot) {
    Message &message = *queue.front();
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
    message.posted += part;
    waiting -= part;
    if (is_last) {
        slots[slot].message = std::move(queue.front());
        queue.pop_front();
    }
    return true;
}

void Outbox::Slot::reported(const polyrail_completion &completion) {
    outbox->free.push_back(static_cast<size_t>(this - outbox->slots.data()));
    outbox->unacknowledged -= 1;
    const std::unique_ptr<Message> done = std::move(message);
    if (done != nullptr && done->notifier != nullptr) {
        const bool is_ok = completion.status == POLYRAIL_STATUS_SUCCESS;
        done->notifier->notified(is_ok ? NIXL_SUCCESS : NIXL_ERR_REMOTE_DISCONNECT);
    }
}

void Outbox::clear(nixl_status_t status) {
    const auto tell = [status](const std::unique_ptr<Message> &message) {
        if (message != nullptr && message->notifier != nullptr) {
            message->notifier->notified(status);
        }
    };
    for (Slot &slot : slots) {
        tell(slot.message);
    }
    std::for_each(queue.begin(), queue.end(), tell);
    queue.clear();
    slots.clear();
    free.clear();
    memory.reset();
    waiting = unacknowledged = 0;
}
