// Notifications from one peer. Its SENDs arrive in receives, which are posted again as soon as they are
// read.
#pragma once

#include "buffer.h"
#include "notifications.h"

#include <string>
#include <vector>

class Inbox {
public:
    // Posts all receives, before the two ends are connected, so that no SEND arrives too early. The peer's account at
    // `notifications`, which is open, gets what arrives, in order. Throws a Failure.
    Inbox(polyrail_domain *domain, polyrail_peers *peers, uint64_t peer, Notifications &notifications);
    Inbox(const Inbox &) = delete;
    void operator=(const Inbox &) = delete;

    // Posts receives for which there was no room. Throws a Failure.
    void pump();
    // Stops posting receives. Posted ones still complete, with or without a notification.
    void end() { is_ending = true; }
    // Returns whether no receive is posted.
    bool is_empty() const { return unposted.size() == slots.size(); }
    // Returns the cost of all notifications that arrived: see notifications.h.
    uint64_t received() const { return cost; }
    // Drops what has begun to arrive, and everything that arrives from now on, for this reason.
    void refuse(const std::string &reason);
    // Returns why notifications are dropped, such as how the peer broke the protocol; empty if they are not.
    const std::string &fault() const { return wrong; }

private:
    struct Slot final : Reported {
        Inbox *inbox = nullptr;
        void reported(const polyrail_completion &completion) override;
    };

    void take(size_t slot, uint32_t length);

    polyrail_peers *peers;
    uint64_t peer;
    Notifications &notifications;
    Slots memory;
    std::vector<Slot> slots;
    std::vector<size_t> unposted;
    bool is_ending = false;
    uint64_t cost = 0;
    std::string message;
    std::string wrong;
};
