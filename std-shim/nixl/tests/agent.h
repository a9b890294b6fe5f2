// An agent of NIXL, simulated without Python: its calls to an engine of the plugin, which is linked
// in.
#pragma once

#include "../src/nixl_interface.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iterator>

extern "C" nixlBackendPlugin *nixl_plugin_init();

#define REQUIRE(what)                                                                                                \
    do {                                                                                                             \
        if (!(what)) {                                                                                               \
            std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #what);                            \
            std::abort();                                                                                            \
        }                                                                                                            \
    } while (0)

template <class T> class List final : public nixlDescList<T> {
public:
    List() { this->type = DRAM_SEG; }
    void resize(const size_t &count) override { this->descs.resize(count); }
    void addDesc(const T &desc) override { this->descs.push_back(desc); }
    int getIndex(const nixlBasicDesc &) const override { return -1; }
};

constexpr size_t LENGTH = 4 << 20;

// An agent with one region.
class Agent {
public:
    Agent(const std::string &name, nixl_b_params_t parameters, bool has_thread) : name(name), memory(LENGTH) {
        nixlBackendInitParams init{name, "POLYRAIL", &parameters, has_thread, 0, {}, false};
        engine = plugin().create_engine(&init);
        REQUIRE(engine != nullptr && !engine->getInitErr());
        nixlBlobDesc whole;
        whole.addr = reinterpret_cast<uintptr_t>(memory.data());
        whole.len = LENGTH;
        whole.devId = 0;
        if (engine->registerMem(whole, DRAM_SEG, local) != NIXL_SUCCESS) {
            std::exit(1);
        }
        REQUIRE(engine->getPublicData(local, keys) == NIXL_SUCCESS);
        REQUIRE(engine->getConnInfo(address) == NIXL_SUCCESS);
    }

    ~Agent() {
        REQUIRE(engine->deregisterMem(local) == NIXL_SUCCESS);
        plugin().destroy_engine(engine);
    }

    // The region of another agent, from its metadata.
    nixlBackendMD *load(const std::string &other, uintptr_t memory_of_it, const std::string &keys_of_it) {
        nixlBlobDesc remote;
        remote.addr = memory_of_it;
        remote.len = LENGTH;
        remote.devId = 0;
        remote.metaInfo = keys_of_it;
        nixlBackendMD *loaded = nullptr;
        REQUIRE(engine->loadRemoteMD(remote, DRAM_SEG, other, loaded) == NIXL_SUCCESS);
        return loaded;
    }

    // A part of a region, of this agent or the other one.
    static nixlMetaDesc part(uintptr_t start, size_t length, nixlBackendMD *region) {
        nixlMetaDesc desc;
        desc.addr = start;
        desc.len = length;
        desc.devId = 0;
        desc.metadataP = region;
        return desc;
    }

    uintptr_t start() const { return reinterpret_cast<uintptr_t>(memory.data()); }

    static const nixlBackendPlugin &plugin() { return *nixl_plugin_init(); }

    std::string name;
    std::vector<unsigned char> memory;
    nixlBackendEngine *engine = nullptr;
    nixlBackendMD *local = nullptr;
    std::string keys;
    std::string address;
};

// A WRITE of one agent's whole memory, or of its first bytes, to another's.
class Write {
public:
    Write(Agent &from, Agent &to, nixlBackendMD *remote, size_t length) : from(from), to(to) {
        mine.addDesc(Agent::part(from.start(), length, from.local));
        theirs.addDesc(Agent::part(to.start(), length, remote));
        REQUIRE(from.engine->prepXfer(NIXL_WRITE, mine, theirs, to.name, handle, nullptr) == NIXL_SUCCESS);
    }
    ~Write() { REQUIRE(from.engine->releaseReqH(handle) == NIXL_SUCCESS); }
    Write(const Write &) = delete;
    void operator=(const Write &) = delete;

    nixl_status_t post() { return from.engine->postXfer(NIXL_WRITE, mine, theirs, to.name, handle, nullptr); }

    nixl_status_t post(const std::string &notification) {
        nixl_opt_b_args_t options{};
        options.hasNotif = true;
        options.notifMsg = notification;
        return from.engine->postXfer(NIXL_WRITE, mine, theirs, to.name, handle, &options);
    }

    nixl_status_t estimate(std::chrono::microseconds &duration) const {
        std::chrono::microseconds margin;
        nixl_cost_t method;
        return from.engine->estimateXferCost(NIXL_WRITE, mine, theirs, to.name, handle, duration, margin, method, nullptr);
    }

    // The status after at most that time.
    nixl_status_t await(nixl_status_t status, std::chrono::steady_clock::duration most) {
        const auto deadline = std::chrono::steady_clock::now() + most;
        while (status == NIXL_IN_PROG && std::chrono::steady_clock::now() < deadline) {
            status = from.engine->checkXfer(handle);
        }
        return status;
    }

private:
    Agent &from, &to;
    List<nixlMetaDesc> mine, theirs;
    nixlBackendReqH *handle = nullptr;
};

// The next notifications of an agent with their senders: at least this many.
inline notif_list_t take_at_least(Agent &agent, size_t count) {
    notif_list_t taken;
    for (const auto begin = std::chrono::steady_clock::now(); taken.size() < count;) {
        REQUIRE(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
        notif_list_t came;
        REQUIRE(agent.engine->getNotifs(came) == NIXL_SUCCESS);
        std::move(came.begin(), came.end(), std::back_inserter(taken));
    }
    return taken;
}

// Parses a parameter of both engines, or of one: a.NAME=VALUE. Returns false if it is not a
// parameter.
inline bool take(const std::string &argument, nixl_b_params_t &of_a, nixl_b_params_t &of_b) {
    const size_t equals = argument.find('=');
    if (equals == std::string::npos) {
        return false;
    }
    const std::string name = argument.substr(0, equals), value = argument.substr(equals + 1);
    if (name.compare(0, 2, "a.") == 0) {
        of_a.emplace(name.substr(2), value);
    } else if (name.compare(0, 2, "b.") == 0) {
        of_b.emplace(name.substr(2), value);
    } else {
        of_a.emplace(name, value), of_b.emplace(name, value);
    }
    return true;
}
