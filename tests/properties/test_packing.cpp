// A sequence's bits are its own: neighbours, their order and their number do not matter.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>

#include "support/judged.hpp"
#include "support/plain.hpp"

namespace sluice::test {
namespace {

struct Setting {
    std::string form;
    std::string backend;
    /// The tensor-core kernel that takes the form's half-width tensors in whole tiles; empty: other
    /// tensors, whichever kernel.
    std::string kernel{};
    std::int64_t keys = 64;  // K of those
};

bool is_narrow(const Setting& s) { return !s.kernel.empty(); }

std::string name_of(const Setting& s) {
    const std::string keys = s.keys == 64 ? "" : std::to_string(s.keys);
    return fmt::format("{}_{}{}{}", s.backend, s.form, is_narrow(s) ? "_narrow" : "", keys);
}
void PrintTo(const Setting& s, std::ostream* out) { *out << name_of(s); }

struct Mode {
    Precision precision;
    Algorithm algorithm;
};

class Packing : public testing::TestWithParam<Setting> {
  protected:
    void SetUp() override { SKIP_WITHOUT(GetParam().backend); }

    static std::vector<Mode> modes() {
        if (is_narrow(GetParam())) return {{Precision::kBFloat16, Algorithm::kAuto}};
        if (!find_judged(GetParam().backend).chunks) {
            return {{Precision::kFloat32, Algorithm::kRecurrent}};
        }
        return {{Precision::kFloat32, Algorithm::kChunked},
                {Precision::kFloat32, Algorithm::kRecurrent},
                {Precision::kBFloat16, Algorithm::kChunked}};
    }

    /// A problem of the setting's types, on its back end. A GPU is shared out by the number of
    /// sequences, unless told not to.
    static Plain problem(Dims dims, std::uint64_t seed) {
        const Setting& s = GetParam();
        if (is_narrow(s)) dims.K = s.keys, dims.V = 128;
        Plain plain = make_plain(find_form(s.form), dims,
                                 {.kinds = {.gates = Gates::kStrong},
                                  .dtype = is_narrow(s) ? DType::kBFloat16 : DType::kFloat32,
                                  .seed = seed,
                                  .initial = true});
        plain.options.backend = s.backend;
        plain.options.batch_invariant = s.backend == "cuda";
        if (is_narrow(s)) plain.o_dtype = DType::kBFloat16;
        return plain;
    }

    /// Rows of one sequence each, with their own values and initial states but one set of
    /// per-head parameters.
    static std::vector<Plain> rows(const std::vector<std::int64_t>& lengths, const Mode& mode,
                                   int threads) {
        std::vector<Plain> list;
        for (std::size_t n = 0; n < lengths.size(); ++n) {
            Plain row =
                problem({.B = 1, .T = lengths[n], .H = 1, .HV = 2, .K = 20, .V = 72}, 3 + n);
            row.options.chunk = mode.algorithm == Algorithm::kChunked ? 64 : 0;
            row.options.precision = mode.precision;
            row.options.algorithm = mode.algorithm;
            row.options.threads = threads;
            for (const Input& input : row.spec.inputs) {
                if (!list.empty() && !token_dim(input)) {
                    row.inputs[input.name] = list.front().inputs.at(input.name);
                }
            }
            list.push_back(row);
        }
        return list;
    }

    static void expect_same(const Outputs& alone, const Outputs& pack, std::int64_t n,
                            std::int64_t begin) {
        const std::int64_t length = alone.o.view().extents[1];
        EXPECT_TRUE(same_bits(alone.o, pack.o.view().sliced(1, begin, begin + length)));
        EXPECT_TRUE(same_bits(alone.final, pack.final.view().sliced(0, n, n + 1)));
        if (alone.final_key_sum.defined()) {
            EXPECT_TRUE(
                same_bits(alone.final_key_sum, pack.final_key_sum.view().sliced(0, n, n + 1)));
        }
    }
};

TEST_P(Packing, EachSequenceIsAsAlone) {
    for (const Mode& mode : modes()) {
        // Alone there are threads for value tiles; packed there are tasks enough.
        for (const int threads : {1, 5}) {
            std::vector<Plain> list = rows({65, 0, 130, 1, 16, 63}, mode, threads);
            for (int order = 0; order < 2; ++order) {
                const Outputs pack = run(packed(list));
                if (is_narrow(GetParam())) {
                    EXPECT_EQ(pack.plan.kernel, GetParam().kernel);
                }
                std::int64_t begin = 0;
                for (std::size_t n = 0; n < list.size(); ++n) {
                    SCOPED_TRACE(fmt::format("sequence {} of {} tokens, {} threads, {}", n,
                                             list[n].dims.T, threads, to_string(mode.algorithm)));
                    expect_same(run(list[n]), pack, static_cast<std::int64_t>(n), begin);
                    begin += list[n].dims.T;
                }
                std::reverse(list.begin(), list.end());
            }
        }
    }
}

TEST_P(Packing, BatchRowsAreAsAlone) {
    Plain batch = problem({.B = 3, .T = 70, .H = 1, .HV = 2, .K = 16, .V = 40}, 1);
    const Mode mode = modes().front();
    batch.options.algorithm = mode.algorithm;
    batch.options.chunk = mode.algorithm == Algorithm::kChunked ? 64 : 0;
    const Outputs all = run(batch);
    for (std::int64_t b = 0; b < 3; ++b) {
        Plain row = batch;
        row.dims.B = row.dims.N = 1;
        for (const Input& input : batch.spec.inputs) {
            if (input.axes.front() != Axis::kB) continue;
            row.inputs[input.name] = Tensor::copy_of(batch.input(input.name).sliced(0, b, b + 1),
                                                     batch.input(input.name).dtype);
        }
        row.initial = Tensor::copy_of(batch.initial->view().sliced(0, b, b + 1), DType::kFloat32);
        if (batch.initial_key_sum) {
            row.initial_key_sum =
                Tensor::copy_of(batch.initial_key_sum->view().sliced(0, b, b + 1), DType::kFloat32);
        }
        const Outputs one = run(row);
        EXPECT_TRUE(same_bits(one.o, all.o.view().sliced(0, b, b + 1)));
        EXPECT_TRUE(same_bits(one.final, all.final.view().sliced(0, b, b + 1)));
    }
}

TEST_P(Packing, PoisonedNeighboursChangeNothing) {
    const std::vector<Plain> list = rows({33, 65, 17}, modes().front(), 1);
    const Outputs alone = run(list[1]);
    for (const bool huge : {false, true}) {
        Plain pack = packed(list);
        for (const Input& input : pack.spec.inputs) {
            const auto dim = token_dim(input);
            if (!dim) continue;
            const std::int64_t ends[2][2] = {{0, 33}, {98, 115}};
            for (const auto& [begin, end] : ends) {
                const TensorView rows_of = pack.input(input.name).sliced(*dim, begin, end);
                const Tensor poison = poisoned(DType::kFloat32, shape_of(pack.dims, input.axes));
                if (huge) {
                    for (float& x : poison.elements<float>()) x = 1e30F;
                }
                assign(rows_of, poison.view().sliced(*dim, begin, end));
            }
        }
        for (const std::int64_t n : {0, 2}) {
            const TensorView state = pack.initial->view().sliced(0, n, n + 1);
            assign(state, poisoned(DType::kFloat32, pack.state_shape(1)));
        }
        expect_same(alone, run(pack), 1, 33);
    }
}

TEST_P(Packing, BatchInvariantPlansAreAccepted) {
    std::vector<Plain> list = rows({65, 130}, modes().front(), 0);
    for (Plain& row : list) {
        row.options.batch_invariant = true;
        row.options.chunk = 0;
        row.options.algorithm = Algorithm::kAuto;
    }
    const Outputs pack = run(packed(list));
    expect_same(run(list[0]), pack, 0, 0);
    expect_same(run(list[1]), pack, 1, 65);
}

// The planner may pick the token loop for short sequences: not because of what lies beside them.
TEST_P(Packing, BatchInvariantPlansDoNotDependOnTheNeighboursLength) {
    std::vector<Plain> list = rows({5, 200}, modes().front(), 0);
    for (Plain& row : list) {
        row.options.batch_invariant = true;
        row.options.chunk = 0;
        row.options.algorithm = Algorithm::kAuto;
    }
    expect_same(run(list[0]), run(packed(list)), 0, 0);
}

std::vector<Setting> settings() {
    std::vector<Setting> list;
    for (const Judged& backend : judged_backends()) {
        for (const Form& form : forms()) {
            // Packed rows share what has no batch axis; this form keeps tokens there.
            if (form.name != "user_head_delta") list.push_back({form.name, backend.name});
        }
    }
    for (const std::int64_t keys : {64, 256}) list.push_back({"gla", "cuda", "gla", keys});
    for (const char* form :
         {"linear", "linear_normalized", "retention", "simple_gla", "mamba2_all", "mamba2_d_z"}) {
        list.push_back({form, "cuda", "scalar"});
    }
    return list;
}

INSTANTIATE_TEST_SUITE_P(Forms, Packing, testing::ValuesIn(settings()),
                         [](const auto& parameter) { return name_of(parameter.param); });

}  // namespace
}  // namespace sluice::test
