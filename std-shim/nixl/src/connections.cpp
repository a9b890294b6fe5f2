#include "connections.h"

#include <algorithm>

using namespace std::chrono_literals;

namespace {

// Maximum number of completions per poll.
constexpr size_t BATCH = 64;
// Timeout for requests of an ended connection.
constexpr auto END_TIMEOUT = 1s;
// How long the end of a connection whose peer's device refused a request may stay unexplained. The peer waits for
// END_TIMEOUT before it reports that it has not left.
constexpr auto DOUBT_TIMEOUT = 3 * END_TIMEOUT;
// Limits of connections from one address, and in all. Each takes 256 KiB for notifications, and queue pairs.
constexpr size_t MAX_OF_HOST = 128;
constexpr size_t MAX_INCOMING = 1024;

// Returns the address of the host whose link was accepted.
std::string host_of(polyrail_link *link) {
    char address[256];
    size_t length = 0;
    check(polyrail_link_peer_address(link, address, sizeof address, &length), "reading an address");
    const std::string text(address, length);
    return text.substr(0, text.rfind(':'));
}

} // namespace

void Connections::load(const std::string &agent, Address address) {
    const auto found = outgoing.find(agent);
    if (found == outgoing.end() || !(found->second->where() == address)) {
        outgoing[agent] = std::make_unique<Outgoing>(home, agent, std::move(address));
    }
}

void Connections::disconnect(const std::string &agent) {
    outgoing.erase(agent);
    const auto is_to = [&agent](const std::unique_ptr<Outgoing> &there) { return there->agent() == agent; };
    leaving.erase(std::remove_if(leaving.begin(), leaving.end(), is_to), leaving.end());
}

Outgoing &Connections::current(const std::string &agent) {
    const auto found = outgoing.find(agent);
    if (found == outgoing.end()) {
        throw Failure(NIXL_ERR_NOT_FOUND, "no connection information of agent \"" + agent + "\" was loaded");
    }
    return *found->second;
}

Outgoing &Connections::usable(const std::string &agent) {
    Outgoing &there = current(agent);
    if (!there.is_over()) {
        return there;
    }
    std::unique_ptr<Outgoing> next = there.next();
    std::unique_ptr<Outgoing> &place = outgoing[agent];
    place.swap(next);
    if (next->state() == Outgoing::State::Ending) {
        leaving.push_back(std::move(next));
    }
    return *place;
}

Outgoing *Connections::holder(const Transfer &transfer) {
    Outgoing *found = nullptr;
    for_each_outgoing([&](Outgoing &there) { found = there.holds(transfer) ? &there : found; });
    return found;
}

void Connections::forget(Transfer &transfer) {
    for_each_outgoing([&](Outgoing &there) {
        if (there.agent() == transfer.agent()) {
            there.forget(transfer);
        }
    });
}

template <class F> void Connections::for_each_outgoing(F &&use) const {
    for (const auto &[agent, there] : outgoing) {
        use(*there);
    }
    for (const auto &there : leaving) {
        use(*there);
    }
}

Outgoing *Connections::outgoing_with(uint64_t number) {
    Outgoing *found = nullptr;
    for_each_outgoing([&](Outgoing &there) { found = there.has(number) ? &there : found; });
    return found;
}

void Connections::accept(Link link) {
    try {
        std::string text(POLYRAIL_HELLO_BYTES, '\0');
        size_t length = 0;
        check(polyrail_link_hello(link.get(), text.data(), text.size(), &length), "reading a hello");
        text.resize(length);
        const Hello hello = Hello::decode(text);
        if (hello.id != id) {
            throw Failure(NIXL_ERR_MISMATCH, "agent \"" + hello.agent + "\" looks for another engine");
        }
        const Source source{host_of(link.get()), hello.agent};
        check_room(source.host);
        auto here = std::make_unique<Incoming>(home, id, link, source, notifications);
        incoming.emplace(here->number(), std::move(here));
        log(LogLevel::Info, "agent " + hello.agent + " connects");
    } catch (const Failure &failure) {
        log(LogLevel::Warn, std::string("refused an incoming connection: ") + failure.what());
        if (polyrail_link_refuse(link.get(), printable(failure.what()).c_str()) == POLYRAIL_CODE_OK) {
            static_cast<void>(link.release());
        }
    }
}

// Throws a Failure if there is no room for another connection of this host.
void Connections::check_room(const std::string &host) const {
    const auto is_its = [&host](const auto &entry) { return entry.second->host() == host; };
    const auto count = static_cast<size_t>(std::count_if(incoming.begin(), incoming.end(), is_its));
    if (count >= MAX_OF_HOST || incoming.size() >= MAX_INCOMING) {
        throw Failure(NIXL_ERR_NOT_ALLOWED, "there are " + std::to_string(incoming.size()) + " connections, " +
                                                std::to_string(count) + " of them from " + host + "; at most " +
                                                std::to_string(MAX_INCOMING) + " are accepted, and " +
                                                std::to_string(MAX_OF_HOST) + " from one address");
    }
}

bool Connections::poll() {
    polyrail_completion completions[BATCH];
    size_t count = 0;
    const polyrail_code code = polyrail_peers_poll(home.peers, completions, BATCH, &count);
    std::for_each(completions, completions + count, [this](const auto &completion) { report(completion); });
    if (code < 0) {
        log(LogLevel::Warn, "polling: " + message_of(code));
    }
    if (count > 0) {
        drop_excess();
        pump();
    }
    return count > 0;
}

void Connections::report(const polyrail_completion &completion) {
    Reported::of(completion.id).reported(completion);
    if (completion.status != POLYRAIL_STATUS_SUCCESS && completion.status != POLYRAIL_STATUS_CANCELLED) {
        failing.emplace_back(completion.peer, completion.status);
    }
}

void Connections::step() {
    if (!failing.empty()) {
        // The connections have failed. Their events state the reason better than a status does.
        polyrail_peers_drive(home.peers);
        take_events();
        for (const auto &[number, status] : failing) {
            doom(number, Failure(NIXL_ERR_REMOTE_DISCONNECT, std::string("a request ended: ") + polyrail_status_str(status)));
        }
        failing.clear();
    }
    const auto is_removed = [this](const Doomed &ended) { return remove(ended); };
    doomed.erase(std::remove_if(doomed.begin(), doomed.end(), is_removed), doomed.end());
    take_events();
    pump();
    report_taken();
}

void Connections::pump() {
    is_meeting = false;
    for (const auto &[agent, there] : outgoing) {
        try {
            there->pump();
        } catch (const Failure &failure) {
            doom(there->number(), failure);
        }
        is_meeting |= there->state() == Outgoing::State::Meeting;
    }
    for (const auto &[number, here] : incoming) {
        try {
            here->messages().pump();
        } catch (const Failure &failure) {
            doom(number, failure);
        }
        if (!here->messages().fault().empty()) {
            doom(number, Failure(NIXL_ERR_MISMATCH, here->messages().fault()));
        }
    }
}

// Ends connections that hold most of the memory for notifications, if there are more of these than the engine keeps.
void Connections::drop_excess() {
    for (const auto &dropped : notifications.drop_excess()) {
        const std::string words = std::to_string(dropped.count) + " notifications that were not taken, and what had begun "
                                  "to arrive, " + std::to_string(dropped.cost) + " bytes, are dropped, because more than " +
                                  std::to_string(MAX_KEPT_COST) + " bytes wait here";
        log(LogLevel::Warn, "agent " + dropped.source.agent + " at " + dropped.source.host + ": " + words);
        const auto found = incoming.find(dropped.number);
        if (found != incoming.end()) {
            found->second->messages().refuse(words);
            doom(dropped.number, Failure(NIXL_ERR_NOT_ALLOWED, words));
        }
    }
}

void Connections::report_taken() {
    const uint64_t now = notifications.takes();
    if (now == takes) {
        return;
    }
    bool is_reported = true;
    for (const auto &[number, here] : incoming) {
        is_reported &= here->report_taken();
    }
    if (is_reported) {
        takes = now;
    }
}

void Connections::doom(uint64_t number, const Failure &failure) {
    const auto is_known = [number](const Doomed &known) { return known.number == number; };
    if (std::any_of(doomed.begin(), doomed.end(), is_known)) {
        return;
    }
    Outgoing *const there = outgoing_with(number);
    const auto found = incoming.find(number);
    if (there == nullptr && found == incoming.end()) {
        return;
    }
    doomed.push_back(Doomed{number, failure, true, Clock::now()});
    if (there != nullptr) {
        there->end(failure);
    } else {
        found->second->end();
    }
}

void Connections::lose_link(uint64_t number) {
    for (Doomed &known : doomed) {
        known.has_link &= known.number != number;
    }
    if (Outgoing *const there = outgoing_with(number)) {
        there->link_lost();
    }
}

void Connections::take_events() {
    polyrail_event event{};
    event.size = sizeof event;
    polyrail_code code;
    while ((code = polyrail_peers_next_event(home.peers, &event, told.data(), told.size())) == POLYRAIL_CODE_OK) {
        take_event(event, told.substr(0, event.length));
    }
    if (code < 0) {
        log(LogLevel::Warn, "taking events: " + message_of(code));
    }
}

void Connections::take_event(const polyrail_event &event, const std::string &bytes) {
    Outgoing *const there = outgoing_with(event.peer);
    const auto found = incoming.find(event.peer);
    switch (event.kind) {
    case POLYRAIL_EVENT_KIND_CONNECTED:
        if (there != nullptr) {
            there->connected(bytes);
        }
        break;
    case POLYRAIL_EVENT_KIND_NOT_CONNECTED:
        if (there != nullptr) {
            there->fail(Failure(status_of(event.code), bytes));
            break;
        }
        [[fallthrough]];
    case POLYRAIL_EVENT_KIND_LINK_LOST:
        // What arrived before still has to be polled.
        doom(event.peer, Failure(status_of(event.code), bytes));
        lose_link(event.peer);
        break;
    case POLYRAIL_EVENT_KIND_FAILED:
        doom(event.peer, Failure(status_of(event.code), bytes));
        break;
    case POLYRAIL_EVENT_KIND_MESSAGE:
        try {
            take_note(event.peer, Note::decode(bytes));
        } catch (const Failure &failure) {
            doom(event.peer, failure);
        }
        break;
    case POLYRAIL_EVENT_KIND_LINK_RESUMED:
        if (found != incoming.end()) {
            found->second->report_again();
            takes.reset();
        }
        break;
    default:
        log(LogLevel::Info, bytes);
    }
}

void Connections::take_note(uint64_t number, const Note &note) {
    Outgoing *const there = outgoing_with(number);
    if (note.kind == Note::Kind::Ended) {
        if (there != nullptr) {
            there->peer_ended();
        }
        doom(number, Failure(NIXL_ERR_REMOTE_DISCONNECT, "the peer ended the connection: " + note.words));
    } else if (there != nullptr) {
        there->taken(note.total);
    }
}

// Unless completions of it remain. An empty poll does not prove that none remain, because it may have removed
// completions that finish no request.
bool Connections::remove(const Doomed &ended) {
    if (Outgoing *const there = outgoing_with(ended.number)) {
        return remove_outgoing(*there, ended);
    }
    const auto found = incoming.find(ended.number);
    if (found == incoming.end()) {
        return true;
    }
    const bool is_removed = remove_incoming(*found->second, ended);
    if (is_removed) {
        incoming.erase(found);
    }
    return is_removed;
}

bool Connections::remove_outgoing(Outgoing &there, const Doomed &ended) {
    const auto age = Clock::now() - ended.since;
    const bool is_waiting = age < END_TIMEOUT && !there.is_quiet();
    if (is_waiting || (age < DOUBT_TIMEOUT && there.is_in_doubt())) {
        return false;
    }
    log(LogLevel::Info, "the connection to agent " + there.agent() + " ended: " + ended.failure.what());
    there.fail(ended.failure);
    const auto is_it = [&there](const std::unique_ptr<Outgoing> &other) { return other.get() == &there; };
    leaving.erase(std::remove_if(leaving.begin(), leaving.end(), is_it), leaving.end());
    return true;
}

// The link stays for a while, so that the peer sees whether this agent is about to leave.
bool Connections::remove_incoming(Incoming &here, const Doomed &ended) {
    if (Clock::now() - ended.since < END_TIMEOUT && (ended.has_link || !here.is_quiet())) {
        return false;
    }
    log(LogLevel::Info, "the connection of agent " + here.agent() + " ended: " + ended.failure.what());
    if (ended.has_link) {
        Note::ended(ended.failure.what()).send(home.peers, here.number());
    }
    return true;
}

bool Connections::is_busy() const {
    bool is_any = false;
    for_each_outgoing([&](const Outgoing &there) { is_any |= there.is_busy(); });
    return is_any;
}
