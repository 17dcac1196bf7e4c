// Prefill behind a C interface, for callers that hold raw pointers: common.py beside it.
//
// Functions return null, or what was refused; the text lives until the thread's next call.
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <utility>

#include "sluice/forward.hpp"
#include "sluice/variants.hpp"

extern "C" {

/// Contiguous. All members are the caller's.
struct SluiceTensor {
    const char* name;
    const char* dtype;  // "bfloat16", "float32", ...
    void* data;
    const std::int64_t* shape;
    int rank;
};

/// A variant's forward pass over given tensors.
struct SluiceCall {
    sluice::Spec spec;
    sluice::Arguments arguments;
    sluice::Options options;
};

}  // extern "C"

namespace {

using namespace sluice;

std::span<const std::int64_t> shape_of(const SluiceTensor& tensor) {
    return {tensor.shape, static_cast<std::size_t>(tensor.rank)};
}

/// The variant's form that has these tensors.
Spec spec_of(const char* variant, std::span<const SluiceTensor> inputs) {
    VariantRequest request;
    for (const SluiceTensor& tensor : inputs) {
        const auto shape = shape_of(tensor);
        request.tensors[tensor.name].assign(shape.begin(), shape.end());
    }
    return make_spec(variant, request);
}

/// Runs `call` and turns what it throws into text.
template <class F>
const char* guarded(F&& call) noexcept {
    thread_local std::string problem;
    try {
        call();
        return nullptr;
    } catch (const std::exception& error) {
        problem = error.what();
    } catch (...) {
        problem = "unknown exception";
    }
    return problem.c_str();
}

}  // namespace

#define SLUICE_EXPORT extern "C" __attribute__((visibility("default")))

/// `inputs` by the variant's names. GPU `gpu` and its stream `stream`; gpu < 0: this CPU. The
/// tensors' memory outlives *call, which sluice_call_delete() ends.
SLUICE_EXPORT const char* sluice_call_new(const char* variant, const SluiceTensor* inputs,
                                          int count, const SluiceTensor* o, int gpu, void* stream,
                                          SluiceCall** call) {
    return guarded([&] {
        const std::span given(inputs, static_cast<std::size_t>(count));
        const Device device = gpu < 0 ? Device{} : Device{DeviceKind::kCuda, gpu};
        const auto view = [&](const SluiceTensor& tensor) {
            return TensorView(tensor.data, parse_dtype(tensor.dtype), shape_of(tensor), device);
        };
        SluiceCall made{.spec = spec_of(variant, given), .arguments = {}, .options = {}};
        for (const SluiceTensor& tensor : given) {
            made.arguments.inputs.emplace_back(tensor.name, view(tensor));
        }
        made.arguments.o = view(*o);
        made.options.stream = stream;
        *call = new SluiceCall(std::move(made));
    });
}

SLUICE_EXPORT void sluice_call_delete(SluiceCall* call) { delete call; }

/// Puts the work on the stream and returns.
SLUICE_EXPORT const char* sluice_call_run(const SluiceCall* call) {
    return guarded([&] { (void)forward(call->spec, call->arguments, call->options); });
}

/// Compiles and loads what sluice_call_run() launches.
SLUICE_EXPORT const char* sluice_call_prepare(const SluiceCall* call) {
    return guarded([&] { (void)prepare(call->spec, call->arguments, call->options); });
}

/// What sluice_call_run() runs: the kernel's name (room for 32 characters), the parts that a
/// sequence is split into, and the bytes of memory beyond inputs and outputs.
SLUICE_EXPORT const char* sluice_call_plan(const SluiceCall* call, char* kernel, int* segments,
                                           std::int64_t* workspace_bytes) {
    return guarded([&] {
        const Plan planned = plan(call->spec, call->arguments, call->options);
        kernel[planned.kernel.copy(kernel, 31)] = '\0';
        *segments = planned.segments;
        *workspace_bytes = planned.workspace_bytes;
    });
}
