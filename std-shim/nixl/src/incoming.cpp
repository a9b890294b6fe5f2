#include "incoming.h"
#include "address.h"

Incoming::Peer::Peer(polyrail_peers *peers) : peers(peers) {
    check(polyrail_peers_add(peers, nullptr, &number), "making a connection");
}

void Incoming::Peer::remove() {
    if (is_there) {
        is_there = false;
        polyrail_peers_remove(peers, number);
    }
}

Incoming::Incoming(const Home &home, const std::string &id, Link link, const std::string &agent, Inbox::Sink sink)
    : whom(agent), peer(home.peers), inbox(home.domain, home.peers, peer.number, std::move(sink)) {
    const std::string hello = Hello{id, home.agent}.encode();
    check(polyrail_peers_meet(home.peers, peer.number, link.get(), hello.data(), hello.size()), "answering an agent");
    static_cast<void>(link.release());
}

void Incoming::end() {
    inbox.end();
    polyrail_peers_fail(peer.peers, peer.number);
}

Incoming::~Incoming() {
    // Before the memory of its receives is freed.
    peer.remove();
}
