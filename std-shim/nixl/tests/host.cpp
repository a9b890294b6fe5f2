// Simulates NIXL's agent without Python: two engines in one process, driven through the plugin's
// function table by several threads. Linked with the plugin's sources, so that sanitizers check
// both; needs no Python, so it also runs where only the NICs are available.
//
//   host [TURNS] [with|without] [NAME=VALUE]...    TURNS transfers of each thread (default 30);
//                                                  with a progress thread, without, or by default
//                                                  both; parameters of both engines, or of one:
//                                                  a.NAME=VALUE

#include "agent.h"

#include <atomic>
#include <random>
#include <thread>

namespace {

// Moves lists of blocks within one part of both memories, and checks them.
void move(Agent &here, Agent &there, nixlBackendMD *remote, size_t start, size_t length, int turns) {
    std::mt19937 random(static_cast<unsigned>(start + 1));
    for (int turn = 0; turn < turns; ++turn) {
        const nixl_xfer_op_t operation = turn % 2 == 0 ? NIXL_WRITE : NIXL_READ;
        const size_t block = 1 + random() % 5000;
        const size_t count = 1 + random() % (length / block);
        List<nixlMetaDesc> mine, theirs;
        for (size_t index = 0; index < count; ++index) {
            mine.addDesc(Agent::part(here.start() + start + index * block, block, here.local));
            theirs.addDesc(Agent::part(there.start() + start + (count - 1 - index) * block, block, remote));
        }
        Agent &from = operation == NIXL_WRITE ? here : there;
        for (size_t index = 0; index < count * block; ++index) {
            from.memory[start + index] = static_cast<unsigned char>(random());
        }
        nixl_opt_b_args_t args;
        args.hasNotif = true;
        args.notifMsg = here.name;
        nixlBackendReqH *handle = nullptr;
        REQUIRE(here.engine->prepXfer(operation, mine, theirs, there.name, handle, nullptr) == NIXL_SUCCESS);
        nixl_status_t status = here.engine->postXfer(operation, mine, theirs, there.name, handle, &args);
        while (status == NIXL_IN_PROG) {
            status = here.engine->checkXfer(handle);
        }
        REQUIRE(status == NIXL_SUCCESS);
        REQUIRE(here.engine->releaseReqH(handle) == NIXL_SUCCESS);
        for (size_t index = 0; index < count * block; ++index) {
            const size_t other = (count - 1 - index / block) * block + index % block;
            REQUIRE(here.memory[start + index] == there.memory[start + other]);
        }
    }
}

// Waits for one notification and returns it.
std::string await(Agent &here) {
    notif_list_t got;
    while (got.empty()) {
        REQUIRE(here.engine->getNotifs(got) == NIXL_SUCCESS);
    }
    REQUIRE(got.size() == 1);
    return got[0].first + ": " + got[0].second;
}

// A text without a period, so that parts in the wrong place are noticed.
std::string long_text() {
    std::string text;
    while (text.size() < 100'000) {
        text += std::to_string(text.size()) + ' ';
    }
    return text;
}

void run(const nixl_b_params_t &of_one, const nixl_b_params_t &of_other, bool has_thread, int turns) {
    constexpr int THREADS = 3;
    constexpr size_t PART = LENGTH / (2 * THREADS);
    Agent a("a", of_one, has_thread), b("b", of_other, has_thread);
    REQUIRE(a.engine->loadRemoteConnInfo("b", b.address) == NIXL_SUCCESS);
    REQUIRE(b.engine->loadRemoteConnInfo("a", a.address) == NIXL_SUCCESS);
    nixlBackendMD *of_a = b.load("a", a.start(), a.keys);
    nixlBackendMD *of_b = a.load("b", b.start(), b.keys);
    // Both directions at once.
    std::thread first([&] { REQUIRE(a.engine->connect("b") == NIXL_SUCCESS); });
    std::thread second([&] { REQUIRE(b.engine->connect("a") == NIXL_SUCCESS); });
    first.join(), second.join();

    const std::string text = long_text();
    REQUIRE(a.engine->genNotif("b", text) == NIXL_SUCCESS);
    REQUIRE(await(b) == "a: " + text);

    std::vector<std::thread> threads;
    for (int thread = 0; thread < THREADS; ++thread) {
        threads.emplace_back([&, thread] { move(a, b, of_b, thread * 2 * PART, PART, turns); });
        threads.emplace_back([&, thread] { move(b, a, of_a, (thread * 2 + 1) * PART, PART, turns); });
    }
    std::atomic<int> notes{0};
    const auto take = [&](Agent &agent) {
        while (notes.load() < 2 * THREADS * turns) {
            notif_list_t got;
            REQUIRE(agent.engine->getNotifs(got) == NIXL_SUCCESS);
            for (const auto &[from, said] : got) {
                // Each notification contains the name of its sender.
                REQUIRE(from == said && from == (&agent == &a ? b.name : a.name));
            }
            notes += static_cast<int>(got.size());
            std::this_thread::yield();
        }
    };
    std::thread notes_of_a([&] { take(a); }), notes_of_b([&] { take(b); });
    for (std::thread &thread : threads) {
        thread.join();
    }
    notes_of_a.join(), notes_of_b.join();
    // No other notification arrives: the next to arrive is the next to be sent.
    REQUIRE(notes.load() == 2 * THREADS * turns);
    REQUIRE(a.engine->genNotif("b", "last") == NIXL_SUCCESS && b.engine->genNotif("a", "last") == NIXL_SUCCESS);
    REQUIRE(await(b) == "a: last" && await(a) == "b: last");

    REQUIRE(a.engine->disconnect("b") == NIXL_SUCCESS);
    REQUIRE(a.engine->genNotif("b", "") == NIXL_ERR_NOT_FOUND);
    REQUIRE(a.engine->unloadMD(of_b) == NIXL_SUCCESS);
    REQUIRE(b.engine->unloadMD(of_a) == NIXL_SUCCESS);
}

// An engine whose constructor failed reports that, and refuses all calls.
void refuse() {
    nixl_b_params_t wrong{{"rails", "none"}};
    nixlBackendInitParams init{"c", "POLYRAIL", &wrong, false, 0, {}, false};
    nixlBackendEngine *engine = Agent::plugin().create_engine(&init);
    REQUIRE(engine != nullptr && engine->getInitErr());
    std::string address;
    REQUIRE(engine->getConnInfo(address) == NIXL_ERR_BACKEND);
    Agent::plugin().destroy_engine(engine);
}

} // namespace

int main(int count, char **arguments) {
    nixl_b_params_t of_a, of_b;
    int turns = 30;
    std::vector<bool> modes{false, true};
    for (int index = 1; index < count; ++index) {
        const std::string argument = arguments[index];
        if (argument == "with" || argument == "without") {
            modes = {argument == "with"};
        } else if (!take(argument, of_a, of_b)) {
            turns = std::atoi(arguments[index]);
        }
    }
    refuse();
    for (const bool has_thread : modes) {
        run(of_a, of_b, has_thread, turns);
        std::printf("with%s a progress thread: moved and checked\n", has_thread ? "" : "out");
    }
}
