// Gated linear attention on tensor cores: which problems, which of the kernel's shapes, and the
// launch.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "cuda/backend/method.hpp"
#include "cuda/backend/tensor_maps.hpp"
#include "cuda/engine/driver.hpp"
#include "cuda/engine/kernel.hpp"
#include "cuda/engine/prebuilt.hpp"
#include "cuda/sm90/gla/params.cuh"
#include "sluice/error.hpp"

namespace sluice::cuda {

namespace {

constexpr int kChunk = 64;
constexpr std::int64_t kLargestKeys = 128;
constexpr std::int64_t kLargestValues = 512;
constexpr int kMostSegments = 32;
constexpr std::int64_t kMostBlocks = std::numeric_limits<int>::max();  // of a launch
constexpr int kShapes = static_cast<int>(std::size(kGlaShapes));
constexpr std::size_t kSharedBytes = std::size_t{227} * 1024;  // as the kernel asserts

// The model: what a chunk takes in each of kGlaShapes, measured (docs/kernels/gla.md).
constexpr double kChunkUs[] = {2.73, 1.92, 1.30};
constexpr double kStrongChunkUs[] = {8.6, 8.3, 4.0};  // gates that leave the range
constexpr double kStateChunkUs[] = {1.7, 1.1, 0.9};   // the first launch of a split sequence
constexpr double kLaunchUs = 8;                       // and until the first chunk is there
constexpr double kSegmentUs = 0.6;                    // reading one earlier segment's state
constexpr double kMemoryShare = 0.92;                 // of the copy rate that bulk copies reach
/// The planner takes one chunk in ten to be strong: it does not see the gates, and a plan that
/// loses a little on mild ones may win much on strong ones.
constexpr double kStrongShare = 0.1;

int threads_of(const GlaShape& shape) {
    return 128 * (shape.teams * shape.keys / 64 + shape.math_groups + (shape.load_role ? 1 : 0));
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t value_tiles(const GlaShape& shape, std::int64_t values) {
    return ceil_div(values, 64 * shape.math_groups);
}

/// The inputs by their part in the recurrence, of a spec whose operands are inputs as they are.
struct Operands {
    const BoundInput &q, &k, &v, &g;
};

Operands operands_of(const Problem& problem) {
    const auto input = [&](const Expr& e) -> const BoundInput& {
        return problem.input(e.node().name);
    };
    const Spec& spec = problem.spec;
    return {input(spec.q), input(spec.k), input(spec.v), input(*spec.log_decay)};
}

bool is_narrow(DType dtype) { return dtype == DType::kBFloat16 || dtype == DType::kFloat16; }

std::string refuse_operand(const BoundInput& x, std::initializer_list<Axis> axes,
                           const Dims& dims) {
    for (const Axis axis : axes) {
        if (!x.has(axis)) return fmt::format("{} has no axis {}", x.name, to_string(axis));
    }
    return refuse_tensor_map(x, dims);
}

std::string refuse_types(const Problem& problem, const Operands& x) {
    for (const BoundInput* input : {&x.q, &x.k, &x.v}) {
        if (!is_narrow(input->dtype) || input->dtype != x.q.dtype) {
            return fmt::format("{} is {}; q, k and v must all be bfloat16 or all float16",
                               input->name, to_string(input->dtype));
        }
    }
    if (problem.o.dtype != x.q.dtype) {
        return fmt::format("o is {}; it must be {} as q", to_string(problem.o.dtype),
                           to_string(x.q.dtype));
    }
    if (x.g.dtype == DType::kFloat64) return "g is float64; it must be 16 or 32 bits wide";
    for (const BoundState* state : {&problem.initial, &problem.final, &problem.checkpoints}) {
        if (*state && state->dtype == DType::kFloat64) return "states must not be float64";
    }
    return {};
}

/// The kernel's offsets inside a head are 32 bits wide.
std::string refuse_state_strides(const Problem& problem) {
    for (const BoundState* state : {&problem.initial, &problem.final, &problem.checkpoints}) {
        if (!*state) continue;
        const double reach =
            std::abs(static_cast<double>(state->stride_k)) * static_cast<double>(problem.dims.K) +
            std::abs(static_cast<double>(state->stride_v)) * static_cast<double>(problem.dims.V);
        if (4 * reach >= std::numeric_limits<int>::max()) return "a state's head spans 2^31 bytes";
    }
    return {};
}

/// Why the kernel does not take the problem; empty: it does.
std::string refusal(const Problem& problem) {
    const Spec& spec = problem.spec;
    if (problem.phase != Phase::kPrefill) return "prefill only";
    if (spec.update != Update::kAdditive || spec.decay() != Decay::kVector || spec.normalize) {
        return "additive updates with a decay per key channel, not normalised";
    }
    const auto plain = [](const Expr& e) { return e.node().op == Op::kInput; };
    if (!plain(spec.q) || !plain(spec.k) || !plain(spec.v) || !plain(*spec.log_decay) ||
        !spec.output.is_input("o")) {
        return "q, k, v and the log decay must be inputs as they are, and o without a stage after "
               "it";
    }
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
    if (d.N * d.HV > kMostBlocks / ceil_div(d.V, 64)) {
        return fmt::format("{} sequences x {} heads; fewer than 2^31 blocks of threads", d.N, d.HV);
    }
    const Operands x = operands_of(problem);
    if (std::string why = refuse_types(problem, x); !why.empty()) return why;
    for (const BoundInput* input : {&x.q, &x.k}) {
        std::string why = refuse_operand(*input, {Axis::kB, Axis::kT, Axis::kH, Axis::kK}, d);
        if (!why.empty()) return why;
    }
    std::string why = refuse_operand(x.v, {Axis::kB, Axis::kT, Axis::kHV, Axis::kV}, d);
    if (why.empty()) why = refuse_operand(x.g, {Axis::kB, Axis::kT, Axis::kHV, Axis::kK}, d);
    if (why.empty()) why = refuse_tensor_map(problem.o, d);
    if (why.empty()) why = refuse_state_strides(problem);
    return why;
}

struct Candidate {
    int shape = 0;
    int segments = 1;
    double us = 0;     // gates in range
    double score = 0;  // us, with some gates out of range
};

/// Sequences of packed input are taken to be equally long: their lengths are on the device.
std::int64_t chunks_of(const Dims& d) {
    return ceil_div(d.B * d.T, std::max<std::int64_t>(d.N, 1) * kChunk);
}

std::int64_t blocks_of(const Dims& d, int shape) {
    return d.N * d.HV * value_tiles(kGlaShapes[shape], d.V);
}

/// The shape of a split sequence's first launch: the narrowest that writes the same workspace,
/// where that fills multiprocessors which would be idle.
int first_shape(const Dims& d, int shape, int segments, int multiprocessors) {
    const auto columns = [&](int i) {
        return value_tiles(kGlaShapes[i], d.V) * kGlaShapes[i].math_groups;
    };
    int best = shape;
    for (int i = 0; i < kShapes; ++i) {
        const bool fits = kGlaShapes[i].keys == kGlaShapes[shape].keys &&
                          columns(i) == columns(shape) &&
                          blocks_of(d, i) * (segments - 1) <= multiprocessors;
        if (fits && kGlaShapes[i].math_groups < kGlaShapes[best].math_groups) best = i;
    }
    return best;
}

/// Blocks run one to a multiprocessor; a launch lasts as many rounds as that takes. `floor_us`: the
/// least time for the call's bytes.
Candidate score(const Dims& d, const DeviceSpec& device, double floor_us, int shape, int segments) {
    const auto chunks = static_cast<double>(ceil_div(chunks_of(d), segments));
    const auto rounds = [&](int of_shape, int of_segments) {
        return static_cast<double>(
            ceil_div(blocks_of(d, of_shape) * of_segments, std::max(device.multiprocessors, 1)));
    };
    Candidate c{.shape = shape, .segments = segments};
    c.us = kLaunchUs + rounds(shape, segments) * chunks * kChunkUs[shape];
    if (segments > 1) {
        const int first = first_shape(d, shape, segments, device.multiprocessors);
        c.us += kLaunchUs + kSegmentUs * segments +
                rounds(first, segments - 1) * chunks * kStateChunkUs[first];
    }
    c.score = c.us + kStrongShare * rounds(shape, segments) * chunks *
                         (kStrongChunkUs[shape] - kChunkUs[shape]);
    c.us = std::max(c.us, floor_us / kMemoryShare);
    return c;
}

/// Of the shapes that fit K and the splits that fill the GPU, the fastest. Results do not depend on
/// the shape; they do on the split, which batch_invariant forbids.
Candidate choose(const Problem& problem, const DeviceSpec& device, double floor_us) {
    const Dims& d = problem.dims;
    const int most =
        problem.batch_invariant
            ? 1
            : static_cast<int>(std::clamp<std::int64_t>(chunks_of(d) / 4, 1, kMostSegments));
    const int keys = d.K <= 64 ? 64 : 128;
    Candidate best{.score = std::numeric_limits<double>::infinity()};
    for (int shape = 0; shape < kShapes; ++shape) {
        if (kGlaShapes[shape].keys != keys) continue;
        for (int segments = 1; segments <= most; ++segments) {
            if (blocks_of(d, shape) * segments > kMostBlocks) break;
            const Candidate c = score(d, device, floor_us, shape, segments);
            if (c.score < best.score) best = c;
        }
    }
    return best;
}

int shape_of_plan(const Problem& problem, const Plan& plan) {
    const int keys = problem.dims.K <= 64 ? 64 : 128;
    for (int i = 0; i < kShapes; ++i) {
        if (kGlaShapes[i].keys == keys && 64 * kGlaShapes[i].math_groups == plan.value_tile) {
            return i;
        }
    }
    throw Error(ErrorCode::kValue, "plan", fmt::format("value_tile {}", plan.value_tile),
                "a plan of this back end for this problem");
}

int first_shape_of(const Problem& problem, const Plan& plan) {
    return first_shape(problem.dims, shape_of_plan(problem, plan), plan.segments,
                       gpu(problem.device.index).multiprocessors);
}

// Workspace: the segments' states, then their decays.
std::int64_t segment_state_bytes(const Dims& d, const GlaShape& shape, int segments) {
    return d.N * d.HV * segments * value_tiles(shape, d.V) * shape.math_groups * 64 * shape.keys *
           4;
}
std::int64_t segment_decay_bytes(const Dims& d, const GlaShape& shape, int segments) {
    return d.N * d.HV * segments * shape.keys * 4;
}

std::int64_t workspace_bytes(const Dims& d, const GlaShape& shape, int segments) {
    if (segments == 1) return 0;
    return segment_state_bytes(d, shape, segments) + segment_decay_bytes(d, shape, segments);
}

/// A plan of another problem would send the kernels outside its workspace.
void require_plan_of(const Problem& problem, const Plan& plan) {
    const GlaShape& shape = kGlaShapes[shape_of_plan(problem, plan)];
    const bool ok = plan.segments >= 1 && plan.segments <= kMostSegments &&
                    plan.workspace_bytes == workspace_bytes(problem.dims, shape, plan.segments);
    if (ok) return;
    throw Error(
        ErrorCode::kValue, "plan",
        fmt::format("{} segments, {} bytes of workspace", plan.segments, plan.workspace_bytes),
        "a plan of this back end for this problem");
}

const char* input_name(DType dtype) { return dtype == DType::kBFloat16 ? "kBFloat16" : "kFloat16"; }
const char* gate_name(DType dtype) {
    return dtype == DType::kFloat32 ? "kFloat32" : input_name(dtype);
}

/// The kernel of a shape. The table spares the usual call the kernel's text.
const Kernel& kernel_of(const Problem& problem, int shape, bool state_only, CompilePolicy policy,
                        bool* compiled = nullptr) {
    constexpr int kGpus = 16;
    static std::atomic<const Kernel*> table[kGpus][kShapes][2][3][2];
    const Operands x = operands_of(problem);
    const DType input = x.q.dtype;
    const DType gate = x.g.dtype;
    const int gate_index = gate == DType::kFloat32 ? 2 : gate == DType::kFloat16 ? 1 : 0;
    std::atomic<const Kernel*>* entry = nullptr;
    if (problem.device.index < kGpus) {
        entry =
            &table[problem.device.index][shape][input == DType::kFloat16][gate_index][state_only];
        if (const Kernel* known = entry->load(std::memory_order_acquire)) return *known;
    }
    const Kernel& kernel =
        find_kernel(gla_kernel(kGlaShapes[shape], input_name(input), gate_name(gate), state_only),
                    problem.device.index, policy, compiled);
    if (entry != nullptr) entry->store(&kernel, std::memory_order_release);
    return kernel;
}

gla::Indices indices_of(const DeviceIndices& from) {
    return {.data = from.data, .stride = from.strides[0], .is_64_bit = from.dtype == DType::kInt64};
}

gla::StateTensor state_of(const BoundState& from, const DeviceIndices& indices) {
    gla::StateTensor to{};
    to.data = from.data;
    to.slots = from.slots;
    to.slot_stride = from.stride_slot;
    to.head_stride = from.stride_head;
    to.key_stride = static_cast<int>(from.stride_k);
    to.value_stride = static_cast<int>(from.stride_v);
    to.indices = indices_of(indices);
    to.type = from.dtype == DType::kFloat32    ? gla::kStateFloat32
              : from.dtype == DType::kBFloat16 ? gla::kStateBFloat16
                                               : gla::kStateFloat16;
    return to;
}

gla::Params make_params(const Problem& problem, const GlaShape& shape, int segments,
                        void* workspace) {
    const Dims& d = problem.dims;
    const Operands x = operands_of(problem);
    const auto& indices = problem.indices;
    gla::Params p{};
    encode_tensor_map(&p.q, x.q, d, kChunk);
    encode_tensor_map(&p.k, x.k, d, kChunk);
    encode_tensor_map(&p.v, x.v, d, kChunk);
    encode_tensor_map(&p.g, x.g, d, kChunk);
    encode_tensor_map(&p.o, problem.o, d, kChunk);
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
    p.o_token_stride = problem.o.stride[static_cast<std::size_t>(Axis::kT)];
    p.o_head_stride = problem.o.stride[static_cast<std::size_t>(Axis::kHV)];
    p.tokens = static_cast<int>(d.T);
    p.heads = static_cast<int>(d.HV);
    p.heads_per_key_head = static_cast<int>(d.HV / d.H);
    p.keys = static_cast<int>(d.K);
    p.values = static_cast<int>(d.V);
    p.scale = static_cast<float>(problem.scale);
    return p;
}

class GlaMethod final : public Method {
  public:
    [[nodiscard]] std::string_view name() const noexcept override { return "gla"; }

    [[nodiscard]] Support supports(const Problem& problem) const override {
        std::string why = refusal(problem);
        return {why.empty(), std::move(why)};
    }

    [[nodiscard]] Plan plan(const Problem& problem, const DeviceSpec& device) const override {
        const Dims& d = problem.dims;
        Plan plan;
        plan.floor = floor_on(device, work(problem));
        const Candidate c = choose(problem, device, plan.floor.memory_us);
        const GlaShape& shape = kGlaShapes[c.shape];
        plan.kernel = name();
        plan.precision = Precision::kBFloat16;
        plan.chunk = kChunk;
        plan.block = 16;
        plan.value_tile = std::int64_t{64} * shape.math_groups;
        plan.segments = c.segments;
        plan.stages = operands_of(problem).g.dtype == DType::kFloat32 ? shape.stages_float32_gates
                                                                      : shape.stages;
        plan.tasks = d.N * d.HV * value_tiles(shape, d.V) * c.segments;
        plan.workspace_bytes = workspace_bytes(d, shape, c.segments);
        plan.predicted_us = c.us;
        return plan;
    }

    bool prepare(const Problem& problem, const Plan& plan, CompilePolicy policy) const override {
        bool compiled = false;
        const int shape = shape_of_plan(problem, plan);
        (void)kernel_of(problem, shape, false, policy, &compiled);
        if (plan.segments > 1) {
            (void)kernel_of(problem, first_shape_of(problem, plan), true, policy, &compiled);
        }
        return compiled;
    }

    void run(const Problem& problem, const Plan& plan, CompilePolicy policy,
             void* workspace) const override {
        const Dims& d = problem.dims;
        require_plan_of(problem, plan);
        const int shape = shape_of_plan(problem, plan);
        if (blocks_of(d, shape) == 0) return;
        // Both kernels before the first launch: nothing is half-written.
        const Kernel& whole = kernel_of(problem, shape, false, policy);
        const bool split = plan.segments > 1;
        const int first = split ? first_shape_of(problem, plan) : shape;
        const Kernel* states = split ? &kernel_of(problem, first, true, policy) : nullptr;
        gla::Params params = make_params(problem, kGlaShapes[shape], plan.segments, workspace);
        const auto launch = [&](const Kernel& kernel, int of_shape, int segments,
                                Kernel::Start start) {
            const std::int64_t grid = blocks_of(d, of_shape) * segments;
            params.value_tiles = static_cast<int>(value_tiles(kGlaShapes[of_shape], d.V));
            kernel.launch({.x = static_cast<unsigned>(grid)},
                          static_cast<unsigned>(threads_of(kGlaShapes[of_shape])), kSharedBytes,
                          static_cast<Stream>(problem.stream), &params, start);
        };
        if (split) launch(*states, first, plan.segments - 1, Kernel::Start::kAfterEnd);
        launch(whole, shape, plan.segments,
               split ? Kernel::Start::kBeforeEnd : Kernel::Start::kAfterEnd);
    }
};

}  // namespace

const Method& gla_method() {
    static const GlaMethod method;
    return method;
}

}  // namespace sluice::cuda
