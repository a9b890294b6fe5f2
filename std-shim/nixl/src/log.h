// Logging to standard error, because the agent's logger is not part of the interface for plugins.
#pragma once

#include <string>

enum class LogLevel { None, Warn, Info, Trace };

// Sets the level of the process, which all engines share. Lines above this level are dropped.
void set_log_level(LogLevel level);

// Returns the text without characters that a terminal would obey: names of agents and words of peers may contain them.
std::string printable(const std::string &text);

// Logs a line of the agent with this name. Both texts are made printable.
void log_line(LogLevel level, const std::string &agent, const std::string &words);
