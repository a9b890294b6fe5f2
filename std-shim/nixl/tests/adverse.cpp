// The engine under adverse conditions: threads that cannot be created, threads that call all the
// time, rails that all fail at once, and peers that leave as soon as their last notification is
// acknowledged. Linked with the plugin's sources; the linker wraps functions of the library
// (--wrap).

#include "agent.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <mutex>
#include <polyrail.h>
#include <pthread.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Number of threads that may still be created.
std::atomic<int> threads_left{1 << 30};

// Peers of all engines, and whether the next poll of links fails all of their rails.
std::mutex peers_mutex;
std::vector<std::pair<polyrail_peers *, uint64_t>> peers_made;
std::atomic<bool> is_cutting{false};
// The polling object whose polls return nothing until a peer is gone, and in two polls after that:
// like polls whose completions finish no request.
std::atomic<const polyrail_peers *> blind{nullptr};
std::atomic<int> blind_polls{0};
// The polling object whose completions are held back, and how many polls return one of them nevertheless.
std::atomic<const polyrail_peers *> holding{nullptr};
std::vector<polyrail_completion> held;
int singles = 0;
// The only thread whose polls return them; none: any thread.
std::thread::id receiver;
// The polling object whose next event is that the connection with this number failed.
std::atomic<const polyrail_peers *> failing{nullptr};
std::atomic<uint64_t> failing_peer{0};
// The number of calls that get an error instead of an event.
std::atomic<int> event_errors{0};
// The number of SENDs that were posted.
std::atomic<int> sends{0};

const nixl_b_params_t PARAMETERS{{"backend", "software"}, {"rails", "2"}, {"log_level", "none"}};

} // namespace

extern "C" {

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) noexcept {
    using Create = int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
    return threads_left.fetch_sub(1) > 0 ? create(thread, attributes, body, argument) : EAGAIN;
}

polyrail_code __real_polyrail_peers_add(polyrail_peers *, const polyrail_endpoint_options *, uint64_t *);
polyrail_code __real_polyrail_peers_add_toward(polyrail_peers *, const polyrail_endpoint_options *, polyrail_link *,
                                               uint64_t *);
polyrail_code __real_polyrail_peers_drive(polyrail_peers *);

polyrail_code __wrap_polyrail_peers_add(polyrail_peers *peers, const polyrail_endpoint_options *options,
                                        uint64_t *peer) {
    const polyrail_code code = __real_polyrail_peers_add(peers, options, peer);
    const std::lock_guard<std::mutex> guard(peers_mutex);
    peers_made.emplace_back(peers, *peer);
    return code;
}

polyrail_code __wrap_polyrail_peers_add_toward(polyrail_peers *peers, const polyrail_endpoint_options *options,
                                               polyrail_link *link, uint64_t *peer) {
    const polyrail_code code = __real_polyrail_peers_add_toward(peers, options, link, peer);
    const std::lock_guard<std::mutex> guard(peers_mutex);
    peers_made.emplace_back(peers, *peer);
    return code;
}

// The engine calls this with its mutex locked, so no other thread uses these peers.
polyrail_code __wrap_polyrail_peers_drive(polyrail_peers *peers) {
    const std::lock_guard<std::mutex> guard(peers_mutex);
    if (is_cutting && !peers_made.empty() && peers_made.front().first == peers) {
        for (uint32_t rail = 0; rail < 2; ++rail) {
            REQUIRE(polyrail_peers_fail_rail(peers, peers_made.front().second, rail) == POLYRAIL_CODE_OK);
        }
        is_cutting = false;
    }
    return __real_polyrail_peers_drive(peers);
}

polyrail_code __real_polyrail_peers_poll(polyrail_peers *, polyrail_completion *, size_t, size_t *);
polyrail_code __real_polyrail_peers_poll_armed(polyrail_peers *, polyrail_completion *, size_t, size_t *);
polyrail_code __real_polyrail_peers_next_event(polyrail_peers *, polyrail_event *, char *, size_t);

// Holds back the completions of a poll.
static void hold(const polyrail_peers *peers, polyrail_completion *completions, size_t *count) {
    const std::lock_guard<std::mutex> guard(peers_mutex);
    if (holding == peers) {
        held.insert(held.end(), completions, completions + *count);
        const bool is_receiver = receiver == std::thread::id() || receiver == std::this_thread::get_id();
        *count = singles > 0 && !held.empty() && is_receiver ? 1 : 0;
        singles -= static_cast<int>(*count);
        std::copy_n(held.begin(), *count, completions);
        held.erase(held.begin(), held.begin() + static_cast<ptrdiff_t>(*count));
    }
}

polyrail_code __wrap_polyrail_peers_poll(polyrail_peers *peers, polyrail_completion *completions, size_t room,
                                         size_t *count) {
    if (blind == peers && --blind_polls >= 0) {
        *count = 0;
        return POLYRAIL_CODE_OK;
    }
    const polyrail_code code = __real_polyrail_peers_poll(peers, completions, room, count);
    hold(peers, completions, count);
    return code;
}

polyrail_code __wrap_polyrail_peers_poll_armed(polyrail_peers *peers, polyrail_completion *completions, size_t room,
                                               size_t *count) {
    if (blind == peers && blind_polls > 0) {
        *count = 0;
        return POLYRAIL_CODE_OK;
    }
    const polyrail_code code = __real_polyrail_peers_poll_armed(peers, completions, room, count);
    hold(peers, completions, count);
    return code;
}

polyrail_code __wrap_polyrail_peers_next_event(polyrail_peers *peers, polyrail_event *event, char *bytes,
                                               size_t room) {
    if (event_errors > 0 && --event_errors >= 0) {
        return POLYRAIL_CODE_TOO_SHORT;
    }
    if (failing == peers) {
        failing = nullptr;
        // The next poll comes before the engine looks whether the connection has ended.
        const std::lock_guard<std::mutex> guard(peers_mutex);
        singles = 1;
        event->kind = POLYRAIL_EVENT_KIND_FAILED;
        event->code = POLYRAIL_CODE_FAILED;
        event->peer = failing_peer;
        event->length = 0;
        return POLYRAIL_CODE_OK;
    }
    const polyrail_code code = __real_polyrail_peers_next_event(peers, event, bytes, room);
    // Not connected: the peer was connected, and left before this engine noticed.
    const bool is_end = code == POLYRAIL_CODE_OK && (event->kind == POLYRAIL_EVENT_KIND_LINK_LOST ||
                                                     event->kind == POLYRAIL_EVENT_KIND_NOT_CONNECTED);
    if (blind == peers && is_end) {
        blind_polls = 2;
    }
    return code;
}

polyrail_code __real_polyrail_peers_post(polyrail_peers *, uint64_t, const polyrail_request *);

polyrail_code __wrap_polyrail_peers_post(polyrail_peers *peers, uint64_t peer, const polyrail_request *request) {
    const polyrail_code code = __real_polyrail_peers_post(peers, peer, request);
    sends += code == POLYRAIL_CODE_OK && request->opcode == POLYRAIL_OPCODE_SEND;
    return code;
}
}

namespace {

int descriptors() {
    int count = 0;
    DIR *const folder = opendir("/proc/self/fd");
    while (readdir(folder) != nullptr) {
        ++count;
    }
    closedir(folder);
    return count;
}

// A set-up that is refused leaves nothing behind.
void set_up_without_threads() {
    for (int threads = 0; threads < 3; ++threads) {
        int before = 0;
        for (int turn = 0; turn < 5; ++turn) {
            threads_left = threads;
            nixl_b_params_t parameters = PARAMETERS;
            nixlBackendInitParams init{"a", "POLYRAIL", &parameters, true, 0, {}, false};
            nixlBackendEngine *const engine = Agent::plugin().create_engine(&init);
            threads_left = 1 << 30;
            REQUIRE(engine != nullptr);
            Agent::plugin().destroy_engine(engine);
            // Threads of the library may still hold some.
            for (int wait = 0; turn > 0 && descriptors() > before && wait < 5000; ++wait) {
                std::this_thread::sleep_for(milliseconds(1));
            }
            before = turn == 0 ? descriptors() : before;
        }
        REQUIRE(descriptors() <= before);
    }
}

// A connection that cannot be started leaves no resources behind.
void connect_without_threads() {
    Agent a("a", PARAMETERS, true), b("b", PARAMETERS, true);
    REQUIRE(a.engine->loadRemoteConnInfo("b", b.address) == NIXL_SUCCESS);
    threads_left = 0;
    const nixl_status_t notified = a.engine->genNotif("b", "swallowed");
    threads_left = 1 << 30;
    // It is this agent that lacks something.
    REQUIRE(notified == NIXL_ERR_BACKEND);

    nixlBackendMD *const remote = a.load("b", b.start(), b.keys);
    {
        threads_left = 0;
        Write write(a, b, remote, 100);
        const nixl_status_t posted = write.post();
        threads_left = 1 << 30;
        REQUIRE(posted == NIXL_ERR_BACKEND);
        // The next request connects.
        REQUIRE(write.await(write.post(), seconds(20)) == NIXL_SUCCESS);
    }
    REQUIRE(a.engine->unloadMD(remote) == NIXL_SUCCESS);
}

// Transfers progress while other threads prepare and release transfers all the time.
void crowd() {
    Agent a("a", PARAMETERS, false), b("b", PARAMETERS, true);
    REQUIRE(a.engine->loadRemoteConnInfo("b", b.address) == NIXL_SUCCESS);
    REQUIRE(a.engine->connect("b") == NIXL_SUCCESS);
    nixlBackendMD *const remote = a.load("b", b.start(), b.keys);
    std::atomic<bool> is_over{false};
    std::vector<std::thread> others;
    for (int other = 0; other < 6; ++other) {
        others.emplace_back([&] {
            while (!is_over) {
                Write(a, b, remote, 100);
            }
        });
    }
    // Transfers starve sometimes, not always.
    const auto end = Clock::now() + seconds(6);
    int count = 0;
    Clock::duration longest{};
    while (Clock::now() < end) {
        Write write(a, b, remote, 100);
        const auto begin = Clock::now();
        REQUIRE(write.await(write.post(), seconds(20)) == NIXL_SUCCESS);
        longest = std::max(longest, Clock::now() - begin);
        ++count;
    }
    is_over = true;
    for (std::thread &other : others) {
        other.join();
    }
    std::printf("among threads that call all the time: %d transfers, the longest of %lld ms\n", count,
                static_cast<long long>(std::chrono::duration_cast<milliseconds>(longest).count()));
    REQUIRE(longest < seconds(5));
    REQUIRE(a.engine->unloadMD(remote) == NIXL_SUCCESS);
}

// The next notifications of an agent, and no more, with their senders.
notif_list_t take(Agent &agent, size_t count) {
    const notif_list_t taken = take_at_least(agent, count);
    REQUIRE(taken.size() == count);
    return taken;
}

// An acknowledged notification is reported even if its sender left before this engine polled.
void leave() {
    Agent b("b", PARAMETERS, true);
    {
        peers_made.clear();
        Agent a("a", PARAMETERS, true);
        REQUIRE(a.engine->loadRemoteConnInfo("b", b.address) == NIXL_SUCCESS);
        REQUIRE(a.engine->connect("b") == NIXL_SUCCESS);
        REQUIRE(peers_made.size() == 2);
        blind_polls = 1 << 30;
        blind = peers_made.back().first;
        // Returns when the notification is acknowledged.
        REQUIRE(a.engine->genNotif("b", "the last") == NIXL_SUCCESS);
    }
    REQUIRE(take(b, 1).front() == std::make_pair(std::string("a"), std::string("the last")));
    blind = nullptr;
}

// Waits until so many completions are held back.
void await_held(size_t count) {
    for (const auto begin = Clock::now();; std::this_thread::sleep_for(milliseconds(1))) {
        const std::lock_guard<std::mutex> guard(peers_mutex);
        if (held.size() >= count) {
            return;
        }
        REQUIRE(Clock::now() - begin < seconds(60));
    }
}

// A transfer that has ended belongs no more to its connection, which ends, when it is posted again over another one.
void post_again() {
    peers_made.clear();
    Agent a("a", PARAMETERS, true), b("b", PARAMETERS, true);
    REQUIRE(a.engine->loadRemoteConnInfo("b", b.address) == NIXL_SUCCESS);
    REQUIRE(a.engine->connect("b") == NIXL_SUCCESS);
    nixlBackendMD *const remote = a.load("b", b.start(), b.keys);
    {
        Write again(a, b, remote, 100), other(a, b, remote, LENGTH);
        holding = peers_made.front().first;
        a.memory.assign(LENGTH, 5);
        REQUIRE(again.post() == NIXL_IN_PROG && other.post() == NIXL_IN_PROG);
        await_held(2);
        failing_peer = peers_made.front().second;
        failing = holding.load();
        for (const auto begin = Clock::now(); failing != nullptr;) {
            REQUIRE(Clock::now() - begin < seconds(60));
        }
        // The connection ends in a second, because of the other transfer.
        REQUIRE(again.await(NIXL_IN_PROG, seconds(60)) == NIXL_SUCCESS);
        a.memory.assign(LENGTH, 6);
        REQUIRE(again.post() == NIXL_IN_PROG);
        REQUIRE(other.await(NIXL_IN_PROG, seconds(60)) == NIXL_ERR_REMOTE_DISCONNECT);
        REQUIRE(again.await(NIXL_IN_PROG, milliseconds(100)) == NIXL_IN_PROG);
        {
            const std::lock_guard<std::mutex> guard(peers_mutex);
            held.erase(held.begin());
            singles = 1;
        }
        REQUIRE(again.await(NIXL_IN_PROG, seconds(60)) == NIXL_SUCCESS && b.memory.front() == 6);
        holding = nullptr;
    }
    REQUIRE(a.engine->unloadMD(remote) == NIXL_SUCCESS);
}

// The time of transfers that overlap a released one is not learned, because it has used an unknown part of it.
void release_beside_another() {
    constexpr milliseconds LONG(200);
    peers_made.clear();
    held.clear();
    Agent a("a", PARAMETERS, true), b("b", PARAMETERS, true);
    REQUIRE(a.engine->loadRemoteConnInfo("b", b.address) == NIXL_SUCCESS);
    REQUIRE(a.engine->connect("b") == NIXL_SUCCESS);
    nixlBackendMD *const remote = a.load("b", b.start(), b.keys);
    {
        Write kept(a, b, remote, LENGTH);
        REQUIRE(kept.await(kept.post(), seconds(60)) == NIXL_SUCCESS);
        const auto estimate = [&kept] {
            std::chrono::microseconds duration;
            REQUIRE(kept.estimate(duration) == NIXL_SUCCESS);
            return duration;
        };
        const auto return_one = [](std::thread::id thread) {
            const std::lock_guard<std::mutex> guard(peers_mutex);
            receiver = thread;
            singles = 1;
        };
        const auto before = estimate();
        holding = peers_made.front().first;
        {
            Write released(a, b, remote, 100);
            REQUIRE(released.post() == NIXL_IN_PROG && kept.post() == NIXL_IN_PROG);
            await_held(2);
            // This thread polls only to release it, after it was cancelled.
            return_one(std::this_thread::get_id());
        }
        std::this_thread::sleep_for(LONG);
        return_one({});
        REQUIRE(kept.await(NIXL_IN_PROG, seconds(60)) == NIXL_SUCCESS);
        REQUIRE(estimate() == before);
        // The next one is measured again.
        REQUIRE(kept.post() == NIXL_IN_PROG);
        await_held(1);
        std::this_thread::sleep_for(LONG);
        return_one({});
        REQUIRE(kept.await(NIXL_IN_PROG, seconds(60)) == NIXL_SUCCESS);
        REQUIRE(estimate() > 2 * before);
        holding = nullptr;
    }
    REQUIRE(a.engine->unloadMD(remote) == NIXL_SUCCESS);
}

// A transfer that is released while only its notification is left takes it back, and harms no other.
void release_before_the_notification() {
    Agent a("a", PARAMETERS, true), b("b", PARAMETERS, true);
    REQUIRE(a.engine->loadRemoteConnInfo("b", b.address) == NIXL_SUCCESS);
    REQUIRE(a.engine->connect("b") == NIXL_SUCCESS);
    nixlBackendMD *const remote = a.load("b", b.start(), b.keys);
    // More than is sent while nothing is taken, so the transfer's notification waits.
    const std::string filling(1 << 20, 'f');
    constexpr size_t FILLINGS = 20;
    for (size_t count = 0; count < FILLINGS; ++count) {
        REQUIRE(a.engine->genNotif("b", filling) == NIXL_SUCCESS);
    }
    a.memory.assign(LENGTH, 5);
    {
        Write write(a, b, remote, LENGTH);
        nixl_status_t status = write.post("taken back");
        for (const auto begin = Clock::now(); a.memory != b.memory;) {
            REQUIRE(status == NIXL_IN_PROG && Clock::now() - begin < seconds(20));
            status = write.await(status, milliseconds(10));
        }
        REQUIRE(write.await(status, milliseconds(100)) == NIXL_IN_PROG);
    }
    REQUIRE(a.engine->genNotif("b", "after it") == NIXL_SUCCESS);
    const notif_list_t came = take(b, FILLINGS + 1);
    const auto fills = [&filling](const auto &came) { return came.second == filling; };
    REQUIRE(std::count_if(came.begin(), came.end(), fills) == FILLINGS && came.back().second == "after it");
    REQUIRE(a.engine->unloadMD(remote) == NIXL_SUCCESS);
}

// A transfer that is released while its notification is being sent leaves it to the connection, which sends it whole.
void release_within_the_notification() {
    nixl_b_params_t slow = PARAMETERS;
    slow["software_bytes_per_second"] = "2000000";
    Agent a("a", slow, true), b("b", PARAMETERS, true);
    REQUIRE(a.engine->loadRemoteConnInfo("b", b.address) == NIXL_SUCCESS);
    REQUIRE(a.engine->connect("b") == NIXL_SUCCESS);
    nixlBackendMD *const remote = a.load("b", b.start(), b.keys);
    // Some seconds.
    std::string longer(8 << 20, 'l');
    longer.front() = 'b', longer.back() = 'e';
    {
        Write write(a, b, remote, 100);
        sends = 0;
        nixl_status_t status = write.post(longer);
        for (const auto begin = Clock::now(); sends == 0;) {
            REQUIRE(Clock::now() - begin < seconds(20));
            status = write.await(status, milliseconds(1));
        }
    }
    REQUIRE(a.engine->genNotif("b", "after it") == NIXL_SUCCESS);
    const notif_list_t came = take(b, 2);
    REQUIRE(came.front().second == longer && came.back().second == "after it");
    REQUIRE(a.engine->unloadMD(remote) == NIXL_SUCCESS);
}

// An event that cannot be taken is logged, and taken when that is possible.
void take_no_events() {
    int pipes[2];
    const int before = dup(STDERR_FILENO);
    REQUIRE(pipe2(pipes, O_NONBLOCK) == 0 && dup2(pipes[1], STDERR_FILENO) >= 0);
    nixl_b_params_t parameters = PARAMETERS;
    parameters["log_level"] = "warn";
    event_errors = 1;
    {
        Agent a("a", parameters, true), b("b", parameters, true);
        REQUIRE(a.engine->loadRemoteConnInfo("b", b.address) == NIXL_SUCCESS);
        REQUIRE(a.engine->connect("b") == NIXL_SUCCESS);
    }
    REQUIRE(event_errors == 0 && dup2(before, STDERR_FILENO) >= 0);
    char text[4096] = "";
    const ssize_t length = read(pipes[0], text, sizeof text - 1);
    REQUIRE(length > 0 && std::strstr(text, ": taking events: ") != nullptr);
    close(pipes[0]), close(pipes[1]), close(before);
}

// A transfer survives a moment in which all rails are out of service.
void lose_all_rails() {
    peers_made.clear();
    nixl_b_params_t parameters = PARAMETERS;
    parameters["devices"] = "soft0,soft1";
    parameters["software_bytes_per_second"] = "20000000";
    Agent a("a", parameters, true), b("b", parameters, true);
    REQUIRE(a.engine->loadRemoteConnInfo("b", b.address) == NIXL_SUCCESS);
    REQUIRE(a.engine->connect("b") == NIXL_SUCCESS);
    nixlBackendMD *const remote = a.load("b", b.start(), b.keys);
    a.memory.assign(LENGTH, 7);
    {
        Write write(a, b, remote, LENGTH);
        const nixl_status_t status = write.post();
        REQUIRE(status == NIXL_IN_PROG);
        std::this_thread::sleep_for(milliseconds(30));
        is_cutting = true;
        REQUIRE(write.await(status, seconds(20)) == NIXL_SUCCESS);
    }
    REQUIRE(!is_cutting && a.memory == b.memory);
    REQUIRE(a.engine->unloadMD(remote) == NIXL_SUCCESS);
}

// A child destroys its engines and ends by exit: it releases nothing, sends nothing and does not hang, and its parent
// goes on.
void fork_a_child() {
    Agent a("a", PARAMETERS, true), b("b", PARAMETERS, true);
    REQUIRE(a.engine->loadRemoteConnInfo("b", b.address) == NIXL_SUCCESS);
    REQUIRE(a.engine->connect("b") == NIXL_SUCCESS);
    nixlBackendMD *const remote = a.load("b", b.start(), b.keys);
    std::optional<Write> prepared(std::in_place, a, b, remote, LENGTH);
    std::chrono::microseconds duration;
    REQUIRE(prepared->estimate(duration) == NIXL_SUCCESS && duration.count() > 0);
    for (int turn = 0; turn < 20; ++turn) {
        const pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            alarm(60);
            REQUIRE(a.engine->genNotif("b", "from the child") == NIXL_ERR_NOT_ALLOWED);
            REQUIRE(a.engine->connect("b") == NIXL_ERR_NOT_ALLOWED);
            REQUIRE(prepared->estimate(duration) == NIXL_ERR_NOT_ALLOWED);
            REQUIRE(a.engine->deregisterMem(a.local) == NIXL_ERR_NOT_ALLOWED);
            nixl_plugin_init()->destroy_engine(a.engine);
            nixl_plugin_init()->destroy_engine(b.engine);
            std::exit(0);
        }
        int status = -1;
        REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    a.memory.assign(LENGTH, 9);
    REQUIRE(prepared->await(prepared->post(), seconds(20)) == NIXL_SUCCESS);
    prepared.reset();
    REQUIRE(a.memory == b.memory);
    REQUIRE(a.engine->genNotif("b", "of the parent") == NIXL_SUCCESS);
    REQUIRE(take(b, 1).front().second == "of the parent");
    REQUIRE(a.engine->unloadMD(remote) == NIXL_SUCCESS);
}

} // namespace

int main(int count, char **arguments) {
    const std::string only = count > 1 ? arguments[1] : "";
    const std::pair<const char *, void (*)()> tests[] = {
        {"set-ups", set_up_without_threads},
        {"connections", connect_without_threads},
        {"again", post_again},
        {"beside", release_beside_another},
        {"crowd", crowd},
        {"leave", leave},
        {"release", release_before_the_notification},
        {"part", release_within_the_notification},
        {"events", take_no_events},
        {"rails", lose_all_rails},
        {"fork", fork_a_child},
    };
    for (const auto &[name, test] : tests) {
        if (only.empty() || only == name) {
            test();
            std::printf("%s: as they should be\n", name);
        }
    }
}
