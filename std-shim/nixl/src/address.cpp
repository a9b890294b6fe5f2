#include "address.h"

#include <cstring>
#include <sstream>
#include <sys/random.h>

namespace {

constexpr char ADDRESS_MARK[] = "polyrail-nixl-2";
constexpr size_t ID_DIGITS = 32;
// The longest host name of the DNS as text, 253 bytes, and ":65535".
constexpr size_t MAX_ENDPOINT_BYTES = 253 + 6;

bool is_id(const std::string &text) {
    return text.size() == ID_DIGITS && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Returns the addresses at which other agents reach `port` on one interface, or on all, the best first.
std::vector<std::string> addresses_of(const std::string &interface, unsigned port) {
    std::string list(POLYRAIL_ADDRESSES_BYTES, '\0');
    size_t length = 0;
    check(polyrail_addresses(interface.c_str(), port, list.data(), list.size(), &length), "addresses of this agent");
    list.resize(length);
    std::vector<std::string> found;
    std::istringstream addresses(list);
    for (std::string address; std::getline(addresses, address, ',');) {
        found.push_back(address);
    }
    return found;
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
    bool is_too_long = false;
    while (words >> endpoint) {
        is_too_long |= endpoint.size() > MAX_ENDPOINT_BYTES;
        address.endpoints.push_back(endpoint);
    }
    if (mark != ADDRESS_MARK || !is_id(address.id) || address.endpoints.empty() || is_too_long ||
        address.endpoints.size() > POLYRAIL_MAX_ADDRESSES || text.find(',') != std::string::npos) {
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
    if (!interface.empty()) {
        return addresses_of(interface, port).front();
    }
    return (is_local ? "127.0.0.1:" : "*:") + std::to_string(port);
}

std::vector<std::string> reachable_addresses(const std::string &bound) {
    const size_t colon = bound.rfind(':');
    const std::string host = bound.substr(0, colon);
    if (host != "[::]" && host != "0.0.0.0") {
        return {bound};
    }
    return addresses_of("", static_cast<unsigned>(std::stoul(bound.substr(colon + 1))));
}

std::string joined(const std::vector<std::string> &endpoints) {
    std::string list;
    for (const std::string &endpoint : endpoints) {
        list += (list.empty() ? "" : ",") + endpoint;
    }
    return list;
}
