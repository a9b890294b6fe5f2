#include "hub.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sstream>
#include <sys/eventfd.h>
#include <unistd.h>

using namespace std::chrono_literals;

namespace {

// Maximum number of polls before other threads get the mutex.
constexpr int BATCHES = 16;
// How often links are driven, and new ones accepted.
constexpr auto LINKS_PERIOD = 1ms;
// Maximum time that the thread sleeps: while something is expected, and otherwise.
constexpr int SHORT_REST_MS = 1;
constexpr int LONG_REST_MS = 10;
// Timeout for requests of a released transfer, and for notifications when the engine ends.
constexpr auto END_TIMEOUT = 1s;
// Interval at which a waiting thread checks.
constexpr auto PAUSE = 50us;

polyrail_domain *open_devices(const Settings &settings) {
    polyrail_domain_options options{};
    options.size = sizeof options;
    options.backend = settings.backend;
    options.devices = settings.devices.empty() ? nullptr : settings.devices.c_str();
    options.near = settings.near.empty() ? nullptr : settings.near.c_str();
    options.software_bytes_per_second = settings.software_bytes_per_second;
    options.tcp_port = settings.tcp_port;
    if (settings.gid_index >= 0) {
        options.gid_index = static_cast<uint32_t>(settings.gid_index);
        options.flags = POLYRAIL_DOMAIN_GID_INDEX;
    }
    polyrail_domain *domain = nullptr;
    try {
        check(polyrail_domain_open(&options, &domain), "opening devices");
    } catch (const Failure &failure) {
        if (settings.backend != POLYRAIL_BACKEND_VERBS || !settings.near.empty()) {
            throw;
        }
        // It is the default, so this host may just have no RDMA device.
        throw Failure(failure.status, std::string(failure.what()) + "; the backend tcp (POLYRAIL_BACKEND=tcp) needs no RDMA device");
    }
    return domain;
}

// Logs a line for each device that the domain leaves out, because data goes over fewer rails than expected.
void log_not_used(polyrail_domain *domain, const std::string &agent) {
    size_t length = 0;
    std::string text(1, '\0');
    while (polyrail_domain_not_used(domain, text.data(), text.size(), &length) == POLYRAIL_CODE_TOO_SHORT) {
        text.resize(length);
    }
    text.resize(length);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        log_line(LogLevel::Warn, agent, "a device is not used: " + line);
    }
}

// Returns the options of connections, with the rates that replace those of devices.
polyrail_endpoint_options options_on(polyrail_domain *domain, const Settings &settings) {
    polyrail_endpoint_options options = settings.endpoint;
    polyrail_device_info devices[POLYRAIL_MAX_DEVICES];
    size_t count = 0;
    check(polyrail_domain_devices(domain, devices, POLYRAIL_MAX_DEVICES, &count), "listing devices");
    for (const auto &[name, mbps] : settings.device_mbps) {
        bool is_there = false;
        for (size_t device = 0; device < std::min<size_t>(count, POLYRAIL_MAX_DEVICES); ++device) {
            // A device over TCP is named with or without tcp:.
            if (name == devices[device].name || "tcp:" + name == devices[device].name) {
                options.device_mbps[device] = mbps;
                is_there = true;
            }
        }
        if (!is_there) {
            throw Failure(NIXL_ERR_INVALID_PARAM,
                          "device_mbps has a rate of " + printable(name) + ", which is not a device of this agent");
        }
    }
    return options;
}

polyrail_peers *open_peers(polyrail_domain *domain, polyrail_endpoint_options options, bool has_events) {
    // The plugin keeps the order itself: a notification is posted when its data is done.
    options.flags |= POLYRAIL_ENDPOINT_UNORDERED;
    options.flags |= has_events ? POLYRAIL_ENDPOINT_EVENTS : 0;
    polyrail_peers *peers = nullptr;
    check(polyrail_peers_open(domain, &options, &peers), "making completion queues");
    return peers;
}

polyrail_listener *open_listener(const std::string &address, const polyrail_link_options &options) {
    polyrail_listener *listener = nullptr;
    check(polyrail_listener_open(address.c_str(), &options, &listener), "listening");
    return listener;
}

// Returns the rate of the devices that carry rails. Logs a line if there are others: a rail uses one device.
uint64_t megabits_of(polyrail_domain *domain, uint32_t rails, const std::string &agent) {
    polyrail_device_info devices[POLYRAIL_MAX_DEVICES];
    size_t count = 0;
    check(polyrail_domain_devices(domain, devices, POLYRAIL_MAX_DEVICES, &count), "listing devices");
    if (count > rails) {
        std::string unused;
        for (size_t device = rails; device < count && device < POLYRAIL_MAX_DEVICES; ++device) {
            unused += (unused.empty() ? "" : ", ") + std::string(devices[device].name);
        }
        log_line(LogLevel::Warn, agent, "of " + std::to_string(count) + " devices the last ones are not used, because "
                                        "rails=" + std::to_string(rails) + ": " + unused);
    }
    uint64_t megabits = 0;
    for (size_t device = 0; device < std::min<size_t>(count, rails) && device < POLYRAIL_MAX_DEVICES; ++device) {
        megabits += devices[device].mbps;
    }
    return megabits;
}

void check_length(const std::string &notification) {
    if (notification.size() > MAX_NOTIFICATION_BYTES) {
        throw Failure(NIXL_ERR_INVALID_PARAM, "a notification of " + std::to_string(notification.size()) +
                                                  " bytes; " + std::to_string(MAX_NOTIFICATION_BYTES) +
                                                  " are the most");
    }
}

} // namespace

// The lock of the mutex. While a thread waits for it, the hub's own thread gives way.
class Hub::Entry {
public:
    explicit Entry(Hub &hub) : hub(hub) {
        hub.waiting.fetch_add(1);
        hub.mutex.lock();
        hub.waiting.fetch_sub(1);
    }
    ~Entry() { hub.mutex.unlock(); }
    Entry(const Entry &) = delete;
    void operator=(const Entry &) = delete;

private:
    Hub &hub;
};

Hub::Wakes::Wakes() : fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (fd < 0) {
        throw Failure(NIXL_ERR_BACKEND, std::string("eventfd: ") + std::strerror(errno));
    }
}

Hub::Wakes::~Wakes() {
    close(fd);
}

Hub::Hub(const Settings &settings, const std::string &agent, bool drives_transfers)
    : drives_transfers(drives_transfers), token(settings.token), link_options(settings.link),
      devices(open_devices(settings)), peers(open_peers(devices.get(), options_on(devices.get(), settings), drives_transfers)) {
    log_not_used(devices.get(), agent);
    link_options.token = token.empty() ? nullptr : token.c_str();
    const bool is_local = settings.backend == POLYRAIL_BACKEND_SOFTWARE;
    listener.reset(open_listener(listening_address(settings.interface, settings.port, is_local), link_options));
    char bound[256];
    size_t length = 0;
    check(polyrail_listener_address(listener.get(), bound, sizeof bound, &length), "listening");
    self = Address{id, reachable_addresses(bound)};
    const uint64_t megabits = megabits_of(devices.get(), settings.endpoint.rails, agent);
    home = Home{devices.get(), peers.get(), &link_options, megabits, agent};
    if (Hello{id, agent}.encode().size() > POLYRAIL_HELLO_BYTES) {
        throw Failure(NIXL_ERR_INVALID_PARAM, "the agent's name is too long");
    }
    load(agent, self.encode());
    thread = std::thread([this] { work(); });
}

Hub::~Hub() {
    const auto deadline = Clock::now() + END_TIMEOUT;
    for (bool is_sending = true; is_sending && Clock::now() < deadline; std::this_thread::sleep_for(PAUSE)) {
        const Entry entry(*this);
        progress();
        is_sending = connections.is_busy();
    }
    stopping = true;
    wake();
    thread.join();
}

std::string Hub::address() const {
    return self.encode();
}

void Hub::load(const std::string &agent, const std::string &text) {
    Address address = Address::decode(text);
    const Entry entry(*this);
    connections.load(agent, std::move(address));
}

void Hub::begin(const std::string &agent) {
    const Entry entry(*this);
    connections.usable(agent).begin();
    connections.pump();
}

void Hub::connect(const std::string &agent) {
    for (bool is_first = true;; is_first = false) {
        {
            const Entry entry(*this);
            Outgoing &there = is_first ? connections.usable(agent) : connections.current(agent);
            there.begin();
            progress();
            if (there.state() == Outgoing::State::Ready) {
                return;
            }
            if (there.is_over()) {
                throw there.failure();
            }
        }
        std::this_thread::sleep_for(PAUSE);
    }
}

void Hub::disconnect(const std::string &agent) {
    const Entry entry(*this);
    connections.disconnect(agent);
}

void Hub::start(Transfer &transfer, std::optional<std::string> notification) {
    if (notification.has_value()) {
        check_length(*notification);
    }
    {
        const Entry entry(*this);
        Outgoing &there = connections.usable(transfer.agent());
        if (transfer.status() != NIXL_IN_PROG) {
            // A connection that is ending may hold it since the last time, and would fail it when it has ended.
            connections.forget(transfer);
        }
        transfer.start(std::move(notification));
        try {
            there.add(transfer);
        } catch (const Failure &) {
            transfer.cancel();
            throw;
        }
        progress();
    }
    if (transfer.status() == NIXL_IN_PROG && is_resting.load()) {
        wake();
    }
}

nixl_status_t Hub::look(const Transfer &transfer) {
    if (transfer.status() == NIXL_IN_PROG) {
        if (mutex.try_lock()) {
            const std::lock_guard<std::mutex> guard(mutex, std::adopt_lock);
            progress();
        } else {
            // Another thread connects, and may need this processor.
            std::this_thread::yield();
        }
    }
    const nixl_status_t status = transfer.status();
    if (status < 0 && !transfer.words().empty()) {
        log(LogLevel::Warn, "a transfer with agent " + transfer.agent() + " failed: " + transfer.words());
    }
    return status;
}

CostModel::Estimate Hub::estimate(const Transfer &transfer) {
    const Entry entry(*this);
    return connections.current(transfer.agent()).estimate(transfer.bytes());
}

void Hub::release(Transfer &transfer) {
    const auto deadline = Clock::now() + END_TIMEOUT;
    for (bool is_first = true;; is_first = false) {
        {
            const Entry entry(*this);
            if (is_first && transfer.status() == NIXL_IN_PROG) {
                transfer.cancel();
                if (const Outgoing *const there = connections.holder(transfer)) {
                    there->take_back(transfer);
                }
            }
            if (transfer.status() == NIXL_IN_PROG) {
                progress();
            }
            Outgoing *const there = connections.holder(transfer);
            if (transfer.status() == NIXL_IN_PROG && Clock::now() > deadline && there != nullptr) {
                // An error would not help, because NIXL drops a transfer that it released in any case.
                const Failure failure(NIXL_ERR_REMOTE_DISCONNECT,
                                      "a released transfer was still in progress after a second");
                log(LogLevel::Warn,
                    "the connection to agent " + transfer.agent() + " is ended: " + failure.what());
                there->fail(failure);
            }
            if (transfer.status() != NIXL_IN_PROG) {
                connections.forget(transfer);
                return;
            }
        }
        std::this_thread::sleep_for(PAUSE);
    }
}

void Hub::notify(const std::string &agent, const std::string &message) {
    check_length(message);
    const Entry entry(*this);
    connections.usable(agent).notify(message);
    progress();
}

notif_list_t Hub::take_notifications() {
    if (mutex.try_lock()) {
        const std::lock_guard<std::mutex> guard(mutex, std::adopt_lock);
        progress();
    }
    return notifications.take();
}

bool Hub::progress() {
    if (Clock::now() >= next_links) {
        accept();
        // Only some polls drive links, and this thread may poll rarely.
        const polyrail_code code = polyrail_peers_drive(peers.get());
        if (code < 0) {
            log(LogLevel::Warn, "driving links: " + message_of(code));
        }
        next_links = Clock::now() + LINKS_PERIOD;
    }
    bool is_any = false;
    bool is_more = true;
    // At least one, so that threads that always wait for the mutex do not prevent polling.
    for (int batch = 0; is_more && batch < BATCHES && (batch == 0 || waiting.load() == 0); ++batch) {
        is_more = connections.poll();
        is_any |= is_more;
    }
    connections.step();
    return is_any;
}

void Hub::accept() {
    polyrail_link *accepted = nullptr;
    if (polyrail_listener_accept(listener.get(), &accepted) == POLYRAIL_CODE_OK) {
        connections.accept(Link(accepted));
    }
    log_refused();
}

// Logs why peers were refused before their hello, such as another token.
void Hub::log_refused() {
    std::string line(256, '\0');
    size_t length = 0;
    polyrail_code code;
    do {
        code = polyrail_listener_next_refused(listener.get(), line.data(), line.size(), &length);
        if (code == POLYRAIL_CODE_OK) {
            log(LogLevel::Warn, "refused a connection from " + line.substr(0, length));
        } else if (code == POLYRAIL_CODE_TOO_SHORT) {
            line.resize(length);
        }
    } while (code == POLYRAIL_CODE_OK || code == POLYRAIL_CODE_TOO_SHORT);
}

void Hub::wake() {
    const uint64_t one = 1;
    // It can only fail if the thread is about to wake anyway.
    static_cast<void>(!write(wakes.fd, &one, sizeof one));
}

void Hub::work() {
    while (!stopping.load()) {
        try {
            bool is_any = false;
            {
                const std::lock_guard<std::mutex> guard(mutex);
                is_any = progress();
            }
            if (waiting.load() > 0) {
                std::this_thread::yield();
            } else if (!is_any || !drives_transfers) {
                rest();
            }
        } catch (const std::exception &failure) {
            // Out of memory: try again the next time, and do not end the program.
            log(LogLevel::Warn, failure.what());
            std::this_thread::sleep_for(std::chrono::milliseconds(LONG_REST_MS));
        }
    }
}

// Sleeps until a completion arrives, another thread wakes it, or the next check is due.
void Hub::rest() {
    pollfd fds[2] = {{wakes.fd, POLLIN, 0}, {-1, POLLIN, 0}};
    int timeout_ms = LONG_REST_MS;
    {
        const std::lock_guard<std::mutex> guard(mutex);
        const bool is_expecting = connections.is_expecting() || (drives_transfers && connections.is_busy());
        timeout_ms = is_expecting ? SHORT_REST_MS : LONG_REST_MS;
        if (drives_transfers) {
            polyrail_completion completion;
            size_t count = 0;
            polyrail_peers_poll_armed(peers.get(), &completion, 1, &count);
            if (count > 0) {
                connections.report(completion);
                return;
            }
            polyrail_peers_fd(peers.get(), &fds[1].fd);
        }
        is_resting = true;
    }
    ::poll(fds, 2, timeout_ms);
    is_resting = false;
    uint64_t count = 0;
    static_cast<void>(!read(wakes.fd, &count, sizeof count));
}
