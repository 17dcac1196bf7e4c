// Recurrences with a scalar, constant or no decay on tensor cores (Mamba-2, simple GLA, Lightning,
// RetNet, linear attention): which problems, which of the kernel's shapes, and the launch.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

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

// The model: what a chunk takes in each of kScalarShapes, measured (docs/kernels/scalar.md).
constexpr double kChunkUs[] = {2.05, 2.0, 1.2, 1.6, 1.6, 1.0};
constexpr double kStateChunkUs[] = {1.0, 1.0, 0.8, 0.8, 0.8, 0.7};  // of a split's first launch
constexpr double kLaunchUs = 6;
constexpr double kSegmentUs = 1.2;  // reading one earlier segment's state

int threads_of(const ScalarShape& shape) { return 128 * (shape.heads * shape.tiles + 2); }

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
std::string refuse_factor(const BoundInput& x, Axis head, Axis channel, const Dims& dims) {
    if (head == Axis::kH && x.has(Axis::kHV)) {
        return fmt::format("{} has an axis of value heads", x.name);
    }
    if (x.dtype != DType::kBFloat16) {
        return fmt::format("{} is {}; it must be bfloat16", x.name, to_string(x.dtype));
    }
    return refuse_operand(x, {Axis::kB, Axis::kT, head, channel}, dims);
}

std::string refuse_operands(const Problem& problem, const Operands& x) {
    const Dims& d = problem.dims;
    for (const BoundInput* input : {&x.q, &x.k}) {
        std::string why = refuse_factor(*input, Axis::kH, Axis::kK, d);
        if (!why.empty()) return why;
    }
    for (const BoundInput* input : {&x.v, x.z, &problem.o}) {
        if (input == nullptr) continue;
        std::string why = refuse_factor(*input, Axis::kHV, Axis::kV, d);
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
    why = refuse_call(problem);
    if (!why.empty()) return why;
    const Dims& d = problem.dims;
    if (form->gate == Gate::kConstant && d.HV > scalar::kMostConstants) {
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

/// The widest of the kernel's shapes that fits. The last block of a key head may have a head too
/// many, which it does not write.
int find_shape(const Dims& d) {
    const int keys = d.K <= 64 ? 64 : 128;
    const int tiles = d.V <= kValueTile ? 1 : 2;
    for (int i = 0; i < kShapes; ++i) {
        const ScalarShape& shape = kScalarShapes[i];
        if (shape.keys == keys && shape.tiles == tiles && shape.heads <= d.HV / d.H) return i;
    }
    throw Error(ErrorCode::kShape, "HV", std::to_string(d.HV), "a multiple of H");
}

/// Blocks run one to a multiprocessor; a launch lasts as many rounds as that takes. `floor_us`: the
/// least time for the call's bytes.
double predict(const Dims& d, const DeviceSpec& device, double floor_us, int shape, int segments) {
    const std::int64_t blocks = blocks_of(kScalarShapes[shape], d);
    const auto chunks = static_cast<double>(ceil_div(chunks_of(d), segments));
    const auto rounds = [&](int launched) {
        return static_cast<double>(
            ceil_div(blocks * launched, std::max(device.multiprocessors, 1)));
    };
    double us = kLaunchUs + rounds(segments) * chunks * kChunkUs[shape];
    if (segments > 1) {
        us += kLaunchUs + rounds(segments - 1) * chunks * kStateChunkUs[shape] +
              kSegmentUs * segments;
    }
    return std::max(us, floor_us / kMemoryShare);
}

struct Split {
    int segments = 1;
    double us = 0;
};

/// The fastest split of the sequences.
Split choose_split(const Problem& problem, const DeviceSpec& device, double floor_us) {
    const Dims& d = problem.dims;
    const int shape = find_shape(d);
    const int most = most_segments(problem);
    Split best{.us = std::numeric_limits<double>::infinity()};
    for (int segments = 1; segments <= most; ++segments) {
        if (blocks_of(kScalarShapes[shape], d) * segments > kMostBlocks) break;
        const double us = predict(d, device, floor_us, shape, segments);
        if (us < best.us) best = {.segments = segments, .us = us};
    }
    return best;
}

SegmentBytes workspace_of(const Dims& d, const ScalarShape& shape, int segments) {
    const std::int64_t columns = value_tiles(shape, d.V) * shape.tiles * kValueTile;
    return segment_bytes(d, segments, columns * shape.keys, 1);
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

const Kernel& kernel_of(const Problem& problem, const ScalarForm& form, int shape, bool state_only,
                        CompilePolicy policy, bool* compiled = nullptr) {
    static KernelTable<std::size_t{kShapes} * 4 * 3 * 2 * 2> table;
    const bool gated = !form.z.empty();
    const int policy_index =
        (static_cast<int>(form.gate) * 3 + static_cast<int>(form.skip_kind)) * 2 + (gated ? 1 : 0);
    const int variant = (shape * 24 + policy_index) * 2 + (state_only ? 1 : 0);
    return table.find(
        problem.device.index, static_cast<std::size_t>(variant), policy, compiled, [&] {
            return scalar_kernel(
                kScalarShapes[shape],
                {.gate = name_of(form.gate), .skip = name_of(form.skip_kind), .gated = gated},
                state_only);
        });
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

scalar::Params make_params(const Problem& problem, const ScalarForm& form, const ScalarShape& shape,
                           int segments, void* workspace) {
    const Dims& d = problem.dims;
    const Operands x = operands_of(problem, form);
    scalar::Params p{};
    encode_tensor_map(&p.q, x.q, d, kChunk);
    encode_tensor_map(&p.k, x.k, d, kChunk);
    encode_tensor_map(&p.v, x.v, d, kChunk);
    encode_tensor_map(&p.o, problem.o, d, kChunk);
    if (x.z != nullptr) encode_tensor_map(&p.z, *x.z, d, kChunk);
    set_call(p, problem);
    set_segments(p, segments, workspace_of(d, shape, segments), workspace);
    p.head_blocks = static_cast<int>(head_blocks(shape, d));
    p.value_tiles = static_cast<int>(value_tiles(shape, d.V));
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
        const ScalarShape& shape = kScalarShapes[find_shape(d)];
        Plan plan;
        plan.floor = floor_on(device, work(problem));
        const Split split = choose_split(problem, device, plan.floor.memory_us);
        plan.kernel = name();
        plan.precision = Precision::kBFloat16;
        plan.chunk = kChunk;
        plan.block = kChunk;
        plan.value_tile = std::int64_t{kValueTile} * shape.tiles;
        plan.segments = split.segments;
        plan.stages = shape.stages;
        plan.tasks = blocks_of(shape, d) * split.segments;
        plan.workspace_bytes = workspace_of(d, shape, split.segments).total();
        plan.predicted_us = split.us;
        return plan;
    }

    bool prepare(const Problem& problem, const Plan& plan, CompilePolicy policy) const override {
        const ScalarForm form = form_of(problem);
        const int shape = find_shape(problem.dims);
        bool compiled = false;
        (void)kernel_of(problem, form, shape, false, policy, &compiled);
        if (plan.segments > 1) (void)kernel_of(problem, form, shape, true, policy, &compiled);
        return compiled;
    }

    void run(const Problem& problem, const Plan& plan, CompilePolicy policy,
             void* workspace) const override {
        const int index = find_shape(problem.dims);
        const ScalarShape& shape = kScalarShapes[index];
        require_segments(plan, workspace_of(problem.dims, shape, plan.segments).total());
        const std::int64_t blocks = blocks_of(shape, problem.dims);
        if (blocks == 0) return;
        const ScalarForm form = form_of(problem);
        // Both kernels before the first launch: nothing is half-written.
        const bool split = plan.segments > 1;
        const Kernel& whole = kernel_of(problem, form, index, false, policy);
        const Kernel* states = split ? &kernel_of(problem, form, index, true, policy) : nullptr;
        const scalar::Params params = make_params(problem, form, shape, plan.segments, workspace);
        static_assert(sizeof params <= 4096);  // what every driver passes by value
        const auto start = [&](const Kernel& kernel, int segments, Kernel::Start when) {
            launch(problem, kernel, blocks * segments, threads_of(shape), &params, when);
        };
        if (split) start(*states, plan.segments - 1, Kernel::Start::kAfterEnd);
        start(whole, plan.segments, split ? Kernel::Start::kBeforeEnd : Kernel::Start::kAfterEnd);
    }
};

}  // namespace

const Method& scalar_method() {
    static const ScalarMethod method;
    return method;
}

}  // namespace sluice::cuda
