// Formulas as CUDA C++, and the recurrent kernel made of them: its text, what compilers make of it,
// and its arithmetic on the host, thread by thread.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <map>
#include <set>

#include "cuda/emit/emit.hpp"
#include "cuda/engine/compiler.hpp"
#include "cuda/recurrent/recurrent_kernel.hpp"
#include "io/raw_file.hpp"
#include "support/call.hpp"
#include "support/cases.hpp"
#include "support/instance.hpp"

namespace sluice::cuda {
namespace {

namespace fs = std::filesystem;
using test::Case;
using test::Form;
using test::Instance;

constexpr int kPaddedKeys[] = {16, 32, 64, 128, 256};

Spec spec_with(const Expr& log_decay) {
    Spec spec = make_spec("simple_gla");
    spec.log_decay = log_decay;
    return spec;
}

// ---- text
// ----------------------------------------------------------------------------------------

TEST(EmitFormulas, WritesEachNodeOnce) {
    const Expr g = Expr::input("g");
    const Expr square = g * g;
    const std::string text = emit_formulas(spec_with(-(square + square * 0.5)));
    EXPECT_NE(text.find("    struct LogDecay {\n"
                        "        static constexpr int kNorms = 0;\n"
                        "        template <class At>\n"
                        "        __device__ static float value([[maybe_unused]] const At& at) {\n"
                        "            const float x0 = at.input(3);\n"
                        "            const float x1 = x0 * x0;\n"
                        "            const float x2 = 0.500000000f;\n"
                        "            const float x3 = x1 * x2;\n"
                        "            const float x4 = x1 + x3;\n"
                        "            const float x5 = -x4;\n"
                        "            return x5;\n"
                        "        }\n"
                        "    };\n"),
              std::string::npos)
        << text;
}

TEST(EmitFormulas, NumbersNormsInnermostFirst) {
    Spec spec = make_spec("linear");
    spec.k = l2norm(l2norm(Expr::input("k")) + 1.0);
    const std::string text = emit_formulas(spec);
    const auto inner = text.find("const float x1 = x0 * at.norm(0);");
    const auto outer = text.find("const float x4 = x3 * at.norm(1);");
    EXPECT_NE(inner, std::string::npos) << text;
    EXPECT_NE(outer, std::string::npos) << text;
    EXPECT_NE(text.find("static constexpr int kNorms = 2;"), std::string::npos);
}

TEST(EmitFormulas, KeepsAUsersNamesOut) {
    const char* name = "*/ #error \"x\"\n";
    Spec spec = make_spec("linear");
    spec.inputs[2].name = name;
    spec.name = spec.summary = name;
    spec.v = Expr::input(name) * Expr::parameter(name);
    spec.parameters[name] = 2;
    const std::string text = emit_formulas(spec);
    EXPECT_EQ(text.find("error"), std::string::npos) << text;
    EXPECT_NE(text.find("at.input(2)"), std::string::npos) << text;
    EXPECT_NE(text.find("at.parameter(0)"), std::string::npos) << text;
}

TEST(EmitFormulas, WritesNumbersThatReadBackTheSame) {
    const Expr g = Expr::input("g");
    const double inf = std::numeric_limits<double>::infinity();
    const auto has = [&](double value, const char* wanted) {
        const std::string text = emit_formulas(spec_with(g * value));
        return text.find(fmt::format(" = {};", wanted)) != std::string::npos;
    };
    EXPECT_TRUE(has(0.1, "0.100000001f"));
    EXPECT_TRUE(has(-5, "-5.00000000f"));
    EXPECT_TRUE(has(1e-30, "1.00000000e-30f"));
    EXPECT_TRUE(has(inf, "formula::infinity()"));
    EXPECT_TRUE(has(-inf, "-formula::infinity()"));
    EXPECT_TRUE(has(1e300, "formula::infinity()"));
}

TEST(EmitFormulas, SurvivesDeeplySharedExpressions) {
    Expr x = Expr::input("g");
    for (int i = 0; i < 200; ++i) x = x + x;
    const Spec spec = spec_with(x);
    EXPECT_LT(emit_formulas(spec).size(), 20000U);
    EXPECT_LT(formulas_key(spec).size(), 20000U);
}

TEST(FormulasKey, IsEqualExactlyWhereTheTextIs) {
    std::map<std::string, std::string> text_of_key;
    std::set<std::string> texts;
    const auto add = [&](const Spec& spec) {
        const std::string text = emit_formulas(spec);
        texts.insert(text);
        const auto [at, added] = text_of_key.emplace(formulas_key(spec), text);
        EXPECT_EQ(at->second, text) << spec.name;
    };
    for (const Form& form : test::forms()) {
        add(form.make());
        add(form.make());
        Spec spec = form.make();
        spec.normalize = spec.update == Update::kAdditive;
        add(spec);
        spec.output = spec.output * 2.0;
        add(spec);
        spec.output = spec.output * 3.0;
        add(spec);
        std::swap(spec.q, spec.k);
        add(spec);
    }
    EXPECT_EQ(text_of_key.size(), texts.size());
    EXPECT_GT(texts.size(), 80U);
}

// Values of parameters travel with the call: other numbers, the same kernel.
TEST(FormulasKey, DoesNotHoldParameters) {
    Spec a = test::find_form("user_constant_delta").make();
    Spec b = a;
    b.parameters["strength"] = 0.25;
    EXPECT_EQ(formulas_key(a), formulas_key(b));
    EXPECT_EQ(emit_formulas(a), emit_formulas(b));
}

// ---- compilers
// -----------------------------------------------------------------------------------

class FormKernel : public testing::TestWithParam<std::string> {};

std::vector<std::string> form_names() {
    std::vector<std::string> names;
    for (const Form& form : test::forms()) names.push_back(form.name);
    return names;
}

INSTANTIATE_TEST_SUITE_P(Forms, FormKernel, testing::ValuesIn(form_names()),
                         [](const auto& parameter) { return parameter.param; });

TEST_P(FormKernel, CompilesWithoutSpills) {
    const Compiler* compiler = find_compiler();
    if (compiler == nullptr) GTEST_SKIP() << "no NVRTC and no nvcc on this machine";
    const Spec spec = test::find_form(GetParam()).make();
    for (const int keys : {16, 128}) {
        const KernelSource source = recurrent_kernel(spec, keys);
        const Compiled compiled = compiler->compile(translation_unit(source));
        const ResourceUsage& usage = compiled.usage;
        std::cout << source.to_string() << ": " << usage.registers << " registers\n";
        EXPECT_GT(usage.registers, 0) << compiled.log;
        EXPECT_EQ(usage.spill_store_bytes + usage.spill_load_bytes, 0) << source.to_string();
        EXPECT_EQ(usage.stack_bytes, 0) << source.to_string();
    }
}

// ---- arithmetic
// ----------------------------------------------------------------------------------

/// The kernel on this processor: the text that the GPU's compiler reads, with numbers.cuh replaced
/// and CUDA's words defined by the emulator.
class EmulatedKernel {
  public:
    EmulatedKernel(const Spec& spec, int keys) {
        KernelSource source = recurrent_kernel(spec, keys);
        const fs::path tests = fs::path(SLUICE_SOURCE_DIR) / "tests/cuda";
        source.generated["recurrent/numbers.cuh"] =
            test::read_bytes(tests / "emulated_numbers.cuh");
        const TranslationUnit unit = translation_unit(source);
        for (const auto& [path, text] : unit.headers) {
            fs::create_directories((scratch_ / path).parent_path());
            test::write_bytes(scratch_ / path, text);
        }
        test::write_bytes(scratch_ / "kernel.cpp",
                          "#include \"emulator.hpp\"\n" + unit.program + R"(
extern "C" void emulate(const sluice::recurrent::Params* p, long long blocks) {
    using namespace sluice::recurrent;
    static Storage<Formulas> storage;
    emulator::Block block;
    for (long long i = 0; i < blocks; ++i) {
        blockIdx.x = static_cast<unsigned>(i);
        std::memset(static_cast<void*>(&storage), 0xff, sizeof storage);  // NaN: never zero by luck
        block.run(kThreads, [&] { run(*p, storage); });
    }
}
)");
        const std::string library = (scratch_ / "kernel.so").string();
        const std::string command = fmt::format(
            "c++ -std=c++20 -O2 -w -fno-strict-aliasing -U_FORTIFY_SOURCE -shared -fPIC "
            "-I{} -I{} {} -o {} 2>&1",
            tests.string(), (scratch_ / ".").string(), (scratch_ / "kernel.cpp").string(), library);
        if (std::system(command.c_str()) != 0) return;
        handle_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (handle_ != nullptr) {
            emulate_ = reinterpret_cast<decltype(emulate_)>(dlsym(handle_, "emulate"));
        }
    }
    ~EmulatedKernel() {
        if (handle_ != nullptr) dlclose(handle_);
    }
    EmulatedKernel(const EmulatedKernel&) = delete;
    EmulatedKernel& operator=(const EmulatedKernel&) = delete;

    [[nodiscard]] bool usable() const noexcept { return emulate_ != nullptr; }
    void run(const Problem& problem) const {
        const recurrent::Params params = recurrent_params(problem);
        emulate_(&params, recurrent_blocks(problem));
    }

  private:
    test::ScratchDirectory scratch_;
    void* handle_ = nullptr;
    void (*emulate_)(const recurrent::Params*, long long) = nullptr;
};

/// The arguments as if their memory were a GPU's: index tensors are left to the kernel.
Arguments on_device(Arguments arguments) {
    const auto move = [](std::optional<TensorView>& view) {
        if (view) view->device = {DeviceKind::kCuda, 0};
    };
    for (auto& [name, view] : arguments.inputs) view.device = {DeviceKind::kCuda, 0};
    arguments.o.device = {DeviceKind::kCuda, 0};
    move(arguments.cu_seqlens);
    StateArguments& s = arguments.state;
    for (auto* view :
         {&s.initial, &s.final, &s.read_slots, &s.write_slots, &s.has_initial, &s.accepted,
          &s.checkpoints, &s.checkpoint_sequences, &s.checkpoint_positions, &s.checkpoint_slots,
          &s.initial_key_sum, &s.final_key_sum}) {
        move(*view);
    }
    return arguments;
}

bool is_narrow(const Case& c) {
    return c.dtype != DType::kFloat64 && c.gate_dtype != DType::kFloat64 &&
           c.o_dtype != DType::kFloat64 && c.state_dtype != DType::kFloat64 &&
           c.precision != Precision::kFloat64 && c.algorithm != Algorithm::kChunked;
}

/// Small enough to emulate.
bool is_small(const Case& c, std::int64_t most) {
    return c.dims.B * c.dims.T * c.dims.HV * ((c.dims.V + 31) / 32) <= most;
}

/// Slots that nobody wrote are poison on both sides, and nothing else is.
void expect_close(const char* name, const TensorView& result, const TensorView& reference,
                  double bound) {
    const Tensor a = Tensor::copy_of(result, DType::kFloat64);
    const Tensor b = Tensor::copy_of(reference, DType::kFloat64);
    for (std::int64_t i = 0; i < a.size(); ++i) {
        double& x = a.elements<double>()[static_cast<std::size_t>(i)];
        double& y = b.elements<double>()[static_cast<std::size_t>(i)];
        if (std::isnan(x) && std::isnan(y)) x = y = 0;
    }
    const test::Accuracy accuracy = test::compare(test::whole_block(a, b));
    EXPECT_TRUE(accuracy.finite && accuracy.whole <= bound)
        << name << ": " << test::describe(accuracy, bound);
}

/// The largest error that float32 may have, and storing the result in `dtype` twice.
double allowance(const Case& c, const Spec& spec, DType dtype) {
    return 3 * test::bound(Precision::kFloat32, spec.update, test::Quantity::kOutput, c.regime()) +
           2 * test::storage_bound(Precision::kFloat32, dtype);
}

void compare(const Case& c, const EmulatedKernel& kernel) {
    SCOPED_TRACE(c.name());
    Instance expected(c), emulated(c);
    (void)expected.judge("oracle");
    const Arguments arguments = on_device(emulated.arguments());
    Options options = emulated.options();
    options.precision = Precision::kFloat32;
    kernel.run(bind(emulated.spec(), arguments, options, c.phase));

    const Spec& spec = emulated.spec();
    const double states = allowance(c, spec, c.state_dtype);
    expect_close("o", emulated.arguments().o, expected.arguments().o,
                 allowance(c, spec, c.o_dtype));
    const StateArguments& a = emulated.arguments().state;
    const StateArguments& b = expected.arguments().state;
    if (a.final) expect_close("state.final", *a.final, *b.final, states);
    if (a.final_key_sum) expect_close("final_key_sum", *a.final_key_sum, *b.final_key_sum, states);
    if (a.checkpoints) expect_close("checkpoints", *a.checkpoints, *b.checkpoints, states);
    for (const std::string& fault : emulated.memory_faults()) {
        ADD_FAILURE() << "memory of " << fault << " was written outside its elements";
    }
}

TEST_P(FormKernel, AgreesWithTheOracleWhenEmulated) {
    const std::int64_t most = std::getenv("SLUICE_EMULATE_ALL") != nullptr ? 1 << 30 : 400;
    std::map<int, std::vector<Case>> by_keys;
    for (const Case& c : test::cases()) {
        if (c.form->name != GetParam() || !is_narrow(c) || !is_small(c, most)) continue;
        by_keys[padded_keys(c.dims.K)].push_back(c);
    }
    for (const auto& [keys, list] : by_keys) {
        const EmulatedKernel kernel(list.front().form->make(), keys);
        if (!kernel.usable()) GTEST_SKIP() << "no C++ compiler called c++ on this machine";
        for (const Case& c : list) compare(c, kernel);
    }
}

// ---- states beyond the table of cases ----------------------------------------------------------

/// Two calls with the same values: one for the oracle, one to emulate.
class Twice {
  public:
    Twice(const Spec& spec, const Dims& dims) : expected(spec, dims), emulated(spec, dims) {
        for (std::size_t i = 0; i < spec.inputs.size(); ++i) {
            for (test::Call* call : {&expected, &emulated}) {
                fill(call->arguments.inputs[i].second, spec.inputs[i].name == "g", i);
            }
        }
    }

    /// Does the same to both.
    template <class F>
    void both(F&& f) {
        f(expected);
        f(emulated);
    }

    static void fill(const TensorView& view, bool decays, std::uint64_t seed) {
        const auto values =
            test::normal_values({view.shape().begin(), view.shape().end()}, 0.4, seed + 1);
        auto* data = static_cast<float*>(view.data);
        for (const double x : values.data) *data++ = static_cast<float>(decays ? -x * x : x);
    }

    void emulate(Phase phase) const {
        const EmulatedKernel kernel(emulated.spec, padded_keys(emulated.dims.K));
        ASSERT_TRUE(kernel.usable());
        kernel.run(bind(emulated.spec, on_device(emulated.arguments), emulated.options, phase));
    }
    void agree(Phase phase) {
        expected.options.backend = "oracle";
        expected.run(phase);
        emulate(phase);
        const StateArguments& a = emulated.arguments.state;
        const StateArguments& b = expected.arguments.state;
        expect_close("o", emulated.arguments.o, expected.arguments.o, 1e-5);
        if (a.final) expect_close("state.final", *a.final, *b.final, 1e-5);
        if (a.final_key_sum) expect_close("key sum", *a.final_key_sum, *b.final_key_sum, 1e-5);
        if (a.checkpoints) expect_close("checkpoints", *a.checkpoints, *b.checkpoints, 1e-5);
    }

    test::Call expected, emulated;
};

bool have_host_compiler() { return std::system("c++ --version > /dev/null 2>&1") == 0; }

// Speculative decoding: states read by the count of accepted tokens, written after every token. The
// last sequence is padding.
TEST(EmulatedStates, AfterEveryTokenOfSpeculativeDecoding) {
    if (!have_host_compiler()) GTEST_SKIP() << "no C++ compiler called c++ on this machine";
    Twice twice(make_spec("gated_delta_rule"),
                {.B = 3, .T = 3, .H = 1, .HV = 2, .K = 20, .V = 36, .N = 3});
    twice.both([](test::Call& call) {
        call.arguments.state.initial = call.zeros(DType::kFloat32, {12, 2, 20, 36});
        Twice::fill(*call.arguments.state.initial, false, 77);
        call.arguments.state.final = call.poison(DType::kFloat32, {12, 2, 20, 36});
        const auto matrix = [&](std::initializer_list<std::int64_t> values) {
            const TensorView flat = call.ints(values);
            return TensorView(flat.data, flat.dtype, {3, 3});
        };
        call.arguments.state.read_slots = matrix({3, 4, 5, 0, 1, 2, -1, -1, -1});
        call.arguments.state.write_slots = matrix({6, -1, 8, 9, 10, 11, -1, -1, -1});
        call.arguments.state.accepted = call.ints({3, 1, 1}, DType::kInt32);
    });
    twice.agree(Phase::kDecode);
}

// Several tiles of value channels read the key sum that one of them overwrites.
TEST(EmulatedStates, KeySumsInPlaceOverSeveralValueTiles) {
    if (!have_host_compiler()) GTEST_SKIP() << "no C++ compiler called c++ on this machine";
    Spec spec = make_spec("linear");
    spec.q = elu(spec.q) + 1.0;
    spec.k = elu(spec.k) + 1.0;
    spec.normalize = true;
    for (const bool in_place : {true, false}) {
        Twice twice(spec, {.B = 2, .T = 21, .H = 2, .HV = 2, .K = 70, .V = 100, .N = 2});
        twice.both([&](test::Call& call) {
            StateArguments& s = call.arguments.state;
            s.initial = call.zeros(DType::kFloat32, {2, 2, 70, 100});
            s.initial_key_sum = call.zeros(DType::kFloat32, {2, 2, 70});
            for (const TensorView& view : {*s.initial, *s.initial_key_sum}) {
                auto* data = static_cast<float*>(view.data);
                std::fill_n(data, view.size(), 0.75F);
            }
            s.final = in_place ? *s.initial : call.poison(DType::kFloat32, {2, 2, 70, 100});
            s.final_key_sum =
                in_place ? *s.initial_key_sum : call.poison(DType::kFloat32, {2, 2, 70});
        });
        twice.agree(Phase::kPrefill);
    }
}

// Several slots for one position, none for another, position 0 and the sequence's end.
TEST(EmulatedStates, CheckpointsAtEveryKindOfPosition) {
    if (!have_host_compiler()) GTEST_SKIP() << "no C++ compiler called c++ on this machine";
    Twice twice(make_spec("gla"), {.B = 2, .T = 192, .H = 1, .HV = 1, .K = 8, .V = 8, .N = 2});
    twice.both([](test::Call& call) {
        StateArguments& s = call.arguments.state;
        s.checkpoints = call.poison(DType::kFloat32, {8, 1, 8, 8});
        s.checkpoint_sequences = call.ints({1, 0, 1, 1, 0, 1});
        s.checkpoint_positions = call.ints({128, 64, 0, 128, 192, 64});
        s.checkpoint_slots = call.ints({5, 1, 0, 2, 7, -1});
    });
    twice.agree(Phase::kPrefill);
}

// Nobody validates what lies on a device: nonsense may give wrong numbers, not wrong accesses.
TEST(EmulatedStates, NonsenseIndicesStayInside) {
    if (!have_host_compiler()) GTEST_SKIP() << "no C++ compiler called c++ on this machine";
    constexpr std::int64_t kFar = std::int64_t{1} << 40;
    Twice twice(make_spec("gla"), {.B = 1, .T = 40, .H = 1, .HV = 1, .K = 8, .V = 8, .N = 4});
    test::Call& call = twice.emulated;
    StateArguments& s = call.arguments.state;
    call.arguments.cu_seqlens = call.ints({-kFar, 30, 20, kFar, 7});
    s.initial = call.zeros(DType::kFloat32, {3, 1, 8, 8});
    s.final = call.poison(DType::kFloat32, {3, 1, 8, 8});
    s.checkpoints = call.poison(DType::kFloat32, {3, 1, 8, 8});
    s.read_slots = call.ints({kFar, -kFar, 3, -2});
    s.write_slots = call.ints({-kFar, kFar, 3, -5});
    s.checkpoint_sequences = call.ints({0, 0, kFar, -kFar, 2});
    s.checkpoint_positions = call.ints({kFar, 7, -kFar, 0, -5});
    s.checkpoint_slots = call.ints({0, kFar, -kFar, 3, 1});
    twice.emulate(Phase::kPrefill);
    const auto untouched = [](const TensorView& view) {
        const auto* data = static_cast<const float*>(view.data);
        return std::all_of(data, data + view.size(), [](float x) { return std::isnan(x); });
    };
    EXPECT_TRUE(untouched(*s.final));
    EXPECT_TRUE(untouched(*s.checkpoints));
}

}  // namespace
}  // namespace sluice::cuda
