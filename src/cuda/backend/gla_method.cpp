// Gated linear attention on tensor cores: which problems, which of the kernel's shapes, and the
// launch.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "cuda/backend/launch.hpp"
#include "cuda/backend/method.hpp"
#include "cuda/backend/tensor_maps.hpp"
#include "cuda/engine/driver.hpp"
#include "cuda/engine/prebuilt.hpp"
#include "cuda/sm90/gla/params.cuh"

namespace sluice::cuda {

namespace {

constexpr int kShapes = static_cast<int>(std::size(kGlaShapes));
constexpr int kFirstShapes = static_cast<int>(std::size(kGlaFirstShapes));
constexpr std::int64_t kMostKeys = 256;

// The model, measured (docs/kernels/gla.md).
struct ChunkTimes {
    double mild_us;
    double strong_us;  // gates that leave the range
};
constexpr ChunkTimes kChunkTimes[] = {  // of kGlaShapes
    {2.73, 8.6},
    {1.92, 8.3},
    {1.25, 4.0},
    {2.65, 9.0},
    {1.52, 5.0}};
constexpr double kFirstChunkUs[] = {1.3, 1.1, 0.9, 1.0, 0.66};  // of kGlaFirstShapes
static_assert(std::size(kChunkTimes) == kShapes && std::size(kFirstChunkUs) == kFirstShapes);
constexpr double kLaunchUs = 8;        // and until the first chunk is there
constexpr double kSecondLaunchUs = 2;  // it begins before the first has ended
constexpr double kSegmentUs = 2.2;     // writing and reading one segment's state
/// The planner takes one chunk in ten to be strong: it does not see the gates, and a plan that
/// loses a little on mild ones may win much on strong ones.
constexpr double kStrongShare = 0.1;

/// float16 operands are rounded to bfloat16: in a call of so few tokens the error of o can exceed
/// its bound of 4e-3 (measured at T = 1: 6.1e-3; rounding q, k and v alone makes 4.8e-3).
constexpr std::int64_t kFewTokens = 16;

int threads_of(const GlaShape& shape) {
    const int teams = shape.paired ? 1 : shape.teams;
    return 128 * (teams * shape.keys / 64 + shape.math_groups + (shape.load_role ? 1 : 0));
}

/// Blocks for a head's value channels.
std::int64_t value_tiles(const GlaShape& shape, std::int64_t values) {
    const int blocks = shape.paired ? 2 : 1;
    return ceil_div(values, std::int64_t{kValueTile} * shape.math_groups * blocks) * blocks;
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
    // Not where a sequence's bits must not depend on its neighbours, as its own length in a pack
    // would.
    const bool alone = problem.indices.cu_seqlens.data == nullptr && !problem.batch_invariant;
    if (x.q.dtype == DType::kFloat16 && alone && problem.dims.T <= kFewTokens) {
        return fmt::format("{} is float16 and T = {}; rounded to bfloat16 it needs T above {}",
                           x.q.name, problem.dims.T, kFewTokens);
    }
    if (x.g.dtype == DType::kFloat64) return "g is float64; it must be 16 or 32 bits wide";
    return {};
}

/// Why the kernel does not take the problem; empty: it does.
std::string refusal(const Problem& problem) {
    const Spec& spec = problem.spec;
    if (spec.update != Update::kAdditive || spec.decay() != Decay::kVector || spec.normalize) {
        return "additive updates with a decay per key channel, not normalised";
    }
    const auto plain = [](const Expr& e) { return e.node().op == Op::kInput; };
    if (!plain(spec.q) || !plain(spec.k) || !plain(spec.v) || !plain(*spec.log_decay) ||
        !spec.output.is_input("o")) {
        return "q, k, v and the log decay must be inputs as they are, and o without a stage after "
               "it";
    }
    if (std::string why = refuse_call(problem, kMostKeys); !why.empty()) return why;
    const Dims& d = problem.dims;
    const Operands x = operands_of(problem);
    if (std::string why = refuse_types(problem, x); !why.empty()) return why;
    for (const BoundInput* input : {&x.q, &x.k}) {
        std::string why = refuse_operand(*input, {Axis::kB, Axis::kT, Axis::kH, Axis::kK}, d);
        if (!why.empty()) return why;
    }
    std::string why = refuse_operand(x.v, {Axis::kB, Axis::kT, Axis::kHV, Axis::kV}, d);
    if (why.empty()) why = refuse_operand(x.g, {Axis::kB, Axis::kT, Axis::kHV, Axis::kK}, d);
    if (why.empty()) why = refuse_tensor_map(problem.o, d);
    if (why.empty()) why = refuse_states(problem);
    return why;
}

struct Candidate {
    int shape = 0;
    int segments = 1;
    double us = 0;     // gates in range
    double score = 0;  // us, with some gates out of range
};

std::int64_t blocks_of(const Dims& d, const GlaShape& shape) {
    return d.N * d.HV * value_tiles(shape, d.V) * shape.key_parts;
}

/// K, padded to what the shape's blocks have.
int padded_keys(const GlaShape& shape) { return shape.keys * shape.key_parts; }
bool fits_keys(const GlaShape& shape, const Dims& d) {
    return padded_keys(shape) == (d.K <= 64 ? 64 : d.K <= 128 ? 128 : 256);
}

/// Whether blocks with tiles of 64 value channels can prepare chunks for each other: then they do.
bool can_pair(const Problem& problem) {
    const Operands x = operands_of(problem);
    return problem.dims.V > kValueTile && x.q.dtype == DType::kBFloat16 && is_narrow(x.g.dtype);
}
bool fits(const GlaShape& shape, const Problem& problem) {
    const bool one_tile = shape.keys == 128 && shape.math_groups == 1;
    return fits_keys(shape, problem.dims) && (!one_tile || shape.paired == can_pair(problem));
}

std::int64_t rounds_of(std::int64_t blocks, int multiprocessors) {
    return ceil_div(blocks, std::int64_t{std::max(multiprocessors, 1)});
}

/// A split sequence's first launch: shape, and its time of a chunk over all rounds of blocks.
struct FirstLaunch {
    int shape = 0;
    double chunk_us = std::numeric_limits<double>::infinity();
};
/// The fastest that writes the same workspace as `shape` reads.
FirstLaunch first_launch(const Dims& d, const GlaShape& shape, int segments, int multiprocessors) {
    const auto columns = [&](const GlaShape& of) { return value_tiles(of, d.V) * of.math_groups; };
    FirstLaunch best;
    for (int i = 0; i < kFirstShapes; ++i) {
        const GlaShape& first = kGlaFirstShapes[i];
        if (!fits_keys(first, d) || columns(first) != columns(shape)) continue;
        const std::int64_t blocks = blocks_of(d, first) * (segments - 1);
        const double us =
            static_cast<double>(rounds_of(blocks, multiprocessors)) * kFirstChunkUs[i];
        if (us < best.chunk_us) best = {i, us};
    }
    return best;
}

/// Blocks run one to a multiprocessor; a launch lasts as many rounds as that takes. `floor_us`: the
/// least time for the call's bytes.
Candidate score(const Dims& d, const DeviceSpec& device, double floor_us, int shape, int segments) {
    const GlaShape& of = kGlaShapes[shape];
    const auto chunks = static_cast<double>(ceil_div(chunks_of(d), segments));
    const auto rounds =
        static_cast<double>(rounds_of(blocks_of(d, of) * segments, device.multiprocessors));
    const ChunkTimes& times = kChunkTimes[shape];
    Candidate c{.shape = shape, .segments = segments};
    c.us = kLaunchUs + rounds * chunks * times.mild_us;
    if (segments > 1) {
        c.us += kSecondLaunchUs + kSegmentUs * segments +
                chunks * first_launch(d, of, segments, device.multiprocessors).chunk_us;
    }
    c.score = c.us + kStrongShare * rounds * chunks * (times.strong_us - times.mild_us);
    c.us = std::max(c.us, floor_us / kMemoryShare);
    return c;
}

/// Of the shapes that fit K and the splits that fill the GPU, the fastest. Results do not depend on
/// the shape; they do on the split, which batch_invariant forbids.
Candidate choose(const Problem& problem, const DeviceSpec& device, double floor_us) {
    const Dims& d = problem.dims;
    const int most = most_segments(problem);
    Candidate best{.score = std::numeric_limits<double>::infinity()};
    for (int shape = 0; shape < kShapes; ++shape) {
        if (!fits(kGlaShapes[shape], problem)) continue;
        for (int segments = 1; segments <= most; ++segments) {
            if (blocks_of(d, kGlaShapes[shape]) * segments > kMostBlocks) break;
            const Candidate c = score(d, device, floor_us, shape, segments);
            if (c.score < best.score) best = c;
        }
    }
    return best;
}

int shape_of_plan(const Problem& problem, const Plan& plan) {
    for (int i = 0; i < kShapes; ++i) {
        if (fits(kGlaShapes[i], problem) &&
            kValueTile * kGlaShapes[i].math_groups == plan.value_tile) {
            return i;
        }
    }
    refuse_plan(fmt::format("value_tile {}", plan.value_tile));
}

int first_shape_of(const Problem& problem, const Plan& plan) {
    const GlaShape& shape = kGlaShapes[shape_of_plan(problem, plan)];
    return first_launch(problem.dims, shape, plan.segments,
                        gpu(problem.device.index).multiprocessors)
        .shape;
}

SegmentBytes workspace_of(const Dims& d, const GlaShape& shape, int segments) {
    const std::int64_t columns = value_tiles(shape, d.V) * shape.math_groups * kValueTile;
    return segment_bytes(d, segments, columns * padded_keys(shape), padded_keys(shape));
}

const char* input_name(DType dtype) { return dtype == DType::kBFloat16 ? "kBFloat16" : "kFloat16"; }
const char* gate_name(DType dtype) {
    return dtype == DType::kFloat32 ? "kFloat32" : input_name(dtype);
}

/// The kernel for outputs of the `shape`-th of kGlaShapes, or for states of kGlaFirstShapes.
const Kernel& kernel_of(const Problem& problem, int shape, bool state_only, CompilePolicy policy,
                        bool* compiled = nullptr) {
    static KernelTable<std::size_t{std::max(kShapes, kFirstShapes)} * 2 * 3 * 2> table;
    const Operands x = operands_of(problem);
    const DType input = x.q.dtype;
    const DType gate = x.g.dtype;
    const int variant =
        ((shape * 2 + (input == DType::kFloat16 ? 1 : 0)) * 3 + number_type(gate)) * 2 +
        (state_only ? 1 : 0);
    return table.find(problem.device.index, static_cast<std::size_t>(variant), policy, compiled,
                      [&] {
                          return gla_kernel(state_only ? kGlaFirstShapes[shape] : kGlaShapes[shape],
                                            input_name(input), gate_name(gate), state_only);
                      });
}

gla::Params make_params(const Problem& problem, const GlaShape& shape, int segments,
                        void* workspace) {
    const Dims& d = problem.dims;
    const Operands x = operands_of(problem);
    gla::Params p{};
    encode_tensor_map(&p.q, x.q, d, kChunk);
    encode_tensor_map(&p.k, x.k, d, kChunk);
    encode_tensor_map(&p.v, x.v, d, kChunk);
    encode_tensor_map(&p.g, x.g, d, kChunk);
    encode_tensor_map(&p.o, problem.o, d, kChunk / shape.key_parts);
    set_call(p, problem);
    set_segments(p, segments, workspace_of(d, shape, segments), workspace);
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
        plan.value_tile = std::int64_t{kValueTile} * shape.math_groups;
        plan.segments = c.segments;
        plan.stages = operands_of(problem).g.dtype == DType::kFloat32 ? shape.stages_float32_gates
                                                                      : shape.stages;
        plan.tasks = blocks_of(d, shape) * c.segments;
        plan.workspace_bytes = workspace_of(d, shape, c.segments).total();
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
        const int index = shape_of_plan(problem, plan);
        const GlaShape& shape = kGlaShapes[index];
        require_segments(plan, workspace_of(d, shape, plan.segments).total());
        if (blocks_of(d, shape) == 0) return;
        // Both kernels before the first launch: nothing is half-written.
        const Kernel& whole = kernel_of(problem, index, false, policy);
        const bool split = plan.segments > 1;
        const int first = split ? first_shape_of(problem, plan) : 0;
        const Kernel* states = split ? &kernel_of(problem, first, true, policy) : nullptr;
        gla::Params params = make_params(problem, shape, plan.segments, workspace);
        const auto start = [&](const Kernel& kernel, const GlaShape& of, int segments,
                               Kernel::Start when) {
            params.value_tiles = static_cast<int>(value_tiles(of, d.V));
            launch(problem, kernel, blocks_of(d, of) * segments, threads_of(of), &params, when);
        };
        if (split)
            start(*states, kGlaFirstShapes[first], plan.segments - 1, Kernel::Start::kAfterEnd);
        start(whole, shape, plan.segments,
              split ? Kernel::Start::kBeforeEnd : Kernel::Start::kAfterEnd);
    }
};

}  // namespace

const Method& gla_method() {
    static const GlaMethod method;
    return method;
}

}  // namespace sluice::cuda
