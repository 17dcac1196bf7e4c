// Gated linear attention behind a C interface, for callers that hold raw pointers: gla.py beside
// it.
//
// Functions return null, or what was refused; the text lives until the thread's next call.
#include <array>
#include <exception>
#include <string>

#include "sluice/forward.hpp"
#include "sluice/memory.hpp"
#include "sluice/variants.hpp"

namespace {

using namespace sluice;

/// q, k, g: [B, T, H, K]; v, o: [B, T, H, V]; all bfloat16 and contiguous.
Arguments arguments_of(void* q, void* k, void* v, void* g, void* o, const Dims& d, int gpu) {
    const Device device{DeviceKind::kCuda, gpu};
    const std::array keys = {d.B, d.T, d.H, d.K};
    const std::array values = {d.B, d.T, d.H, d.V};
    const auto view = [&](void* data, const std::array<std::int64_t, 4>& shape) {
        return TensorView(data, DType::kBFloat16, shape, device);
    };
    Arguments arguments;
    arguments.inputs = {
        {"q", view(q, keys)}, {"k", view(k, keys)}, {"v", view(v, values)}, {"g", view(g, keys)}};
    arguments.o = view(o, values);
    return arguments;
}

const Spec& gla() {
    static const Spec kSpec = make_spec("gla");
    return kSpec;
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

extern "C" {

/// Puts the work on `stream` of GPU `gpu` and returns.
__attribute__((visibility("default"))) const char* sluice_gla(void* q, void* k, void* v, void* g,
                                                              void* o, std::int64_t B,
                                                              std::int64_t T, std::int64_t H,
                                                              std::int64_t K, std::int64_t V,
                                                              int gpu, void* stream) {
    return guarded([&] {
        Options options;
        options.stream = stream;
        const Dims dims{.B = B, .T = T, .H = H, .HV = H, .K = K, .V = V, .N = B};
        (void)forward(gla(), arguments_of(q, k, v, g, o, dims, gpu), options);
    });
}

/// What sluice_gla() would run: the kernel's name (room for 32 characters), the parts that a
/// sequence is split into, and the bytes of memory beyond inputs and outputs.
__attribute__((visibility("default"))) const char* sluice_gla_plan(
    void* q, void* k, void* v, void* g, void* o, std::int64_t B, std::int64_t T, std::int64_t H,
    std::int64_t K, std::int64_t V, int gpu, char* kernel, int* segments,
    std::int64_t* workspace_bytes) {
    return guarded([&] {
        const Dims dims{.B = B, .T = T, .H = H, .HV = H, .K = K, .V = V, .N = B};
        const Plan planned = plan(gla(), arguments_of(q, k, v, g, o, dims, gpu));
        kernel[planned.kernel.copy(kernel, 31)] = '\0';
        *segments = planned.segments;
        *workspace_bytes = planned.workspace_bytes;
    });
}

}  // extern "C"
