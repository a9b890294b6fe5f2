// Notifications from one peer: its SENDs land in receives that are posted again as soon as they are read.
#pragma once

#include "buffer.h"

#include <functional>
#include <string>
#include <vector>

class Inbox {
public:
    using Sink = std::function<void(std::string)>;

    // Posts all receives; before the two ends are connected, so that nothing comes too early. `sink` is handed what
    // came, in order. Throws a Failure.
    Inbox(polyrail_domain *domain, polyrail_peers *peers, uint64_t peer, Sink sink);
    Inbox(const Inbox &) = delete;
    void operator=(const Inbox &) = delete;

    // Posts receives that found no room. Throws a Failure.
    void pump();
    // Posts no more: those that are posted come back, with a notification or without.
    void end() { is_ending = true; }
    // Whether none is posted.
    bool is_empty() const { return unposted.size() == slots.size(); }
    // What the peer did wrong; empty if nothing.
    const std::string &fault() const { return wrong; }

private:
    struct Slot final : Reported {
        Inbox *inbox = nullptr;
        void reported(const polyrail_completion &completion) override;
    };

    void take(size_t slot, uint32_t length);

    polyrail_peers *peers;
    uint64_t peer;
    Sink sink;
    Slots memory;
    std::vector<Slot> slots;
    std::vector<size_t> unposted;
    bool is_ending = false;
    std::string message;
    std::string wrong;
};
