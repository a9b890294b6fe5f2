// Settings: from variables POLYRAIL_..., and from the parameters that come with create_backend, which come first.
#pragma once

#include "log.h"
#include "nixl_interface.h"

#include <polyrail.h>
#include <stdexcept>

// A setting that is unknown or malformed: the words name it.
class SettingError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Settings {
    uint32_t backend = POLYRAIL_BACKEND_VERBS;
    // Names, separated by commas; empty: all there are.
    std::string devices;
    int gid_index = -1;
    // Of a software device; 0: as fast as memory is.
    uint64_t software_bytes_per_second = 0;
    polyrail_endpoint_options endpoint{};
    polyrail_link_options link{};
    // Empty: nobody is asked.
    std::string token;
    // The network device by whose addresses others find this agent; empty: all.
    std::string interface;
    uint16_t port = 0;
    LogLevel log_level = LogLevel::Warn;

    // Throws SettingError.
    static Settings read(const nixl_b_params_t &parameters);
    // Names of parameters, with what holds if no parameter says otherwise.
    static nixl_b_params_t defaults();
};
