// The CUDA driver: libcuda.so.1 opened when first asked for, its functions in one typed table.
//
// Types and numbers are the driver's public ABI, declared here so that neither building nor
// installing the library needs CUDA. A test compares them with cuda.h where there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sluice::cuda {

using Result = int;  // CUresult
inline constexpr Result kSuccess = 0;
inline constexpr Result kOutOfMemory = 2;

using DeviceHandle = int;                    // CUdevice
using DevicePointer = unsigned long long;    // CUdeviceptr
using Context = struct ContextState*;        // CUcontext
using Module = struct ModuleState*;          // CUmodule
using Function = struct FunctionState*;      // CUfunction
using Stream = struct StreamState*;          // CUstream, cudaStream_t; null: the default stream
using Event = struct EventState*;            // CUevent
using MemoryPool = struct MemoryPoolState*;  // CUmemoryPool

enum class DeviceAttribute : int {
    kClockKhz = 13,
    kMultiprocessors = 16,
    kL2Bytes = 38,
    kMajor = 75,
    kMinor = 76,
    kSharedBytesPerBlock = 97,  // what a kernel may opt in to
};
enum class FunctionAttribute : int {
    kMaxThreads = 0,
    kStaticSharedBytes = 1,
    kLocalBytes = 3,
    kRegisters = 4,
    kMaxDynamicSharedBytes = 8,
};
enum class PointerAttribute : int { kMemoryType = 2, kDeviceOrdinal = 9 };
enum class MemoryType : int { kHost = 1, kDevice = 2 };
enum class CaptureStatus : int { kNone = 0, kActive = 1, kInvalidated = 2 };
enum class TensorMapType : int { kUInt8 = 0, kFloat16 = 6, kFloat32 = 7, kBFloat16 = 9 };
enum class TensorMapSwizzle : int { kNone = 0, k32Bytes = 1, k64Bytes = 2, k128Bytes = 3 };
enum class TensorMapPromotion : int { kNone = 0, k64Bytes = 1, k128Bytes = 2, k256Bytes = 3 };
inline constexpr int kNoInterleave = 0;
inline constexpr int kFillZero = 0;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDefault = 0;
inline constexpr unsigned kEventDisableTiming = 2;

inline constexpr int kCaptureModeRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED

/// CUlaunchAttribute, as far as it is used here.
struct LaunchAttribute {
    int id = 0;  // CUlaunchAttributeID
    int padding = 0;
    union {
        char bytes[64];
        int flag;
    } value{};
};
/// The launch may begin before the one before it in the stream has ended; its kernel waits for that
/// end (griddepcontrol.wait).
inline constexpr int kProgrammaticStreamSerialization = 6;

/// CUlaunchConfig.
struct LaunchConfig {
    unsigned grid_x = 1, grid_y = 1, grid_z = 1;
    unsigned block_x = 1, block_y = 1, block_z = 1;
    unsigned dynamic_shared_bytes = 0;
    Stream stream = nullptr;
    LaunchAttribute* attributes = nullptr;
    unsigned attribute_count = 0;
};

/// CUmemPoolProps, of pinned memory on a device.
struct MemoryPoolProperties {
    int allocation_type = 1;  // CU_MEM_ALLOCATION_TYPE_PINNED
    int handle_types = 0;
    int location_type = 1;  // CU_MEM_LOCATION_TYPE_DEVICE
    int location = 0;       // the device
    void* security_attributes = nullptr;
    std::size_t largest_bytes = 0;  // 0: as much as there is
    unsigned short usage = 0;
    unsigned char reserved[54] = {};
};
inline constexpr int kPoolReleaseThreshold = 4;  // CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 64 bits

struct Driver {
    Result (*init)(unsigned flags);
    Result (*driver_version)(int* version);
    Result (*error_name)(Result error, const char** name);
    Result (*error_string)(Result error, const char** text);

    Result (*device_count)(int* count);
    Result (*device_get)(DeviceHandle* device, int ordinal);
    Result (*device_name)(char* name, int bytes, DeviceHandle device);
    Result (*device_attribute)(int* value, DeviceAttribute attribute, DeviceHandle device);
    Result (*device_total_memory)(std::size_t* bytes, DeviceHandle device);

    Result (*primary_context_retain)(Context* context, DeviceHandle device);
    Result (*context_get_current)(Context* context);
    Result (*context_set_current)(Context context);
    Result (*context_push)(Context context);
    Result (*context_pop)(Context* context);
    Result (*context_synchronize)();

    Result (*thread_exchange_capture_mode)(int* mode);
    Result (*module_load_data)(Module* module, const void* image);
    Result (*module_unload)(Module module);
    Result (*module_get_function)(Function* function, Module module, const char* name);
    Result (*function_get_attribute)(int* value, FunctionAttribute attribute, Function function);
    Result (*function_set_attribute)(Function function, FunctionAttribute attribute, int value);
    Result (*launch_kernel)(const LaunchConfig* config, Function function, void** params,
                            void** extra);

    Result (*memory_alloc)(DevicePointer* pointer, std::size_t bytes);
    Result (*memory_free)(DevicePointer pointer);
    Result (*memory_alloc_async)(DevicePointer* pointer, std::size_t bytes, Stream stream);
    Result (*memory_free_async)(DevicePointer pointer, Stream stream);
    Result (*memory_pool_create)(MemoryPool* pool, const MemoryPoolProperties* properties);
    Result (*memory_pool_set)(MemoryPool pool, int attribute, void* value);
    Result (*memory_alloc_from_pool)(DevicePointer* pointer, std::size_t bytes, MemoryPool pool,
                                     Stream stream);
    Result (*copy_to_device)(DevicePointer to, const void* from, std::size_t bytes);
    Result (*copy_to_host)(void* to, DevicePointer from, std::size_t bytes);
    Result (*copy_on_device_async)(DevicePointer to, DevicePointer from, std::size_t bytes,
                                   Stream stream);
    Result (*copy_to_device_async)(DevicePointer to, const void* from, std::size_t bytes,
                                   Stream stream);
    Result (*copy_to_host_async)(void* to, DevicePointer from, std::size_t bytes, Stream stream);
    Result (*fill_bytes)(DevicePointer to, unsigned char value, std::size_t bytes);
    Result (*fill_bytes_async)(DevicePointer to, unsigned char value, std::size_t bytes,
                               Stream stream);
    Result (*pointer_attribute)(void* value, PointerAttribute attribute, DevicePointer pointer);

    Result (*stream_create)(Stream* stream, unsigned flags);
    Result (*stream_synchronize)(Stream stream);
    Result (*stream_destroy)(Stream stream);
    Result (*stream_is_capturing)(Stream stream, CaptureStatus* status);
    Result (*event_create)(Event* event, unsigned flags);
    Result (*event_record)(Event event, Stream stream);
    Result (*event_synchronize)(Event event);
    Result (*event_elapsed_ms)(float* milliseconds, Event start, Event end);
    Result (*event_destroy)(Event event);

    /// `map`: 128 bytes, aligned to 64. Extents innermost first; strides of all but the innermost.
    Result (*tensor_map_encode_tiled)(void* map, TensorMapType type, std::uint32_t rank,
                                      void* address, const std::uint64_t* extents,
                                      const std::uint64_t* stride_bytes, const std::uint32_t* box,
                                      const std::uint32_t* element_strides, int interleave,
                                      TensorMapSwizzle swizzle, TensorMapPromotion promotion,
                                      int fill);
};

struct DriverLibrary {
    Driver functions{};
    std::string problem;  // why it cannot be used; empty: complete
};
/// Opens a driver library without initialising it.
[[nodiscard]] DriverLibrary open_driver(const char* library);

/// The driver, initialised; null where there is none. Thread-safe, as everything in this file.
[[nodiscard]] const Driver* driver();
/// Why this library's kernels cannot run here (no driver, an old one, no Hopper GPU); empty: they
/// can.
[[nodiscard]] const std::string& driver_problem();
/// Throws Error(kDevice) with driver_problem().
[[nodiscard]] const Driver& require_driver();
/// Throws Error(kDevice): "<what>: got CUDA_ERROR_...: <text>".
void check(Result result, std::string_view what);

struct GpuInfo {
    int index = 0;  // CUDA's ordinal
    std::string name;
    int major = 0, minor = 0;  // compute capability
    int multiprocessors = 0;
    int clock_khz = 0;
    std::int64_t l2_bytes = 0;
    std::int64_t shared_bytes_per_block = 0;
    std::int64_t memory_bytes = 0;

    /// sm_90a code runs on compute capability 9.0 and nothing else.
    [[nodiscard]] bool runs_sm90a() const noexcept { return major == 9 && minor == 0; }
};
/// Every GPU that the driver shows; empty without one.
[[nodiscard]] std::span<const GpuInfo> gpus();
/// Throws Error(kDevice) that lists the GPUs there are.
[[nodiscard]] const GpuInfo& gpu(int index);

/// Makes a GPU's primary context (the one of the CUDA runtime, so of PyTorch) current.
class ContextScope {
  public:
    explicit ContextScope(int gpu_index);
    ~ContextScope();
    ContextScope(const ContextScope&) = delete;
    ContextScope& operator=(const ContextScope&) = delete;

  private:
    bool pushed_ = false;
};

}  // namespace sluice::cuda
