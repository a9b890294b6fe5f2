#include "settings.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <strings.h>

extern char **environ;

namespace {

constexpr char PREFIX[] = "POLYRAIL_";
constexpr size_t PREFIX_BYTES = sizeof(PREFIX) - 1;
// The setting that is never shown.
constexpr char SECRET[] = "TOKEN";

// The number of rails by default.
constexpr char RAILS[] = "4";

// How long requests may wait while no rail is in service.
constexpr uint64_t RAILS_AWAY_MS = 20'000;

// Settings of the plugin for NCCL, which reads the same environment, and of libpolyrail (METRICS).
const char *const OF_OTHERS[] = {"QUEUE_PAIRS_PER_RAIL", "SPLIT_THRESHOLD", "SEPARATE_SIGNAL", "RAIL_TIMEOUT_MS",
                                 "LINK_TIMEOUT_MS",     "FLUSH",           "RAIL_IDS",
                                 "METRICS"};

// A value, with the name of its variable or parameter.
struct Value {
    const std::string &name;
    const std::string &text;

    [[noreturn]] void malformed(const std::string &expected) const {
        throw SettingError(name + "=\"" + text + "\": expected " + expected);
    }

    uint64_t number(uint64_t least, uint64_t most) const {
        char *end = nullptr;
        errno = 0;
        const bool begins_well = !text.empty() && text[0] >= '0' && text[0] <= '9';
        const uint64_t number = std::strtoull(text.c_str(), &end, 10);
        if (!begins_well || *end != 0 || errno != 0 || number < least || number > most) {
            malformed("a number from " + std::to_string(least) + " to " + std::to_string(most));
        }
        return number;
    }

    // Returns the value that belongs to this name.
    template <class T> T one_of(std::initializer_list<std::pair<const char *, T>> choices) const {
        std::string names;
        for (const auto &[choice, meaning] : choices) {
            if (text == choice) {
                return meaning;
            }
            names += (names.empty() ? "" : " or ") + std::string(choice);
        }
        malformed(names);
    }

    std::string some_text() const {
        if (text.empty() || text.find('\0') != std::string::npos) {
            malformed("a name");
        }
        return text;
    }

    // Returns a secret, which no message contains.
    std::string secret() const {
        if (text.empty() || text.find('\0') != std::string::npos) {
            throw SettingError(name + ": expected a text without 0 bytes");
        }
        return text;
    }

    // Parses names of devices and their rates in Mbit/s.
    std::map<std::string, uint32_t> rates() const {
        const char *const expected = "a list of devices and rates in Mbit/s, such as mlx5_0=400000,mlx5_1=100000";
        std::map<std::string, uint32_t> rates;
        for (size_t begin = 0; begin <= text.size();) {
            const size_t end = std::min(text.find(',', begin), text.size());
            const std::string rate = text.substr(begin, end - begin);
            const size_t equals = rate.find('=');
            const std::string digits = equals == std::string::npos ? "" : rate.substr(equals + 1);
            const bool is_number = !digits.empty() && digits.size() < 10 &&
                                   digits.find_first_not_of("0123456789") == std::string::npos;
            const uint32_t mbps = is_number ? static_cast<uint32_t>(std::stoul(digits)) : 0;
            if (equals == 0 || mbps == 0) {
                malformed(expected);
            }
            rates[rate.substr(0, equals)] = mbps;
            begin = end + 1;
        }
        return rates;
    }

    // Parses the length of a fragment: a number, optionally with the suffix K or M.
    uint32_t fragment_bytes() const {
        const char unit = text.empty() ? 0 : text.back();
        const unsigned bits = unit == 'K' ? 10 : unit == 'M' ? 20 : 0;
        const std::string digits = bits == 0 ? text : text.substr(0, text.size() - 1);
        const bool is_number = !digits.empty() && digits.size() < 10 &&
                               digits.find_first_not_of("0123456789") == std::string::npos;
        const uint64_t bytes = is_number ? std::stoull(digits) << bits : 0;
        if (bytes < 128 || bytes > (1U << 30) || bytes % 128 != 0) {
            malformed("a multiple of 128 up to 1024M, such as 64K");
        }
        return static_cast<uint32_t>(bytes);
    }
};

struct Setting {
    // The name of the variable without its prefix; in lower case, the name of the parameter.
    const char *name;
    const char *fallback;
    void (*take)(Settings &, const Value &);
};

uint32_t narrow(uint64_t number) {
    return static_cast<uint32_t>(number);
}

const Setting SETTINGS[] = {
    {"BACKEND", "verbs",
     [](Settings &s, const Value &v) {
         s.backend = v.one_of<uint32_t>(
             {{"verbs", POLYRAIL_BACKEND_VERBS}, {"tcp", POLYRAIL_BACKEND_TCP}, {"software", POLYRAIL_BACKEND_SOFTWARE}});
     }},
    {"DEVICES", "", [](Settings &s, const Value &v) { s.devices = v.some_text(); }},
    {"GID_INDEX", "", [](Settings &s, const Value &v) { s.gid_index = static_cast<int>(v.number(0, 255)); }},
    {"NEAR", "", [](Settings &s, const Value &v) { s.near = v.some_text(); }},
    {"RAILS", RAILS, [](Settings &s, const Value &v) { s.endpoint.rails = narrow(v.number(1, 8)); }},
    {"RAIL_WEIGHTS", "auto",
     [](Settings &s, const Value &v) {
         s.endpoint.rail_weights = v.one_of<uint32_t>({{"auto", POLYRAIL_RAIL_WEIGHTS_AUTO},
                                                       {"equal", POLYRAIL_RAIL_WEIGHTS_EQUAL},
                                                       {"rates", POLYRAIL_RAIL_WEIGHTS_RATES},
                                                       {"measured", POLYRAIL_RAIL_WEIGHTS_MEASURED}});
     }},
    {"DEVICE_MBPS", "", [](Settings &s, const Value &v) { s.device_mbps = v.rates(); }},
    {"FRAGMENT", "64K", [](Settings &s, const Value &v) { s.endpoint.max_msg_size = v.fragment_bytes(); }},
    {"TRAFFIC_CLASS", "0",
     [](Settings &s, const Value &v) { s.endpoint.traffic_class = narrow(v.number(0, 255)); }},
    {"SERVICE_LEVEL", "0",
     [](Settings &s, const Value &v) { s.endpoint.service_level = narrow(v.number(0, 15)); }},
    {"QP_TIMEOUT", "18", [](Settings &s, const Value &v) { s.endpoint.timeout = narrow(v.number(1, 31)); }},
    {"RETRIES", "7",
     [](Settings &s, const Value &v) {
         const uint64_t retries = v.number(0, 7);
         s.endpoint.retry_cnt = retries == 0 ? POLYRAIL_NO_RETRY : narrow(retries);
     }},
    {"HEALING", "on",
     [](Settings &s, const Value &v) {
         s.endpoint.rail_failure = v.one_of<uint32_t>(
             {{"on", POLYRAIL_RAIL_FAILURE_REROUTE}, {"off", POLYRAIL_RAIL_FAILURE_FATAL}});
     }},
    {"STALL_TIMEOUT_MS", "10000",
     [](Settings &s, const Value &v) { s.endpoint.stall_timeout_ms = v.number(1, UINT32_MAX); }},
    {"CONNECT_TIMEOUT_MS", "10000",
     [](Settings &s, const Value &v) {
         s.link.connect_ms = s.link.message_ms = narrow(v.number(1, UINT32_MAX));
     }},
    {SECRET, "", [](Settings &s, const Value &v) { s.token = v.secret(); }},
    {"INTERFACE", "", [](Settings &s, const Value &v) { s.interface = v.some_text(); }},
    {"PORT", "0", [](Settings &s, const Value &v) { s.port = static_cast<uint16_t>(v.number(0, 65535)); }},
    {"TCP_PORT", "0",
     [](Settings &s, const Value &v) { s.tcp_port = static_cast<uint16_t>(v.number(0, 65535)); }},
    {"SOFTWARE_BYTES_PER_SECOND", "0",
     [](Settings &s, const Value &v) { s.software_bytes_per_second = v.number(0, UINT64_MAX); }},
    {"LOG_LEVEL", "warn",
     [](Settings &s, const Value &v) {
         s.log_level = v.one_of<LogLevel>({{"none", LogLevel::None},
                                           {"warn", LogLevel::Warn},
                                           {"info", LogLevel::Info},
                                           {"trace", LogLevel::Trace}});
     }},
};

std::string lower(std::string name) {
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    return name;
}

void take(Settings &settings, const Setting *setting, const std::string &name, const std::string &text) {
    if (setting == nullptr) {
        throw SettingError(name + " is not a setting of this plugin");
    }
    setting->take(settings, Value{name, text});
}

const Setting *find(const std::function<bool(const char *)> &is_it) {
    const auto found = std::find_if(std::begin(SETTINGS), std::end(SETTINGS),
                                    [&](const Setting &setting) { return is_it(setting.name); });
    return found == std::end(SETTINGS) ? nullptr : found;
}

// Returns whether Kubernetes made the variable, for a Service whose name begins with "polyrail".
bool is_of_service(const std::string &name, const char *value) {
    uint32_t is_service = 0;
    // Refused if it is not UTF-8, and then it is not one.
    return polyrail_is_service_variable(name.c_str(), value, &is_service) == POLYRAIL_CODE_OK && is_service != 0;
}

void take_variable(Settings &settings, const std::string &name, const std::string &text) {
    if (is_of_service(name, text.c_str())) {
        settings.ignored += (settings.ignored.empty() ? "" : ", ") + name;
        return;
    }
    const std::string key = name.substr(PREFIX_BYTES);
    if (std::any_of(std::begin(OF_OTHERS), std::end(OF_OTHERS), [&](const char *other) { return key == other; })) {
        return;
    }
    take(settings, find([&](const char *known) { return key == known; }), name, text);
}

} // namespace

Settings Settings::read(const nixl_b_params_t &parameters) {
    Settings settings;
    settings.endpoint.size = sizeof(settings.endpoint);
    settings.endpoint.rails = narrow(std::strtoul(RAILS, nullptr, 10));
    settings.endpoint.rail_failure = POLYRAIL_RAIL_FAILURE_REROUTE;
    // A short time without any rail does not end the connection. After a longer one, the peer is
    // considered gone.
    settings.endpoint.min_rails = POLYRAIL_NO_RAIL_NEEDED;
    settings.endpoint.rail_timeout_ms = settings.endpoint.fence_timeout_ms = RAILS_AWAY_MS;
    settings.link.size = sizeof(settings.link);
    for (char **variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
        const char *equals = std::strchr(*variable, '=');
        if (equals != nullptr && std::strncmp(*variable, PREFIX, PREFIX_BYTES) == 0) {
            take_variable(settings, std::string(*variable, equals - *variable), equals + 1);
        }
    }
    for (const auto &[name, text] : parameters) {
        // An empty value means the default: NIXL passes the values of `defaults` back.
        const Setting *setting = find([&name = name](const char *known) { return name == lower(known); });
        if (setting == nullptr || !text.empty() || *setting->fallback != 0) {
            take(settings, setting, name, text);
        }
    }
    // With one rail, no other rail can take over.
    if (settings.endpoint.rails == 1) {
        settings.endpoint.rail_failure = POLYRAIL_RAIL_FAILURE_FATAL;
    }
    return settings;
}

nixl_b_params_t Settings::defaults() {
    nixl_b_params_t parameters;
    for (const Setting &setting : SETTINGS) {
        // Empty if a variable is set: callers pass the defaults back, and these must not override
        // the variable.
        const std::string name = PREFIX + std::string(setting.name);
        const char *variable = std::getenv(name.c_str());
        const bool is_set = variable != nullptr && !is_of_service(name, variable);
        const bool is_shown = is_set && setting.name != SECRET;
        parameters.emplace(lower(setting.name), is_shown ? variable : setting.fallback);
    }
    return parameters;
}
