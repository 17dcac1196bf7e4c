// The back end "cuda" on streams: captured into CUDA graphs, replayed with other contents in the
// same memory, and beside another stream. A call that synchronised, allocated or copied to the host
// would break a capture in the mode used here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "cuda/engine/driver.hpp"
#include "cuda/engine/shared_library.hpp"
#include "runtime/mirror.hpp"
#include "support/judged.hpp"
#include "support/on_device.hpp"
#include "support/plain.hpp"
#include "support/refusal.hpp"

namespace sluice::test {
namespace {

using cuda::check;
using cuda::Result;
using cuda::Stream;

// ---- CUDA graphs: the library itself needs none of their functions ------------------------------

using Graph = struct GraphState*;           // CUgraph
using ExecutableGraph = struct GraphExec*;  // CUgraphExec
constexpr int kGlobalCapture = 0;           // CU_STREAM_CAPTURE_MODE_GLOBAL: the strictest

struct GraphFunctions {
    Result (*begin_capture)(Stream stream, int mode);
    Result (*end_capture)(Stream stream, Graph* graph);
    Result (*instantiate)(ExecutableGraph* executable, Graph graph, unsigned long long flags);
    Result (*launch)(ExecutableGraph executable, Stream stream);
    Result (*destroy)(Graph graph);
    Result (*destroy_executable)(ExecutableGraph executable);
    std::string problem;
};

const GraphFunctions& graph_functions() {
    static const GraphFunctions functions = [] {
        GraphFunctions f{};
        cuda::SharedLibrary library("libcuda.so.1");
        library.bind(f.begin_capture, "cuStreamBeginCapture_v2");
        library.bind(f.end_capture, "cuStreamEndCapture");
        library.bind(f.instantiate, "cuGraphInstantiateWithFlags");
        library.bind(f.launch, "cuGraphLaunch");
        library.bind(f.destroy, "cuGraphDestroy");
        library.bind(f.destroy_executable, "cuGraphExecDestroy");
        f.problem = library.problem();
        return f;
    }();
    return functions;
}

class OwnStream {
  public:
    OwnStream() {
        check(cuda::require_driver().stream_create(&stream_, cuda::kStreamNonBlocking),
              "cuStreamCreate");
    }
    ~OwnStream() { cuda::driver()->stream_destroy(stream_); }
    OwnStream(const OwnStream&) = delete;
    OwnStream& operator=(const OwnStream&) = delete;
    operator Stream() const noexcept { return stream_; }  // NOLINT: implicit on purpose

  private:
    Stream stream_ = nullptr;
};

/// What `work` puts on the stream, as a graph.
class Captured {
  public:
    template <class F>
    Captured(Stream stream, F&& work) : stream_(stream) {
        check(graph_functions().begin_capture(stream, kGlobalCapture), "cuStreamBeginCapture");
        Graph graph = nullptr;
        try {
            work();
        } catch (...) {
            graph_functions().end_capture(stream, &graph);
            throw;
        }
        check(graph_functions().end_capture(stream, &graph), "cuStreamEndCapture");
        const Result result = graph_functions().instantiate(&executable_, graph, 0);
        graph_functions().destroy(graph);
        check(result, "cuGraphInstantiateWithFlags");
    }
    ~Captured() { graph_functions().destroy_executable(executable_); }
    Captured(const Captured&) = delete;
    Captured& operator=(const Captured&) = delete;

    void replay() const { check(graph_functions().launch(executable_, stream_), "cuGraphLaunch"); }

  private:
    Stream stream_;
    ExecutableGraph executable_ = nullptr;
};

// ---- calls
// ---------------------------------------------------------------------------------------

struct Setting {
    std::string name;
    std::string form;
    Dims dims;
    Phase phase = Phase::kPrefill;
    /// Of packed sequences, for one contents and for another; empty: one a batch row.
    std::vector<std::int64_t> lengths{}, other_lengths{};
    bool one_segment = false;  // batch_invariant
    bool own_workspace = false;
    bool pool = false;  // states in place, in slots

    // What the plan must be.
    std::string kernel;
    bool is_split = false;
};
void PrintTo(const Setting& s, std::ostream* out) { *out << s.name; }

struct Outcome {
    Tensor o, states;
};

void expect_same(const Outcome& a, const Outcome& b) {
    EXPECT_TRUE(same_bits(a.o, b.o)) << "o";
    EXPECT_TRUE(same_bits(a.states, b.states)) << "states";
}

/// One call on a stream, its tensors on the GPU; what they hold changes in place.
class GpuCall {
  public:
    GpuCall(const Setting& setting, Stream stream)
        : setting_(setting), plain_(contents(setting, 0)) {
        const Dims& d = plain_.dims;
        o_ = poisoned(DType::kBFloat16, {d.B, d.T, d.HV, d.V});
        initial_ = Tensor::zeros(DType::kFloat32, plain_.state_shape(slots()));
        final_ = setting.pool ? initial_ : Tensor::zeros(DType::kFloat32, initial_.shape());
        Arguments here = plain_.arguments();
        here.o = o_;
        here.state.initial = initial_.view();
        here.state.final = final_.view();
        if (setting.pool) {
            slots_ = index_tensor(std::vector<std::int64_t>(static_cast<std::size_t>(d.N)));
            here.state.read_slots = here.state.write_slots = slots_.view();
        }
        if (!setting.lengths.empty()) {
            offsets_ = index_tensor(std::vector<std::int64_t>(static_cast<std::size_t>(d.N) + 1));
            here.cu_seqlens = offsets_.view();
        }
        mirror_ = std::make_unique<Mirror>(here, first_cuda_device());
        arguments_ = mirror_->arguments();
        options_.backend = "cuda";
        options_.stream = stream;
        options_.batch_invariant = setting.one_segment;
        options_.state_layout = plain_.options.state_layout;
    }

    /// The spec's formula for v, times a number that no kernel was ever compiled for.
    void make_unknown() {
        std::random_device random;
        plain_.spec.v = plain_.spec.v * Expr(1 + random() * 0x1p-33);
    }

    /// Makes the kernels ready; from here on nothing may be compiled.
    Plan prepare() {
        const Plan plan = sluice::prepare(plain_.spec, arguments_, options_, setting_.phase);
        if (setting_.own_workspace) {
            const std::int64_t bytes[] = {plan.workspace_bytes};
            workspace_ = empty_on(DType::kBool, bytes, first_cuda_device());
            arguments_.workspace = workspace_.view();
        }
        options_.compile = false;
        return plan;
    }

    /// Puts one of two contents into the tensors' memory, and poison into the output's.
    void fill(int which) {
        const Plain source = contents(setting_, which);
        for (const Input& input : plain_.spec.inputs) {
            assign(plain_.input(input.name), source.input(input.name));
        }
        const Values states = normal_values(plain_.state_shape(slots()), 0.5,
                                            mix_seed(9, static_cast<std::uint64_t>(which)));
        std::ranges::copy(states.data, initial_.elements<float>().begin());
        std::memset(o_.view().data, 0xff, o_.size_bytes());
        if (slots_.defined()) {
            // Contents 0: slots 1, 2, 3, ...; contents 1: N, N - 1, ...
            const std::int64_t n = plain_.dims.N;
            for (std::int64_t i = 0; i < n; ++i) {
                slots_.elements<std::int64_t>()[static_cast<std::size_t>(i)] =
                    which == 0 ? i + 1 : n - i;
            }
        }
        if (offsets_.defined()) {
            std::size_t at = 0;
            for (const std::int64_t length : source.lengths) {
                const auto ends = offsets_.elements<std::int64_t>();
                ends[at + 1] = ends[at] + length;
                ++at;
            }
        }
        synchronize(first_cuda_device());
        mirror_->fetch();
    }

    Plan run() const {
        return setting_.phase == Phase::kPrefill ? forward(plain_.spec, arguments_, options_)
                                                 : step(plain_.spec, arguments_, options_);
    }

    /// Waits, and reads the outputs.
    [[nodiscard]] Outcome outcome() const {
        synchronize(first_cuda_device());
        mirror_->write_back();
        return {Tensor::copy_of(o_, o_.dtype()), Tensor::copy_of(final_, final_.dtype())};
    }

    /// What `times` runs of `work` in a row make of one of the contents.
    template <class F>
    [[nodiscard]] Outcome outcome_of(int which, int times, F&& work) {
        fill(which);
        for (int i = 0; i < times; ++i) work();
        return outcome();
    }

  private:
    static Plain contents(const Setting& setting, int which) {
        Plain plain = make_plain(find_form(setting.form), setting.dims,
                                 {.kinds = {.keys = Keys::kNormalized},
                                  .dtype = DType::kBFloat16,
                                  .seed = static_cast<std::uint64_t>(which) + 1});
        plain.lengths = which == 0 ? setting.lengths : setting.other_lengths;
        if (!plain.lengths.empty()) plain.dims.N = std::ssize(plain.lengths);
        return plain;
    }
    /// Of a pool, two that nobody uses.
    [[nodiscard]] std::int64_t slots() const { return plain_.dims.N + (setting_.pool ? 2 : 0); }

    Setting setting_;
    Plain plain_;
    Tensor o_, initial_, final_, slots_, offsets_, workspace_;
    std::unique_ptr<Mirror> mirror_;
    Arguments arguments_;
    Options options_;
};

class GraphOnGpu : public testing::TestWithParam<Setting> {
  protected:
    void SetUp() override {
        SKIP_WITHOUT("cuda");
        ASSERT_EQ(graph_functions().problem, "");
        scope_ = std::make_unique<cuda::ContextScope>(first_cuda_device().index);
    }

  private:
    std::unique_ptr<cuda::ContextScope> scope_;
};

TEST_P(GraphOnGpu, ReplaysGiveTheBitsOfCallsWithTheSameContents) {
    const OwnStream stream;
    GpuCall call(GetParam(), stream);
    call.fill(0);
    const Outcome before = call.outcome();
    const Plan plan = call.prepare();
    EXPECT_EQ(plan.kernel, GetParam().kernel);
    EXPECT_EQ(plan.segments > 1, GetParam().is_split) << plan.to_string();
    const Captured graph(stream, [&] { call.run(); });
    expect_same(call.outcome(), before);  // nothing ran

    constexpr int kTimes = 2;  // states in place go on from where they are
    std::vector<Outcome> expected;
    for (const int which : {0, 1}) {
        expected.push_back(call.outcome_of(which, kTimes, [&] { call.run(); }));
    }
    EXPECT_FALSE(same_bits(expected[0].o, expected[1].o));
    for (const int which : {1, 0, 1}) {
        SCOPED_TRACE(which);
        expect_same(call.outcome_of(which, kTimes, [&] { graph.replay(); }),
                    expected[static_cast<std::size_t>(which)]);
    }
}

const Setting kSplit = {.name = "gla_split",
                        .form = "gla",
                        .dims = {.B = 1, .T = 1000, .H = 1, .HV = 2, .K = 128, .V = 128},
                        .kernel = "gla",
                        .is_split = true};

std::vector<Setting> settings() {
    Setting split_workspace = kSplit;
    split_workspace.name += "_in_the_callers_workspace";
    split_workspace.own_workspace = true;
    return {
        {.name = "gla_dense",
         .form = "gla",
         .dims = {.B = 3, .T = 200, .H = 2, .HV = 4, .K = 64, .V = 128},
         .one_segment = true,
         .kernel = "gla"},
        {.name = "gla_packed_pool",
         .form = "gla",
         .dims = {.B = 1, .T = 600, .H = 1, .HV = 2, .K = 128, .V = 64},
         .lengths = {64, 0, 1, 300, 235},
         .other_lengths = {599, 0, 0, 1, 0},
         .pool = true,
         .kernel = "gla"},
        kSplit,
        split_workspace,
        {.name = "gla_packed_split",
         .form = "gla",
         .dims = {.B = 1, .T = 2000, .H = 1, .HV = 2, .K = 64, .V = 64},
         .lengths = {1500, 500},
         .other_lengths = {1, 1999},
         .kernel = "gla",
         .is_split = true},
        {.name = "gla_packed_split_in_clusters",
         .form = "gla",
         .dims = {.B = 1, .T = 2000, .H = 1, .HV = 2, .K = 256, .V = 64},
         .lengths = {1500, 500},
         .other_lengths = {1, 1999},
         .kernel = "gla",
         .is_split = true},
        {.name = "mamba2_dense",
         .form = "mamba2_all",
         .dims = {.B = 3, .T = 200, .H = 2, .HV = 6, .K = 128, .V = 64},
         .one_segment = true,
         .kernel = "scalar"},
        {.name = "mamba2_packed_pool",
         .form = "mamba2_d_z",
         .dims = {.B = 1, .T = 600, .H = 1, .HV = 3, .K = 128, .V = 80},
         .lengths = {64, 0, 1, 300, 235},
         .other_lengths = {599, 0, 0, 1, 0},
         .pool = true,
         .kernel = "scalar"},
        {.name = "mamba2_packed_split",
         .form = "mamba2_bias_d",
         .dims = {.B = 1, .T = 2000, .H = 1, .HV = 2, .K = 64, .V = 64},
         .lengths = {1500, 500},
         .other_lengths = {1, 1999},
         .kernel = "scalar",
         .is_split = true},
        {.name = "retention_split",
         .form = "retention",
         .dims = {.B = 1, .T = 1500, .H = 2, .HV = 2, .K = 128, .V = 128},
         .own_workspace = true,
         .kernel = "scalar",
         .is_split = true},
        {.name = "linear_normalized_split",
         .form = "linear_normalized",
         .dims = {.B = 1, .T = 1500, .H = 2, .HV = 2, .K = 128, .V = 128},
         .kernel = "scalar",
         .is_split = true},
        {.name = "delta_rule_packed_pool",
         .form = "delta_rule",
         .dims = {.B = 1, .T = 100, .H = 1, .HV = 2, .K = 64, .V = 64},
         .lengths = {50, 0, 50},
         .other_lengths = {1, 98, 1},
         .pool = true,
         .kernel = "recurrent"},
        {.name = "delta_rule_step_pool",
         .form = "delta_rule",
         .dims = {.B = 7, .T = 1, .H = 2, .HV = 4, .K = 64, .V = 64},
         .phase = Phase::kDecode,
         .pool = true,
         .kernel = "recurrent"},
    };
}

INSTANTIATE_TEST_SUITE_P(Calls, GraphOnGpu, testing::ValuesIn(settings()),
                         [](const auto& p) { return p.param.name; });

using StreamsOnGpu = GraphOnGpu;

TEST_P(StreamsOnGpu, TwoAtOnceDoNotDisturbEachOther) {
    constexpr int kTimes = 20;
    const OwnStream streams[2];
    std::vector<std::unique_ptr<GpuCall>> calls;
    std::vector<std::unique_ptr<Captured>> graphs;
    std::vector<Outcome> expected;
    for (const int i : {0, 1}) {
        calls.push_back(std::make_unique<GpuCall>(GetParam(), streams[i]));
        GpuCall& call = *calls.back();
        call.prepare();
        graphs.push_back(std::make_unique<Captured>(streams[i], [&] { call.run(); }));
        expected.push_back(call.outcome_of(i, kTimes, [&] { call.run(); }));
    }
    for (const bool replayed : {false, true}) {
        SCOPED_TRACE(replayed);
        for (std::size_t i = 0; i < 2; ++i) calls[i]->fill(static_cast<int>(i));
        for (int time = 0; time < kTimes; ++time) {
            for (std::size_t i = 0; i < 2; ++i) {
                if (replayed)
                    graphs[i]->replay();
                else
                    calls[i]->run();
            }
        }
        for (std::size_t i = 0; i < 2; ++i) expect_same(calls[i]->outcome(), expected[i]);
    }
}

INSTANTIATE_TEST_SUITE_P(Calls, StreamsOnGpu, testing::ValuesIn(settings()),
                         [](const auto& p) { return p.param.name; });

using CaptureOnGpu = GraphOnGpu;

TEST_P(CaptureOnGpu, GoesOnAfterACallThatWouldHaveToCompile) {
    const OwnStream stream;
    GpuCall known(kSplit, stream);
    known.prepare();
    GpuCall unknown(GetParam(), stream);
    unknown.make_unknown();
    unknown.fill(0);
    const Outcome before = unknown.outcome();
    const Captured graph(stream, [&] {
        const std::string refused = refusal([&] { unknown.run(); });
        EXPECT_TRUE(refused.starts_with("unsupported | sluice_recurrent")) << refused;
        cuda::CaptureStatus status = cuda::CaptureStatus::kNone;
        check(cuda::require_driver().stream_is_capturing(stream, &status), "cuStreamIsCapturing");
        EXPECT_EQ(status, cuda::CaptureStatus::kActive);
        known.run();
    });
    expect_same(unknown.outcome(), before);
    const Outcome expected = known.outcome_of(0, 1, [&] { known.run(); });
    expect_same(known.outcome_of(0, 1, [&] { graph.replay(); }), expected);
}

INSTANTIATE_TEST_SUITE_P(Calls, CaptureOnGpu, testing::Values(settings().back()),
                         [](const auto& p) { return p.param.name; });

}  // namespace
}  // namespace sluice::test
