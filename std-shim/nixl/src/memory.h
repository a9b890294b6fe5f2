// Registered memory, of this agent and of others.
#pragma once

#include "library.h"

// A region of this agent.
class LocalMemory : public nixlBackendMD {
public:
    // Throws a Failure.
    LocalMemory(polyrail_domain *domain, const nixlBlobDesc &memory, nixl_mem_t type);

    polyrail_region *region() const { return handle.get(); }
    // Returns what others need to access it.
    std::string exported() const;
    // Returns the offset of `desc`, which may be empty, in the region. Throws a Failure if it is not within the region.
    uint64_t offset_of(const nixlBasicDesc &desc) const;
    // Deregisters the memory. Throws a Failure if a device may still access it.
    void close();

    const uintptr_t start;
    const size_t length;

private:
    Region handle;
};

// A region of another agent, or of this one as the far end of a transfer with itself.
class RemoteMemory : public nixlBackendMD {
public:
    // Throws a Failure.
    RemoteMemory(const nixlBasicDesc &memory, const std::string &exported, const std::string &agent);

    polyrail_remote *remote() const { return handle.get(); }
    uint64_t offset_of(const nixlBasicDesc &desc) const;

    const uintptr_t start;
    const size_t length;
    const std::string agent;

private:
    Remote handle;
};
