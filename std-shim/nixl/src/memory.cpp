#include "memory.h"
#include "gpu.h"

#include <cstdio>
#include <cstring>
#include <limits>
#include <unistd.h>

namespace {

constexpr uint32_t ALL_ACCESS =
    POLYRAIL_ACCESS_LOCAL_WRITE | POLYRAIL_ACCESS_REMOTE_WRITE | POLYRAIL_ACCESS_REMOTE_READ;

std::string range(uintptr_t start, size_t length) {
    char text[64];
    std::snprintf(text, sizeof text, "%zu bytes at 0x%zx", length, static_cast<size_t>(start));
    return text;
}

uint64_t offset_within(uintptr_t start, size_t length, const nixlBasicDesc &desc) {
    // In this order nothing overflows for any values of the caller.
    const bool is_within =
        desc.addr >= start && desc.addr - start <= length && desc.len <= length - (desc.addr - start);
    if (!is_within) {
        throw Failure(NIXL_ERR_INVALID_PARAM,
                      range(desc.addr, desc.len) + " are not within the region of " + range(start, length));
    }
    return desc.addr - start;
}

polyrail_region *register_dram(polyrail_domain *domain, const nixlBlobDesc &memory) {
    polyrail_region *region = nullptr;
    check(polyrail_region_register(domain, reinterpret_cast<void *>(memory.addr), memory.len, ALL_ACCESS, &region),
          "registering memory");
    return region;
}

polyrail_region *register_vram(polyrail_domain *domain, const nixlBlobDesc &memory) {
    const GpuBuffer buffer = export_gpu_memory(memory.addr, memory.len, memory.devId);
    polyrail_region *region = nullptr;
    const polyrail_code code = polyrail_region_register_dmabuf(domain, buffer.fd, buffer.offset, memory.len,
                                                               memory.addr, ALL_ACCESS, &region);
    ::close(buffer.fd);
    check(code, "registering memory of a GPU");
    return region;
}

polyrail_region *register_memory(polyrail_domain *domain, const nixlBlobDesc &memory, nixl_mem_t type) {
    if (memory.len == 0 || memory.len > std::numeric_limits<uintptr_t>::max() - memory.addr) {
        throw Failure(NIXL_ERR_INVALID_PARAM, range(memory.addr, memory.len) + " cannot be registered");
    }
    switch (type) {
    case DRAM_SEG:
        return register_dram(domain, memory);
    case VRAM_SEG:
        return register_vram(domain, memory);
    default:
        throw Failure(NIXL_ERR_NOT_SUPPORTED,
                      "memory of type " + std::to_string(type) + " is not supported, only DRAM and VRAM are");
    }
}

// FNV-1a. Metadata passes through several programs, and one wrong bit in a key or address would be a write to
// the wrong place.
uint64_t checksum(const nixlBasicDesc &memory, const std::string &exported) {
    std::string all = exported;
    all.append(reinterpret_cast<const char *>(&memory.addr), sizeof memory.addr);
    all.append(reinterpret_cast<const char *>(&memory.len), sizeof memory.len);
    uint64_t sum = 0xcbf29ce484222325;
    for (const char byte : all) {
        sum = (sum ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
    }
    return sum;
}

constexpr size_t CHECKSUM_BYTES = sizeof(uint64_t);

// `summed` is the library's export, followed by a checksum over the export and NIXL's own
// description of the memory.
polyrail_remote *import_remote(const nixlBasicDesc &memory, const std::string &summed) {
    const size_t length = summed.size() < CHECKSUM_BYTES ? 0 : summed.size() - CHECKSUM_BYTES;
    uint64_t sum = 0;
    std::memcpy(&sum, summed.data() + length, length == 0 ? 0 : CHECKSUM_BYTES);
    if (length == 0 || sum != checksum(memory, summed.substr(0, length))) {
        throw Failure(NIXL_ERR_MISMATCH, "the keys of " + range(memory.addr, memory.len) + " are spoilt");
    }
    polyrail_remote *remote = nullptr;
    check(polyrail_remote_import(summed.data(), length, &remote), "loading memory of an agent");
    return remote;
}

} // namespace

LocalMemory::LocalMemory(polyrail_domain *domain, const nixlBlobDesc &memory, nixl_mem_t type)
    : nixlBackendMD(true), start(memory.addr), length(memory.len), handle(register_memory(domain, memory, type)) {}

std::string LocalMemory::exported() const {
    std::string bytes(POLYRAIL_REMOTE_BYTES, '\0');
    size_t length = 0;
    check(polyrail_region_export(handle.get(), bytes.data(), bytes.size(), &length), "exporting a region");
    bytes.resize(length);
    const uint64_t sum = checksum(nixlBasicDesc{start, this->length, 0}, bytes);
    return bytes.append(reinterpret_cast<const char *>(&sum), CHECKSUM_BYTES);
}

uint64_t LocalMemory::offset_of(const nixlBasicDesc &desc) const {
    return offset_within(start, length, desc);
}

void LocalMemory::close() {
    check(polyrail_region_close(handle.release()), "deregistering memory");
}

RemoteMemory::RemoteMemory(const nixlBasicDesc &memory, const std::string &exported, const std::string &agent)
    : nixlBackendMD(false), start(memory.addr), length(memory.len), agent(agent), handle(import_remote(memory, exported)) {}

uint64_t RemoteMemory::offset_of(const nixlBasicDesc &desc) const {
    return offset_within(start, length, desc);
}
