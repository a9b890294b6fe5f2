// What NIXL's loader looks for.

#include "engine.h"

#include <new>

namespace {

constexpr char NAME[] = "POLYRAIL";

nixlBackendEngine *create(const nixlBackendInitParams *init) {
    try {
        return new Engine(init);
    } catch (const std::exception &failure) {
        log_line(LogLevel::Warn, init->localAgent, failure.what());
        return nullptr;
    }
}

void destroy(nixlBackendEngine *engine) {
    delete engine;
}

const char *version() {
    static const std::string text = [] {
        const uint32_t number = polyrail_version();
        return std::to_string(number >> 16) + '.' + std::to_string(number >> 8 & 255) + '.' +
               std::to_string(number & 255);
    }();
    return text.c_str();
}

} // namespace

extern "C" __attribute__((visibility("default"))) nixlBackendPlugin *nixl_plugin_init() {
    static nixlBackendPlugin plugin{
        NIXL_PLUGIN_API_VERSION,
        create,
        destroy,
        [] { return NAME; },
        version,
        [] { return Settings::defaults(); },
        [] { return nixl_mem_list_t{DRAM_SEG, VRAM_SEG}; },
    };
    return &plugin;
}

extern "C" __attribute__((visibility("default"))) void nixl_plugin_fini() {}
