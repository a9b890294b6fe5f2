// Where an agent can be reached, and what two agents say when they meet: text, checked as anything from a peer is.
#pragma once

#include "library.h"

#include <string>
#include <vector>

// What one agent tells others by way of its metadata.
struct Address {
    // Of one engine, as others listen at addresses that this one had before.
    std::string id;
    // To be tried in turn, such as "10.0.0.2:7471".
    std::vector<std::string> endpoints;

    std::string encode() const;
    // Throws a Failure.
    static Address decode(const std::string &text);
};

// Both sides' first words.
struct Hello {
    // Whom it is meant for, or who answers.
    std::string id;
    // Who speaks.
    std::string agent;

    std::string encode() const;
    // Throws a Failure.
    static Hello decode(const std::string &text);
};

// 128 random bits as hexadecimal digits. Throws a Failure.
std::string random_id();

// Where to listen, for agents on `interface`; empty: all.
std::string listening_address(const std::string &interface, uint16_t port, bool is_local);

// The addresses by which others find a listener that is at `bound`.
std::vector<std::string> reachable_addresses(const std::string &bound, const std::string &interface);
