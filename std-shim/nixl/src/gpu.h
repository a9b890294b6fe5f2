// Memory of a GPU as a dma-buf, by CUDA's driver, which is loaded when it is first asked for.
#pragma once

#include <cstddef>
#include <cstdint>

struct GpuBuffer {
    // The caller's to close.
    int fd;
    // Where in the dma-buf the memory begins.
    uint64_t offset;
};

// Whether there is a driver and a device.
bool has_gpu();

// Throws a Failure.
GpuBuffer export_gpu_memory(uintptr_t address, size_t length, uint64_t device);
