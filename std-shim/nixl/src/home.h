// The part of an engine that its connections use.
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
