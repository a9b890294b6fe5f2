// Notifications to one peer: SENDs in order, split to the size of the peer's receives.
#pragma once

#include "buffer.h"

#include <deque>
#include <memory>
#include <string>
#include <vector>

// Callback for a notification that the peer's device acknowledged, or that failed.
class Notifier {
public:
    virtual void notified(nixl_status_t status) = 0;

protected:
    ~Notifier() = default;
};

class Outbox {
public:
    // Takes effect with the next `pump`. `notifier` may be null; otherwise it must live until it is
    // called.
    void add(std::string message, Notifier *notifier);
    // Posts as many parts as there is room for. Throws a Failure.
    void pump(polyrail_domain *domain, polyrail_peers *peers, uint64_t peer);
    // Drops everything after the connection has ended, and calls all notifiers.
    void clear(nixl_status_t status);

    // Returns whether nothing is posted.
    bool is_quiet() const { return unacknowledged == 0; }
    bool is_empty() const { return queue.empty() && is_quiet(); }
    // Returns the number of bytes that are not posted yet.
    size_t waiting_bytes() const { return waiting; }

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

    std::unique_ptr<Slots> memory;
    std::vector<Slot> slots;
    std::vector<size_t> free;
    std::deque<std::unique_ptr<Message>> queue;
    size_t waiting = 0;
    size_t unacknowledged = 0;
};
