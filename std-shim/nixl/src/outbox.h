// Notifications on their way to one peer: SENDs, cut to the size of the peer's receives, in order.
#pragma once

#include "buffer.h"

#include <deque>
#include <memory>
#include <string>
#include <vector>

// Whoever waits for a notification to be acknowledged by the peer's device.
class Notifier {
public:
    virtual void notified(nixl_status_t status) = 0;

protected:
    ~Notifier() = default;
};

class Outbox {
public:
    // Takes effect with the next `pump`. `notifier` may be null; otherwise it lives until it is told.
    void add(std::string message, Notifier *notifier);
    // Posts what there is room for. Throws a Failure.
    void pump(polyrail_domain *domain, polyrail_peers *peers, uint64_t peer);
    // The connection is gone, and reports nothing any more: tells all who wait.
    void clear(nixl_status_t status);

    // Whether nothing is posted.
    bool is_quiet() const { return unacknowledged == 0; }
    bool is_empty() const { return queue.empty() && is_quiet(); }
    // Bytes that were not posted yet.
    size_t waiting_bytes() const { return waiting; }

private:
    struct Message {
        std::string bytes;
        size_t posted;
        Notifier *notifier;
    };

    struct Slot final : Reported {
        Outbox *outbox = nullptr;
        // With the last part of a message.
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
