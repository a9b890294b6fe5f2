// The state of an engine: devices, connections, a listener, and a thread that drives them.
#pragma once

#include "connections.h"
#include "settings.h"

#include <chrono>
#include <mutex>
#include <thread>

class Hub {
public:
    // With `drives_transfers`, the thread polls as soon as completions arrive, so transfers end without calls for
    // their status. Without it, the thread still accepts connections and receives notifications from time to time.
    // Throws a Failure or a SettingError.
    Hub(const Settings &settings, const std::string &agent, bool drives_transfers);
    // Waits up to a second for pending notifications, and fails transfers in progress.
    ~Hub();
    Hub(const Hub &) = delete;
    void operator=(const Hub &) = delete;

    polyrail_domain *domain() const { return devices.get(); }
    // Returns what others need to connect.
    std::string address() const;
    // Stores the address of `agent`. Throws a Failure.
    void load(const std::string &agent, const std::string &address);
    // Connects, and waits until it is done. Throws a Failure.
    void connect(const std::string &agent);
    void disconnect(const std::string &agent);
    // Begins to connect. Throws a Failure if the agent's address was not loaded.
    void begin(const std::string &agent);

    // Throws a Failure.
    void start(Transfer &transfer, std::optional<std::string> notification);
    // Drives all connections, and returns the status of the transfer.
    nixl_status_t look(const Transfer &transfer);
    // Ends a transfer. No device accesses its memory afterwards. If its requests are still in progress after a
    // second, the connection and all its other transfers end, too.
    void release(Transfer &transfer);
    // Throws a Failure.
    void notify(const std::string &agent, const std::string &message);
    notif_list_t take_notifications();
    // Estimates how long the transfer takes. Throws a Failure if the agent's address was not loaded.
    CostModel::Estimate estimate(const Transfer &transfer);

private:
    using Clock = std::chrono::steady_clock;

    // Does everything that is due, and returns whether there was anything. Requires the mutex.
    bool progress();
    void accept();
    void log_refused();
    void work();
    void rest();
    void log(LogLevel level, const std::string &words) const { log_line(level, home.agent, words); }

    const bool drives_transfers;
    std::string token;
    polyrail_link_options link_options;
    Domain devices;
    Peers peers;
    Listener listener;
    Home home;
    const std::string id = random_id();
    Address self;

    std::mutex mutex;
    Notifications notifications;
    // Destroyed before `peers`.
    Connections connections{home, id, notifications};
    Clock::time_point next_links{};

    // Threads that wait for the mutex, to which the hub's own thread gives way.
    std::atomic<int> waiting{0};
    std::atomic<bool> stopping{false};
    std::atomic<bool> is_resting{false};
    // The event descriptor that wakes the thread.
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
