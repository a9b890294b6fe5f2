// The plugin's registered memory for notifications, in slots of one size.
#pragma once

#include "library.h"

// Size of a slot in bytes: of an unsplit notification with its header.
constexpr uint32_t SLOT_BYTES = 4096;
// Size of the header at the beginning of a slot, which states whether the notification continues in
// the next one.
constexpr uint32_t HEAD_BYTES = 4;
constexpr uint32_t IS_LAST = 1;
constexpr uint32_t GOES_ON = 0;

class Slots {
public:
    // Throws a Failure.
    Slots(polyrail_domain *domain, size_t count);

    char *at(size_t slot) { return bytes.get() + slot * SLOT_BYTES; }
    polyrail_region *region() const { return handle.get(); }

private:
    // Destroyed last, because it is registered until then.
    std::unique_ptr<char[]> bytes;
    Region handle;
};
