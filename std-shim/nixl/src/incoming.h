// A connection that another agent made to this one: its data goes past this side, its notifications end here.
#pragma once

#include "home.h"
#include "inbox.h"

class Incoming {
public:
    // Answers a link that was accepted. Throws a Failure.
    Incoming(const Home &home, const std::string &id, Link link, const std::string &agent, Inbox::Sink sink);
    ~Incoming();
    Incoming(const Incoming &) = delete;
    void operator=(const Incoming &) = delete;

    uint64_t number() const { return peer.number; }
    const std::string &agent() const { return whom; }
    Inbox &messages() { return inbox; }
    // Gives it up: what has come is still to be polled.
    void end();
    // Whether all of it was.
    bool is_quiet() const { return inbox.is_empty(); }

private:
    struct Peer {
        explicit Peer(polyrail_peers *peers);
        ~Peer() { remove(); }
        void remove();
        polyrail_peers *peers;
        uint64_t number = 0;
        bool is_there = true;
    };

    const std::string whom;
    Peer peer;
    Inbox inbox;
};
