#include "buffer.h"

static polyrail_region *register_slots(polyrail_domain *domain, char *start, size_t length) {
    polyrail_region *region = nullptr;
    check(polyrail_region_register(domain, start, length, POLYRAIL_ACCESS_LOCAL_WRITE, &region),
          "registering memory for notifications");
    return region;
}

Slots::Slots(polyrail_domain *domain, size_t count)
    : bytes(new char[count * SLOT_BYTES]), handle(register_slots(domain, bytes.get(), count * SLOT_BYTES)) {}
