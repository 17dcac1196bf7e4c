#include "cuda/engine/driver.hpp"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "cuda/engine/shared_library.hpp"
#include "sluice/error.hpp"

namespace sluice::cuda {

namespace {

constexpr int kOldestDriver = 13000;  // cubins of CUDA 13 need R580
constexpr const char* kAccepted =
    "an NVIDIA driver R580 or newer (CUDA 13) and a GPU of compute capability 9.0 (H100, H200)";

std::string describe(const Driver& functions, Result result) {
    const char* name = nullptr;
    const char* text = nullptr;
    functions.error_name(result, &name);
    functions.error_string(result, &text);
    if (name == nullptr || text == nullptr) return fmt::format("CUDA error {}", result);
    return fmt::format("{}: {}", name, text);
}

const DriverLibrary& library() {
    static const DriverLibrary kLibrary = [] {
        DriverLibrary opened = open_driver("libcuda.so.1");
        if (!opened.problem.empty()) return opened;
        const Result result = opened.functions.init(0);
        if (result != kSuccess) opened.problem = "cuInit: " + describe(opened.functions, result);
        return opened;
    }();
    return kLibrary;
}

std::vector<GpuInfo> list_gpus(const Driver& d) {
    int count = 0;
    check(d.device_count(&count), "cuDeviceGetCount");
    std::vector<GpuInfo> list;
    for (int index = 0; index < count; ++index) {
        DeviceHandle device = 0;
        check(d.device_get(&device, index), "cuDeviceGet");
        const auto attribute = [&](DeviceAttribute which) {
            int value = 0;
            check(d.device_attribute(&value, which, device), "cuDeviceGetAttribute");
            return value;
        };
        std::array<char, 256> name{};
        check(d.device_name(name.data(), static_cast<int>(name.size()), device), "cuDeviceGetName");
        std::size_t memory_bytes = 0;
        check(d.device_total_memory(&memory_bytes, device), "cuDeviceTotalMem");
        list.push_back({.index = index,
                        .name = name.data(),
                        .major = attribute(DeviceAttribute::kMajor),
                        .minor = attribute(DeviceAttribute::kMinor),
                        .multiprocessors = attribute(DeviceAttribute::kMultiprocessors),
                        .clock_khz = attribute(DeviceAttribute::kClockKhz),
                        .l2_bytes = attribute(DeviceAttribute::kL2Bytes),
                        .shared_bytes_per_block = attribute(DeviceAttribute::kSharedBytesPerBlock),
                        .memory_bytes = static_cast<std::int64_t>(memory_bytes)});
    }
    return list;
}

std::string find_problem() {
    const Driver* d = driver();
    if (d == nullptr) return library().problem;
    int version = 0;
    check(d->driver_version(&version), "cuDriverGetVersion");
    if (version < kOldestDriver) {
        return fmt::format("a driver for CUDA {}.{}", version / 1000, version % 1000 / 10);
    }
    std::string others;
    for (const GpuInfo& g : gpus()) {
        if (g.runs_sm90a()) return {};
        others += fmt::format("{}{} ({}.{})", others.empty() ? "" : ", ", g.name, g.major, g.minor);
    }
    return others.empty() ? "no GPU" : others;
}

/// Retained once and kept, as the CUDA runtime does. Every call asks several times: without a lock.
Context primary_context(const Driver& d, int index) {
    static std::mutex mutex;
    static std::vector<std::atomic<Context>> contexts(gpus().size());
    std::atomic<Context>& entry = contexts.at(static_cast<std::size_t>(gpu(index).index));
    if (Context known = entry.load(std::memory_order_acquire)) return known;
    const std::scoped_lock lock(mutex);
    Context context = entry.load(std::memory_order_relaxed);
    if (context == nullptr) {
        DeviceHandle device = 0;
        check(d.device_get(&device, index), "cuDeviceGet");
        check(d.primary_context_retain(&context, device), "cuDevicePrimaryCtxRetain");
        entry.store(context, std::memory_order_release);
    }
    return context;
}

}  // namespace

DriverLibrary open_driver(const char* name) {
    SharedLibrary library(name);
    DriverLibrary opened;
    Driver& d = opened.functions;
    library.bind(d.init, "cuInit");
    library.bind(d.driver_version, "cuDriverGetVersion");
    library.bind(d.error_name, "cuGetErrorName");
    library.bind(d.error_string, "cuGetErrorString");
    library.bind(d.device_count, "cuDeviceGetCount");
    library.bind(d.device_get, "cuDeviceGet");
    library.bind(d.device_name, "cuDeviceGetName");
    library.bind(d.device_attribute, "cuDeviceGetAttribute");
    library.bind(d.device_total_memory, "cuDeviceTotalMem_v2");
    library.bind(d.primary_context_retain, "cuDevicePrimaryCtxRetain");
    library.bind(d.context_get_current, "cuCtxGetCurrent");
    library.bind(d.context_set_current, "cuCtxSetCurrent");
    library.bind(d.context_push, "cuCtxPushCurrent_v2");
    library.bind(d.context_pop, "cuCtxPopCurrent_v2");
    library.bind(d.context_synchronize, "cuCtxSynchronize");
    library.bind(d.thread_exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
    library.bind(d.module_load_data, "cuModuleLoadData");
    library.bind(d.module_unload, "cuModuleUnload");
    library.bind(d.module_get_function, "cuModuleGetFunction");
    library.bind(d.function_get_attribute, "cuFuncGetAttribute");
    library.bind(d.function_set_attribute, "cuFuncSetAttribute");
    library.bind(d.launch_kernel, "cuLaunchKernelEx");
    library.bind(d.memory_alloc, "cuMemAlloc_v2");
    library.bind(d.memory_free, "cuMemFree_v2");
    library.bind(d.memory_alloc_async, "cuMemAllocAsync");
    library.bind(d.memory_free_async, "cuMemFreeAsync");
    library.bind(d.memory_pool_create, "cuMemPoolCreate");
    library.bind(d.memory_pool_set, "cuMemPoolSetAttribute");
    library.bind(d.memory_alloc_from_pool, "cuMemAllocFromPoolAsync");
    library.bind(d.copy_to_device, "cuMemcpyHtoD_v2");
    library.bind(d.copy_to_host, "cuMemcpyDtoH_v2");
    library.bind(d.copy_on_device_async, "cuMemcpyDtoDAsync_v2");
    library.bind(d.copy_to_device_async, "cuMemcpyHtoDAsync_v2");
    library.bind(d.copy_to_host_async, "cuMemcpyDtoHAsync_v2");
    library.bind(d.fill_bytes, "cuMemsetD8_v2");
    library.bind(d.fill_bytes_async, "cuMemsetD8Async");
    library.bind(d.pointer_attribute, "cuPointerGetAttribute");
    library.bind(d.stream_create, "cuStreamCreate");
    library.bind(d.stream_synchronize, "cuStreamSynchronize");
    library.bind(d.stream_destroy, "cuStreamDestroy_v2");
    library.bind(d.stream_is_capturing, "cuStreamIsCapturing");
    library.bind(d.event_create, "cuEventCreate");
    library.bind(d.event_record, "cuEventRecord");
    library.bind(d.event_synchronize, "cuEventSynchronize");
    library.bind(d.event_elapsed_ms, "cuEventElapsedTime");
    library.bind(d.event_destroy, "cuEventDestroy_v2");
    library.bind(d.tensor_map_encode_tiled, "cuTensorMapEncodeTiled");
    opened.problem = library.problem();
    return opened;
}

const Driver* driver() { return library().problem.empty() ? &library().functions : nullptr; }

const std::string& driver_problem() {
    static const std::string kProblem = find_problem();
    return kProblem;
}

const Driver& require_driver() {
    if (!driver_problem().empty()) {
        throw Error(ErrorCode::kDevice, "cuda", driver_problem(), kAccepted);
    }
    return *driver();
}

void check(Result result, std::string_view what) {
    if (result == kSuccess) return;
    const Driver* d = driver();
    throw Error(ErrorCode::kDevice, std::string(what),
                d == nullptr ? fmt::format("CUDA error {}", result) : describe(*d, result),
                "CUDA_SUCCESS");
}

std::span<const GpuInfo> gpus() {
    static const std::vector<GpuInfo> kGpus =
        driver() == nullptr ? std::vector<GpuInfo>() : list_gpus(*driver());
    return kGpus;
}

const GpuInfo& gpu(int index) {
    const std::span<const GpuInfo> all = gpus();
    if (index >= 0 && static_cast<std::size_t>(index) < all.size()) {
        return all[static_cast<std::size_t>(index)];
    }
    std::string known;
    for (const GpuInfo& g : all) {
        known += fmt::format("{}cuda:{} ({})", known.empty() ? "" : ", ", g.index, g.name);
    }
    throw Error(ErrorCode::kDevice, "device", fmt::format("cuda:{}", index),
                known.empty() ? kAccepted : known);
}

ContextScope::ContextScope(int gpu_index) {
    const Driver& d = require_driver();
    const Context wanted = primary_context(d, gpu_index);
    Context current = nullptr;
    check(d.context_get_current(&current), "cuCtxGetCurrent");
    if (current == wanted) return;
    check(d.context_push(wanted), "cuCtxPushCurrent");
    pushed_ = true;
}

ContextScope::~ContextScope() {
    Context popped = nullptr;
    if (pushed_) driver()->context_pop(&popped);
}

}  // namespace sluice::cuda
