// Recurrences with a scalar, constant or no decay on tensor cores (Mamba-2, simple GLA, Lightning,
// RetNet, linear attention): which problems, which of the kernel's shapes, and the launch.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "cuda/backend/method.hpp"
#include "cuda/backend/scalar_form.hpp"
#include "cuda/backend/scalar_kernel.hpp"
#include "cuda/backend/tensor_maps.hpp"
#include "cuda/engine/kernel.hpp"
#include "cuda/sm90/scalar/params.cuh"
#include "sluice/error.hpp"

namespace sluice::cuda {

namespace {

constexpr int kChunk = 64;
constexpr std::int64_t kLargestKeys = 128;
constexpr std::int64_t kLargestValues = 512;
constexpr int kMostSegments = 32;
constexpr std::size_t kSharedBytes = std::size_t{227} * 1024;  // as the kernel asserts

// The model: what a chunk takes in each of kScalarShapes, measured (docs/kernels/scalar.md).
constexpr double kChunkUs[] = {2.05, 2.0, 1.2, 1.6, 1.6, 1.0};
constexpr double kStateChunkUs[] = {1.0, 1.0, 0.8, 0.8, 0.8, 0.7};  // of a split's first launch
constexpr double kLaunchUs = 6;
constexpr double kSegmentUs = 1.2;     // reading one earlier segment's state
constexpr double kMemoryShare = 0.92;  // of the copy rate that bulk copies reach

int threads_of(const ScalarShape& shape) { return 128 * (shape.heads * shape.tiles + 2); }

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t value_tiles(const ScalarShape& shape, std::int64_t values) {
    return ceil_div(values, std::int64_t{64} * shape.tiles);
}
std::int64_t head_blocks(const ScalarShape& shape, const Dims& d) {
    return ceil_div(d.HV / d.H, shape.heads);
}
/// Blocks of threads of one segment.
std::int64_t blocks_of(const ScalarShape& shape, const Dims& d) {
    return d.N * d.H * head_blocks(shape, d) * value_tiles(shape, d.V);
}

/// The form's inputs as they are bound; null: none.
struct Operands {
    const BoundInput &q, &k, &v;
    const BoundInput *z, *gate, *rate, *bias, *skip;
};

Operands operands_of(const Problem& problem, const ScalarForm& form) {
    const auto find = [&](const std::string& name) {
        return name.empty() ? nullptr : &problem.input(name);
    };
    const bool steps = form.gate == ScalarForm::Gate::kTimeStep;
    return {problem.input(form.q),
            problem.input(form.k),
            problem.input(form.v),
            find(form.z),
            find(steps ? form.time : form.given),
            find(form.rate),
            find(form.bias),
            find(form.skip)};
}

std::string refuse_operand(const BoundInput& x, Axis head, Axis channel, const Dims& dims) {
    for (const Axis axis : {Axis::kB, Axis::kT, head, channel}) {
        if (!x.has(axis)) return fmt::format("{} has no axis {}", x.name, to_string(axis));
    }
    if (head == Axis::kH && x.has(Axis::kHV)) {
        return fmt::format("{} has an axis of value heads", x.name);
    }
    if (x.dtype != DType::kBFloat16) {
        return fmt::format("{} is {}; it must be bfloat16", x.name, to_string(x.dtype));
    }
    return refuse_tensor_map(x, dims);
}

std::string refuse_operands(const Problem& problem, const Operands& x) {
    const Dims& d = problem.dims;
    for (const BoundInput* input : {&x.q, &x.k}) {
        std::string why = refuse_operand(*input, Axis::kH, Axis::kK, d);
        if (!why.empty()) return why;
    }
    for (const BoundInput* input : {&x.v, x.z, &problem.o}) {
        if (input == nullptr) continue;
        std::string why = refuse_operand(*input, Axis::kHV, Axis::kV, d);
        if (!why.empty()) return why;
    }
    for (const BoundInput* input : {x.gate, x.rate, x.bias, x.skip}) {
        if (input != nullptr && input->dtype == DType::kFloat64) {
            return fmt::format("{} is float64; it must be 16 or 32 bits wide", input->name);
        }
    }
    return {};
}

std::string refuse_states(const Problem& problem) {
    for (const BoundState* state : {&problem.initial, &problem.final, &problem.checkpoints}) {
        if (!*state) continue;
        if (state->dtype == DType::kFloat64) return "states must not be float64";
        // The kernel's offsets inside a head are 32 bits wide.
        const double reach =
            std::abs(static_cast<double>(state->stride_k)) * static_cast<double>(problem.dims.K) +
            std::abs(static_cast<double>(state->stride_v)) * static_cast<double>(problem.dims.V);
        if (4 * reach >= std::numeric_limits<int>::max()) return "a state's head spans 2^31 bytes";
    }
    return {};
}

/// Why the kernel does not take the problem; empty: it does.
std::string refusal(const Problem& problem) {
    if (problem.phase != Phase::kPrefill) return "prefill only";
    std::string why;
    const auto form = find_scalar_form(problem.spec, &why);
    if (!form) return why;
    if (problem.precision != Precision::kBFloat16) {
        return fmt::format("precision {}; tensor cores round operands to bfloat16",
                           to_string(problem.precision));
    }
    if (problem.algorithm == Algorithm::kRecurrent) return "a chunked algorithm";
    if (problem.chunk != 0 && problem.chunk != kChunk) return "chunks of 64 tokens";
    const Dims& d = problem.dims;
    if (d.K > kLargestKeys) return fmt::format("K = {}; at most {}", d.K, kLargestKeys);
    if (d.V > kLargestValues || d.V % 8 != 0) {
        return fmt::format("V = {}; a multiple of 8, at most {}", d.V, kLargestValues);
    }
    if (d.T > std::numeric_limits<int>::max() - kChunk) return "T of 2^31 or more";
    if (d.B * d.T == 0) return "no tokens";
    if (form->gate == ScalarForm::Gate::kConstant && d.HV > scalar::kMostConstants) {
        return fmt::format("{} heads with constant decays; at most {}", d.HV,
                           scalar::kMostConstants);
    }
    if (!(problem.scale > 0)) return fmt::format("scale = {}; above 0", problem.scale);
    why = refuse_operands(problem, operands_of(problem, *form));
    if (why.empty()) why = refuse_states(problem);
    return why;
}

ScalarForm form_of(const Problem& problem) {
    std::string why;
    auto form = find_scalar_form(problem.spec, &why);
    if (!form) throw Error(ErrorCode::kUnsupported, "spec", problem.spec.name, why);
    return *form;
}

/// The widest of the kernel's shapes that fits.
int find_shape(const Problem& problem) {
    const Dims& d = problem.dims;
    const int keys = d.K <= 64 ? 64 : 128;
    const int tiles = d.V <= 64 ? 1 : 2;
    for (int i = 0; i < static_cast<int>(std::size(kScalarShapes)); ++i) {
        const ScalarShape& shape = kScalarShapes[i];
        if (shape.keys == keys && shape.tiles == tiles && shape.heads <= d.HV / d.H) return i;
    }
    throw Error(ErrorCode::kShape, "HV", std::to_string(d.HV), "a multiple of H");
}

/// Sequences of packed input are taken to be equally long: their lengths are on the device.
std::int64_t chunks_of(const Dims& d) {
    return ceil_div(d.B * d.T, std::max<std::int64_t>(d.N, 1) * kChunk);
}

/// Blocks run one to a multiprocessor; a launch lasts as many rounds as that takes.
double predict(const Problem& problem, const DeviceSpec& device, int shape, int segments) {
    const std::int64_t blocks = blocks_of(kScalarShapes[shape], problem.dims);
    const auto chunks = static_cast<double>(ceil_div(chunks_of(problem.dims), segments));
    const auto rounds = [&](std::int64_t launched) {
        return static_cast<double>(ceil_div(blocks * launched, device.multiprocessors));
    };
    double us = kLaunchUs + rounds(segments) * chunks * kChunkUs[shape];
    if (segments > 1) {
        us += kLaunchUs + rounds(segments - 1) * chunks * kStateChunkUs[shape] +
              kSegmentUs * segments;
    }
    return std::max(us, floor_on(device, work(problem)).memory_us / kMemoryShare);
}

struct Split {
    int segments = 1;
    double us = 0;
};

/// The fastest split of the sequences. Results depend on it, so batch_invariant forbids it.
Split choose_split(const Problem& problem, const DeviceSpec& device) {
    const int most = problem.batch_invariant ? 1
                                             : static_cast<int>(std::clamp<std::int64_t>(
                                                   chunks_of(problem.dims) / 4, 1, kMostSegments));
    Split best{.us = std::numeric_limits<double>::infinity()};
    for (int segments = 1; segments <= most; ++segments) {
        const double us = predict(problem, device, find_shape(problem), segments);
        if (us < best.us) best = {.segments = segments, .us = us};
    }
    return best;
}

// Workspace: the segments' states, then their decays.
std::int64_t segment_state_bytes(const Dims& d, const ScalarShape& shape, int segments) {
    return d.N * d.HV * segments * value_tiles(shape, d.V) * shape.tiles * 64 * shape.keys * 4;
}
std::int64_t segment_decay_bytes(const Dims& d, int segments) { return d.N * d.HV * segments * 4; }

/// The table spares the usual call the kernel's text.
const Kernel& kernel_of(const Problem& problem, const ScalarForm& form, int shape, bool state_only,
                        CompilePolicy policy, bool* compiled = nullptr) {
    constexpr int kGpus = 16;
    static std::atomic<const Kernel*> table[kGpus][std::size(kScalarShapes)][4][3][2][2];
    std::atomic<const Kernel*>* entry = nullptr;
    if (problem.device.index < kGpus) {
        entry =
            &table[problem.device.index][shape][static_cast<int>(form.gate)]
                  [static_cast<int>(form.skip_kind)][form.z.empty() ? 0 : 1][state_only ? 1 : 0];
        if (const Kernel* known = entry->load(std::memory_order_acquire)) return *known;
    }
    const Kernel& kernel = find_kernel(scalar_kernel(kScalarShapes[shape], form, state_only),
                                       problem.device.index, policy, compiled);
    if (entry != nullptr) entry->store(&kernel, std::memory_order_release);
    return kernel;
}

int number_type(DType dtype) {
    return dtype == DType::kFloat32    ? scalar::kFloat32
           : dtype == DType::kBFloat16 ? scalar::kBFloat16
                                       : scalar::kFloat16;
}

scalar::Indices indices_of(const DeviceIndices& from) {
    return {.data = from.data, .stride = from.strides[0], .is_64_bit = from.dtype == DType::kInt64};
}

scalar::StateTensor state_of(const BoundState& from, const DeviceIndices& indices) {
    return {.data = from.data,
            .slots = from.slots,
            .slot_stride = from.stride_slot,
            .head_stride = from.stride_head,
            .key_stride = static_cast<int>(from.stride_k),
            .value_stride = static_cast<int>(from.stride_v),
            .indices = indices_of(indices),
            .type = number_type(from.dtype)};
}

std::int64_t stride(const BoundInput& x, Axis axis) {
    return x.stride[static_cast<std::size_t>(axis)];
}

scalar::HeadTensor head_tensor_of(const BoundInput* x) {
    if (x == nullptr) return {};
    return {.data = x->data,
            .head_stride = stride(*x, Axis::kHV),
            .channel_stride = stride(*x, Axis::kV),
            .type = number_type(x->dtype)};
}

void set_gates(const Problem& problem, const ScalarForm& form, const Operands& x,
               scalar::Params& p) {
    if (x.gate != nullptr) {
        p.gate = {.data = x.gate->data,
                  .batch_stride = stride(*x.gate, Axis::kB),
                  .token_stride = stride(*x.gate, Axis::kT),
                  .head_stride = stride(*x.gate, Axis::kHV),
                  .type = number_type(x.gate->dtype)};
    }
    p.rate = head_tensor_of(x.rate);
    p.bias = head_tensor_of(x.bias);
    p.skip = head_tensor_of(x.skip);
    p.rate_is_log = form.rate_is_log ? 1 : 0;
    p.softplus = form.softplus ? 1 : 0;
    p.least_step = static_cast<float>(form.least_step);
    p.greatest_step = static_cast<float>(form.greatest_step);
    if (form.gate == ScalarForm::Gate::kConstant) {
        const auto decays = values_by_head(problem.spec, *problem.spec.log_decay,
                                           static_cast<int>(problem.dims.HV));
        std::transform(decays.begin(), decays.end(), p.decay,
                       [](double decay) { return static_cast<float>(decay); });
    }
}

scalar::Params make_params(const Problem& problem, const ScalarForm& form, const ScalarShape& shape,
                           int segments, void* workspace) {
    const Dims& d = problem.dims;
    const Operands x = operands_of(problem, form);
    const auto& indices = problem.indices;
    scalar::Params p{};
    encode_tensor_map(&p.q, x.q, d, kChunk);
    encode_tensor_map(&p.k, x.k, d, kChunk);
    encode_tensor_map(&p.v, x.v, d, kChunk);
    encode_tensor_map(&p.o, problem.o, d, kChunk);
    if (x.z != nullptr) encode_tensor_map(&p.z, *x.z, d, kChunk);
    p.cu_seqlens = indices_of(indices.cu_seqlens);
    p.initial = state_of(problem.initial, indices.read_slots);
    p.final = state_of(problem.final, indices.write_slots);
    p.has_initial = static_cast<const unsigned char*>(indices.has_initial.data);
    p.has_initial_stride = indices.has_initial.strides[0];
    p.checkpoints = state_of(problem.checkpoints, indices.checkpoint_slots);
    p.checkpoint_sequences = indices_of(indices.checkpoint_sequences);
    p.checkpoint_positions = indices_of(indices.checkpoint_positions);
    p.checkpoint_count = static_cast<int>(indices.checkpoint_slots.extents[0]);
    p.segments = segments;
    if (segments > 1) {
        auto* bytes = static_cast<char*>(workspace);
        p.segment_state = reinterpret_cast<float*>(bytes);
        p.segment_decay = reinterpret_cast<float*>(bytes + segment_state_bytes(d, shape, segments));
    }
    p.o_data = problem.o.data;
    p.o_token_stride = stride(problem.o, Axis::kT);
    p.o_head_stride = stride(problem.o, Axis::kHV);
    p.tokens = static_cast<int>(d.T);
    p.heads = static_cast<int>(d.HV);
    p.heads_per_key_head = static_cast<int>(d.HV / d.H);
    p.head_blocks = static_cast<int>(head_blocks(shape, d));
    p.keys = static_cast<int>(d.K);
    p.values = static_cast<int>(d.V);
    p.value_tiles = static_cast<int>(value_tiles(shape, d.V));
    p.scale = static_cast<float>(problem.scale);
    set_gates(problem, form, x, p);
    return p;
}

class ScalarMethod final : public Method {
  public:
    [[nodiscard]] std::string_view name() const noexcept override { return "scalar"; }

    [[nodiscard]] Support supports(const Problem& problem) const override {
        std::string why = refusal(problem);
        return {why.empty(), std::move(why)};
    }

    [[nodiscard]] Plan plan(const Problem& problem, const DeviceSpec& device) const override {
        const Dims& d = problem.dims;
        const Split split = choose_split(problem, device);
        const ScalarShape& shape = kScalarShapes[find_shape(problem)];
        Plan plan;
        plan.kernel = name();
        plan.precision = Precision::kBFloat16;
        plan.chunk = kChunk;
        plan.block = kChunk;
        plan.value_tile = std::int64_t{64} * shape.tiles;
        plan.segments = split.segments;
        plan.stages = shape.stages;
        plan.tasks = blocks_of(shape, d) * split.segments;
        if (split.segments > 1) {
            plan.workspace_bytes = segment_state_bytes(d, shape, split.segments) +
                                   segment_decay_bytes(d, split.segments);
        }
        plan.predicted_us = split.us;
        plan.floor = floor_on(device, work(problem));
        return plan;
    }

    bool prepare(const Problem& problem, const Plan& plan, CompilePolicy policy) const override {
        const ScalarForm form = form_of(problem);
        const int shape = find_shape(problem);
        bool compiled = false;
        (void)kernel_of(problem, form, shape, false, policy, &compiled);
        if (plan.segments > 1) (void)kernel_of(problem, form, shape, true, policy, &compiled);
        return compiled;
    }

    void run(const Problem& problem, const Plan& plan, CompilePolicy policy,
             void* workspace) const override {
        const ScalarForm form = form_of(problem);
        const int index = find_shape(problem);
        const ScalarShape& shape = kScalarShapes[index];
        const std::int64_t blocks = blocks_of(shape, problem.dims);
        if (blocks == 0) return;
        // Both kernels before the first launch: nothing is half-written.
        const Kernel& whole = kernel_of(problem, form, index, false, policy);
        const Kernel* first =
            plan.segments > 1 ? &kernel_of(problem, form, index, true, policy) : nullptr;
        const scalar::Params params = make_params(problem, form, shape, plan.segments, workspace);
        static_assert(sizeof params <= 4096);  // what every driver passes by value
        const auto launch = [&](const Kernel& kernel, int segments, Kernel::Start start) {
            const std::int64_t grid = blocks * segments;
            if (grid > std::numeric_limits<int>::max()) {
                throw Error(ErrorCode::kShape, "N x HV", std::to_string(blocks),
                            "fewer than 2^31 blocks of threads");
            }
            kernel.launch({.x = static_cast<unsigned>(grid)},
                          static_cast<unsigned>(threads_of(shape)), kSharedBytes,
                          static_cast<Stream>(problem.stream), &params, start);
        };
        if (first != nullptr) launch(*first, plan.segments - 1, Kernel::Start::kAfterEnd);
        launch(whole, plan.segments,
               first != nullptr ? Kernel::Start::kBeforeEnd : Kernel::Start::kAfterEnd);
    }
};

}  // namespace

const Method& scalar_method() {
    static const ScalarMethod method;
    return method;
}

}  // namespace sluice::cuda
