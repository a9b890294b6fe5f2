// libpolyrail, with its errors as exceptions and its handles closed by themselves.
#pragma once

#include "nixl_interface.h"

#include <memory>
#include <polyrail.h>
#include <stdexcept>

// What failed, and how NIXL calls that.
class Failure : public std::runtime_error {
public:
    Failure(nixl_status_t status, const std::string &words) : std::runtime_error(words), status(status) {}
    nixl_status_t status;
};

// How NIXL calls what the library returned.
nixl_status_t status_of(int32_t code);

// Throws a Failure, with the library's words, if `code` is an error; returns whether it is not "not now".
bool check(int32_t code, const char *what);

template <class T, polyrail_code (*close)(T *)> struct Closer {
    void operator()(T *handle) const { close(handle); }
};

template <class T, polyrail_code (*close)(T *)> using Handle = std::unique_ptr<T, Closer<T, close>>;

using Domain = Handle<polyrail_domain, polyrail_domain_close>;
using Region = Handle<polyrail_region, polyrail_region_close>;
using Remote = Handle<polyrail_remote, polyrail_remote_close>;
using Listener = Handle<polyrail_listener, polyrail_listener_close>;
using Link = Handle<polyrail_link, polyrail_link_close>;
using Peers = Handle<polyrail_peers, polyrail_peers_close>;

// What is called when a request of this side is reported: its id is the address of one of these.
class Reported {
public:
    virtual void reported(const polyrail_completion &completion) = 0;

    uint64_t id() { return reinterpret_cast<uintptr_t>(this); }
    static Reported &of(uint64_t id) { return *reinterpret_cast<Reported *>(id); }

protected:
    ~Reported() = default;
};
