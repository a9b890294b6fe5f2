// A connection to one agent, made by this one: its transfers and notifications go there. What the other agent wants
// of this one goes over a connection that it makes itself, so two that connect to each other never meet half-way.
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

    // Begins to connect, unless that was done.
    void begin();
    // What the peer's events tell.
    void connected(const std::string &hello);
    void not_connected(const std::string &words);
    // Gives up: nothing is posted any more, and what was ends as it does; then `fail`.
    void end(const std::string &words);
    // Whether nothing is left that ends by itself.
    bool is_quiet() const;
    // Transfers that are under way fail, and no device accesses their memory any more.
    void fail(const std::string &words);

    // Takes a transfer that was started. Throws a Failure if the connection has failed.
    void add(Transfer &transfer);
    // It is not under way any more, or never was, or has been cancelled.
    void forget(Transfer &transfer);
    void notify(const std::string &message);
    // Posts what there is room for.
    void pump();

    State state() const { return now; }
    // Why it failed, or is about to.
    const std::string &words() const { return why; }
    // Whether it is this peer.
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
    // Started, and not known to be done.
    std::vector<Transfer *> active;
    // Those of which requests are left, in the order of their starts.
    std::deque<Transfer *> unposted;
};
