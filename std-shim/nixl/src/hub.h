// What one engine has: devices, connections, a place where others find it, and a thread that looks after them.
#pragma once

#include "incoming.h"
#include "outgoing.h"
#include "settings.h"

#include <chrono>
#include <map>
#include <mutex>
#include <thread>

class Hub {
public:
    // With `drives_transfers`, the thread polls at once when there is something, so that transfers end though nobody
    // asks for them. Without, it still answers those that connect, and takes notifications now and then. Throws a
    // Failure or a SettingError.
    Hub(const Settings &settings, const std::string &agent, bool drives_transfers);
    // Lets notifications go, for a second at most; fails what is under way.
    ~Hub();
    Hub(const Hub &) = delete;
    void operator=(const Hub &) = delete;

    polyrail_domain *domain() const { return devices.get(); }
    // What others need to connect.
    std::string address() const;
    // Where `agent` can be reached. Throws a Failure.
    void load(const std::string &agent, const std::string &address);
    // Connects, and waits until it is done. Throws a Failure.
    void connect(const std::string &agent);
    void disconnect(const std::string &agent);
    // Begins to connect. Throws a Failure if nothing is known of that agent.
    void begin(const std::string &agent);

    // Throws a Failure.
    void start(Transfer &transfer, std::optional<std::string> notification);
    // What became of it, after a look at all connections.
    nixl_status_t look(const Transfer &transfer);
    // Ends it: no device accesses its memory any more. If requests of it are still under way after a second, the
    // connection ends with it, and so do the peer's other transfers.
    void release(Transfer &transfer);
    // Throws a Failure.
    void notify(const std::string &agent, const std::string &message);
    void take_notifications(notif_list_t &list);
    // Megabits a second of all devices; 0: unknown.
    uint64_t megabits() const { return mbps; }

private:
    using Clock = std::chrono::steady_clock;

    // A connection that has ended, of which completions may still be there.
    struct Doomed {
        uint64_t number;
        std::string words;
        // When it is removed with whatever is left.
        Clock::time_point deadline;
    };

    Outgoing &outgoing_to(const std::string &agent);
    // All that has to be done now; whether anything was there to do. With the mutex.
    bool progress();
    void accept();
    bool poll();
    void take_events();
    Outgoing *outgoing_with(uint64_t number);
    void doom(uint64_t number, const std::string &words);
    void take_event(const polyrail_event &event, const std::string &bytes);
    bool remove(const Doomed &ended);
    void pump();
    bool is_busy() const;
    void work();
    void rest();
    void log(LogLevel level, const std::string &words) const { log_line(level, home.agent, words); }

    const bool drives_transfers;
    std::string token;
    polyrail_link_options link_options;
    uint64_t mbps = 0;
    Domain devices;
    Peers peers;
    Listener listener;
    Home home;
    Address self;

    std::mutex mutex;
    // Destroyed before `peers`.
    std::map<std::string, std::unique_ptr<Outgoing>> outgoing;
    std::map<uint64_t, std::unique_ptr<Incoming>> incoming;
    std::vector<Doomed> doomed;
    // Room for what events tell: they are asked for with every look.
    std::string told = std::string(POLYRAIL_MESSAGE_BYTES, '\0');
    Clock::time_point next_links{};
    bool is_meeting = false;

    std::mutex notifications_mutex;
    notif_list_t notifications;

    // Threads that want the mutex, to which the hub's own thread gives way.
    std::atomic<int> waiting{0};
    std::atomic<bool> stopping{false};
    std::atomic<bool> is_resting{false};
    // What wakes the thread.
    struct Wakes {
        Wakes();
        ~Wakes();
        Wakes(const Wakes &) = delete;
        void operator=(const Wakes &) = delete;
        const int fd;
    } wakes;
    std::thread thread;

    class Entry;
    void wake();
};
