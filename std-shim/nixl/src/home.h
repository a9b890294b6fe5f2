// What connections need of their engine.
#pragma once

#include "library.h"

#include <string>

struct Home {
    polyrail_domain *domain;
    polyrail_peers *peers;
    const polyrail_link_options *link;
    // The agent's name.
    std::string agent;
};
