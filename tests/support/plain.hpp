// A problem in plain contiguous memory, to be cut, joined and changed token by token.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sluice/sluice.hpp"
#include "support/metrics.hpp"
#include "support/values.hpp"

namespace sluice::test {

struct Plain {
    const Form* form = nullptr;
    Spec spec;
    Dims dims;
    std::map<std::string, Tensor> inputs;
    std::vector<std::int64_t> lengths;  // of packed sequences; empty: one per batch row
    std::optional<Tensor> initial;      // in the layout of `options`
    std::optional<Tensor> initial_key_sum;
    Options options;
    DType o_dtype = DType::kFloat32;
    DType state_dtype = DType::kFloat32;

    [[nodiscard]] const TensorView& input(const std::string& name) const {
        return inputs.at(name).view();
    }
    [[nodiscard]] std::vector<std::int64_t> state_shape(std::int64_t slots) const;
    /// The inputs, and the initial state; outputs are the caller's to add.
    [[nodiscard]] Arguments arguments() const;
    /// Where the sequences lie.
    [[nodiscard]] std::vector<Sequence> sequences() const;
};

struct PlainSettings {
    ValueKinds kinds;
    DType dtype = DType::kFloat32;
    std::uint64_t seed = 1;
    bool initial = false;
};

/// `dims.N` is ignored.
[[nodiscard]] Plain make_plain(const Form& form, const Dims& dims,
                               const PlainSettings& settings = {});

/// Tokens [begin, end) of every sequence of an unpacked problem; the initial state stays.
[[nodiscard]] Plain tokens_of(const Plain& plain, std::int64_t begin, std::int64_t end);
/// Problems of one batch row each, one after another in one packed row.
[[nodiscard]] Plain packed(const std::vector<Plain>& rows);
/// A deep copy: changing its inputs leaves the original alone.
[[nodiscard]] Plain copied(const Plain& plain);

struct Outputs {
    Tensor o, final, final_key_sum;
    Plan plan;
};

/// Runs `plain` into poisoned outputs, on the back end (and its device) that its options name.
[[nodiscard]] Outputs run(const Plain& plain, Phase phase = Phase::kPrefill);
/// The same on the float64 oracle, with float64 outputs.
[[nodiscard]] Outputs run_oracle(const Plain& plain);

/// A tensor whose bits are all ones: NaN in every floating type.
[[nodiscard]] Tensor poisoned(DType dtype, const std::vector<std::int64_t>& shape);
/// An int64 (or bool) vector.
[[nodiscard]] Tensor index_tensor(const std::vector<std::int64_t>& values,
                                  DType dtype = DType::kInt64);
/// Copies the elements of `from` (any strides) into `to`, converting.
void assign(const TensorView& to, const TensorView& from);
/// Whether every element is finite.
[[nodiscard]] bool all_finite(const TensorView& view);

/// Whether an input has a token axis, and which of its dimensions that is.
[[nodiscard]] std::optional<int> token_dim(const Input& input);

}  // namespace sluice::test
