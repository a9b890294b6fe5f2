#include "inbox.h"

#include <cstring>

// Unread notifications that a peer may send before it has to wait.
static constexpr size_t SLOTS = 64;

Inbox::Inbox(polyrail_domain *domain, polyrail_peers *peers, uint64_t peer, Notifications &notifications)
    : peers(peers), peer(peer), notifications(notifications), memory(domain, SLOTS), slots(SLOTS) {
    for (size_t slot = 0; slot < SLOTS; ++slot) {
        slots[slot].inbox = this;
        unposted.push_back(slot);
    }
    pump();
}

void Inbox::pump() {
    while (!is_ending && !unposted.empty()) {
        const size_t slot = unposted.back();
        const polyrail_code code = polyrail_peers_receive(peers, peer, slots[slot].id(), memory.region(),
                                                          slot * SLOT_BYTES, SLOT_BYTES);
        if (!check(code, "posting a receive")) {
            return;
        }
        unposted.pop_back();
    }
}

void Inbox::Slot::reported(const polyrail_completion &completion) {
    const size_t slot = static_cast<size_t>(this - inbox->slots.data());
    if (completion.status == POLYRAIL_STATUS_SUCCESS) {
        inbox->take(slot, completion.bytes);
    } else {
        // The peer's events state the reason.
        inbox->end();
    }
    inbox->unposted.push_back(slot);
}

void Inbox::refuse(const std::string &reason) {
    wrong = reason;
    message = std::string();
    notifications.begun(peer, 0);
}

void Inbox::take(size_t slot, uint32_t length) {
    uint32_t head = 0;
    if (!wrong.empty()) {
        return;
    }
    if (length < HEAD_BYTES || length > SLOT_BYTES) {
        refuse("a notification of " + std::to_string(length) + " bytes");
        return;
    }
    std::memcpy(&head, memory.at(slot), HEAD_BYTES);
    if (head != IS_LAST && head != GOES_ON) {
        refuse("received a notification with header " + std::to_string(head));
        return;
    }
    message.append(memory.at(slot) + HEAD_BYTES, length - HEAD_BYTES);
    if (message.size() > MAX_NOTIFICATION_BYTES) {
        refuse("received a notification of more than " + std::to_string(MAX_NOTIFICATION_BYTES) + " bytes");
    } else if (head == GOES_ON) {
        notifications.begun(peer, message.size());
    } else {
        cost += cost_of(message.size());
        notifications.begun(peer, 0);
        if (!notifications.add(peer, std::move(message))) {
            refuse("received more notifications than are taken: over " + std::to_string(MAX_UNTAKEN_COST) + " bytes");
        }
        message.clear();
    }
}
