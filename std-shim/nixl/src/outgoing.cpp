#include "outgoing.h"

#include <algorithm>

// Limit for queued notifications to a slow peer. Applies to notifications without a transfer, which
// have no completion that a sender could wait for.
static constexpr size_t MAX_WAITING_BYTES = 256 << 20;

Outgoing::Outgoing(const Home &home, std::string agent, Address address)
    : home(home), whom(std::move(agent)), address(std::move(address)) {}

Outgoing::~Outgoing() {
    fail("the agent disconnected");
}

void Outgoing::begin() {
    if (now != State::Idle) {
        return;
    }
    now = State::Meeting;
    try {
        polyrail_link *opened = nullptr;
        check(polyrail_link_open(address.endpoints.at(tried).c_str(), home.link, &opened), "connecting");
        Link link(opened);
        check(polyrail_peers_add(home.peers, nullptr, &peer), "making a connection");
        has_peer = true;
        const std::string hello = Hello{address.id, home.agent}.encode();
        check(polyrail_peers_meet(home.peers, peer, link.get(), hello.data(), hello.size()), "connecting");
        // The peer owns it now.
        static_cast<void>(link.release());
    } catch (const Failure &failure) {
        fail(failure.what());
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
        fail(failure.what());
    }
}

void Outgoing::not_connected(const std::string &words) {
    remove_peer();
    tried += 1;
    if (tried < address.endpoints.size()) {
        now = State::Idle;
        begin();
    } else {
        fail(words);
    }
}

void Outgoing::remove_peer() {
    if (has_peer) {
        has_peer = false;
        polyrail_peers_remove(home.peers, peer);
    }
}

void Outgoing::end(const std::string &words) {
    if (now == State::Ready) {
        now = State::Ending;
        why = words;
        polyrail_peers_fail(home.peers, peer);
    }
}

bool Outgoing::is_quiet() const {
    const auto is_done = [](const Transfer *transfer) { return transfer->is_quiet(); };
    return outbox.is_quiet() && std::all_of(active.begin(), active.end(), is_done);
}

void Outgoing::fail(const std::string &words) {
    if (now == State::Failed) {
        return;
    }
    now = State::Failed;
    why = words;
    remove_peer();
    unposted.clear();
    // Fails the transfers of these notifications, which are among the active ones.
    outbox.clear(NIXL_ERR_REMOTE_DISCONNECT);
    for (Transfer *transfer : active) {
        transfer->lost();
    }
    active.clear();
}

void Outgoing::check_alive() const {
    if (now == State::Ending || now == State::Failed) {
        throw Failure(NIXL_ERR_REMOTE_DISCONNECT, "agent " + whom + ": " + why);
    }
}

void Outgoing::add(Transfer &transfer) {
    begin();
    check_alive();
    transfer.notify_by(&outbox);
    active.push_back(&transfer);
    unposted.push_back(&transfer);
}

void Outgoing::forget(Transfer &transfer) {
    active.erase(std::remove(active.begin(), active.end(), &transfer), active.end());
    unposted.erase(std::remove(unposted.begin(), unposted.end(), &transfer), unposted.end());
}

void Outgoing::notify(const std::string &message) {
    if (outbox.waiting_bytes() + message.size() > MAX_WAITING_BYTES) {
        throw Failure(NIXL_ERR_NOT_ALLOWED, "agent " + whom + " does not take notifications, and " +
                                                std::to_string(outbox.waiting_bytes()) + " bytes wait for it");
    }
    begin();
    check_alive();
    outbox.add(message, nullptr);
}

void Outgoing::pump() {
    if (now != State::Ready) {
        return;
    }
    try {
        while (!unposted.empty() && unposted.front()->post(home.peers, peer)) {
            unposted.pop_front();
        }
        outbox.pump(home.domain, home.peers, peer);
    } catch (const Failure &failure) {
        fail(failure.what());
    }
    const auto is_done = [](const Transfer *transfer) { return transfer->status() != NIXL_IN_PROG; };
    active.erase(std::remove_if(active.begin(), active.end(), is_done), active.end());
}
