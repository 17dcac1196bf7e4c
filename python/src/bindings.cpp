// The functions that Python calls, registered with TVM FFI: sluice._declare, sluice._outputs,
// sluice._call and what it leaves to be asked, and what the library says of itself. An
// sluice::Error comes back as text (its fields between unit separators), which Python raises as
// sluice.Error. For JAX: sluice._traced_outputs, sluice._xla_handler.
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "declared_call.hpp"
#include "sluice/sluice.hpp"
#include "tensors.hpp"
#include "xla_call.hpp"

namespace sluice::python {

namespace {

namespace ffi = tvm::ffi;

constexpr char kSeparator = '\x1f';
// Arguments before the tensors: the call's number, its scale, its stream.
constexpr int kLeading = 3;

/// The name by which Python knows the argument.
std::string python_name(const std::string& argument) {
    constexpr std::pair<std::string_view, std::string_view> kNames[] = {
        {"o", "out"}, {"state.initial", "initial_state"}, {"state.final", "final_state"}};
    for (const auto& [ours, theirs] : kNames) {
        if (argument == ours) return std::string(theirs);
    }
    return argument;
}

ffi::String error_text(const Error& error) {
    return std::string("error") + kSeparator + to_string(error.code()) + kSeparator +
           python_name(error.argument()) + kSeparator + error.value() + kSeparator +
           error.accepted();
}

/// `body`'s value, or the text of the Error that it threw.
template <class Body>
ffi::Any guarded(Body&& body) {
    try {
        return body();
    } catch (const Error& error) {
        return error_text(error);
    } catch (const std::bad_alloc&) {
        return error_text({ErrorCode::kMemory, "memory", "more than there is", "smaller sizes"});
    }
}

TensorView view_of(const Slot& slot, const DLTensor& tensor) {
    TensorView view = to_view(slot.name, tensor);
    for (int i = 0; i < slot.firsts; ++i) view = first_of_last(slot.name, view);
    return slot.is_token ? with_token(slot.name, view) : view;
}

using Views = std::pmr::vector<TensorView>;

Views views_of(const ffi::PackedArgs& args, int first, const std::vector<Slot>& slots,
               std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
    Views views(memory);
    views.reserve(slots.size());
    for (std::size_t i = 0; i < slots.size(); ++i) {
        const ffi::AnyView arg = args[first + static_cast<int>(i)];
        const auto tensor = arg.try_cast<DLTensor*>();
        if (!tensor) {
            throw Error(ErrorCode::kValue, slots[i].name, arg.GetTypeKey(),
                        "an array or tensor that speaks DLPack");
        }
        DLTensor lent = **tensor;
        if (slots[i].bfloat16_bits) lent.dtype = to_dlpack(DType::kBFloat16);
        // A workspace is bytes, which the library knows as bool.
        const bool is_bytes = slots[i].kind == Slot::Kind::kWorkspace && lent.dtype.bits == 8;
        if (is_bytes) lent.dtype = to_dlpack(DType::kBool);
        views.push_back(view_of(slots[i], lent));
    }
    return views;
}

/// Memory from the allocator of the framework that the tensors came from.
ffi::Tensor allocate(std::span<const std::int64_t> shape, DLDataType dtype, const Device& device) {
    return ffi::Tensor::FromEnvAlloc(
        TVMFFIEnvTensorAlloc, ffi::ShapeView(shape.data(), shape.size()), dtype, to_dlpack(device));
}

/// A call as it crossed.
struct Crossed {
    Views views;
    std::optional<double> scale;
    Device device{};
    void* stream = nullptr;
    bool own_stream = false;  // the caller named a stream that the allocator does not know
};

Crossed crossed(const ffi::PackedArgs& args, const DeclaredCall& call,
                std::pmr::memory_resource* memory) {
    Crossed crossed{.views = views_of(args, kLeading, call.slots(), memory)};
    crossed.scale = args[1].as<double>();
    if (!crossed.views.empty()) crossed.device = crossed.views.front().device;
    if (const auto stream = args[2].as<std::int64_t>()) {
        crossed.stream = reinterpret_cast<void*>(*stream);  // NOLINT: a handle as a number
        crossed.own_stream = true;
    } else if (crossed.device.kind == DeviceKind::kCuda) {
        crossed.stream = TVMFFIEnvGetStream(kDLCUDA, crossed.device.index);
    }
    return crossed;
}

/// An earlier call with these tensors, or a new one; to be bound.
std::unique_ptr<BoundCall> start(const Crossed& crossed, DeclaredCall& declared) {
    std::unique_ptr<BoundCall> call = declared.take(crossed.views, crossed.scale);
    if (call != nullptr) {
        declared.replace(call->arguments, crossed.views);
    } else {
        call = std::make_unique<BoundCall>();
        call->views.assign(crossed.views.begin(), crossed.views.end());
        call->spec = declared.spec(crossed.views);
        call->arguments = declared.arguments(crossed.views);
        call->outputs = declared.outputs(*call->spec, call->arguments);
        call->options = declared.options();
        call->options.scale = crossed.scale;
    }
    call->options.stream = crossed.stream;
    return call;
}

/// What calls run, "backend kernel precision", by number: as texts they would cost each call more.
class KernelNames {
  public:
    std::int64_t number(const Plan& plan) {
        const std::string name = plan.backend + " " + plan.kernel + " " + to_string(plan.precision);
        const std::lock_guard lock(mutex_);
        const auto number = std::find(names_.begin(), names_.end(), name) - names_.begin();
        if (number == std::ssize(names_)) names_.push_back(name);
        return number;
    }
    ffi::String name(std::int64_t number) {
        const std::lock_guard lock(mutex_);
        return names_.at(static_cast<std::size_t>(number));
    }

  private:
    std::mutex mutex_;
    std::vector<std::string> names_;
};

KernelNames& kernel_names() {
    static KernelNames names;
    return names;
}

/// Gives the call its results.
std::vector<ffi::Any> allocate_results(const Crossed& crossed, BoundCall& call) {
    const Device& device = crossed.device;
    // Memory from the framework's allocator is ordered on its current stream: on another, a result
    // could be handed out again while the kernel still writes it.
    if (crossed.own_stream && device.kind == DeviceKind::kCuda && !call.outputs.empty() &&
        crossed.stream != TVMFFIEnvGetStream(kDLCUDA, device.index)) {
        throw Error(ErrorCode::kValue, "stream", "not the current stream",
                    "the current stream, or out= and every state given by the caller");
    }
    std::vector<ffi::Any> results;
    results.reserve(call.outputs.size());
    for (const Output& output : call.outputs) {
        ffi::Tensor result = allocate(output.shape, to_dlpack(output.dtype), device);
        const TensorView view = to_view(output.name, *result.GetDLTensorPtr());
        DeclaredCall::attach(call.arguments, output.name,
                             output.is_token ? with_token(output.name, view) : view);
        results.emplace_back(std::move(result));
    }
    return results;
}

/// Binds the call; plans it and makes it ready to run unless an earlier one did.
void bind_and_plan(BoundCall& call, Phase phase) {
    if (call.backend != nullptr) return rebind(call.problem, call.arguments, call.options);
    call.problem = bind(*call.spec, call.arguments, call.options, phase);
    const Backend& backend = select_backend(call.problem, call.options.backend);
    const Plan plan = backend.plan(call.problem, nominal_device(call.problem.device));
    call.plan = backend.prepare(call.problem, plan);
    call.backend = &backend;
    call.kernel = kernel_names().number(call.plan);
    // Now all is loaded: the next run need not ask whether its stream is captured.
    call.options.compile = false;
}

/// Binds, plans and runs once. A workspace that the caller did not bring comes from its framework's
/// allocator, whose order is the current stream's: freed on return, it is reused after the kernels.
void run(BoundCall& call, const Crossed& crossed, const DeclaredCall& declared) {
    bind_and_plan(call, declared.phase());
    Problem& problem = call.problem;
    const std::int64_t bytes = call.plan.workspace_bytes;
    ffi::Tensor workspace;
    if (problem.device.kind == DeviceKind::kCuda && bytes > 0 && !declared.has_workspace() &&
        !crossed.own_stream) {
        workspace = allocate(std::array{bytes}, {kDLUInt, 8, 1}, problem.device);
        problem.workspace = workspace.data_ptr();
        problem.workspace_bytes = bytes;
    }
    call.backend->run(problem, call.plan);
}

/// Values are checked by forward() and step() only.
void run_validated(BoundCall& call, Phase phase) {
    auto* const runner = phase == Phase::kPrefill ? &forward : &step;
    call.plan = runner(*call.spec, call.arguments, call.options);
    call.kernel = kernel_names().number(call.plan);
}

/// Of this thread's latest call.
thread_local std::int64_t latest_kernel = 0;

/// (number, scale or None, stream or None, tensors…) → the results: none, the only one, or an
/// array.
ffi::Any call(const ffi::PackedArgs& args) {
    DeclaredCall& declared_call = declared(args[0].cast<std::int64_t>());
    // Enough for most calls; more comes from the heap.
    alignas(TensorView) std::array<std::byte, 16 * sizeof(TensorView)> stack;
    std::pmr::monotonic_buffer_resource memory(stack.data(), stack.size());
    const Crossed arrived = crossed(args, declared_call, &memory);
    std::unique_ptr<BoundCall> call = start(arrived, declared_call);
    std::vector<ffi::Any> results = allocate_results(arrived, *call);
    if (call->options.validate) {
        run_validated(*call, declared_call.phase());
    } else {
        run(*call, arrived, declared_call);
    }
    latest_kernel = call->kernel;
    if (call->backend != nullptr && arrived.device.kind == DeviceKind::kCuda) {
        declared_call.keep(std::move(call));
    }
    // An array costs Python more than what is in it.
    if (results.empty()) return nullptr;
    if (results.size() == 1) return std::move(results.front());
    return ffi::Array<ffi::Any>(results.begin(), results.end());
}

/// [name, dtype, [extents…], …].
ffi::Array<ffi::Any> describe(const std::vector<Output>& outputs) {
    ffi::Array<ffi::Any> described;
    for (const Output& output : outputs) {
        described.push_back(ffi::String(output.name));
        described.push_back(ffi::String(to_string(output.dtype)));
        described.push_back(ffi::Shape(output.shape.begin(), output.shape.end()));
    }
    return described;
}

/// (number, tensors…) → the results that the caller is to allocate.
ffi::Any outputs(const ffi::PackedArgs& args) {
    DeclaredCall& call = declared(args[0].cast<std::int64_t>());
    const Views views = views_of(args, 1, call.slots());
    const std::shared_ptr<const Spec> spec = call.spec(views);
    return describe(call.outputs(*spec, call.arguments(views)));
}

/// (array, index) → the element. Python's own way to it crosses twice and costs twice as much.
ffi::Any item(const ffi::PackedArgs& args) {
    return args[0].cast<ffi::Array<ffi::Any>>()[args[1].cast<std::int64_t>()];
}

/// "name\tsummary" and then "name\tmeaning" of each setting, for every variant.
ffi::Array<ffi::Array<ffi::String>> variant_table() {
    ffi::Array<ffi::Array<ffi::String>> table;
    for (const Variant& variant : variants()) {
        ffi::Array<ffi::String> row = {variant.name, variant.summary};
        for (const VariantSetting& setting : variant.settings) {
            row.push_back(setting.name);
            row.push_back(setting.meaning);
        }
        table.push_back(row);
    }
    return table;
}

/// Tensors of which only dtype and shape are known: their addresses stand for memory that does not
/// overlap. They count as a GPU's, because there nobody looks at what index tensors hold.
class Imagined {
  public:
    explicit Imagined(int gpu_index) : device_{DeviceKind::kCuda, gpu_index} {}

    TensorView next(DType dtype, std::span<const std::int64_t> shape) {
        constexpr std::uintptr_t kAlignment = 256;
        void* const address = reinterpret_cast<void*>(next_);  // NOLINT: nobody follows it
        const TensorView view(address, dtype, shape, device_);
        const auto bytes = static_cast<std::uintptr_t>(view.size()) * size_bytes(dtype);
        next_ += (bytes / kAlignment + 1) * kAlignment;
        return view;
    }

    /// Of a dtype's name and a shape, as they cross.
    TensorView next(const std::string& name, const ffi::AnyView& dtype, const ffi::AnyView& shape) {
        const std::string given = dtype.cast<ffi::String>();
        const auto extents = shape.cast<ffi::Shape>();
        const std::span span(extents.data(), extents.size());
        if (span.size() > kMaxRank) {
            throw Error(ErrorCode::kShape, name, std::to_string(span.size()) + " dimensions",
                        "at most " + std::to_string(kMaxRank));
        }
        try {
            return next(parse_dtype(given), span);
        } catch (const Error& error) {
            throw Error(ErrorCode::kDType, name, given, error.accepted());
        }
    }

  private:
    Device device_;
    std::uintptr_t next_ = std::uintptr_t{1} << 40;
};

/// (number, scale or None, GPU or None, then each tensor's dtype and shape…) → the results, once
/// all is checked that can be: with a GPU also whether it takes the call, whose kernel is then
/// ready.
ffi::Any traced_outputs(const ffi::PackedArgs& args) {
    DeclaredCall& declared_call = declared(args[0].cast<std::int64_t>());
    const auto gpu_index = args[2].as<std::int64_t>();
    Imagined imagined(static_cast<int>(gpu_index.value_or(0)));
    Crossed crossed{.views = {}, .scale = args[1].as<double>()};
    int next = kLeading;
    for (const Slot& slot : declared_call.slots()) {
        crossed.views.push_back(imagined.next(slot.name, args[next], args[next + 1]));
        next += 2;
    }
    const std::unique_ptr<BoundCall> call = start(crossed, declared_call);
    for (const Output& output : call->outputs) {
        DeclaredCall::attach(call->arguments, output.name,
                             imagined.next(output.dtype, output.shape));
    }
    if (gpu_index) {
        bind_and_plan(*call, declared_call.phase());
    } else {
        (void)bind(*call->spec, call->arguments, call->options, declared_call.phase());
    }
    return describe(call->outputs);
}

TVM_FFI_STATIC_INIT_BLOCK() {
    namespace reflection = ffi::reflection;
    reflection::GlobalDef()
        .def("sluice._declare",
             [](const ffi::String& text) {
                 return guarded([&]() -> ffi::Any { return declare(text); });
             })
        .def_packed("sluice._call",
                    [](ffi::PackedArgs args, ffi::Any* result) {
                        *result = guarded([&] { return call(args); });
                    })
        .def_packed("sluice._outputs",
                    [](ffi::PackedArgs args, ffi::Any* result) {
                        *result = guarded([&] { return outputs(args); });
                    })
        .def_packed("sluice._item",
                    [](ffi::PackedArgs args, ffi::Any* result) { *result = item(args); })
        .def("sluice._latest_kernel", [] { return latest_kernel; })
        .def("sluice._kernel_name", [](std::int64_t number) { return kernel_names().name(number); })
        .def("sluice._variants", variant_table)
        .def("sluice._cuda_device_count", cuda_device_count)
        .def_packed("sluice._traced_outputs",
                    [](ffi::PackedArgs args, ffi::Any* result) {
                        *result = guarded([&] { return traced_outputs(args); });
                    })
        .def("sluice._xla_handler", [](bool is_gpu) {
            auto* const handler = xla_handler(is_gpu ? DeviceKind::kCuda : DeviceKind::kCpu);
            return reinterpret_cast<std::int64_t>(handler);  // NOLINT: an address as a number
        });
}

}  // namespace

void run_given(DeclaredCall& declared, std::span<const TensorView> views,
               const std::optional<double>& scale, void* stream,
               const WorkspaceSource& workspace) try {
    const Crossed arrived{.views = Views(views.begin(), views.end()),
                          .scale = scale,
                          .device = views.empty() ? Device{} : views.front().device,
                          .stream = stream,
                          .own_stream = true};
    std::unique_ptr<BoundCall> call = start(arrived, declared);
    if (call->options.validate) return run_validated(*call, declared.phase());
    bind_and_plan(*call, declared.phase());
    const bool on_gpu = arrived.device.kind == DeviceKind::kCuda;
    const std::int64_t bytes = call->plan.workspace_bytes;
    if (on_gpu && bytes > 0) {
        call->problem.workspace = workspace(bytes);
        call->problem.workspace_bytes = bytes;
    }
    call->backend->run(call->problem, call->plan);
    if (on_gpu) declared.keep(std::move(call));
} catch (const Error& error) {
    throw Error(error.code(), python_name(error.argument()), error.value(), error.accepted());
}

}  // namespace sluice::python
