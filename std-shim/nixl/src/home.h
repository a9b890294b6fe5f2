// The part of an engine that its connections use.
#pragma once

#include "library.h"

#include <string>

struct Home {
    polyrail_domain *domain;
    polyrail_peers *peers;
    const polyrail_link_options *link;
    // Rate of the devices that carry rails, in Mbit/s; 0: unknown.
    uint64_t megabits;
    // The agent's name.
    std::string agent;
};
