// A connection that another agent made to this one. Its data needs no action on this side; its notifications
// arrive here.
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
    // Ends the connection. Completions that have arrived still have to be polled.
    void end();
    // Returns whether all of them were polled.
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
