// A connection that this agent made to another one, for its own transfers and notifications. The other agent makes
// a separate connection for its own, so simultaneous connects do not conflict.
#pragma once

#include "address.h"
#include "cost.h"
#include "home.h"
#include "transfer.h"

#include <chrono>
#include <deque>
#include <memory>
#include <optional>

class Outgoing {
public:
    enum class State { Idle, Meeting, Ready, Ending, Failed };

    Outgoing(const Home &home, std::string agent, Address address);
    // A connection to the same agent after this one, with what was learned about the costs of transfers.
    std::unique_ptr<Outgoing> next() const;
    ~Outgoing();
    Outgoing(const Outgoing &) = delete;
    void operator=(const Outgoing &) = delete;

    // Begins to connect, unless it has begun already.
    void begin();
    // Handlers of the peer's events.
    void connected(const std::string &hello);
    // The peer's program has taken notifications of this cost in total. Throws a Failure.
    void taken(uint64_t total) { outbox.take(total); }
    // The peer reports that its side of the connection failed: it has not left.
    void peer_ended() { is_peer_there = true; }
    // The link ended. Unless the peer has reported a failure before, it has left.
    void link_lost() { has_link = false; }
    // Stops posting. Posted requests end normally; then call `fail`.
    void end(const Failure &failure);
    // Returns whether all posted requests have ended.
    bool is_quiet() const;
    // Returns whether the peer's device refused a request, and it is not known yet whether the peer leaves.
    bool is_in_doubt() const;
    // Fails transfers in progress. No device accesses their memory any more.
    void fail(const Failure &failure);

    // Adds a started transfer. Throws a Failure if the connection has failed.
    void add(Transfer &transfer);
    // Asks for the posted requests of a cancelled transfer back.
    void take_back(const Transfer &transfer) const;
    // Removes a transfer that is not in progress, or was cancelled.
    void forget(Transfer &transfer);
    void notify(const std::string &message);
    // Posts as much as there is room for. Throws a Failure if the connection has failed.
    void pump();

    State state() const { return now; }
    // Returns whether the connection has failed or is failing, so that requests need a new one.
    bool is_over() const { return now == State::Ending || now == State::Failed; }
    // Returns why.
    Failure failure() const { return Failure(why.status, "agent " + whom + ": " + why.what()); }
    const Address &where() const { return address; }
    // Returns whether this connection has this peer number.
    bool has(uint64_t number) const { return has_peer && peer == number; }
    uint64_t number() const { return peer; }
    // Returns whether this transfer is in progress here.
    bool holds(const Transfer &transfer) const;
    const std::string &agent() const { return whom; }
    bool is_busy() const { return !active.empty() || !outbox.is_empty(); }
    // Estimates a transfer of this many bytes.
    CostModel::Estimate estimate(uint64_t bytes) const { return cost.of(bytes); }

private:
    void check_alive();
    void remove_peer();
    void remove_done();

    const Home &home;
    const std::string whom;
    const Address address;
    State now = State::Idle;
    Failure why{NIXL_SUCCESS, ""};
    uint64_t peer = 0;
    bool has_peer = false;
    bool has_link = true;
    bool is_peer_there = false;
    Outbox outbox;
    // Transfers that were started and are not done.
    std::vector<Transfer *> active;
    // Active transfers with unposted requests, in the order of their starts.
    std::deque<Transfer *> unposted;
    CostModel cost;
    // While transfers are in progress: since when their time is measured, and the bytes of those that are done.
    std::optional<std::chrono::steady_clock::time_point> measured_since;
    uint64_t measured_bytes = 0;
    // A transfer failed or was removed, so nothing is measured until none is in progress.
    bool is_spoiled = false;
};
