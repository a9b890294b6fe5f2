// Peers that exceed the limits of an agent that takes no notifications: that ignore its window, open many connections, or
// leave and come again. Linked with the plugin's sources.

#include "../src/address.h"
#include "../src/notes.h"
#include "../src/notifications.h"
#include "../src/outbox.h"
#include "../src/settings.h"
#include "agent.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <polyrail.h>
#include <thread>
#include <unistd.h>

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

constexpr uint64_t MIB = 1 << 20;

const nixl_b_params_t PARAMETERS{{"backend", "software"}, {"rails", "2"}, {"log_level", "none"}};

polyrail_domain *open_domain() {
    polyrail_domain_options options{};
    options.size = sizeof options;
    options.backend = POLYRAIL_BACKEND_SOFTWARE;
    polyrail_domain *domain = nullptr;
    check(polyrail_domain_open(&options, &domain), "opening devices");
    return domain;
}

polyrail_peers *open_peers(polyrail_domain *domain, polyrail_endpoint_options options) {
    polyrail_peers *peers = nullptr;
    check(polyrail_peers_open(domain, &options, &peers), "making completion queues");
    return peers;
}

// A connection to an agent that sends notifications without regard to its window.
class Flood {
public:
    Flood(const Agent &to, const std::string &name)
        : domain(open_domain()), slots(domain.get(), 2), peers(open_peers(domain.get(), settings.endpoint)) {
        const Address address = Address::decode(to.address);
        polyrail_link *link = nullptr;
        check(polyrail_link_open(joined(address.endpoints).c_str(), &settings.link, &link), "connecting");
        check(polyrail_peers_add(peers.get(), nullptr, &peer), "making a connection");
        const std::string hello = Hello{address.id, name}.encode();
        check(polyrail_peers_meet(peers.get(), peer, link, hello.data(), hello.size()), "connecting");
        for (const uint32_t head : {GOES_ON, IS_LAST}) {
            std::memset(slots.at(head), 'f', SLOT_BYTES);
            std::memcpy(slots.at(head), &head, HEAD_BYTES);
        }
        for (const auto begin = Clock::now(); !is_connected && !is_over;) {
            REQUIRE(Clock::now() - begin < seconds(60));
            poll();
        }
    }

    // Sends a notification of this length, or the beginning of one. Returns false if the connection has ended.
    bool notify(size_t bytes, bool is_whole = true) {
        constexpr size_t PART = SLOT_BYTES - HEAD_BYTES;
        for (; bytes > PART && !is_over; bytes -= PART) {
            post(GOES_ON, PART);
        }
        post(is_whole ? IS_LAST : GOES_ON, bytes);
        return !is_over;
    }

    // Sends notifications of this length with this cost in all.
    bool fill(uint64_t cost, size_t bytes) {
        bool is_there = true;
        for (; is_there && cost >= cost_of(bytes); cost -= cost_of(bytes)) {
            is_there = notify(bytes);
        }
        return is_there;
    }

    // Waits until everything that was sent has arrived. Returns false if the connection has ended.
    bool settle() {
        for (const auto begin = Clock::now(); !is_over && unreported > 0;) {
            REQUIRE(Clock::now() - begin < seconds(60));
            poll();
        }
        return !is_over;
    }

    // Waits until the agent has ended the connection, and stated this reason.
    void await_end(const std::string &reason) {
        for (const auto begin = Clock::now(); !is_over || heard.find(reason) == std::string::npos;) {
            REQUIRE(Clock::now() - begin < seconds(60));
            poll();
        }
    }

private:
    void post(uint32_t head, size_t bytes) {
        polyrail_request request{};
        request.id = 1;
        request.opcode = POLYRAIL_OPCODE_SEND;
        request.region = slots.region();
        request.offset = head * SLOT_BYTES;
        request.length = static_cast<uint32_t>(HEAD_BYTES + bytes);
        for (const auto begin = Clock::now(); !is_over;) {
            REQUIRE(Clock::now() - begin < seconds(60));
            const polyrail_code code = polyrail_peers_post(peers.get(), peer, &request);
            if (code == POLYRAIL_CODE_OK) {
                unreported += 1;
                return;
            }
            is_over |= code != POLYRAIL_CODE_NOT_NOW;
            poll();
        }
    }

    void poll() {
        polyrail_completion completions[64];
        size_t count = 0;
        check(polyrail_peers_poll(peers.get(), completions, 64, &count), "polling");
        unreported -= count;
        const auto has_failed = [](const auto &completion) { return completion.status != POLYRAIL_STATUS_SUCCESS; };
        is_over |= std::any_of(completions, completions + count, has_failed);
        polyrail_event event{};
        event.size = sizeof event;
        while (polyrail_peers_next_event(peers.get(), &event, bytes.data(), bytes.size()) == POLYRAIL_CODE_OK) {
            const std::string said = bytes.substr(0, event.length);
            is_connected |= event.kind == POLYRAIL_EVENT_KIND_CONNECTED;
            const bool is_end = event.kind == POLYRAIL_EVENT_KIND_NOT_CONNECTED ||
                                event.kind == POLYRAIL_EVENT_KIND_LINK_LOST || event.kind == POLYRAIL_EVENT_KIND_FAILED;
            const bool is_note = event.kind == POLYRAIL_EVENT_KIND_MESSAGE;
            if (is_end || (is_note && Note::decode(said).kind == Note::Kind::Ended)) {
                is_over = true;
                heard += said;
            }
        }
    }

    const Settings settings = Settings::read(PARAMETERS);
    Domain domain;
    Slots slots;
    Peers peers;
    uint64_t peer = 0;
    size_t unreported = 0;
    bool is_connected = false;
    bool is_over = false;
    std::string bytes = std::string(POLYRAIL_MESSAGE_BYTES, '\0');
    std::string heard;
};

// Memory of this process that is in use.
uint64_t resident() {
    std::ifstream file("/proc/self/statm");
    uint64_t pages = 0;
    REQUIRE(file >> pages >> pages);
    return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Another agent connects, and its notification arrives behind all that is there.
void another_is_served(Agent &b) {
    Agent other("other", PARAMETERS, true);
    REQUIRE(other.engine->loadRemoteConnInfo("b", b.address) == NIXL_SUCCESS);
    // Former connections may not have ended yet.
    for (const auto begin = Clock::now(); other.engine->connect("b") != NIXL_SUCCESS;) {
        REQUIRE(Clock::now() - begin < seconds(60));
    }
    REQUIRE(other.engine->genNotif("b", "from another") == NIXL_SUCCESS);
    for (const auto begin = Clock::now();;) {
        const notif_list_t taken = take_at_least(b, 1);
        REQUIRE(Clock::now() - begin < seconds(60));
        if (taken.back() == std::make_pair(std::string("other"), std::string("from another"))) {
            return;
        }
    }
}

// What is kept for all connections together stays below a limit.
void many_connections() {
    Agent b("b", PARAMETERS, true);
    std::vector<std::unique_ptr<Flood>> floods;
    const uint64_t before = resident();
    uint64_t most = 0;
    constexpr size_t COUNT = 16;
    for (size_t count = 0; count < COUNT; ++count) {
        floods.push_back(std::make_unique<Flood>(b, "a" + std::to_string(count)));
        // Of the last ones, nothing is complete.
        REQUIRE(floods.back()->notify(60 * MIB, count % 2 == 0));
        REQUIRE(floods.back()->settle());
        most = std::max(most, resident() - before);
    }
    std::printf("%zu connections with 60 MiB each: %llu MiB\n", COUNT, static_cast<unsigned long long>(most / MIB));
    // Some for the connections themselves, and for what arrives before the limit is applied.
    REQUIRE(most < MAX_KEPT_COST + 200 * MIB);
    floods.front()->await_end("are dropped, because more than");
    another_is_served(b);
}

// Short notifications take more than their bytes, and those that begin count, too.
void short_and_begun() {
    Agent b("b", PARAMETERS, true);
    std::vector<std::unique_ptr<Flood>> floods;
    const uint64_t before = resident();
    uint64_t most = 0;
    constexpr size_t COUNT = 9;
    for (size_t count = 0; count < COUNT; ++count) {
        // One agent, as often as it likes.
        floods.push_back(std::make_unique<Flood>(b, "a"));
        REQUIRE(floods.back()->fill(2 * MIB, 100) && floods.back()->notify(60 * MIB, false));
        REQUIRE(floods.back()->settle());
        most = std::max(most, resident() - before);
    }
    std::printf("%zu connections with short ones, and a begun one: %llu MiB\n", COUNT,
                static_cast<unsigned long long>(most / MIB));
    REQUIRE(most < MAX_KEPT_COST + 200 * MIB);
    floods.front()->await_end("are dropped, because more than");
    another_is_served(b);
}

// The limit of one connection, which its peer ignores.
void one_connection() {
    Agent b("b", PARAMETERS, true);
    Flood flood(b, "a");
    while (flood.notify(MIB)) {
    }
    flood.await_end("received more notifications than are taken");
    Flood longer(b, "a");
    longer.notify(MAX_NOTIFICATION_BYTES + SLOT_BYTES, false);
    longer.await_end("a notification of more than");
    another_is_served(b);
}

// What connections leave behind keeps no other agent out, and is not lost.
void leave_and_come() {
    Agent b("b", PARAMETERS, true);
    constexpr size_t COUNT = 5, EACH = 68;
    for (size_t count = 0; count < COUNT; ++count) {
        Flood flood(b, "a");
        for (size_t sent = 0; sent < EACH; ++sent) {
            REQUIRE(flood.notify(MIB - 1024));
        }
        REQUIRE(flood.settle());
    }
    Agent other("other", PARAMETERS, true);
    REQUIRE(other.engine->loadRemoteConnInfo("b", b.address) == NIXL_SUCCESS);
    REQUIRE(other.engine->connect("b") == NIXL_SUCCESS);
    REQUIRE(other.engine->genNotif("b", "from another") == NIXL_SUCCESS);
    const notif_list_t taken = take_at_least(b, COUNT * EACH + 1);
    REQUIRE(taken.size() == COUNT * EACH + 1 && taken.back().first == "other");
    const auto is_of_a = [](const auto &came) { return came.first == "a" && came.second.size() == MIB - 1024; };
    REQUIRE(std::count_if(taken.begin(), taken.end(), is_of_a) == COUNT * EACH);
}

// One address has its limit of connections.
void too_many_connections() {
    Agent b("b", PARAMETERS, true);
    std::vector<std::unique_ptr<Flood>> floods;
    for (size_t count = 0; count < 128; ++count) {
        floods.push_back(std::make_unique<Flood>(b, "a"));
        REQUIRE(floods.back()->notify(1) && floods.back()->settle());
    }
    Flood refused(b, "a");
    refused.await_end("128 from one address");
    REQUIRE(!refused.notify(1));
    floods.clear();
    another_is_served(b);
}

// Whose notifications are dropped.
void shares() {
    Notifications notifications;
    const std::string longest(MAX_NOTIFICATION_BYTES, 'x');
    uint64_t untaken = 0;
    notifications.open(1, {"10.0.0.1", "a"});
    for (; untaken + cost_of(0) <= WINDOW_STEP; untaken += cost_of(0)) {
        REQUIRE(notifications.add(1, ""));
    }
    REQUIRE(notifications.add(1, longest) && !notifications.add(1, longest));
    untaken += cost_of(MAX_NOTIFICATION_BYTES);
    REQUIRE(notifications.untaken(1) == untaken && untaken <= MAX_UNTAKEN_COST);
    // Each connection has its own limit.
    notifications.open(2, {"10.0.0.2", "b"});
    REQUIRE(notifications.add(2, longest));
    REQUIRE(notifications.takes() == 0 && notifications.take().back().first == "b" && notifications.takes() == 1);
    REQUIRE(notifications.untaken(1) == 0 && notifications.add(1, longest));
    REQUIRE(notifications.drop_excess().empty());

    // The agents at 10.0.0.3 share what they hold: none of their connections holds as much as number 1, but they hold more.
    constexpr uint64_t FIRST = 10, COUNT = 32;
    for (uint64_t number = FIRST; number < FIRST + COUNT; ++number) {
        notifications.open(number, {"10.0.0.3", number == FIRST ? "small" : "large"});
        REQUIRE(notifications.add(number, std::string(number == FIRST ? 1 : 14 * MIB, 'y')));
        notifications.begun(number, number == FIRST ? 1 : MIB);
        // It has left.
        notifications.close(FIRST + 1);
    }
    // What a connection had begun ends with it.
    uint64_t kept = MAX_NOTIFICATION_BYTES + (COUNT - 1) * 14 * MIB + (COUNT - 2) * MIB;
    size_t dropped = 0;
    const auto drops = notifications.drop_excess();
    for (const auto &[number, source, count, cost] : drops) {
        REQUIRE(source.host == "10.0.0.3" && source.agent == "large" && count == 1 && number > FIRST);
        kept -= cost;
        ++dropped;
    }
    // A connection that has ended counts more than its notifications.
    kept += CLOSED_COST;
    REQUIRE(dropped > 0 && kept < MAX_KEPT_COST + MIB && notifications.drop_excess().empty());
    REQUIRE(notifications.take().size() == 2 + COUNT - 1 - dropped);
    // Long names count.
    notifications.open(100, {"10.0.0.4", std::string(2000, 'n')});
    for (int count = 0; count < 400'000; ++count) {
        REQUIRE(notifications.add(100, ""));
    }
    REQUIRE(notifications.drop_excess().size() == 1 && notifications.take().empty());
    notifications.close(1), notifications.close(100);
    REQUIRE(notifications.untaken(1) == 0);
}

// A peer that reports nonsense is noticed.
void decode_nonsense() {
    for (const std::string text : {"", "taken ", "taken -1", "taken 1x", "taken 99999999999999999999", "gone 1"}) {
        try {
            Note::decode(text);
            REQUIRE(false && "not a note");
        } catch (const Failure &failure) {
            REQUIRE(failure.status == NIXL_ERR_MISMATCH);
        }
    }
    REQUIRE(Note::decode(Note::taken(77).encode()).total == 77 && Note::decode(Note::ended("x").encode()).words == "x");
    REQUIRE(Note::ended(std::string(MAX_NOTIFICATION_BYTES, 'x')).encode().size() == POLYRAIL_MESSAGE_BYTES);
    Outbox outbox;
    outbox.take(0);
    try {
        outbox.take(1);
        REQUIRE(false && "the peer cannot have taken what was not sent");
    } catch (const Failure &failure) {
        REQUIRE(failure.status == NIXL_ERR_MISMATCH);
    }
}

} // namespace

int main(int count, char **arguments) {
    const std::string only = count > 1 ? arguments[1] : "";
    const std::pair<const char *, void (*)()> tests[] = {
        {"shares", shares},
        {"nonsense", decode_nonsense},
        {"one", one_connection},
        {"many", many_connections},
        {"short", short_and_begun},
        {"leave", leave_and_come},
        {"connections", too_many_connections},
    };
    for (const auto &[name, test] : tests) {
        if (only.empty() || only == name) {
            test();
            std::printf("%s: as they should be\n", name);
        }
    }
}
