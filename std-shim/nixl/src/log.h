// What the plugin has to say, on standard error: the agent's logger is no part of the interface for plugins.
#pragma once

#include <string>

enum class LogLevel { None, Warn, Info, Trace };

// For the process: the plugin's engines share it. Lines above this level are dropped.
void set_log_level(LogLevel level);

// One line, of the agent with this name.
void log_line(LogLevel level, const std::string &agent, const std::string &words);
