#include "address.h"

#include <arpa/inet.h>
#include <cstring>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sstream>
#include <sys/random.h>

namespace {

constexpr char ADDRESS_MARK[] = "polyrail-nixl-2";
constexpr size_t ID_DIGITS = 32;
// Limits how long a peer's list keeps this agent busy. More addresses than machines usually have.
constexpr size_t MAX_ENDPOINTS = 16;

bool is_id(const std::string &text) {
    return text.size() == ID_DIGITS && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Returns the address of an interface as text; empty if other machines cannot use it.
std::string text_of(const ifaddrs &entry) {
    char text[INET6_ADDRSTRLEN] = "";
    if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0) {
        return "";
    }
    if (entry.ifa_addr->sa_family == AF_INET) {
        const auto *address = reinterpret_cast<const sockaddr_in *>(entry.ifa_addr);
        inet_ntop(AF_INET, &address->sin_addr, text, sizeof text);
        return text;
    }
    if (entry.ifa_addr->sa_family == AF_INET6) {
        const auto *address = reinterpret_cast<const sockaddr_in6 *>(entry.ifa_addr);
        // Link-local addresses need a scope, which differs between machines.
        if (!IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr)) {
            inet_ntop(AF_INET6, &address->sin6_addr, text, sizeof text);
            return '[' + std::string(text) + ']';
        }
    }
    return "";
}

// Returns the addresses of one interface, or of all except loopback.
std::vector<std::string> addresses_of(const std::string &interface) {
    std::vector<std::string> found;
    ifaddrs *list = nullptr;
    if (getifaddrs(&list) != 0) {
        throw Failure(NIXL_ERR_BACKEND, std::string("listing network interfaces: ") + std::strerror(errno));
    }
    for (const ifaddrs *entry = list; entry != nullptr; entry = entry->ifa_next) {
        const bool is_meant =
            interface.empty() ? (entry->ifa_flags & IFF_LOOPBACK) == 0 : interface == entry->ifa_name;
        const std::string text = is_meant ? text_of(*entry) : "";
        if (!text.empty() && found.size() < MAX_ENDPOINTS) {
            found.push_back(text);
        }
    }
    freeifaddrs(list);
    return found;
}

std::string wildcard() {
    return "0.0.0.0";
}

} // namespace

std::string random_id() {
    unsigned char bytes[ID_DIGITS / 2];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
        throw Failure(NIXL_ERR_BACKEND, std::string("random bytes: ") + std::strerror(errno));
    }
    std::string digits;
    for (const unsigned char byte : bytes) {
        digits += "0123456789abcdef"[byte >> 4];
        digits += "0123456789abcdef"[byte & 15];
    }
    return digits;
}

std::string Address::encode() const {
    std::string text = ADDRESS_MARK + (' ' + id);
    for (const std::string &endpoint : endpoints) {
        text += ' ' + endpoint;
    }
    return text;
}

Address Address::decode(const std::string &text) {
    std::istringstream words(text);
    std::string mark, endpoint;
    Address address;
    words >> mark >> address.id;
    while (words >> endpoint) {
        address.endpoints.push_back(endpoint);
    }
    if (mark != ADDRESS_MARK || !is_id(address.id) || address.endpoints.empty() ||
        address.endpoints.size() > MAX_ENDPOINTS) {
        throw Failure(NIXL_ERR_MISMATCH, "\"" + text.substr(0, 100) + "\" is not an address of this plugin");
    }
    return address;
}

std::string Hello::encode() const {
    return ADDRESS_MARK + (' ' + id) + ' ' + agent;
}

// The rest is the name, which may contain any character.
Hello Hello::decode(const std::string &text) {
    const size_t mark = sizeof(ADDRESS_MARK) - 1;
    const size_t name = mark + 1 + ID_DIGITS + 1;
    const Hello hello = text.size() > name ? Hello{text.substr(mark + 1, ID_DIGITS), text.substr(name)} : Hello{};
    if (text.compare(0, mark, ADDRESS_MARK) != 0 || !is_id(hello.id) || text != hello.encode()) {
        throw Failure(NIXL_ERR_MISMATCH, "\"" + text.substr(0, 100) + "\" is not a hello of this plugin");
    }
    return hello;
}

std::string listening_address(const std::string &interface, uint16_t port, bool is_local) {
    std::string host = is_local ? "127.0.0.1" : wildcard();
    if (!interface.empty()) {
        const std::vector<std::string> addresses = addresses_of(interface);
        if (addresses.empty()) {
            throw Failure(NIXL_ERR_INVALID_PARAM, "network interface \"" + interface + "\" has no address");
        }
        host = addresses.front();
    }
    return host + ':' + std::to_string(port);
}

std::vector<std::string> reachable_addresses(const std::string &bound, const std::string &interface) {
    const size_t colon = bound.rfind(':');
    if (colon == std::string::npos || bound.compare(0, colon, wildcard()) != 0) {
        return {bound};
    }
    std::vector<std::string> hosts;
    for (const std::string &host : addresses_of(interface)) {
        // The listener has only IPv4 addresses.
        if (host[0] != '[') {
            hosts.push_back(host + bound.substr(colon));
        }
    }
    if (hosts.empty()) {
        hosts.push_back("127.0.0.1" + bound.substr(colon));
    }
    return hosts;
}
