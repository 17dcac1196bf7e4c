// The functions that Python calls, registered with TVM FFI: sluice._declare, sluice._outputs,
// sluice._call, and what the library says of itself. An sluice::Error comes back as text (its
// fields between unit separators), which Python raises as sluice.Error.
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "declared_call.hpp"
#include "sluice/sluice.hpp"
#include "tensors.hpp"

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
    }
}

std::vector<TensorView> views_of(const ffi::PackedArgs& args, int first,
                                 const std::vector<Slot>& slots) {
    std::vector<TensorView> views;
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
        views.push_back(to_view(slots[i].name, lent));
    }
    return views;
}

/// Memory from the allocator of the framework that the tensors came from.
ffi::Tensor allocate(std::span<const std::int64_t> shape, DLDataType dtype, const Device& device) {
    return ffi::Tensor::FromEnvAlloc(
        TVMFFIEnvTensorAlloc, ffi::ShapeView(shape.data(), shape.size()), dtype, to_dlpack(device));
}

struct Prepared {
    std::vector<TensorView> views;
    std::shared_ptr<const Spec> spec;
    Arguments arguments;
    Options options;
    bool own_stream = false;  // the caller named a stream that the allocator does not know
    std::vector<ffi::Tensor> results;
};

Prepared prepare_call(const ffi::PackedArgs& args, DeclaredCall& call) {
    Prepared prepared;
    prepared.views = views_of(args, kLeading, call.slots());
    const std::vector<TensorView>& views = prepared.views;
    prepared.spec = call.spec(views);
    prepared.arguments = call.arguments(views);
    prepared.options = call.options();
    if (const auto scale = args[1].as<double>()) prepared.options.scale = *scale;
    const Device device = views.empty() ? Device{} : views.front().device;
    if (const auto stream = args[2].as<std::int64_t>()) {
        prepared.options.stream = reinterpret_cast<void*>(*stream);  // NOLINT: a handle as a number
        prepared.own_stream = true;
    } else if (device.kind == DeviceKind::kCuda) {
        prepared.options.stream = TVMFFIEnvGetStream(kDLCUDA, device.index);
    }
    const std::vector<Output> outputs = call.outputs(*prepared.spec, prepared.arguments);
    // Memory from the framework's allocator is ordered on its current stream: on another, a result
    // could be handed out again while the kernel still writes it.
    if (prepared.own_stream && device.kind == DeviceKind::kCuda && !outputs.empty() &&
        prepared.options.stream != TVMFFIEnvGetStream(kDLCUDA, device.index)) {
        throw Error(ErrorCode::kValue, "stream", "not the current stream",
                    "the current stream, or out= and every state given by the caller");
    }
    for (const Output& output : outputs) {
        prepared.results.push_back(allocate(output.shape, to_dlpack(output.dtype), device));
        DeclaredCall::attach(prepared.arguments, output.name,
                             to_view(output.name, *prepared.results.back().GetDLTensorPtr()));
    }
    return prepared;
}

/// What runs the problem, ready to: chosen again only where the tensors differ from the last
/// call's.
std::shared_ptr<const Choice> choose(const Problem& problem, const Prepared& prepared,
                                     DeclaredCall& call) {
    std::shared_ptr<const Choice> choice = call.remembered(prepared.views);
    if (choice != nullptr) return choice;
    const Backend& backend = select_backend(problem, prepared.options.backend);
    const Plan plan = backend.plan(problem, nominal_device(problem.device));
    choice = std::make_shared<const Choice>(Choice{&backend, backend.prepare(problem, plan)});
    call.remember(prepared.views, choice);
    return choice;
}

/// Binds, plans and runs once. A workspace that the caller did not bring comes from its framework's
/// allocator, whose order is the current stream's: freed on return, it is reused after the kernels.
std::shared_ptr<const Choice> run(const Prepared& prepared, DeclaredCall& call) {
    Problem problem = bind(*prepared.spec, prepared.arguments, prepared.options, call.phase());
    std::shared_ptr<const Choice> choice = choose(problem, prepared, call);
    const Plan& plan = choice->plan;
    ffi::Tensor workspace;
    if (problem.device.kind == DeviceKind::kCuda && plan.workspace_bytes > 0 &&
        !call.has_workspace() && !prepared.own_stream) {
        workspace = allocate(std::array{plan.workspace_bytes}, {kDLUInt, 8, 1}, problem.device);
        problem.workspace = workspace.data_ptr();
        problem.workspace_bytes = plan.workspace_bytes;
    }
    choice->backend->run(problem, plan);
    return choice;
}

/// Values are checked by forward() and step() only.
std::shared_ptr<const Choice> run_validated(const Prepared& prepared, Phase phase) {
    auto* const runner = phase == Phase::kPrefill ? &forward : &step;
    return std::make_shared<const Choice>(
        Choice{nullptr, runner(*prepared.spec, prepared.arguments, prepared.options)});
}

/// (number, scale or None, stream or None, tensors…) → the results: none, the only one, or a list.
ffi::Any call(const ffi::PackedArgs& args) {
    DeclaredCall& call = declared(args[0].cast<std::int64_t>());
    Prepared prepared = prepare_call(args, call);
    const std::shared_ptr<const Choice> choice =
        prepared.options.validate ? run_validated(prepared, call.phase()) : run(prepared, call);
    std::vector<ffi::Any> results(prepared.results.begin(), prepared.results.end());
    if (call.reports()) {
        const Plan& plan = choice->plan;
        results.emplace_back(
            ffi::String(plan.backend + " " + plan.kernel + " " + to_string(plan.precision)));
    }
    // A list costs Python more than what is in it.
    if (results.empty()) return nullptr;
    if (results.size() == 1) return std::move(results.front());
    return ffi::Array<ffi::Any>(results.begin(), results.end());
}

/// (number, tensors…) → [name, dtype, [extents…], …] of the results that the caller is to allocate.
ffi::Any outputs(const ffi::PackedArgs& args) {
    DeclaredCall& call = declared(args[0].cast<std::int64_t>());
    const std::vector<TensorView> views = views_of(args, 1, call.slots());
    const std::shared_ptr<const Spec> spec = call.spec(views);
    ffi::Array<ffi::Any> described;
    for (const Output& output : call.outputs(*spec, call.arguments(views))) {
        described.push_back(ffi::String(output.name));
        described.push_back(ffi::String(to_string(output.dtype)));
        described.push_back(ffi::Shape(output.shape.begin(), output.shape.end()));
    }
    return described;
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
        .def("sluice._variants", variant_table)
        .def("sluice._cuda_device_count", cuda_device_count);
}

}  // namespace

}  // namespace sluice::python
