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

// How long requests may wait while all rails are away.
constexpr uint64_t RAILS_AWAY_MS = 20'000;

// Of the plugin for NCCL, which reads the same environment.
const char *const OF_OTHERS[] = {"QUEUE_PAIRS_PER_RAIL", "SPLIT_THRESHOLD", "SEPARATE_SIGNAL", "RAIL_TIMEOUT_MS",
                                 "LINK_TIMEOUT_MS",     "FLUSH"};

// How it was called where it was given, and what it says.
struct Value {
    const std::string &name;
    const std::string &text;

    [[noreturn]] void malformed(const std::string &expected) const {
        throw SettingError(name + "=\"" + text + "\": " + expected + " is expected");
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

    // The second of the pair whose first it is.
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

    // Bytes of a fragment: a number, perhaps with K or M behind it.
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
    // As a variable, behind the prefix; in lower case as a parameter.
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
             {{"verbs", POLYRAIL_BACKEND_VERBS}, {"software", POLYRAIL_BACKEND_SOFTWARE}});
     }},
    {"DEVICES", "", [](Settings &s, const Value &v) { s.devices = v.some_text(); }},
    {"GID_INDEX", "", [](Settings &s, const Value &v) { s.gid_index = static_cast<int>(v.number(0, 255)); }},
    {"RAILS", "4", [](Settings &s, const Value &v) { s.endpoint.rails = narrow(v.number(1, 8)); }},
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
    {"TOKEN", "", [](Settings &s, const Value &v) { s.token = v.some_text(); }},
    {"INTERFACE", "", [](Settings &s, const Value &v) { s.interface = v.some_text(); }},
    {"PORT", "0", [](Settings &s, const Value &v) { s.port = static_cast<uint16_t>(v.number(0, 65535)); }},
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
        throw SettingError(name + " is no setting of this plugin");
    }
    setting->take(settings, Value{name, text});
}

const Setting *find(const std::function<bool(const char *)> &is_it) {
    const auto found = std::find_if(std::begin(SETTINGS), std::end(SETTINGS),
                                    [&](const Setting &setting) { return is_it(setting.name); });
    return found == std::end(SETTINGS) ? nullptr : found;
}

void take_variable(Settings &settings, const std::string &name, const std::string &text) {
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
    settings.endpoint.rail_failure = POLYRAIL_RAIL_FAILURE_REROUTE;
    // A moment without any rail ends no connection; longer, and the peer counts as gone.
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
        // Empty is what `defaults` shows where nothing is said, and what comes back from there.
        const Setting *setting = find([&name = name](const char *known) { return name == lower(known); });
        if (setting == nullptr || !text.empty() || *setting->fallback != 0) {
            take(settings, setting, name, text);
        }
    }
    // One rail has none to take over.
    if (settings.endpoint.rails == 1) {
        settings.endpoint.rail_failure = POLYRAIL_RAIL_FAILURE_FATAL;
    }
    return settings;
}

nixl_b_params_t Settings::defaults() {
    nixl_b_params_t parameters;
    for (const Setting &setting : SETTINGS) {
        // Callers pass them back: they must not undo what a variable says.
        const char *variable = std::getenv((PREFIX + std::string(setting.name)).c_str());
        parameters.emplace(lower(setting.name), variable == nullptr ? setting.fallback : variable);
    }
    return parameters;
}
