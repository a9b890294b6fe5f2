// A connection that this agent made to another one, for its own transfers and notifications. The other agent makes
// a separate connection for its own, so simultaneous connects do not conflict.
#pragma once

#include "address.h"
#include "home.h"
#include "transfer.h"

#include <deque>

class Outgoing {
public:
    enum class State { Idle, Meeting, Ready, Ending, Failed };

    Outgoing(const Home &home, std::string agent, Address address);
    ~Outgoing();
    Outgoing(const Outgoing &) = delete;
    void operator=(const Outgoing &) = delete;

    // Begins to connect, unless it has begun already.
    void begin();
    // Handlers of the peer's events.
    void connected(const std::string &hello);
    void not_connected(const std::string &words);
    // Stops posting. Posted requests end normally; then call `fail`.
    void end(const std::string &words);
    // Returns whether all posted requests have ended.
    bool is_quiet() const;
    // Fails transfers in progress. No device accesses their memory any more.
    void fail(const std::string &words);

    // Adds a started transfer. Throws a Failure if the connection has failed.
    void add(Transfer &transfer);
    // Removes a transfer that is not in progress, or was cancelled.
    void forget(Transfer &transfer);
    void notify(const std::string &message);
    // Posts as much as there is room for.
    void pump();

    State state() const { return now; }
    // Returns why the connection failed or is failing.
    const std::string &words() const { return why; }
    // Returns whether this connection has this peer number.
    bool has(uint64_t number) const { return has_peer && peer == number; }
    const std::string &agent() const { return whom; }
    bool is_busy() const { return !active.empty() || !outbox.is_empty(); }

private:
    void check_alive() const;
    void remove_peer();

    const Home &home;
    const std::string whom;
    const Address address;
    size_t tried = 0;
    State now = State::Idle;
    std::string why;
    uint64_t peer = 0;
    bool has_peer = false;
    Outbox outbox;
    // Transfers that were started and are not done.
    std::vector<Transfer *> active;
    // Active transfers with unposted requests, in the order of their starts.
    std::deque<Transfer *> unposted;
};
