// A token changes no earlier output: bit for bit in earlier 16-row blocks, within the bound in its
// own.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/convert.hpp"
#include "support/guarded.hpp"
#include "support/judged.hpp"
#include "support/plain.hpp"
#include "support/tolerances.hpp"

namespace sluice::test {
namespace {

constexpr Dims kDims = {.B = 1, .T = 150, .H = 1, .HV = 2, .K = 20, .V = 24};
/// What tensor-core kernels take.
constexpr Dims kWholeTiles = {.B = 1, .T = 150, .H = 1, .HV = 2, .K = 64, .V = 64};
constexpr std::int64_t kRowBlock = 16;

enum class Change { kValues, kForget, kForgetAll, kNaN };

bool is_gate(const Plain& plain, const std::string& name) {
    return plain.spec.log_decay && name.starts_with("g");
}

/// Changes token `t` of every input that has tokens, or of the gates only.
void change_token(Plain& plain, std::int64_t t, Change change) {
    Random random(99);
    for (const Input& input : plain.spec.inputs) {
        const auto dim = token_dim(input);
        if (!dim) continue;
        const bool gate = is_gate(plain, input.name);
        const bool forget = change == Change::kForget || change == Change::kForgetAll;
        if (forget && !gate) continue;
        const TensorView row = plain.input(input.name).sliced(*dim, t, t + 1);
        for_each_offset(row, [&](std::int64_t offset) {
            double value = load_element(row.data, row.dtype, offset);
            switch (change) {
                case Change::kValues: value = gate ? 2 * value - 0.1 : 1 + random.normal(); break;
                case Change::kForget: value = random.chance(0.3) ? -1000 : value; break;
                case Change::kForgetAll: value = -std::numeric_limits<double>::infinity(); break;
                case Change::kNaN: value = std::nan("");
            }
            store_element(row.data, row.dtype, offset, value);
        });
    }
}

struct Setting {
    std::string form;
    Precision precision;
    int chunk;
    std::string backend = "cpu";
    Algorithm algorithm = Algorithm::kChunked;
    DType dtype = DType::kFloat32;
    std::int64_t keys = kWholeTiles.K;  // of half-width tensors
};

std::string name_of(const Setting& s) {
    const std::string keys = s.keys == kWholeTiles.K ? "" : fmt::format("_K{}", s.keys);
    return fmt::format("{}_{}_{}_{}{}", s.backend, s.form, to_string(s.precision), s.chunk, keys);
}
void PrintTo(const Setting& s, std::ostream* out) { *out << name_of(s); }

class Causality : public testing::TestWithParam<Setting> {
  protected:
    void SetUp() override { SKIP_WITHOUT(GetParam().backend); }

    Plain base(Gates gates) const {
        const Setting& s = GetParam();
        const bool narrow = size_bytes(s.dtype) == 2;
        Dims dims = narrow ? kWholeTiles : kDims;
        if (narrow) dims.K = s.keys;
        Plain plain = make_plain(find_form(s.form), dims,
                                 {.kinds = {.gates = gates}, .dtype = s.dtype, .initial = true});
        if (narrow) plain.o_dtype = s.dtype;
        plain.options.backend = s.backend;
        plain.options.precision = s.precision;
        plain.options.chunk = s.chunk;
        plain.options.algorithm = s.algorithm;
        return plain;
    }

    void expect_earlier_unchanged(Change change, Gates gates = Gates::kStrong) const {
        const Plain plain = base(gates);
        const Outputs before = run(plain);
        for (const std::int64_t t : {0, 5, 16, 31, 63, 64, 77, 127, 128, 149}) {
            SCOPED_TRACE(fmt::format("token {}", t));
            Plain changed = copied(plain);
            change_token(changed, t, change);
            const Outputs after = run(changed);
            // Tensor cores multiply masked scores too, and zero times NaN is NaN: there a value
            // that is not finite reaches the earlier rows of its chunk (docs/exactness.md), but no
            // earlier one.
            const bool whole_chunk = change == Change::kNaN && size_bytes(GetParam().dtype) == 2;
            const std::int64_t reach = whole_chunk ? before.plan.chunk : kRowBlock;
            const std::int64_t own_block = t / reach * reach;
            const auto rows = [](const Outputs& out, std::int64_t begin, std::int64_t end) {
                return out.o.view().sliced(1, begin, end);
            };
            EXPECT_TRUE(same_bits(rows(before, 0, own_block), rows(after, 0, own_block)));
            if (change == Change::kNaN) continue;
            const Accuracy accuracy =
                compare(whole_block(rows(after, own_block, t), rows(before, own_block, t)));
            const double limit =
                2 * bound(before.plan.precision, plain.spec.update, Quantity::kOutput);
            EXPECT_TRUE(within(accuracy, limit)) << describe(accuracy, limit);
        }
    }
};

TEST_P(Causality, NewValuesOfAToken) { expect_earlier_unchanged(Change::kValues); }
TEST_P(Causality, ANaNToken) { expect_earlier_unchanged(Change::kNaN); }

// A gate that leaves the range of its block changes how that block is evaluated, and no other.
TEST_P(Causality, AGateThatForgets) {
    if (find_form(GetParam().form).gate != GateFormula::kGiven) return;
    for (const Gates gates : {Gates::kStrong, Gates::kMild}) {
        expect_earlier_unchanged(Change::kForget, gates);
        expect_earlier_unchanged(Change::kForgetAll, gates);
    }
}

std::vector<Setting> settings() {
    std::vector<Setting> list;
    int i = 0;
    for (const Form& form : forms()) {
        const int chunks[] = {64, 16, 128, 32, 0};
        list.push_back({form.name, Precision::kFloat32, chunks[i % 5]});
        list.push_back({form.name, i % 4 == 0 ? Precision::kFloat64 : Precision::kBFloat16,
                        chunks[(i + 2) % 5]});
        list.push_back({form.name, Precision::kFloat32, 0, "cuda", Algorithm::kAuto});
        ++i;
    }
    for (const char* form : {"gla", "linear", "linear_normalized", "retention", "simple_gla",
                             "mamba2_all", "mamba2_d_z"}) {
        list.push_back(
            {form, Precision::kBFloat16, 64, "cuda", Algorithm::kChunked, DType::kBFloat16});
    }
    list.push_back({"gla", Precision::kBFloat16, 64, "cuda", Algorithm::kChunked, DType::kBFloat16,
                    /*keys=*/256});
    return list;
}

INSTANTIATE_TEST_SUITE_P(Forms, Causality, testing::ValuesIn(settings()),
                         [](const auto& parameter) { return name_of(parameter.param); });

}  // namespace
}  // namespace sluice::test
