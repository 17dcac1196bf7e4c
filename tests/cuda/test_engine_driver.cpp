// The CUDA driver: its hand-declared ABI, what is said where there is none, and, where there is a
// GPU, a kernel that runs.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "cuda/engine/driver.hpp"
#include "cuda/engine/kernel.hpp"
#include "support/refusal.hpp"

#if __has_include(<cuda.h>)
#include <cuda.h>
#define SLUICE_HAS_CUDA_H 1
#endif

namespace sluice::cuda {
namespace {

using test::refusal;

#ifdef SLUICE_HAS_CUDA_H

/// What a calling convention sees of a type.
struct Kind {
    std::size_t bytes;
    bool is_pointer, is_floating;
    friend bool operator==(const Kind&, const Kind&) = default;
};

template <class T>
constexpr Kind kind_of() {
    return {sizeof(T), std::is_pointer_v<T>, std::is_floating_point_v<T>};
}

template <class R, class... P>
std::vector<Kind> kinds_of(R (*)(P...)) {
    return {kind_of<R>(), kind_of<P>()...};
}

template <class Ours, class Theirs>
void expect_same_abi(const char* name) {
    EXPECT_EQ(kinds_of(Ours{}), kinds_of(Theirs{})) << name;
}

// cuda.h renames some functions (cuMemAlloc to cuMemAlloc_v2): the macro expands them first.
#define EXPECT_SAME_ABI(member, function) \
    expect_same_abi<decltype(Driver::member), decltype(&::function)>(#function)

TEST(DriverAbi, FunctionsAreDeclaredAsInCudaH) {
    EXPECT_SAME_ABI(init, cuInit);
    EXPECT_SAME_ABI(driver_version, cuDriverGetVersion);
    EXPECT_SAME_ABI(error_name, cuGetErrorName);
    EXPECT_SAME_ABI(error_string, cuGetErrorString);
    EXPECT_SAME_ABI(device_count, cuDeviceGetCount);
    EXPECT_SAME_ABI(device_get, cuDeviceGet);
    EXPECT_SAME_ABI(device_name, cuDeviceGetName);
    EXPECT_SAME_ABI(device_attribute, cuDeviceGetAttribute);
    EXPECT_SAME_ABI(device_total_memory, cuDeviceTotalMem);
    EXPECT_SAME_ABI(primary_context_retain, cuDevicePrimaryCtxRetain);
    EXPECT_SAME_ABI(context_get_current, cuCtxGetCurrent);
    EXPECT_SAME_ABI(context_set_current, cuCtxSetCurrent);
    EXPECT_SAME_ABI(context_push, cuCtxPushCurrent);
    EXPECT_SAME_ABI(context_pop, cuCtxPopCurrent);
    EXPECT_SAME_ABI(context_synchronize, cuCtxSynchronize);
    EXPECT_SAME_ABI(thread_exchange_capture_mode, cuThreadExchangeStreamCaptureMode);
    EXPECT_SAME_ABI(module_load_data, cuModuleLoadData);
    EXPECT_SAME_ABI(module_unload, cuModuleUnload);
    EXPECT_SAME_ABI(module_get_function, cuModuleGetFunction);
    EXPECT_SAME_ABI(function_get_attribute, cuFuncGetAttribute);
    EXPECT_SAME_ABI(function_set_attribute, cuFuncSetAttribute);
    EXPECT_SAME_ABI(launch_kernel, cuLaunchKernelEx);
    EXPECT_SAME_ABI(memory_alloc, cuMemAlloc);
    EXPECT_SAME_ABI(memory_free, cuMemFree);
    EXPECT_SAME_ABI(memory_alloc_async, cuMemAllocAsync);
    EXPECT_SAME_ABI(memory_free_async, cuMemFreeAsync);
    EXPECT_SAME_ABI(memory_pool_create, cuMemPoolCreate);
    EXPECT_SAME_ABI(memory_pool_set, cuMemPoolSetAttribute);
    EXPECT_SAME_ABI(memory_alloc_from_pool, cuMemAllocFromPoolAsync);
    EXPECT_SAME_ABI(copy_to_device, cuMemcpyHtoD);
    EXPECT_SAME_ABI(copy_to_host, cuMemcpyDtoH);
    EXPECT_SAME_ABI(copy_on_device_async, cuMemcpyDtoDAsync);
    EXPECT_SAME_ABI(copy_to_device_async, cuMemcpyHtoDAsync);
    EXPECT_SAME_ABI(copy_to_host_async, cuMemcpyDtoHAsync);
    EXPECT_SAME_ABI(fill_bytes, cuMemsetD8);
    EXPECT_SAME_ABI(fill_bytes_async, cuMemsetD8Async);
    EXPECT_SAME_ABI(pointer_attribute, cuPointerGetAttribute);
    EXPECT_SAME_ABI(stream_create, cuStreamCreate);
    EXPECT_SAME_ABI(stream_synchronize, cuStreamSynchronize);
    EXPECT_SAME_ABI(stream_destroy, cuStreamDestroy);
    EXPECT_SAME_ABI(stream_is_capturing, cuStreamIsCapturing);
    EXPECT_SAME_ABI(event_create, cuEventCreate);
    EXPECT_SAME_ABI(event_record, cuEventRecord);
    EXPECT_SAME_ABI(event_synchronize, cuEventSynchronize);
    EXPECT_SAME_ABI(event_elapsed_ms, cuEventElapsedTime);
    EXPECT_SAME_ABI(event_destroy, cuEventDestroy);
    EXPECT_SAME_ABI(tensor_map_encode_tiled, cuTensorMapEncodeTiled);
}

TEST(DriverAbi, NumbersAreThoseOfCudaH) {
    const auto expect = [](auto ours, int theirs) { EXPECT_EQ(static_cast<int>(ours), theirs); };
    expect(kSuccess, CUDA_SUCCESS);
    expect(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
    expect(kCaptureModeRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
    expect(DeviceAttribute::kClockKhz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    expect(DeviceAttribute::kMultiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    expect(DeviceAttribute::kL2Bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    expect(DeviceAttribute::kMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    expect(DeviceAttribute::kMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    expect(DeviceAttribute::kSharedBytesPerBlock,
           CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    expect(FunctionAttribute::kMaxThreads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    expect(FunctionAttribute::kStaticSharedBytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
    expect(FunctionAttribute::kLocalBytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
    expect(FunctionAttribute::kRegisters, CU_FUNC_ATTRIBUTE_NUM_REGS);
    expect(FunctionAttribute::kMaxDynamicSharedBytes,
           CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    expect(PointerAttribute::kMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
    expect(PointerAttribute::kDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
    expect(MemoryType::kHost, CU_MEMORYTYPE_HOST);
    expect(MemoryType::kDevice, CU_MEMORYTYPE_DEVICE);
    expect(CaptureStatus::kActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    expect(CaptureStatus::kInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    expect(TensorMapType::kUInt8, CU_TENSOR_MAP_DATA_TYPE_UINT8);
    expect(TensorMapType::kFloat16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
    expect(TensorMapType::kFloat32, CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
    expect(TensorMapType::kBFloat16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
    expect(TensorMapSwizzle::k32Bytes, CU_TENSOR_MAP_SWIZZLE_32B);
    expect(TensorMapSwizzle::k64Bytes, CU_TENSOR_MAP_SWIZZLE_64B);
    expect(TensorMapSwizzle::k128Bytes, CU_TENSOR_MAP_SWIZZLE_128B);
    expect(TensorMapPromotion::k64Bytes, CU_TENSOR_MAP_L2_PROMOTION_L2_64B);
    expect(TensorMapPromotion::k128Bytes, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
    expect(TensorMapPromotion::k256Bytes, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
    expect(kNoInterleave, CU_TENSOR_MAP_INTERLEAVE_NONE);
    expect(kProgrammaticStreamSerialization, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
    const MemoryPoolProperties pool;
    expect(pool.allocation_type, CU_MEM_ALLOCATION_TYPE_PINNED);
    expect(pool.location_type, CU_MEM_LOCATION_TYPE_DEVICE);
    expect(kPoolReleaseThreshold, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
    expect(kFillZero, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    expect(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
    expect(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
}

TEST(DriverAbi, LaunchStructsAreLaidOutAsInCudaH) {
    EXPECT_EQ(sizeof(LaunchAttribute), sizeof(CUlaunchAttribute));
    EXPECT_EQ(offsetof(LaunchAttribute, value), offsetof(CUlaunchAttribute, value));
    EXPECT_EQ(sizeof(MemoryPoolProperties), sizeof(CUmemPoolProps));
    EXPECT_EQ(offsetof(MemoryPoolProperties, location), offsetof(CUmemPoolProps, location.id));
    EXPECT_EQ(offsetof(MemoryPoolProperties, usage), offsetof(CUmemPoolProps, usage));
    EXPECT_EQ(sizeof(LaunchConfig), sizeof(CUlaunchConfig));
    EXPECT_EQ(offsetof(LaunchConfig, dynamic_shared_bytes),
              offsetof(CUlaunchConfig, sharedMemBytes));
    EXPECT_EQ(offsetof(LaunchConfig, stream), offsetof(CUlaunchConfig, hStream));
    EXPECT_EQ(offsetof(LaunchConfig, attributes), offsetof(CUlaunchConfig, attrs));
    EXPECT_EQ(offsetof(LaunchConfig, attribute_count), offsetof(CUlaunchConfig, numAttrs));
}

#else

TEST(DriverAbi, IsThatOfCudaH) { GTEST_SKIP() << "no cuda.h to compare with"; }

#endif

TEST(Driver, AStubOfTheToolkitHasEverySymbol) {
    const std::filesystem::path stub = environment().cuda_home / "lib64/stubs/libcuda.so";
    if (!std::filesystem::exists(stub)) GTEST_SKIP() << "no " << stub;
    // In a child process: a loaded stub would be taken for the driver, by its soname.
    EXPECT_EXIT(std::_Exit(open_driver(stub.c_str()).problem.empty() ? 0 : 1),
                ::testing::ExitedWithCode(0), "");
}

TEST(Driver, SaysWhyALibraryIsNotADriver) {
    EXPECT_EQ(open_driver("libm.so.6").problem, "no cuInit");
    EXPECT_NE(open_driver("libnone.so").problem.find("libnone.so: cannot open"), std::string::npos);
}

TEST(Driver, AbsenceIsAnErrorThatNamesWhatIsMissing) {
    if (driver() != nullptr) GTEST_SKIP() << "there is a driver";
    EXPECT_FALSE(driver_problem().empty());
    EXPECT_TRUE(gpus().empty());
    const std::string accepted =
        "an NVIDIA driver R580 or newer (CUDA 13) and a GPU of compute capability 9.0 (H100, H200)";
    EXPECT_EQ(refusal([] { (void)require_driver(); }),
              "device | cuda | " + driver_problem() + " | " + accepted);
    EXPECT_EQ(refusal([] { (void)gpu(0); }), "device | device | cuda:0 | " + accepted);
    EXPECT_EQ(refusal([] { (void)find_kernel({}, 0, CompilePolicy::kAllow); }),
              "device | cuda | " + driver_problem() + " | " + accepted);
    EXPECT_EQ(refusal([] { check(2, "cuMemAlloc"); }),
              "device | cuMemAlloc | CUDA error 2 | CUDA_SUCCESS");
    EXPECT_EQ(refusal([] { check(kSuccess, "cuMemAlloc"); }), "accepted");
}

// ---- on a GPU
// ------------------------------------------------------------------------------------

struct AddParams {
    DevicePointer out;
    int add;
    int last_word;  // of dynamic shared memory
};

KernelSource add_kernel() {
    return {.entry = "test/add.cuh",
            .function = "test_add",
            .definitions = {{"TEST_FACTOR", "3"}},
            .generated = {{"test/add.cuh", R"(
struct Params { unsigned long long out; int add; int last_word; };
extern "C" __global__ void test_add(const __grid_constant__ Params p) {
    extern __shared__ int words[];
    if (threadIdx.x == 0) words[p.last_word] = p.add;
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    reinterpret_cast<int*>(p.out)[i] = TEST_FACTOR * i + words[p.last_word];
}
)"}}};
}

/// The GPU tests need a Hopper and a compiler.
class OnGpu : public ::testing::Test {
  protected:
    void SetUp() override {
        if (!driver_problem().empty()) GTEST_SKIP() << driver_problem();
        if (find_compiler() == nullptr) GTEST_SKIP() << "no NVRTC, no nvcc";
        while (!gpu(index_).runs_sm90a()) ++index_;
    }

    int index_ = 0;
};

TEST_F(OnGpu, DescribesItself) {
    const GpuInfo& g = gpu(index_);
    EXPECT_FALSE(g.name.empty());
    EXPECT_GT(g.multiprocessors, 0);
    EXPECT_GT(g.clock_khz, 100000);
    EXPECT_GT(g.l2_bytes, 1 << 20);
    EXPECT_EQ(g.shared_bytes_per_block, 227 * 1024);
    EXPECT_GT(g.memory_bytes, std::int64_t{1} << 30);
    EXPECT_EQ(
        refusal([] { (void)gpu(99); }).find("device | device | cuda:99 | cuda:0 (" + gpu(0).name),
        0U);
}

TEST_F(OnGpu, AKernelIsCompiledLoadedAndRuns) {
    const Driver& d = require_driver();
    const Kernel& kernel = find_kernel(add_kernel(), index_, CompilePolicy::kAllow);
    EXPECT_EQ(&kernel, &find_kernel(add_kernel(), index_, CompilePolicy::kNever));
    EXPECT_GT(kernel.attribute(FunctionAttribute::kRegisters), 0);

    const ContextScope scope(index_);
    constexpr unsigned kBlocks = 5, kThreads = 128;
    std::vector<int> out(kBlocks * kThreads);
    const std::size_t bytes = out.size() * sizeof(int);
    Stream stream = nullptr;
    DevicePointer memory = 0;
    check(d.stream_create(&stream, kStreamNonBlocking), "cuStreamCreate");
    check(d.memory_alloc_async(&memory, bytes, stream), "cuMemAllocAsync");
    check(d.fill_bytes_async(memory, 0xff, bytes, stream), "cuMemsetD8Async");
    const auto shared_bytes = static_cast<std::size_t>(gpu(index_).shared_bytes_per_block);
    const AddParams params{memory, 7, static_cast<int>(shared_bytes / sizeof(int)) - 1};
    std::array<Event, 2> events{};
    for (Event& event : events) check(d.event_create(&event, kEventDefault), "cuEventCreate");
    check(d.event_record(events[0], stream), "cuEventRecord");
    kernel.launch({kBlocks}, kThreads, shared_bytes, stream, &params);
    check(d.event_record(events[1], stream), "cuEventRecord");
    check(d.copy_to_host_async(out.data(), memory, bytes, stream), "cuMemcpyDtoHAsync");
    check(d.stream_synchronize(stream), "cuStreamSynchronize");
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], 3 * static_cast<int>(i) + 7);

    float milliseconds = -1;
    check(d.event_elapsed_ms(&milliseconds, events[0], events[1]), "cuEventElapsedTime");
    EXPECT_GT(milliseconds, 0);
    CaptureStatus capture = CaptureStatus::kActive;
    check(d.stream_is_capturing(stream, &capture), "cuStreamIsCapturing");
    EXPECT_EQ(capture, CaptureStatus::kNone);
    MemoryType type = MemoryType::kHost;
    check(d.pointer_attribute(&type, PointerAttribute::kMemoryType, memory), "memory type");
    EXPECT_EQ(type, MemoryType::kDevice);
    EXPECT_EQ(refusal([&] { kernel.launch({1}, 4096, 0, stream, &params); }),
              "device | launch of test_add | CUDA_ERROR_INVALID_VALUE: invalid argument | "
              "CUDA_SUCCESS");

    for (const Event event : events) check(d.event_destroy(event), "cuEventDestroy");
    check(d.memory_free_async(memory, stream), "cuMemFreeAsync");
    check(d.stream_synchronize(stream), "cuStreamSynchronize");
    check(d.stream_destroy(stream), "cuStreamDestroy");
}

TEST_F(OnGpu, ThreadsWithoutAContextGetTheSameKernel) {
    std::array<const Kernel*, 8> kernels{};
    std::vector<std::thread> threads;
    for (const Kernel*& kernel : kernels) {
        threads.emplace_back(
            [&, this] { kernel = &find_kernel(add_kernel(), index_, CompilePolicy::kAllow); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Kernel* kernel : kernels) EXPECT_EQ(kernel, kernels[0]);
}

TEST_F(OnGpu, TensorMapsAreEncoded) {
    const Driver& d = require_driver();
    const ContextScope scope(index_);
    DevicePointer memory = 0;
    check(d.memory_alloc(&memory, 128 * 64 * 2), "cuMemAlloc");
    alignas(64) std::array<std::uint64_t, 16> map{};
    const std::array<std::uint64_t, 2> extents = {128, 64};
    const std::array<std::uint64_t, 1> stride_bytes = {256};
    const std::array<std::uint32_t, 2> box = {64, 64};
    const std::array<std::uint32_t, 2> steps = {1, 1};
    const auto encode = [&](TensorMapType type) {
        check(d.tensor_map_encode_tiled(map.data(), type, 2, reinterpret_cast<void*>(memory),
                                        extents.data(), stride_bytes.data(), box.data(),
                                        steps.data(), kNoInterleave, TensorMapSwizzle::k128Bytes,
                                        TensorMapPromotion::k256Bytes, kFillZero),
              "cuTensorMapEncodeTiled");
    };
    encode(TensorMapType::kBFloat16);
    EXPECT_NE(map, (std::array<std::uint64_t, 16>{}));
    // A row of the box is 256 bytes of float32: over the swizzle's 128.
    EXPECT_NE(refusal([&] { encode(TensorMapType::kFloat32); }), "accepted");
    check(d.memory_free(memory), "cuMemFree");
}

}  // namespace
}  // namespace sluice::cuda
