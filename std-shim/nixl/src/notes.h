// What two engines send each other over the link of a connection.
#pragma once

#include "library.h"

#include <string>

struct Note {
    enum class Kind {
        // The cost of all notifications that the receiver's program has taken: see notifications.h.
        Taken,
        // The sender's side of the connection failed, for a reason in words. A side that leaves closes the link without
        // this note.
        Ended,
    };

    static Note taken(uint64_t total) { return Note{Kind::Taken, total, ""}; }
    static Note ended(const std::string &words) { return Note{Kind::Ended, 0, words}; }

    std::string encode() const;
    // Throws a Failure.
    static Note decode(const std::string &text);
    // Sends it. Returns false if there is no room now, or no link any more.
    bool send(polyrail_peers *peers, uint64_t peer) const;

    Kind kind;
    uint64_t total;
    std::string words;
};
