// How an engine finds the others: addresses that do not answer, addresses of other engines, and
// environment variables that are not settings. Linked with the plugin's sources.

#include "../src/address.h"
#include "agent.h"

#include <arpa/inet.h>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

// Long enough that an address which does not answer is noticed if others wait for it.
const nixl_b_params_t PARAMETERS{
    {"backend", "software"}, {"rails", "2"}, {"log_level", "warn"}, {"connect_timeout_ms", "120000"}};
constexpr auto MOST = seconds(60);

// A listener that answers nothing, because it accepts nothing and its backlog is full.
class Silent {
public:
    Silent() : sockets{socket(AF_INET, SOCK_STREAM, 0)} {
        sockaddr_in address{};
        socklen_t length = sizeof address;
        auto *const place = reinterpret_cast<sockaddr *>(&address);
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        REQUIRE(bind(sockets[0], place, length) == 0 && listen(sockets[0], 0) == 0);
        REQUIRE(getsockname(sockets[0], place, &length) == 0);
        name = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
        for (int count = 0; count < 16; ++count) {
            sockets.push_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
            static_cast<void>(!connect(sockets.back(), place, length));
        }
    }
    ~Silent() {
        for (const int each : sockets) {
            close(each);
        }
    }

    std::string name;

private:
    std::vector<int> sockets;
};

// Connects to `b`, whose metadata has these addresses before its own.
void connect_after(const std::vector<std::string> &first, const nixl_b_params_t &parameters = PARAMETERS) {
    Agent a("a", parameters, true), b("b", PARAMETERS, true);
    Address address = Address::decode(b.address);
    address.endpoints.insert(address.endpoints.begin(), first.begin(), first.end());
    REQUIRE(a.engine->loadRemoteConnInfo("b", address.encode()) == NIXL_SUCCESS);
    const auto begin = Clock::now();
    REQUIRE(a.engine->connect("b") == NIXL_SUCCESS);
    REQUIRE(Clock::now() - begin < MOST);
}

void dead_addresses_first() {
    const Silent one, two, three;
    connect_after({one.name, two.name, three.name});
}

// As many as a list may have. The last one is tried when half of the time is over.
void many_dead_addresses_first() {
    const Silent dead;
    std::vector<std::string> first;
    for (int number = 1; number < POLYRAIL_MAX_ADDRESSES; ++number) {
        first.push_back(dead.name);
    }
    nixl_b_params_t parameters = PARAMETERS;
    parameters["connect_timeout_ms"] = "30000";
    connect_after(first, parameters);
}

// Both hosts have a docker0 with the same address, where another engine listens.
void address_of_another_engine_first() {
    Agent other("other", PARAMETERS, true);
    connect_after(Address::decode(other.address).endpoints);
}

void lists_of_wrong_lengths() {
    Agent a("a", PARAMETERS, true);
    Address address = Address::decode(a.address);
    address.endpoints.assign(POLYRAIL_MAX_ADDRESSES, "127.0.0.1:1");
    REQUIRE(a.engine->loadRemoteConnInfo("b", address.encode()) == NIXL_SUCCESS);
    address.endpoints.push_back("127.0.0.1:1");
    REQUIRE(a.engine->loadRemoteConnInfo("b", address.encode()) == NIXL_ERR_MISMATCH);
    address.endpoints.assign(1, "127.0.0.1:1,127.0.0.1:2");
    REQUIRE(a.engine->loadRemoteConnInfo("b", address.encode()) == NIXL_ERR_MISMATCH);
}

void addresses_of_wrong_lengths() {
    Agent a("a", PARAMETERS, true);
    Address address = Address::decode(a.address);
    const std::string port = ":65535";
    address.endpoints.assign(1, std::string(253, 'x') + port);
    REQUIRE(a.engine->loadRemoteConnInfo("b", address.encode()) == NIXL_SUCCESS);
    address.endpoints.assign(1, std::string(254, 'x') + port);
    REQUIRE(a.engine->loadRemoteConnInfo("b", address.encode()) == NIXL_ERR_MISMATCH);
}

// The reason why an agent is not reached may be long. It does not keep others from being reached.
void only_dead_addresses() {
    nixl_b_params_t parameters = PARAMETERS;
    parameters["connect_timeout_ms"] = "3000";
    parameters["log_level"] = "none";
    Agent a("a", parameters, true), b("b", parameters, true);
    Address address = Address::decode(b.address);
    address.endpoints.clear();
    // Addresses for documentation: no host has them.
    for (int number = 0; number < POLYRAIL_MAX_ADDRESSES; ++number) {
        address.endpoints.push_back("[2001:db8:aaaa:bbbb:cccc:dddd:eeee:" + std::to_string(1000 + number) + "]:45678");
    }
    REQUIRE(a.engine->loadRemoteConnInfo("dead", address.encode()) == NIXL_SUCCESS);
    REQUIRE(a.engine->loadRemoteConnInfo("b", b.address) == NIXL_SUCCESS);
    // Ends the program if a call does not return.
    alarm(120);
    REQUIRE(a.engine->connect("dead") < 0);
    REQUIRE(a.engine->connect("b") == NIXL_SUCCESS);
    alarm(0);
}

// A listener on all addresses is never said to be at loopback, which every host has.
void own_addresses() {
    REQUIRE(reachable_addresses("127.0.0.1:7471") == std::vector<std::string>{"127.0.0.1:7471"});
    try {
        for (const std::string &address : reachable_addresses("[::]:7471")) {
            REQUIRE(address.compare(0, 4, "127.") != 0 && address != "[::1]:7471");
            REQUIRE(address.compare(address.size() - 5, 5, ":7471") == 0);
        }
    } catch (const Failure &failure) {
        // This machine has no other.
        REQUIRE(std::strstr(failure.what(), "interface lo") != nullptr);
    }
    REQUIRE(listening_address("lo", 7471, false) == "127.0.0.1:7471");
    REQUIRE(listening_address("", 7471, false) == "*:7471");
}

// Variables of a Service that is called "polyrail".
void variables_of_kubernetes() {
    setenv("POLYRAIL_SERVICE_HOST", "10.96.0.7", 1);
    setenv("POLYRAIL_PORT", "tcp://10.96.0.7:7471", 1);
    setenv("POLYRAIL_PORT_7471_TCP_ADDR", "10.96.0.7", 1);
    int pipes[2];
    const int before = dup(STDERR_FILENO);
    REQUIRE(pipe2(pipes, O_NONBLOCK) == 0 && dup2(pipes[1], STDERR_FILENO) >= 0);
    { Agent a("a", PARAMETERS, true); }
    REQUIRE(Agent::plugin().get_backend_options().at("port") == "0");
    REQUIRE(dup2(before, STDERR_FILENO) >= 0);
    char text[4096] = "";
    const ssize_t length = read(pipes[0], text, sizeof text - 1);
    REQUIRE(length > 0 && std::strchr(text, '\n') == text + length - 1);
    for (const char *name : {"POLYRAIL_SERVICE_HOST", "POLYRAIL_PORT", "POLYRAIL_PORT_7471_TCP_ADDR"}) {
        REQUIRE(std::strstr(text, name) != nullptr);
        unsetenv(name);
    }
    close(pipes[0]), close(pipes[1]), close(before);
}

} // namespace

int main(int count, char **arguments) {
    const std::string only = count > 1 ? arguments[1] : "";
    const std::pair<const char *, void (*)()> tests[] = {
        {"dead", dead_addresses_first},
        {"many", many_dead_addresses_first},
        {"another", address_of_another_engine_first},
        {"lists", lists_of_wrong_lengths},
        {"lengths", addresses_of_wrong_lengths},
        {"unreachable", only_dead_addresses},
        {"own", own_addresses},
        {"kubernetes", variables_of_kubernetes},
    };
    for (const auto &[name, test] : tests) {
        if (only.empty() || only == name) {
            test();
            std::printf("%s: as they should be\n", name);
        }
    }
}
