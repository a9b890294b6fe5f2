// Two agents in two processes, simulated without Python. They exchange the plugin's part of NIXL's
// metadata: the address of an agent, and the keys of its memory. At the end one process is killed.
// Requires real NICs, or backend=tcp.
//
//   apart [TURNS] [NAME=VALUE]...    TURNS transfers of each agent (default 5), without a progress
//                                    thread and with one; parameters of both engines, or of one:
//                                    a.NAME=VALUE

#include "agent.h"

#include <algorithm>
#include <csignal>
#include <random>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

// Time limit of the whole test in seconds.
constexpr unsigned TIMEOUT_SECONDS = 100;

// Each agent transfers between the first part of its memory and the second part of the other
// agent's.
constexpr size_t PART = LENGTH / 2;

// The channel between the two processes.
class Talk {
public:
    explicit Talk(int socket) : socket(socket) {}

    // Sends a text, and returns the text of the other process.
    std::string swap(const std::string &ours) const {
        const size_t length = ours.size();
        REQUIRE(write(socket, &length, sizeof length) == sizeof length);
        REQUIRE(write(socket, ours.data(), length) == static_cast<ssize_t>(length));
        size_t their_length = 0;
        REQUIRE(read(socket, &their_length, sizeof their_length) == sizeof their_length);
        std::string theirs(their_length, 0);
        for (size_t have = 0; have < their_length;) {
            const ssize_t came = read(socket, &theirs[have], their_length - have);
            REQUIRE(came > 0);
            have += static_cast<size_t>(came);
        }
        return theirs;
    }

private:
    int socket;
};

// A transfer of an agent, which both processes can compute.
struct Plan {
    Plan(int turn, const std::string &agent) : random(static_cast<unsigned>(2 * turn + (agent == "a"))) {
        operation = (turn + (agent == "a")) % 2 == 0 ? NIXL_WRITE : NIXL_READ;
        block = 1 + random() % 5000;
        count = 1 + random() % (PART / block);
        const size_t lengths[] = {0, 1, 100, 5000, 100'000};
        note.resize(lengths[turn % 5]);
        fill(first), fill(second), fill(note);
    }

    template <class T> void fill(T &bytes) {
        const unsigned salt = random();
        for (size_t at = 0; at < bytes.size(); ++at) {
            bytes[at] = static_cast<typename T::value_type>(salt + at + at / 251);
        }
    }

    // The place of a block of the agent's memory in the other agent's part.
    size_t there(size_t index) const { return (count - 1 - index) * block; }

    std::mt19937 random;
    nixl_xfer_op_t operation;
    size_t block, count;
    // The previous contents of both parts, and the notification.
    std::vector<unsigned char> first = std::vector<unsigned char>(PART), second = first;
    std::string note;
};

// Both agents start a transfer at once. When the other agent notifies that its transfer is done,
// its data has arrived; when this agent's transfer is done, too, all memory has the expected
// contents.
void turn(Agent &here, const Talk &talk, const std::string &other, uintptr_t start, nixlBackendMD *remote, int number) {
    Plan ours(number, here.name);
    const Plan theirs(number, other);
    const auto first = here.memory.begin(), second = first + PART;
    std::copy(ours.first.begin(), ours.first.end(), first);
    std::copy(ours.second.begin(), ours.second.end(), second);
    talk.swap("filled");

    // From here on, both parts hold the expected contents.
    List<nixlMetaDesc> near, far;
    for (size_t index = 0; index < ours.count; ++index) {
        const size_t at = index * ours.block, there = ours.there(index);
        near.addDesc(Agent::part(here.start() + at, ours.block, here.local));
        far.addDesc(Agent::part(start + PART + there, ours.block, remote));
        if (ours.operation == NIXL_READ) {
            std::copy_n(theirs.second.begin() + there, ours.block, ours.first.begin() + at);
        }
    }
    for (size_t index = 0; theirs.operation == NIXL_WRITE && index < theirs.count; ++index) {
        const auto from = theirs.first.begin() + index * theirs.block;
        std::copy_n(from, theirs.block, ours.second.begin() + theirs.there(index));
    }

    nixl_opt_b_args_t args;
    args.hasNotif = true;
    args.notifMsg = ours.note;
    nixlBackendReqH *handle = nullptr;
    REQUIRE(here.engine->prepXfer(ours.operation, near, far, other, handle, nullptr) == NIXL_SUCCESS);
    nixl_status_t status = here.engine->postXfer(ours.operation, near, far, other, handle, &args);
    notif_list_t came;
    while (status == NIXL_IN_PROG || came.empty()) {
        if (status == NIXL_IN_PROG) {
            status = here.engine->checkXfer(handle);
        }
        if (came.empty()) {
            REQUIRE(here.engine->getNotifs(came) == NIXL_SUCCESS);
            REQUIRE(came.empty() || std::equal(ours.second.begin(), ours.second.end(), second));
        }
    }
    REQUIRE(status == NIXL_SUCCESS);
    REQUIRE(here.engine->releaseReqH(handle) == NIXL_SUCCESS);
    REQUIRE(came == notif_list_t{std::make_pair(other, theirs.note)});
    REQUIRE(std::equal(ours.first.begin(), ours.first.end(), first));
    REQUIRE(std::equal(ours.second.begin(), ours.second.end(), second));
}

// Returns the other agent's memory.
struct Memory {
    uintptr_t start;
    nixlBackendMD *remote;
};

// Exchanges the addresses of the agents.
Memory introduce(Agent &here, const Talk &talk, const std::string &other) {
    const std::string address = talk.swap(here.address), keys = talk.swap(here.keys);
    const uintptr_t start = std::stoull(talk.swap(std::to_string(here.start())));
    REQUIRE(here.engine->loadRemoteConnInfo(other, address) == NIXL_SUCCESS);
    return {start, here.load(other, start, keys)};
}

void run(const std::string &name, const std::string &other, const nixl_b_params_t &parameters, const Talk &talk,
         bool has_thread, int turns) {
    Agent here(name, parameters, has_thread);
    const auto [start, remote] = introduce(here, talk, other);
    for (int number = 0; number < turns; ++number) {
        turn(here, talk, other, start, remote, number);
    }
    // Neither agent leaves while the other one needs it.
    talk.swap("done");
    REQUIRE(here.engine->unloadMD(remote) == NIXL_SUCCESS);
}

// Transfers to an agent whose process is killed end soon, with the right error.
void outlive(const nixl_b_params_t &parameters, const Talk &talk, pid_t other) {
    Agent here("a", parameters, true);
    const auto [start, remote] = introduce(here, talk, "b");
    List<nixlMetaDesc> near, far;
    near.addDesc(Agent::part(here.start(), LENGTH, here.local));
    far.addDesc(Agent::part(start, LENGTH, remote));
    nixlBackendReqH *handle = nullptr;
    REQUIRE(here.engine->prepXfer(NIXL_WRITE, near, far, "b", handle, nullptr) == NIXL_SUCCESS);
    nixl_status_t status = NIXL_SUCCESS;
    int count = 0, ended = 0;
    for (; status >= 0; ++count) {
        status = here.engine->postXfer(NIXL_WRITE, near, far, "b", handle, nullptr);
        // While this transfer is in flight.
        if (count == 3) {
            REQUIRE(kill(other, SIGKILL) == 0);
        }
        while (status == NIXL_IN_PROG) {
            status = here.engine->checkXfer(handle);
        }
    }
    REQUIRE(status == NIXL_ERR_REMOTE_DISCONNECT && count > 3);
    REQUIRE(here.engine->releaseReqH(handle) == NIXL_SUCCESS);
    REQUIRE(here.engine->unloadMD(remote) == NIXL_SUCCESS);
    REQUIRE(waitpid(other, &ended, 0) == other && WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL);
}

void be_killed(const nixl_b_params_t &parameters, const Talk &talk) {
    Agent here("b", parameters, true);
    introduce(here, talk, "a");
    for (;;) {
        pause();
    }
}

} // namespace

int main(int count, char **arguments) {
    nixl_b_params_t of_a, of_b;
    int turns = 5, sockets[2];
    for (int index = 1; index < count; ++index) {
        if (!take(arguments[index], of_a, of_b)) {
            turns = std::atoi(arguments[index]);
        }
    }
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    const bool is_a = child > 0;
    close(sockets[is_a]);
    alarm(TIMEOUT_SECONDS);
    const Talk talk(sockets[!is_a]);
    for (const bool has_thread : {false, true}) {
        run(is_a ? "a" : "b", is_a ? "b" : "a", is_a ? of_a : of_b, talk, has_thread, turns);
    }
    if (!is_a) {
        be_killed(of_b, talk);
    }
    std::printf("two processes: %d transfers of each, and what it told, arrived\n", 2 * turns);
    outlive(of_a, talk, child);
    std::printf("one was killed, and the other told\n");
}
