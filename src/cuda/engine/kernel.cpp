#include "cuda/engine/kernel.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

namespace sluice::cuda {

namespace {

/// Lets this thread load a module while a stream is captured: loading touches no stream.
class RelaxedCapture {
  public:
    explicit RelaxedCapture(const Driver& driver) : driver_(driver) {
        check(driver_.thread_exchange_capture_mode(&mode_), "cuThreadExchangeStreamCaptureMode");
    }
    ~RelaxedCapture() { driver_.thread_exchange_capture_mode(&mode_); }
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;

  private:
    const Driver& driver_;
    int mode_ = kCaptureModeRelaxed;  // then the one it replaced
};

struct Entry {
    std::mutex mutex;
    std::unique_ptr<const Kernel> kernel;
};

using EntryKey = std::tuple<int, std::string, std::string, std::map<std::string, std::string>,
                            std::map<std::string, std::string>>;

/// The place of a kernel in the process's table. Embedded headers do not change while it runs.
Entry& entry_of(const KernelSource& source, int gpu_index) {
    static std::mutex mutex;
    // Never destroyed: at exit the driver may be gone before the modules.
    static auto& table = *new std::map<EntryKey, Entry>;
    const std::scoped_lock lock(mutex);
    return table[{gpu_index, source.entry, source.function, source.definitions, source.generated}];
}

}  // namespace

Kernel::Kernel(int gpu_index, const std::string& cubin, const std::string& function)
    : gpu_index_(gpu_index), name_(function) {
    const ContextScope scope(gpu_index);
    const Driver& d = require_driver();
    const RelaxedCapture relaxed(d);
    check(d.module_load_data(&module_, cubin.data()), "cuModuleLoadData of " + name_);
    try {
        check(d.module_get_function(&function_, module_, name_.c_str()),
              "cuModuleGetFunction of " + name_);
        const int dynamic_bytes = static_cast<int>(gpu(gpu_index).shared_bytes_per_block) -
                                  attribute(FunctionAttribute::kStaticSharedBytes);
        check(d.function_set_attribute(function_, FunctionAttribute::kMaxDynamicSharedBytes,
                                       dynamic_bytes),
              "cuFuncSetAttribute of " + name_);
    } catch (...) {
        d.module_unload(module_);
        throw;
    }
}

Kernel::~Kernel() {
    const ContextScope scope(gpu_index_);
    driver()->module_unload(module_);
}

void Kernel::launch(Grid grid, unsigned block_threads, std::size_t dynamic_shared_bytes,
                    Stream stream, const void* params, Start start) const {
    const ContextScope scope(gpu_index_);
    void* arguments[] = {const_cast<void*>(params)};
    LaunchAttribute early{.id = kProgrammaticStreamSerialization};
    early.value.flag = 1;
    const LaunchConfig config = {
        .grid_x = grid.x,
        .grid_y = grid.y,
        .grid_z = grid.z,
        .block_x = block_threads,
        .dynamic_shared_bytes = static_cast<unsigned>(dynamic_shared_bytes),
        .stream = stream,
        .attributes = &early,
        .attribute_count = start == Start::kBeforeEnd ? 1U : 0U};
    const Result result = require_driver().launch_kernel(&config, function_, arguments, nullptr);
    if (result != kSuccess) check(result, "launch of " + name_);
}

int Kernel::attribute(FunctionAttribute which) const {
    int value = 0;
    check(require_driver().function_get_attribute(&value, which, function_),
          "cuFuncGetAttribute of " + name_);
    return value;
}

const Kernel& find_kernel(const KernelSource& source, int gpu_index, CompilePolicy policy,
                          bool* compiled) {
    Entry& entry = entry_of(source, gpu_index);
    const std::scoped_lock lock(entry.mutex);
    if (!entry.kernel) {
        (void)require_driver();  // before seconds of compiling
        const Cubin cubin = find_cubin(default_cubin_sources(), source, policy);
        entry.kernel = std::make_unique<const Kernel>(gpu_index, cubin.bytes, source.function);
        if (compiled != nullptr && cubin.origin == CubinOrigin::kCompiler) *compiled = true;
    }
    return *entry.kernel;
}

}  // namespace sluice::cuda
