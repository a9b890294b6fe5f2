// Memory of the plugin's own for notifications, in slots of one size, registered.
#pragma once

#include "library.h"

// Bytes of a slot: of a notification that travels whole, with its head.
constexpr uint32_t SLOT_BYTES = 4096;
// What a slot begins with: whether the notification goes on in the next one.
constexpr uint32_t HEAD_BYTES = 4;
constexpr uint32_t IS_LAST = 1;
constexpr uint32_t GOES_ON = 0;
// A notification is at most this long: a peer decides how much of it is kept.
constexpr size_t MAX_NOTIFICATION_BYTES = 64 << 20;

class Slots {
public:
    // Throws a Failure.
    Slots(polyrail_domain *domain, size_t count);

    char *at(size_t slot) { return bytes.get() + slot * SLOT_BYTES; }
    polyrail_region *region() const { return handle.get(); }

private:
    // Destroyed last: registered until then.
    std::unique_ptr<char[]> bytes;
    Region handle;
};
