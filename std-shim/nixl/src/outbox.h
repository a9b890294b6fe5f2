// Notifications to one peer: SENDs in order, split to the size of the peer's receives.
#pragma once

#include "buffer.h"
#include "notifications.h"

#include <deque>
#include <memory>
#include <string>
#include <vector>

// Callback for a notification that the peer's device acknowledged.
class Notifier {
public:
    virtual void notified() = 0;

protected:
    ~Notifier() = default;
};

class Outbox {
public:
    // Takes effect with the next `pump`. `notifier` may be null; otherwise it must live until it is
    // called, or until `withdraw` or `clear`.
    void add(std::string message, Notifier *notifier);
    // Stops calling this notifier, which may then be destroyed. Removes its notification if nothing of it is posted;
    // otherwise the peer gets all of it.
    void withdraw(const Notifier &notifier);
    // Posts as many parts as there is room for, also at the peer. Throws a Failure.
    void pump(polyrail_domain *domain, polyrail_peers *peers, uint64_t peer);
    // Handles that the peer's program has taken notifications of this cost in total. Throws a Failure.
    void take(uint64_t total);
    // Drops everything after the connection has ended. Returns the number of notifications without a notifier that were
    // not acknowledged.
    size_t clear();

    // Returns whether nothing is posted.
    bool is_quiet() const { return unacknowledged == 0; }
    bool is_empty() const { return queue.empty() && is_quiet(); }
    // Returns the cost of notifications that are not posted yet.
    uint64_t waiting_cost() const { return waiting; }

private:
    struct Message {
        std::string bytes;
        size_t posted;
        Notifier *notifier;
    };

    struct Slot final : Reported {
        Outbox *outbox = nullptr;
        // Set for the last part of a message.
        std::unique_ptr<Message> message;
        void reported(const polyrail_completion &completion) override;
    };

    bool post(polyrail_peers *peers, uint64_t peer, size_t slot);
    bool fits(const Message &message) const;

    std::unique_ptr<Slots> memory;
    std::vector<Slot> slots;
    std::vector<size_t> free;
    std::deque<std::unique_ptr<Message>> queue;
    uint64_t waiting = 0;
    // Costs of what was posted, and of what the peer's program has taken.
    uint64_t sent = 0;
    uint64_t taken = 0;
    size_t unacknowledged = 0;
};
