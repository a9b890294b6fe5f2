#include "log.h"

#include <atomic>
#include <cstdio>
#include <polyrail.h>

static std::atomic<LogLevel> highest{LogLevel::Warn};

void set_log_level(LogLevel level) {
    highest = level;
}

std::string printable(const std::string &text) {
    std::string escaped(6 * text.size() + 1, '\0');
    size_t length = 0;
    if (polyrail_printable(text.data(), text.size(), escaped.data(), escaped.size(), &length) != POLYRAIL_CODE_OK) {
        return "";
    }
    escaped.resize(length);
    return escaped;
}

void log_line(LogLevel level, const std::string &agent, const std::string &words) {
    if (level <= highest.load(std::memory_order_relaxed)) {
        std::fprintf(stderr, "polyrail: %s: %s\n", printable(agent).c_str(), printable(words).c_str());
    }
}
