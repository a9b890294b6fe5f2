#include "gpu.h"
#include "library.h"

#include <dlfcn.h>
#include <unistd.h>

namespace {

// The part of CUDA's driver API that is needed, with the names, numbers and types of cuda.h.
using CUresult = int;
using CUdevice = int;
using CUcontext = struct CUctx_st *;
using CUdeviceptr = unsigned long long;
constexpr int CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1;

struct Cuda {
    CUresult (*init)(unsigned) = nullptr;
    CUresult (*device_count)(int *) = nullptr;
    CUresult (*error_name)(CUresult, const char **) = nullptr;
    CUresult (*device_get)(CUdevice *, int) = nullptr;
    CUresult (*retain_context)(CUcontext *, CUdevice) = nullptr;
    CUresult (*release_context)(CUdevice) = nullptr;
    CUresult (*push_context)(CUcontext) = nullptr;
    CUresult (*pop_context)(CUcontext *) = nullptr;
    CUresult (*handle_of_range)(void *, CUdeviceptr, size_t, int, unsigned long long) = nullptr;
    // Why CUDA is not available; empty if it is.
    std::string missing;

    Cuda() {
        // Never closed, because CUDA cannot be unloaded.
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) {
            missing = dlerror();
            return;
        }
        find(library, "cuInit", init);
        find(library, "cuDeviceGetCount", device_count);
        find(library, "cuGetErrorName", error_name);
        find(library, "cuDeviceGet", device_get);
        find(library, "cuDevicePrimaryCtxRetain", retain_context);
        find(library, "cuDevicePrimaryCtxRelease_v2", release_context);
        find(library, "cuCtxPushCurrent_v2", push_context);
        find(library, "cuCtxPopCurrent_v2", pop_context);
        find(library, "cuMemGetHandleForAddressRange", handle_of_range);
        int devices = 0;
        if (missing.empty() && (init(0) != 0 || device_count(&devices) != 0 || devices == 0)) {
            missing = "CUDA's driver finds no device";
        }
    }

    template <class F> void find(void *library, const char *name, F &function) {
        function = reinterpret_cast<F>(dlsym(library, name));
        if (function == nullptr) {
            missing = std::string("CUDA's driver is too old, it has no ") + name;
        }
    }

    void check(CUresult result, const char *what) const {
        if (result != 0) {
            const char *name = nullptr;
            error_name(result, &name);
            throw Failure(NIXL_ERR_BACKEND, std::string(what) + ": " + (name == nullptr ? "CUDA failed" : name));
        }
    }
};

const Cuda &cuda() {
    static const Cuda loaded;
    return loaded;
}

// The device's primary context, current in this scope.
class Current {
public:
    Current(const Cuda &cuda, uint64_t ordinal) : cuda(cuda) {
        cuda.check(cuda.device_get(&device, static_cast<int>(ordinal)), "cuDeviceGet");
        CUcontext context = nullptr;
        cuda.check(cuda.retain_context(&context, device), "cuDevicePrimaryCtxRetain");
        if (const CUresult result = cuda.push_context(context)) {
            cuda.release_context(device);
            cuda.check(result, "cuCtxPushCurrent");
        }
    }
    ~Current() {
        CUcontext context = nullptr;
        cuda.pop_context(&context);
        cuda.release_context(device);
    }
    Current(const Current &) = delete;
    void operator=(const Current &) = delete;

private:
    const Cuda &cuda;
    CUdevice device = 0;
};

} // namespace

bool has_gpu() {
    return cuda().missing.empty();
}

GpuBuffer export_gpu_memory(uintptr_t address, size_t length, uint64_t device) {
    if (!has_gpu()) {
        throw Failure(NIXL_ERR_NOT_SUPPORTED, "memory of GPU " + std::to_string(device) + ": " + cuda().missing);
    }
    const Current current(cuda(), device);
    // The driver requires whole pages of the host.
    const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t start = address & ~(page - 1);
    const uintptr_t end = (address + length + page - 1) & ~(page - 1);
    int fd = -1;
    cuda().check(
        cuda().handle_of_range(&fd, start, end - start, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
        "cuMemGetHandleForAddressRange");
    return GpuBuffer{fd, address - start};
}
