// Settings from environment variables POLYRAIL_..., and from the parameters of create_backend, which take
// precedence.
#pragma once

#include "log.h"
#include "nixl_interface.h"

#include <map>
#include <polyrail.h>
#include <stdexcept>

// An unknown or malformed setting, which the message names.
class SettingError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Settings {
    uint32_t backend = POLYRAIL_BACKEND_VERBS;
    // Names, separated by commas; empty: all devices.
    std::string devices;
    int gid_index = -1;
    // What the first RDMA devices are near to, without names: a PCI address, "thread" or "nothing"; empty: "thread".
    std::string near;
    // Rate of a software device; 0: unlimited.
    uint64_t software_bytes_per_second = 0;
    // Rates in Mbit/s that replace those of devices, by their names.
    std::map<std::string, uint32_t> device_mbps;
    polyrail_endpoint_options endpoint{};
    polyrail_link_options link{};
    // Empty: peers need no token.
    std::string token;
    // The network interface at whose best address others connect to this agent; empty: at all addresses.
    std::string interface;
    uint16_t port = 0;
    // Where devices over TCP accept connections of queue pairs; 0: chosen.
    uint16_t tcp_port = 0;
    LogLevel log_level = LogLevel::Warn;
    // Names of variables that are not settings, separated by commas.
    std::string ignored;

    // Throws SettingError.
    static Settings read(const nixl_b_params_t &parameters);
    // Returns the parameters with their default values.
    static nixl_b_params_t defaults();
};
