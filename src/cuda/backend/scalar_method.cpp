// Recurrences with a scalar, constant or no decay on tensor cores (Mamba-2, simple GLA, Lightning,
// RetNet, linear attention): which problems, which of the kernel's shapes, and the launch.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>

#include "cuda/backend/launch.hpp"
#include "cuda/backend/method.hpp"
#include "cuda/backend/scalar_form.hpp"
#include "cuda/backend/tensor_maps.hpp"
#include "cuda/engine/prebuilt.hpp"
#include "cuda/sm90/scalar/params.cuh"
#include "sluice/error.hpp"

namespace sluice::cuda {

namespace {

using Gate = ScalarForm::Gate;
using Skip = ScalarForm::Skip;

constexpr int kShapes = static_cast<int>(std::size(kScalarShapes));
constexpr std::int64_t kMostKeys = 256;

// The model: what a chunk takes in each of kScalarShapes and kScalarFirstShapes, measured on an
// H200 (docs/kernels/scalar.md); those of K = 64 are estimated in proportion.
constexpr double kChunkUs[] = {1.75, 1.60, 1.12, 1.34, 1.25, 0.93, 1.95};
constexpr double kStateChunkUs[] = {1.06, 0.62, 0.48, 0.80, 0.54, 0.42, 0.70};
constexpr double kSharedFactor = 0.86;  // of a chunk: without scores of its own
constexpr double kGatedFactor = 1.85;   // of a chunk: z is as much to read as v
constexpr double kNormalizerUs = 0.42;  // more for a chunk of 128 key channels
constexpr double kLaunchUs = 6.7;       // and until the first chunk is there, and the state
constexpr double kSecondUs = 3.3;       // of a split: a second launch begins when the first is done
constexpr double kSegmentUs = 1.9;      // of a split: earlier segments' states are read one by one
constexpr double kScoresUs = 6.0;       // of shared scores alone in a first launch
constexpr double kCopyShare = 0.97;     // of the copy rate, which bulk copies reach here
// Shared scores: worth a launch of their own, and sharers enough.
constexpr std::int64_t kLeastSharedChunks = 32;
constexpr std::int64_t kLeastSharers = 8;
constexpr std::int64_t kFewScoreBlocks = 32;
constexpr std::int64_t kLeastChunksOfScoreBlock = 2, kMostChunksOfScoreBlock = 8;
constexpr std::int64_t kScoreBytes = 64 * 64 * 2;  // of a chunk

/// Two warpgroups share a state of more than 128 key channels, and two states of a first launch are
/// one's.
int threads_of(const ScalarShape& shape) {
    return 128 * (std::min(shape.heads * shape.tiles, 2) * (shape.keys > 128 ? 2 : 1) + 2);
}

std::int64_t value_tiles(const ScalarShape& shape, std::int64_t values) {
    return ceil_div(values, std::int64_t{kValueTile} * shape.tiles);
}
std::int64_t head_blocks(const ScalarShape& shape, const Dims& d) {
    return ceil_div(d.HV / d.H, shape.heads);
}
/// Blocks of threads of one segment.
std::int64_t blocks_of(const ScalarShape& shape, const Dims& d) {
    return d.N * d.H * head_blocks(shape, d) * value_tiles(shape, d.V);
}

/// A split's first launch.
struct FirstLaunch {
    int shape = 0;            // of kScalarFirstShapes
    int parts = 1;            // of a segment, a block's work
    std::int64_t blocks = 0;  // of states
};

/// Parts: as many as give it no more blocks than the outputs have, and blocks some chunks. Follows
/// from the split, which is in the plan.
FirstLaunch first_launch(const Dims& d, int shape, int segments) {
    constexpr std::int64_t kLeastChunks = 4;  // of a part
    FirstLaunch first{.shape = first_shape_of(shape, d.V)};
    const std::int64_t of_part = blocks_of(kScalarFirstShapes[first.shape], d) * (segments - 1);
    if (of_part == 0) return first;
    const std::int64_t outputs = blocks_of(kScalarShapes[shape], d) * segments;
    const std::int64_t most = chunks_of(d) / (segments * kLeastChunks);
    first.parts = static_cast<int>(std::max<std::int64_t>(std::min(outputs / of_part, most), 1));
    first.blocks = of_part * first.parts;
    return first;
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
    const bool steps = form.gate == Gate::kTimeStep;
    return {problem.input(form.q),
            problem.input(form.k),
            problem.input(form.v),
            find(form.z),
            find(steps ? form.time : form.given),
            find(form.rate),
            find(form.bias),
            find(form.skip)};
}

/// One of the operands of products: those of a key head have no axis of value heads.
std::string refuse_factor(const BoundInput& x, DType type, Axis head, Axis channel,
                          const Dims& dims) {
    if (head == Axis::kH && x.has(Axis::kHV)) {
        return fmt::format("{} has an axis of value heads", x.name);
    }
    if (x.dtype != type) {
        return fmt::format("{} is {}; it must be {}", x.name, to_string(x.dtype), to_string(type));
    }
    return refuse_operand(x, {Axis::kB, Axis::kT, head, channel}, dims);
}

std::string refuse_operands(const Problem& problem, const Operands& x) {
    const Dims& d = problem.dims;
    const DType type = x.q.dtype;
    if (type != DType::kBFloat16 && type != DType::kFloat16) {
        return fmt::format("{} is {}; it must be bfloat16 or float16", x.q.name, to_string(type));
    }
    for (const BoundInput* input : {&x.q, &x.k}) {
        std::string why = refuse_factor(*input, type, Axis::kH, Axis::kK, d);
        if (!why.empty()) return why;
    }
    for (const BoundInput* input : {&x.v, x.z, &problem.o}) {
        if (input == nullptr) continue;
        std::string why = refuse_factor(*input, type, Axis::kHV, Axis::kV, d);
        if (!why.empty()) return why;
    }
    for (const BoundInput* input : {x.gate, x.rate, x.bias, x.skip}) {
        if (input != nullptr && input->dtype == DType::kFloat64) {
            return fmt::format("{} is float64; it must be 16 or 32 bits wide", input->name);
        }
    }
    return {};
}

/// Why the kernel does not take the problem; empty: it does.
std::string refusal(const Problem& problem) {
    std::string why;
    const auto form = find_scalar_form(problem.spec, &why);
    if (!form) return why;
    why = refuse_call(problem, kMostKeys);
    if (!why.empty()) return why;
    const Dims& d = problem.dims;
    if (form->gate == Gate::kConstant && d.HV > scalar::kMostConstants) {
        return fmt::format("{} heads with constant decays; at most {}", d.HV,
                           scalar::kMostConstants);
    }
    // States go to and from memory by pairs of key channels.
    if (d.K % 2 != 0) return fmt::format("K = {}; an even number", d.K);
    if (!(problem.scale > 0)) return fmt::format("scale = {}; above 0", problem.scale);
    why = refuse_operands(problem, operands_of(problem, *form));
    if (why.empty()) why = refuse_states(problem);
    return why;
}

ScalarForm find_form(const Problem& problem) {
    std::string why;
    auto form = find_scalar_form(problem.spec, &why);
    if (!form) throw Error(ErrorCode::kUnsupported, "spec", problem.spec.name, why);
    return *std::move(form);
}

/// Valid until the thread asks again. Finding a form takes longer than all else that a run does, so
/// a thread keeps its latest ones.
const ScalarForm& form_of(const Problem& problem) {
    struct Kept {
        std::uint64_t bind_number = 0;
        ScalarForm form;
    };
    constexpr std::size_t kMostKept = 16;
    thread_local std::array<Kept, kMostKept> latest;
    Kept& kept = latest[problem.bind_number % kMostKept];
    if (problem.bind_number == 0 || kept.bind_number != problem.bind_number) {
        kept.bind_number = 0;  // if nothing is found
        kept.form = find_form(problem);
        kept.bind_number = problem.bind_number;
    }
    return kept.form;
}

// As the headers name them.
const char* name_of(Gate gate) {
    switch (gate) {
        case Gate::kNone: return "kNone";
        case Gate::kConstant: return "kConstant";
        case Gate::kGiven: return "kGiven";
        case Gate::kTimeStep: break;
    }
    return "kTimeStep";
}
const char* name_of(Skip skip) {
    return skip == Skip::kNone ? "kNone" : skip == Skip::kHead ? "kHead" : "kChannel";
}

ScalarPolicy policy_of(const ScalarForm& form, DType input) {
    return {.gate = name_of(form.gate),
            .skip = name_of(form.skip_kind),
            .gated = !form.z.empty(),
            .input = input == DType::kFloat16 ? "kFloat16" : "kBFloat16",
            .normalized = form.normalized};
}

// ---- the plan -----------------------------------------------------------------------------------

/// Whether the first launch computes the scores. Decided by what the problem is: a plan need not
/// say so. The workspace for them is then at most a twentieth of x and o.
bool shares_scores(const Problem& problem, const ScalarForm& form, const ScalarShape& shape,
                   int segments) {
    const Dims& d = problem.dims;
    const std::int64_t sharers = head_blocks(shape, d) * value_tiles(shape, d.V);
    return sharers >= kLeastSharers && d.HV / d.H * d.V >= 10 * kChunk &&
           (segments > 1 || chunks_of(d) >= kLeastSharedChunks) &&
           can_share_scores(policy_of(form, problem.o.dtype));
}

/// Blocks that share the scores of a sequence and key head: as many as a split's states leave idle
/// of a GPU, unless that is few chunks a block, or many.
std::int64_t score_blocks(const Dims& d) {
    return std::clamp(kFewScoreBlocks, ceil_div(chunks_of(d), kMostChunksOfScoreBlock),
                      ceil_div(chunks_of(d), kLeastChunksOfScoreBlock));
}

/// The last block of a key head may have a head too many, which it does not write. Sums of keys
/// that sequences start from are a head's own.
bool fits(const ScalarShape& shape, const Problem& problem) {
    const Dims& d = problem.dims;
    const int keys = d.K <= 64 ? 64 : d.K <= 128 ? 128 : 256;
    return shape.keys == keys && shape.heads <= (problem.spec.normalize ? 1 : d.HV / d.H) &&
           (shape.tiles == 1 || d.V > kValueTile);
}

/// Whether a first launch keeps the initial sums of keys: where they may be updated in place, a
/// block could otherwise write one that another has yet to read.
bool keeps_key_sums(const Problem& problem, const ScalarShape& shape, int segments) {
    return problem.initial_key_sum && problem.final_key_sum &&
           (segments > 1 || value_tiles(shape, problem.dims.V) > 1);
}

/// Which of kScalarShapes fit; where the kernels of any are compiled ahead, only such. Others would
/// be faster for some sizes, but a call must not wait seconds for a compiler, nor need one, because
/// its length is another.
std::array<bool, kShapes> candidate_shapes(const Problem& problem, const ScalarForm& form) {
    const ScalarPolicy policy = policy_of(form, problem.o.dtype);
    std::array<bool, kShapes> fitting{}, prebuilt{};
    for (std::size_t i = 0; i < kShapes; ++i) {
        fitting[i] = fits(kScalarShapes[i], problem);
        prebuilt[i] = fitting[i] && is_prebuilt(kScalarShapes[i], policy);
    }
    return std::ranges::count(prebuilt, true) > 0 ? prebuilt : fitting;
}

/// A call as the model sees it.
struct Load {
    int multiprocessors = 1;
    bool gated = false, normalized = false;
    bool shared = false;          // scores
    bool keeps_key_sums = false;  // in a first launch
    // The least times for bytes: all of the call's, and of keys and values alone, which a split's
    // first launch reads.
    double memory_us = 0, states_memory_us = 0;
};

Load load_of(const Problem& problem, const ScalarForm& form, const DeviceSpec& device,
             const Floor& floor) {
    const Dims& d = problem.dims;
    const auto operands =
        static_cast<double>(d.B * d.T) * static_cast<double>(d.H * d.K + d.HV * d.V);
    const double bytes = operands * static_cast<double>(size_bytes(problem.o.dtype));
    return {.multiprocessors = std::max(device.multiprocessors, 1),
            .gated = !form.z.empty(),
            .normalized = form.normalized,
            .memory_us = floor.memory_us,
            .states_memory_us = floor_on(device, {.bytes_read = bytes}).memory_us};
}

struct Choice {
    int shape = 0;
    int segments = 1;
    double us = std::numeric_limits<double>::infinity();
    double compute_us = us;  // if memory took no time
};

/// Blocks run one to a multiprocessor; a launch lasts as many rounds as that takes, or as long as
/// memory needs.
Choice predict(const Dims& d, const Load& load, int shape, int segments) {
    Choice c{.shape = shape, .segments = segments, .us = kLaunchUs, .compute_us = 0};
    const std::int64_t chunks = ceil_div(chunks_of(d), segments);
    const auto add_launch = [&](std::int64_t blocks, std::int64_t of_block, double chunk_us,
                                double memory_us) {
        const std::int64_t rounds = ceil_div(blocks, load.multiprocessors);
        const double compute_us = static_cast<double>(rounds * of_block) * chunk_us;
        c.compute_us += compute_us;
        c.us += std::max(compute_us, memory_us / kCopyShare);
    };
    const double factor = load.gated ? kGatedFactor : load.shared ? kSharedFactor : 1;
    const double more_us = load.normalized ? kNormalizerUs * kScalarShapes[shape].keys / 128 : 0;
    add_launch(blocks_of(kScalarShapes[shape], d) * segments, chunks,
               kChunkUs[shape] * factor + more_us, load.memory_us);
    if (segments == 1 && load.shared) c.us += kScoresUs;
    if (segments == 1 && load.keeps_key_sums) c.us += kSecondUs;
    if (segments > 1) {
        const FirstLaunch first = first_launch(d, shape, segments);
        c.us += kSecondUs + kSegmentUs * segments;
        add_launch(first.blocks, ceil_div(chunks, first.parts), kStateChunkUs[first.shape],
                   load.states_memory_us * (segments - 1) / segments);
    }
    return c;
}

/// Of the shapes and the splits, the fastest; where only memory counts, the one that computes
/// least. Results do not depend on the shape; they do on the split, which batch_invariant forbids.
Choice choose(const Problem& problem, const DeviceSpec& device, const Floor& floor) {
    const Dims& d = problem.dims;
    const ScalarForm& form = form_of(problem);
    Load load = load_of(problem, form, device, floor);
    const auto candidates = candidate_shapes(problem, form);
    const int most = most_segments(problem);
    Choice best;
    for (int shape = 0; shape < kShapes; ++shape) {
        if (!candidates[static_cast<std::size_t>(shape)]) continue;
        for (int segments = 1; segments <= most; ++segments) {
            if (blocks_of(kScalarShapes[shape], d) * segments > kMostBlocks) break;
            load.shared = shares_scores(problem, form, kScalarShapes[shape], segments);
            load.keeps_key_sums = keeps_key_sums(problem, kScalarShapes[shape], segments);
            const Choice c = predict(d, load, shape, segments);
            if (std::tie(c.us, c.compute_us) < std::tie(best.us, best.compute_us)) best = c;
        }
    }
    return best;
}

/// Shapes that fit a problem differ in the width of their tiles or in the number of blocks.
int shape_of_plan(const Problem& problem, const Plan& plan) {
    const Dims& d = problem.dims;
    for (int i = 0; i < kShapes; ++i) {
        const ScalarShape& shape = kScalarShapes[i];
        if (fits(shape, problem) && plan.value_tile == std::int64_t{kValueTile} * shape.tiles &&
            plan.tasks == blocks_of(shape, d) * plan.segments) {
            return i;
        }
    }
    refuse_plan(fmt::format("value_tile {}, {} tasks", plan.value_tile, plan.tasks));
}

/// Of a head in the workspace, by 64 value channels: both launches' blocks.
std::int64_t state_tiles(const Dims& d, int shape) {
    const auto tiles = [&](const ScalarShape& s) { return value_tiles(s, d.V) * s.tiles; };
    return std::max(tiles(kScalarShapes[shape]),
                    tiles(kScalarFirstShapes[first_shape_of(shape, d.V)]));
}

/// The workspace: segments, then shared scores, or sums of keys: those that sequences start from,
/// and the parts'.
struct Workspace {
    SegmentBytes segments;
    std::int64_t scores = 0;
    std::int64_t kept_key_sums = 0, part_key_sums = 0;
    [[nodiscard]] std::int64_t total() const noexcept {
        return segments.total() + scores + kept_key_sums + part_key_sums;
    }
};

constexpr std::size_t kScoreAlignment = 128;  // bulk copies: 16

Workspace workspace_of(const Problem& problem, const ScalarForm& form, int index, int segments) {
    const Dims& d = problem.dims;
    const ScalarShape& shape = kScalarShapes[index];
    // A state of each part, and the initial one.
    const int parts = (segments - 1) * first_launch(d, index, segments).parts;
    const std::int64_t columns = state_tiles(d, index) * kValueTile;
    Workspace bytes{.segments = segment_bytes(d, parts + 1, columns * shape.keys, 1)};
    const std::int64_t key_sums = d.N * d.HV * d.K * static_cast<int>(sizeof(float));
    if (keeps_key_sums(problem, shape, segments)) bytes.kept_key_sums = key_sums;
    if (form.normalized) bytes.part_key_sums = key_sums * parts;
    if (!shares_scores(problem, form, shape, segments)) return bytes;
    // Where each chunk's are: shared_scores() in sm90/scalar/storage.cuh.
    const bool packed = problem.indices.cu_seqlens.data != nullptr;
    const std::int64_t chunks =
        packed ? d.T / kChunk + d.N : d.N * ceil_div(d.T, std::int64_t{kChunk});
    bytes.scores = chunks * d.H * kScoreBytes + static_cast<std::int64_t>(kScoreAlignment);
    return bytes;
}

/// `shape`: of kScalarShapes, or of kScalarFirstShapes.
const Kernel& kernel_of(const Problem& problem, const ScalarForm& form, int shape,
                        ScalarKernel which, CompilePolicy policy, bool* compiled = nullptr) {
    static KernelTable<std::size_t{kShapes} * 5 * 3 * 2 * 2 * 3> table;
    const int gate = form.normalized ? 4 : static_cast<int>(form.gate);
    const int policy_index =
        (gate * 3 + static_cast<int>(form.skip_kind)) * 2 + (form.z.empty() ? 0 : 1);
    const bool fp16 = problem.o.dtype == DType::kFloat16;
    const int variant =
        ((shape * 30 + policy_index) * 2 + (fp16 ? 1 : 0)) * 3 + static_cast<int>(which);
    return table.find(
        problem.device.index, static_cast<std::size_t>(variant), policy, compiled, [&] {
            const bool first = which == ScalarKernel::kFirst;
            return scalar_kernel(first ? kScalarFirstShapes[shape] : kScalarShapes[shape],
                                 policy_of(form, problem.o.dtype), which);
        });
}

/// What a plan launches: a first kernel, if the sequences are split, scores are shared or sums of
/// keys are kept, and the outputs'.
struct Launches {
    const Kernel* first = nullptr;
    const Kernel* outputs = nullptr;
};
Launches find_launches(const Problem& problem, const ScalarForm& form, int shape, int segments,
                       CompilePolicy policy, bool* compiled = nullptr) {
    const bool shared = shares_scores(problem, form, kScalarShapes[shape], segments);
    const bool keeps = keeps_key_sums(problem, kScalarShapes[shape], segments);
    const auto find = [&](int index, ScalarKernel which) {
        return &kernel_of(problem, form, index, which, policy, compiled);
    };
    Launches launches{.outputs = find(shape, shared ? ScalarKernel::kOutputsOfSharedScores
                                                    : ScalarKernel::kOutputs)};
    if (shared || keeps || segments > 1) {
        launches.first = find(first_shape_of(shape, problem.dims.V), ScalarKernel::kFirst);
    }
    return launches;
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
    if (form.gate == Gate::kConstant) {
        const auto decays = values_by_head(problem.spec, *problem.spec.log_decay,
                                           static_cast<int>(problem.dims.HV));
        std::transform(decays.begin(), decays.end(), p.decay,
                       [](double decay) { return static_cast<float>(decay); });
    }
}

void set_key_sums(const Problem& problem, const Workspace& bytes, void* workspace,
                  scalar::Params& p) {
    p.initial_key_sum = state_of(problem.initial_key_sum, problem.indices.read_slots);
    p.final_key_sum = state_of(problem.final_key_sum, problem.indices.write_slots);
    char* at = static_cast<char*>(workspace) + bytes.segments.total();
    if (bytes.kept_key_sums > 0) {
        p.kept_key_sum = reinterpret_cast<float*>(at);
        p.score_blocks = p.heads_per_key_head;  // in the place of blocks of shared scores
    }
    p.part_key_sum = reinterpret_cast<float*>(at + bytes.kept_key_sums);
}

/// Of the outputs' launch, or of the first.
void set_blocks(const Dims& d, const ScalarShape& shape, scalar::Params& p) {
    p.head_blocks = static_cast<int>(head_blocks(shape, d));
    p.value_tiles = static_cast<int>(value_tiles(shape, d.V));
}

scalar::Params make_params(const Problem& problem, const ScalarForm& form, int shape, int segments,
                           void* workspace) {
    const Dims& d = problem.dims;
    const Operands x = operands_of(problem, form);
    scalar::Params p{};
    encode_tensor_map(&p.q, x.q, d, kChunk);
    encode_tensor_map(&p.k, x.k, d, kChunk);
    encode_tensor_map(&p.v, x.v, d, kChunk);
    encode_tensor_map(&p.o, problem.o, d, kChunk);
    if (x.z != nullptr) encode_tensor_map(&p.z, *x.z, d, kChunk);
    set_call(p, problem);
    const Workspace bytes = workspace_of(problem, form, shape, segments);
    set_segments(p, segments, bytes.segments, workspace);
    if (bytes.scores > 0) {
        void* scores = static_cast<char*>(workspace) + bytes.segments.total();
        auto room = static_cast<std::size_t>(bytes.scores);
        p.scores = static_cast<unsigned char*>(
            std::align(kScoreAlignment, static_cast<std::size_t>(kScoreBytes), scores, room));
        p.score_blocks = static_cast<int>(score_blocks(d));
    }
    const FirstLaunch first = first_launch(d, shape, segments);
    p.parts = first.parts;
    p.state_blocks = static_cast<int>(first.blocks);
    p.state_tiles = static_cast<int>(state_tiles(d, shape));
    set_gates(problem, form, x, p);
    if (form.normalized) set_key_sums(problem, bytes, workspace, p);
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
        Plan plan;
        plan.floor = floor_on(device, work(problem));
        const Choice choice = choose(problem, device, plan.floor);
        const ScalarShape& shape = kScalarShapes[choice.shape];
        plan.kernel = name();
        plan.precision = Precision::kBFloat16;
        plan.chunk = kChunk;
        plan.block = kChunk;
        plan.value_tile = std::int64_t{kValueTile} * shape.tiles;
        plan.segments = choice.segments;
        plan.stages = shape.stages;
        plan.tasks = blocks_of(shape, d) * choice.segments;
        plan.workspace_bytes =
            workspace_of(problem, form_of(problem), choice.shape, choice.segments).total();
        plan.predicted_us = choice.us;
        return plan;
    }

    bool prepare(const Problem& problem, const Plan& plan, CompilePolicy policy) const override {
        const ScalarForm& form = form_of(problem);
        const int shape = shape_of_plan(problem, plan);
        bool compiled = false;
        (void)find_launches(problem, form, shape, plan.segments, policy, &compiled);
        return compiled;
    }

    void run(const Problem& problem, const Plan& plan, CompilePolicy policy,
             void* workspace) const override {
        const int index = shape_of_plan(problem, plan);
        const ScalarShape& shape = kScalarShapes[index];
        const ScalarForm& form = form_of(problem);
        require_segments(plan, workspace_of(problem, form, index, plan.segments).total());
        const std::int64_t blocks = blocks_of(shape, problem.dims);
        if (blocks == 0) return;
        // Both kernels before the first launch: nothing is half-written.
        const Launches kernels = find_launches(problem, form, index, plan.segments, policy);
        scalar::Params params = make_params(problem, form, index, plan.segments, workspace);
        static_assert(sizeof params <= 4096);  // what every driver passes by value
        const auto start = [&](const Kernel& kernel, const ScalarShape& of, std::int64_t count,
                               Kernel::Start when) {
            set_blocks(problem.dims, of, params);
            launch(problem, kernel, count, threads_of(of), &params, when);
        };
        if (kernels.first != nullptr) {
            const Dims& d = problem.dims;
            const std::int64_t sharing = d.N * d.H * params.score_blocks;
            start(*kernels.first, kScalarFirstShapes[first_shape_of(index, d.V)],
                  params.state_blocks + sharing, Kernel::Start::kAfterEnd);
        }
        start(*kernels.outputs, shape, blocks * plan.segments,
              kernels.first != nullptr ? Kernel::Start::kBeforeEnd : Kernel::Start::kAfterEnd);
    }
};

}  // namespace

const Method& scalar_method() {
    static const ScalarMethod method;
    return method;
}

}  // namespace sluice::cuda
