// All connections of an engine. One thread at a time calls it.
#pragma once

#include "incoming.h"
#include "log.h"
#include "notes.h"
#include "outgoing.h"

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <vector>

class Connections {
public:
    // `id` is the engine's own, which agents that connect must know.
    Connections(const Home &home, const std::string &id, Notifications &notifications)
        : home(home), id(id), notifications(notifications) {}
    Connections(const Connections &) = delete;
    void operator=(const Connections &) = delete;

    // Stores the address of an agent. A connection to the same address stays.
    void load(const std::string &agent, Address address);
    void disconnect(const std::string &agent);
    // Returns the connection to an agent, which may have failed. Throws a Failure if its address was not loaded.
    Outgoing &current(const std::string &agent);
    // Returns a connection for a new request: another one if the current one has failed.
    Outgoing &usable(const std::string &agent);
    // Returns the connection that has this transfer in progress; null if there is none.
    Outgoing *holder(const Transfer &transfer);
    // Removes a transfer that is not in progress, or was cancelled.
    void forget(Transfer &transfer);

    // Answers a link, or refuses it.
    void accept(Link link);
    // Takes completions, and returns whether there were any.
    bool poll();
    // Handles a completion that was polled elsewhere.
    void report(const polyrail_completion &completion);
    // Does what is due after polls: handles events, removes connections that ended, and posts.
    void step();
    // Posts as much as there is room for.
    void pump();

    // Returns whether requests or notifications are in progress.
    bool is_busy() const;
    // Returns whether events are expected soon.
    bool is_expecting() const { return is_meeting || !doomed.empty(); }

private:
    using Clock = std::chrono::steady_clock;

    // A connection that has ended, but may still have completions.
    struct Doomed {
        uint64_t number;
        Failure failure;
        bool has_link;
        Clock::time_point since;
    };

    template <class F> void for_each_outgoing(F &&use) const;
    Outgoing *outgoing_with(uint64_t number);
    void doom(uint64_t number, const Failure &failure);
    void lose_link(uint64_t number);
    void take_events();
    void take_event(const polyrail_event &event, const std::string &bytes);
    void take_note(uint64_t number, const Note &note);
    void report_taken();
    void check_room(const std::string &host) const;
    void drop_excess();
    bool remove(const Doomed &ended);
    bool remove_outgoing(Outgoing &there, const Doomed &ended);
    bool remove_incoming(Incoming &here, const Doomed &ended);
    void log(LogLevel level, const std::string &words) const { log_line(level, home.agent, words); }

    const Home &home;
    const std::string id;
    Notifications &notifications;
    std::map<std::string, std::unique_ptr<Outgoing>> outgoing;
    // Former connections whose posted requests have not ended.
    std::vector<std::unique_ptr<Outgoing>> leaving;
    std::map<uint64_t, std::unique_ptr<Incoming>> incoming;
    std::vector<Doomed> doomed;
    // Connections with failed completions, since the last step.
    std::vector<std::pair<uint64_t, uint32_t>> failing;
    // Buffer for the bytes of events, reused because every check reads events.
    std::string told = std::string(POLYRAIL_MESSAGE_BYTES, '\0');
    // The number of takes of notifications that were reported to all peers. None: a report may be lost.
    std::optional<uint64_t> takes;
    bool is_meeting = false;
};
