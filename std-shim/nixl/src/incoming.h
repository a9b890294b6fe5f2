// A connection that another agent made to this one. Its data needs no action on this side; its notifications
// arrive here.
#pragma once

#include "home.h"
#include "inbox.h"
#include "notifications.h"

class Incoming {
public:
    // Answers a link that was accepted. Throws a Failure, and takes the link only if it has sent the reason itself.
    Incoming(const Home &home, const std::string &id, Link &link, const Source &source, Notifications &notifications);
    ~Incoming();
    Incoming(const Incoming &) = delete;
    void operator=(const Incoming &) = delete;

    uint64_t number() const { return peer.number; }
    const std::string &agent() const { return source.agent; }
    const std::string &host() const { return source.host; }
    Inbox &messages() { return inbox; }
    // Reports to the peer what the program has taken, if that is due. Returns false if there was no room: call it again.
    bool report_taken();
    // Reports it again, because a report may be lost.
    void report_again() { reported = 0; }
    // Ends the connection. Completions that have arrived still have to be polled.
    void end();
    // Returns whether all of them were polled.
    bool is_quiet() const { return inbox.is_empty(); }

private:
    struct Peer {
        Peer(polyrail_peers *peers, polyrail_link *link);
        ~Peer() { remove(); }
        void remove();
        polyrail_peers *peers;
        uint64_t number = 0;
        bool is_there = true;
    };

    // The account of what has arrived.
    struct Account {
        Account(Notifications &notifications, uint64_t number, const Source &source);
        ~Account() { notifications.close(number); }
        Account(const Account &) = delete;
        void operator=(const Account &) = delete;
        Notifications &notifications;
        const uint64_t number;
    };

    const Source source;
    const Notifications &notifications;
    uint64_t reported = 0;
    Peer peer;
    const Account account;
    Inbox inbox;
};
