#include "incoming.h"
#include "address.h"
#include "notes.h"

Incoming::Peer::Peer(polyrail_peers *peers, polyrail_link *link) : peers(peers) {
    check(polyrail_peers_add_toward(peers, nullptr, link, &number), "making a connection");
}

void Incoming::Peer::remove() {
    if (is_there) {
        is_there = false;
        polyrail_peers_remove(peers, number);
    }
}

Incoming::Account::Account(Notifications &notifications, uint64_t number, const Source &source)
    : notifications(notifications), number(number) {
    notifications.open(number, source);
}

Incoming::Incoming(const Home &home, const std::string &id, Link &link, const Source &source,
                   Notifications &notifications)
    : source(source), notifications(notifications), peer(home.peers, link.get()), account(notifications, peer.number, source),
      inbox(home.domain, home.peers, peer.number, notifications) {
    const std::string hello = Hello{id, home.agent}.encode();
    check(polyrail_peers_meet(home.peers, peer.number, link.get(), hello.data(), hello.size()), "answering an agent");
    static_cast<void>(link.release());
}

bool Incoming::report_taken() {
    const uint64_t taken = inbox.received() - notifications.untaken(peer.number);
    if (taken - reported < WINDOW_STEP) {
        return true;
    }
    if (!Note::taken(taken).send(peer.peers, peer.number)) {
        return false;
    }
    reported = taken;
    return true;
}

void Incoming::end() {
    inbox.end();
    polyrail_peers_fail(peer.peers, peer.number);
}

Incoming::~Incoming() {
    // Before the memory of its receives is freed.
    peer.remove();
}
