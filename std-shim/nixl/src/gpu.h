// Memory of a GPU as a dma-buf, exported by CUDA's driver, which is loaded on first use.
#pragma once

#include <cstddef>
#include <cstdint>

struct GpuBuffer {
    // The caller closes it.
    int fd;
    // Offset of the memory within the dma-buf.
    uint64_t offset;
};

// Returns whether CUDA has a driver and a device.
bool has_gpu();

// Throws a Failure.
GpuBuffer export_gpu_memory(uintptr_t address, size_t length, uint64_t device);
