#include "hub.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

using namespace std::chrono_literals;

namespace {

// Maximum number of completions per poll, and of polls before other threads get the mutex.
constexpr size_t BATCH = 64;
constexpr int BATCHES = 16;
// How often links are driven, and new ones accepted.
constexpr auto LINKS_PERIOD = 1ms;
// Maximum time that the thread sleeps: while something is expected, and otherwise.
constexpr int SHORT_REST_MS = 1;
constexpr int LONG_REST_MS = 10;
// Timeout for requests of a released transfer or an ended connection, and for notifications when the engine ends.
constexpr auto END_TIMEOUT = 1s;
// Interval at which a waiting thread checks.
constexpr auto PAUSE = 50us;

polyrail_domain *open_devices(const Settings &settings) {
    polyrail_domain_options options{};
    options.size = sizeof options;
    options.backend = settings.backend;
    options.devices = settings.devices.empty() ? nullptr : settings.devices.c_str();
    options.software_bytes_per_second = settings.software_bytes_per_second;
    if (settings.gid_index >= 0) {
        options.gid_index = static_cast<uint32_t>(settings.gid_index);
        options.flags = POLYRAIL_DOMAIN_GID_INDEX;
    }
    polyrail_domain *domain = nullptr;
    check(polyrail_domain_open(&options, &domain), "opening devices");
    return domain;
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

uint64_t megabits_of(polyrail_domain *domain) {
    polyrail_device_info devices[POLYRAIL_MAX_DEVICES];
    size_t count = 0;
    check(polyrail_domain_devices(domain, devices, POLYRAIL_MAX_DEVICES, &count), "listing devices");
    uint64_t megabits = 0;
    for (size_t device = 0; device < count && device < POLYRAIL_MAX_DEVICES; ++device) {
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
      devices(open_devices(settings)), peers(open_peers(devices.get(), settings.endpoint, drives_transfers)) {
    link_options.token = token.empty() ? nullptr : token.c_str();
    const bool is_local = settings.backend == POLYRAIL_BACKEND_SOFTWARE;
    listener.reset(open_listener(listening_address(settings.interface, settings.port, is_local), link_options));
    char bound[256];
    size_t length = 0;
    check(polyrail_listener_address(listener.get(), bound, sizeof bound, &length), "listening");
    mbps = megabits_of(devices.get());
    self = Address{random_id(), reachable_addresses(bound, settings.interface)};
    home = Home{devices.get(), peers.get(), &link_options, agent};
    if (Hello{self.id, agent}.encode().size() > POLYRAIL_HELLO_BYTES) {
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
        is_sending = is_busy();
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
    outgoing[agent] = std::make_unique<Outgoing>(home, agent, std::move(address));
}

Outgoing &Hub::outgoing_to(const std::string &agent) {
    const auto found = outgoing.find(agent);
    if (found == outgoing.end()) {
        throw Failure(NIXL_ERR_NOT_FOUND, "no connection information of agent \"" + agent + "\" was loaded");
    }
    return *found->second;
}

void Hub::begin(const std::string &agent) {
    const Entry entry(*this);
    outgoing_to(agent).begin();
    pump();
}

void Hub::connect(const std::string &agent) {
    for (;; std::this_thread::sleep_for(PAUSE)) {
        const Entry entry(*this);
        Outgoing &there = outgoing_to(agent);
        there.begin();
        progress();
        if (there.state() == Outgoing::State::Ready) {
            return;
        }
        if (there.state() == Outgoing::State::Failed) {
            throw Failure(NIXL_ERR_REMOTE_DISCONNECT, "agent " + agent + ": " + there.words());
        }
    }
}

void Hub::disconnect(const std::string &agent) {
    const Entry entry(*this);
    outgoing.erase(agent);
}

void Hub::start(Transfer &transfer, std::optional<std::string> notification) {
    if (notification.has_value()) {
        check_length(*notification);
    }
    {
        const Entry entry(*this);
        Outgoing &there = outgoing_to(transfer.agent());
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

void Hub::release(Transfer &transfer) {
    const auto deadline = Clock::now() + END_TIMEOUT;
    for (bool is_first = true;; is_first = false) {
        {
            const Entry entry(*this);
            if (is_first && transfer.status() == NIXL_IN_PROG) {
                transfer.cancel();
            }
            if (transfer.status() == NIXL_IN_PROG) {
                progress();
            }
            const auto found = outgoing.find(transfer.agent());
            if (transfer.status() == NIXL_IN_PROG && Clock::now() > deadline && found != outgoing.end()) {
                // An error would not help, because NIXL drops a transfer that it released in any case.
                const std::string words = "a released transfer was still in progress after a second";
                log(LogLevel::Warn, "the connection to agent " + transfer.agent() + " is ended: " + words);
                found->second->fail(words);
            }
            if (transfer.status() != NIXL_IN_PROG) {
                if (found != outgoing.end()) {
                    found->second->forget(transfer);
                }
                return;
            }
        }
        std::this_thread::sleep_for(PAUSE);
    }
}

void Hub::notify(const std::string &agent, const std::string &message) {
    check_length(message);
    const Entry entry(*this);
    outgoing_to(agent).notify(message);
    progress();
}

void Hub::take_notifications(notif_list_t &list) {
    if (mutex.try_lock()) {
        const std::lock_guard<std::mutex> guard(mutex, std::adopt_lock);
        progress();
    }
    const std::lock_guard<std::mutex> guard(notifications_mutex);
    list = std::move(notifications);
    notifications.clear();
}

bool Hub::progress() {
    if (Clock::now() >= next_links) {
        accept();
        // Only some polls drive links, and this thread may poll rarely.
        if (polyrail_peers_drive(peers.get()) < 0) {
            log(LogLevel::Warn, std::string("driving links: ") + polyrail_last_error());
        }
        next_links = Clock::now() + LINKS_PERIOD;
    }
    bool is_any = false;
    bool is_more = true;
    // At least one, so that threads that always wait for the mutex do not prevent polling.
    for (int batch = 0; is_more && batch < BATCHES && (batch == 0 || waiting.load() == 0); ++batch) {
        is_more = poll();
        is_any |= is_more;
    }
    const auto is_removed = [this](const Doomed &ended) { return remove(ended); };
    doomed.erase(std::remove_if(doomed.begin(), doomed.end(), is_removed), doomed.end());
    take_events();
    pump();
    return is_any;
}

// Returns whether there was anything to do.
bool Hub::poll() {
    polyrail_completion completions[BATCH];
    size_t count = 0;
    const polyrail_code code = polyrail_peers_poll(peers.get(), completions, BATCH, &count);
    for (size_t index = 0; index < count; ++index) {
        Reported::of(completions[index].id).reported(completions[index]);
    }
    if (code < 0) {
        log(LogLevel::Warn, std::string("polling: ") + polyrail_last_error());
    }
    if (count > 0) {
        pump();
    }
    return count > 0;
}

void Hub::pump() {
    is_meeting = false;
    for (const auto &[agent, there] : outgoing) {
        there->pump();
        is_meeting |= there->state() == Outgoing::State::Meeting;
    }
    for (const auto &[number, here] : incoming) {
        try {
            here->messages().pump();
        } catch (const Failure &failure) {
            doom(number, failure.what());
        }
        if (!here->messages().fault().empty()) {
            doom(number, here->messages().fault());
        }
    }
}

void Hub::doom(uint64_t number, const std::string &words) {
    const auto is_known = [number](const Doomed &known) { return known.number == number; };
    if (std::any_of(doomed.begin(), doomed.end(), is_known)) {
        return;
    }
    doomed.push_back(Doomed{number, words, Clock::now() + END_TIMEOUT});
    if (Outgoing *const there = outgoing_with(number)) {
        there->end(words);
    }
    const auto found = incoming.find(number);
    if (found != incoming.end()) {
        found->second->end();
    }
}

Outgoing *Hub::outgoing_with(uint64_t number) {
    for (const auto &[agent, there] : outgoing) {
        if (there->has(number)) {
            return there.get();
        }
    }
    return nullptr;
}

void Hub::accept() {
    polyrail_link *accepted = nullptr;
    if (polyrail_listener_accept(listener.get(), &accepted) != POLYRAIL_CODE_OK) {
        return;
    }
    Link link(accepted);
    try {
        std::string text(POLYRAIL_HELLO_BYTES, '\0');
        size_t length = 0;
        check(polyrail_link_hello(link.get(), text.data(), text.size(), &length), "reading a hello");
        text.resize(length);
        const Hello hello = Hello::decode(text);
        if (hello.id != self.id) {
            throw Failure(NIXL_ERR_MISMATCH, "agent \"" + hello.agent + "\" looks for another engine");
        }
        const auto sink = [this, agent = hello.agent](std::string message) {
            const std::lock_guard<std::mutex> guard(notifications_mutex);
            notifications.emplace_back(agent, std::move(message));
        };
        auto here = std::make_unique<Incoming>(home, self.id, std::move(link), hello.agent, sink);
        incoming.emplace(here->number(), std::move(here));
        log(LogLevel::Info, "agent " + hello.agent + " connects");
    } catch (const Failure &failure) {
        log(LogLevel::Warn, std::string("refused an incoming connection: ") + failure.what());
    }
}

void Hub::take_events() {
    polyrail_event event{};
    event.size = sizeof event;
    while (polyrail_peers_next_event(peers.get(), &event, told.data(), told.size()) == POLYRAIL_CODE_OK) {
        take_event(event, told.substr(0, event.length));
    }
}

void Hub::take_event(const polyrail_event &event, const std::string &bytes) {
    Outgoing *const there = outgoing_with(event.peer);
    switch (event.kind) {
    case POLYRAIL_EVENT_KIND_CONNECTED:
        if (there != nullptr) {
            there->connected(bytes);
        }
        break;
    case POLYRAIL_EVENT_KIND_NOT_CONNECTED:
        if (there != nullptr) {
            there->not_connected(bytes);
        } else {
            doom(event.peer, bytes);
        }
        break;
    case POLYRAIL_EVENT_KIND_LINK_LOST:
    case POLYRAIL_EVENT_KIND_FAILED:
        // What arrived before still has to be polled.
        doom(event.peer, bytes);
        break;
    default:
        log(LogLevel::Info, bytes);
    }
}

// Unless completions of it remain. An empty poll does not prove that none remain, because it may have removed
// completions that finish no request.
bool Hub::remove(const Doomed &ended) {
    Outgoing *const there = outgoing_with(ended.number);
    const auto found = incoming.find(ended.number);
    const bool is_here = found != incoming.end();
    const bool is_quiet = (there == nullptr || there->is_quiet()) && (!is_here || found->second->is_quiet());
    if (!is_quiet && Clock::now() < ended.deadline) {
        return false;
    }
    if (there != nullptr) {
        log(LogLevel::Info, "the connection to agent " + there->agent() + " ended: " + ended.words);
        there->fail(ended.words);
    }
    if (is_here) {
        log(LogLevel::Info, "the connection of agent " + found->second->agent() + " ended: " + ended.words);
        incoming.erase(found);
    }
    return true;
}

bool Hub::is_busy() const {
    for (const auto &[agent, there] : outgoing) {
        if (there->is_busy()) {
            return true;
        }
    }
    return false;
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
        const bool is_expecting = is_meeting || !doomed.empty() || (drives_transfers && is_busy());
        timeout_ms = is_expecting ? SHORT_REST_MS : LONG_REST_MS;
        if (drives_transfers) {
            polyrail_completion completion;
            size_t count = 0;
            polyrail_peers_poll_armed(peers.get(), &completion, 1, &count);
            if (count > 0) {
                Reported::of(completion.id).reported(completion);
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
