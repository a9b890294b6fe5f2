// Received notifications that the program has not taken, and the limit for them.
//
// A sender counts the cost of what it sent and the peer's program has not taken. It begins no notification while more
// than a quarter of WINDOW_COST is untaken, unless it fits into the rest. A receiver reports what was taken whenever
// that has grown by a quarter, so a sender always goes on before its peer's program has taken everything.
#pragma once

#include "nixl_interface.h"

#include <atomic>
#include <map>
#include <mutex>

// Maximum length of a notification in bytes.
constexpr size_t MAX_NOTIFICATION_BYTES = 64 << 20;

constexpr uint64_t WINDOW_COST = 16 << 20;
constexpr uint64_t WINDOW_STEP = WINDOW_COST / 4;

// Memory that a notification takes, with the sender's name and the containers around it.
constexpr uint64_t cost_of(size_t bytes) {
    return bytes + 128;
}

// Maximum cost of what a peer can have sent and the program has not taken: the longest notification, behind a quarter
// of the window.
constexpr uint64_t MAX_UNTAKEN_COST = WINDOW_STEP + cost_of(MAX_NOTIFICATION_BYTES);

// Any thread may call all functions.
class Notifications {
public:
    // Adds a notification that came over connection `number`. Returns false, and drops it, if more than
    // MAX_UNTAKEN_COST of that connection would be untaken.
    bool add(uint64_t number, const std::string &agent, std::string message);
    // Takes all of them, in order.
    notif_list_t take();
    // Returns the cost of what came over this connection and was not taken.
    uint64_t untaken(uint64_t number) const;
    // Returns the untaken cost of all connections that `is_there` does not know any more.
    template <class F> uint64_t orphaned(F &&is_there) const {
        const std::lock_guard<std::mutex> guard(mutex);
        uint64_t cost = 0;
        for (const auto &[number, untaken] : costs) {
            cost += is_there(number) ? 0 : untaken;
        }
        return cost;
    }
    // Returns how often notifications were taken.
    uint64_t takes() const { return taken.load(std::memory_order_acquire); }

private:
    mutable std::mutex mutex;
    notif_list_t list;
    std::map<uint64_t, uint64_t> costs;
    std::atomic<uint64_t> taken{0};
};
