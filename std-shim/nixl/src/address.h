// Addresses of agents, and the hellos that two agents exchange when they connect. Both are text, and are checked
// like all input from peers.
#pragma once

#include "library.h"

#include <string>
#include <vector>

// The address of an agent, which is a part of its metadata.
struct Address {
    // Identifies the engine, because another engine may later listen at the same addresses.
    std::string id;
    // Addresses of one listener, such as "10.0.0.2:7471", the best first.
    std::vector<std::string> endpoints;

    bool operator==(const Address &other) const { return id == other.id && endpoints == other.endpoints; }
    std::string encode() const;
    // Throws a Failure.
    static Address decode(const std::string &text);
};

// The first message of each side.
struct Hello {
    // Id of the engine to which it is addressed, or of the engine that answers.
    std::string id;
    // Name of the sending agent.
    std::string agent;

    std::string encode() const;
    // Throws a Failure.
    static Hello decode(const std::string &text);
};

// Returns 128 random bits as hexadecimal digits. Throws a Failure.
std::string random_id();

// Returns the address to listen at: the best one of `interface`, or all; all of this process if `is_local`.
std::string listening_address(const std::string &interface, uint16_t port, bool is_local);

// Returns the addresses by which others reach a listener that is bound to `bound`. Throws a Failure if there is none.
std::vector<std::string> reachable_addresses(const std::string &bound);

// Returns the addresses as a list for polyrail_link_open.
std::string joined(const std::vector<std::string> &endpoints);
