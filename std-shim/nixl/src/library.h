// libpolyrail with exceptions for errors and RAII for handles.
#pragma once

#include "nixl_interface.h"

#include <memory>
#include <polyrail.h>
#include <stdexcept>

// An error, with NIXL's status for it.
class Failure : public std::runtime_error {
public:
    Failure(nixl_status_t status, const std::string &words) : std::runtime_error(words), status(status) {}
    nixl_status_t status;
};

// Returns NIXL's status for a code of the library.
nixl_status_t status_of(int32_t code);

// Returns the library's message for the error of this thread's last call, which returned `code`.
std::string message_of(int32_t code);

// Throws a Failure with the library's message if `code` is an error. Returns false for "not now",
// otherwise true.
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

// Callback for a reported request of this side. The id of the request is the address of its
// callback.
class Reported {
public:
    virtual void reported(const polyrail_completion &completion) = 0;

    uint64_t id() const { return reinterpret_cast<uintptr_t>(this); }
    static Reported &of(uint64_t id) { return *reinterpret_cast<Reported *>(id); }

protected:
    ~Reported() = default;
};
