#include "log.h"

#include <atomic>
#include <cstdio>

static std::atomic<LogLevel> highest{LogLevel::Warn};

void set_log_level(LogLevel level) {
    highest = level;
}

void log_line(LogLevel level, const std::string &agent, const std::string &words) {
    if (level <= highest.load(std::memory_order_relaxed)) {
        std::fprintf(stderr, "polyrail: %s: %s\n", agent.c_str(), words.c_str());
    }
}
