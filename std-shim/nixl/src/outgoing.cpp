#include "outgoing.h"
#include "log.h"
#include "notes.h"

#include <algorithm>

// Limit for queued notifications to a slow peer. Applies to notifications without a transfer, which
// have no completion that a sender could wait for.
static constexpr uint64_t MAX_WAITING_COST = 256 << 20;

Outgoing::Outgoing(const Home &home, std::string agent, Address address)
    : home(home), whom(std::move(agent)), address(std::move(address)), cost(home.megabits) {}

std::unique_ptr<Outgoing> Outgoing::next() const {
    auto next = std::make_unique<Outgoing>(home, whom, address);
    next->cost = cost;
    return next;
}

Outgoing::~Outgoing() {
    fail(Failure(NIXL_ERR_REMOTE_DISCONNECT, "the agent disconnected"));
}

void Outgoing::begin() {
    if (now != State::Idle) {
        return;
    }
    now = State::Meeting;
    try {
        polyrail_link *opened = nullptr;
        check(polyrail_link_open(joined(address.endpoints).c_str(), home.link, &opened), "connecting");
        Link link(opened);
        check(polyrail_peers_add(home.peers, nullptr, &peer), "making a connection");
        has_peer = true;
        const std::string hello = Hello{address.id, home.agent}.encode();
        check(polyrail_peers_meet(home.peers, peer, link.get(), hello.data(), hello.size()), "connecting");
        // The peer owns it now.
        static_cast<void>(link.release());
    } catch (const Failure &failure) {
        fail(failure);
    }
}

void Outgoing::connected(const std::string &text) {
    try {
        const Hello hello = Hello::decode(text);
        if (hello.id != address.id || hello.agent != whom) {
            throw Failure(NIXL_ERR_MISMATCH, "agent \"" + hello.agent + "\" answered instead");
        }
        now = State::Ready;
    } catch (const Failure &failure) {
        fail(failure);
    }
}

void Outgoing::remove_peer() {
    if (has_peer) {
        has_peer = false;
        polyrail_peers_remove(home.peers, peer);
    }
}

void Outgoing::end(const Failure &failure) {
    if (now == State::Ready) {
        now = State::Ending;
        why = failure;
        if (has_link) {
            Note::ended(failure.what()).send(home.peers, peer);
        }
        polyrail_peers_fail(home.peers, peer);
    }
}

bool Outgoing::is_quiet() const {
    const auto is_done = [](const Transfer *transfer) { return transfer->is_quiet(); };
    return outbox.is_quiet() && std::all_of(active.begin(), active.end(), is_done);
}

bool Outgoing::is_in_doubt() const {
    const auto is_refused = [](const Transfer *transfer) { return transfer->is_refused(); };
    return has_link && !is_peer_there && std::any_of(active.begin(), active.end(), is_refused);
}

void Outgoing::fail(const Failure &failure) {
    if (now == State::Failed) {
        return;
    }
    now = State::Failed;
    why = failure;
    remove_peer();
    unposted.clear();
    // Before the transfers that some of these notifications belong to.
    const size_t lost = outbox.clear();
    if (lost > 0) {
        log_line(LogLevel::Warn, home.agent,
                 "lost notifications for agent " + whom + " (" + std::to_string(lost) + "): " + failure.what());
    }
    for (Transfer *transfer : active) {
        transfer->lost(failure, !has_link && !is_peer_there);
    }
    active.clear();
}

void Outgoing::add(Transfer &transfer) {
    check_alive();
    transfer.notify_by(&outbox);
    active.push_back(&transfer);
    unposted.push_back(&transfer);
}

// Begins to connect. Throws if that is impossible.
void Outgoing::check_alive() {
    begin();
    if (is_over()) {
        throw failure();
    }
}

void Outgoing::take_back(const Transfer &transfer) const {
    if (now == State::Ready) {
        transfer.take_back(home.peers, peer);
    }
}

void Outgoing::forget(Transfer &transfer) {
    const auto rest = std::remove(active.begin(), active.end(), &transfer);
    if (rest != active.end()) {
        active.erase(rest, active.end());
        // It has used an unknown part of the measured time.
        measured_since.reset();
        is_spoiled = !active.empty();
    }
    unposted.erase(std::remove(unposted.begin(), unposted.end(), &transfer), unposted.end());
}

bool Outgoing::holds(const Transfer &transfer) const {
    return std::find(active.begin(), active.end(), &transfer) != active.end();
}

void Outgoing::notify(const std::string &message) {
    if (outbox.waiting_cost() + cost_of(message.size()) > MAX_WAITING_COST) {
        throw Failure(NIXL_ERR_NOT_ALLOWED, "agent " + whom + " does not take notifications, and " +
                                                std::to_string(outbox.waiting_cost()) + " bytes wait for it");
    }
    check_alive();
    outbox.add(message, nullptr);
}

void Outgoing::pump() {
    if (now != State::Ready) {
        return;
    }
    if (!measured_since.has_value() && !active.empty() && !is_spoiled) {
        measured_since = std::chrono::steady_clock::now();
        measured_bytes = 0;
    }
    while (!unposted.empty() && unposted.front()->post(home.peers, peer)) {
        unposted.pop_front();
    }
    outbox.pump(home.domain, home.peers, peer);
    remove_done();
}

// Removes transfers that are done, and measures the time that they took. Transfers that overlap are
// measured together, because the rails are shared: from the first one's post until none is in progress.
// In a shorter time, the part of a transfer that is not done would be unknown.
void Outgoing::remove_done() {
    bool is_any = false, is_all_good = true;
    const auto take = [&](const Transfer *transfer) {
        const nixl_status_t status = transfer->status();
        if (status == NIXL_IN_PROG) {
            return false;
        }
        is_any = true;
        is_all_good &= status == NIXL_SUCCESS;
        measured_bytes += transfer->bytes();
        return true;
    };
    active.erase(std::remove_if(active.begin(), active.end(), take), active.end());
    if (!is_any) {
        return;
    }
    const auto now = std::chrono::steady_clock::now();
    if (!is_all_good) {
        measured_since.reset();
        is_spoiled = true;
    } else if (measured_since.has_value() && active.empty()) {
        cost.learn(measured_bytes, now - *measured_since);
        measured_since.reset();
    }
    is_spoiled &= !active.empty();
}
