// Received notifications that the program has not taken, and the limits for them.
//
// A sender counts the cost of what it sent and the peer's program has not taken. It begins no notification while more
// than a quarter of WINDOW_COST is untaken, unless it fits into the rest. A receiver reports what was taken whenever
// that has grown by a quarter, so a sender always goes on before its peer's program has taken everything.
//
// A receiver relies on no sender: it keeps at most MAX_UNTAKEN_COST of one connection, and MAX_KEPT_COST of all.
#pragma once

#include "nixl_interface.h"

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

// Maximum length of a notification in bytes.
constexpr size_t MAX_NOTIFICATION_BYTES = 64 << 20;

constexpr uint64_t WINDOW_COST = 16 << 20;
constexpr uint64_t WINDOW_STEP = WINDOW_COST / 4;

// Memory that a notification takes, with the containers around it.
constexpr uint64_t cost_of(size_t bytes) {
    return bytes + 128;
}

// Maximum cost of what a peer can have sent and the program has not taken: the longest notification, behind a quarter
// of the window.
constexpr uint64_t MAX_UNTAKEN_COST = WINDOW_STEP + cost_of(MAX_NOTIFICATION_BYTES);

// Maximum cost of what an engine keeps: notifications that the program has not taken, also of connections that have
// ended, with the names of their senders; and the beginnings of others.
constexpr uint64_t MAX_KEPT_COST = 512 << 20;

// What a connection that has ended counts as long as something of it is untaken, so that no peer makes many of them.
constexpr uint64_t CLOSED_COST = 64 << 10;

// Where a connection comes from.
struct Source {
    // The address of the peer, without the port.
    std::string host;
    // The name that the peer claims.
    std::string agent;
};

// Any thread may call all functions.
class Notifications {
public:
    // What was dropped of one connection.
    struct Dropped {
        uint64_t number;
        Source source;
        // Complete notifications.
        size_t count;
        uint64_t cost;
    };

    // Opens the account of a connection.
    void open(uint64_t number, const Source &source);
    // The connection has ended. Its notifications stay until they are taken.
    void close(uint64_t number);
    // Adds a notification. Returns false, and drops it, if more than MAX_UNTAKEN_COST of its connection would be untaken.
    bool add(uint64_t number, std::string message);
    // Sets how many bytes of an incomplete notification have arrived.
    void begun(uint64_t number, size_t bytes);
    // Drops what came over some connections if more than MAX_KEPT_COST is kept: of the host that holds most, of its agent
    // that holds most, of its connection that holds most; then again. Connections of other hosts and agents
    // lose nothing to a peer that opens many.
    std::vector<Dropped> drop_excess();
    // Takes all of them, in order.
    notif_list_t take();
    // Returns the cost of what came over this connection and was not taken.
    uint64_t untaken(uint64_t number) const;
    // Returns how often notifications were taken.
    uint64_t takes() const { return taken.load(std::memory_order_acquire); }

private:
    struct Account {
        Source source;
        bool is_open = true;
        // Complete notifications: by the sender's count, and with the sender's name.
        size_t count = 0;
        uint64_t untaken = 0;
        uint64_t kept = 0;
        // An incomplete one.
        uint64_t begun = 0;

        uint64_t all() const { return kept + begun; }
    };

    struct Untaken {
        uint64_t number;
        std::string message;
    };

    using Accounts = std::map<uint64_t, Account>;
    Accounts::iterator most();
    Dropped drop(Accounts::iterator account);

    mutable std::mutex mutex;
    std::deque<Untaken> list;
    Accounts accounts;
    // Sum of all accounts.
    uint64_t kept = 0;
    std::atomic<uint64_t> taken{0};
};
