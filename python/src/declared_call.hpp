// A declared call: everything about a call that its tensors, scale and stream do not say. Python
// writes it as text once per form and passes its number from then on, so that a call costs no
// parsing, no spec building and no strings.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/sluice.hpp"

namespace sluice::python {

/// Where a tensor of the call goes.
struct Slot {
    enum class Kind : unsigned char { kInput, kOut, kOffsets, kWorkspace, kState };
    std::string name;  // the argument's name in Python
    Kind kind = Kind::kInput;
    // kState: one of them, or the two that a tensor stands for ("state", "slots").
    std::array<std::optional<TensorView> StateArguments::*, 2> members{};
    bool bfloat16_bits = false;  // crosses as 16-bit integers, for exporters without bfloat16
    int firsts = 0;              // last axes of which only the first element counts
    bool is_token = false;       // of one token: has no axis for tokens, in second place
};

/// An output that the call allocates.
struct Output {
    std::string name;  // "out", "final_state" or "final_key_sum"
    DType dtype = DType::kFloat32;
    std::vector<std::int64_t> shape;
    bool is_token = false;  // as of a slot
};

/// A call as it was bound and planned: what the next call with tensors alike starts from.
struct BoundCall {
    std::vector<TensorView> views;  // in the order of DeclaredCall::slots()
    std::shared_ptr<const Spec> spec;
    Options options;
    Arguments arguments;
    std::vector<Output> outputs;
    Problem problem;
    const Backend* backend = nullptr;  // null: not chosen yet
    Plan plan;
    std::int64_t kernel = 0;  // what it runs: the number of its name
};

class DeclaredCall {
  public:
    /// Items "key=value", parted by semicolons: phase, variant, setting.<name>, option.<name>,
    /// tensor (a name, in the order of the call's tensors), result (a name, in the order of the
    /// results). A name may be followed by how its tensor is to be taken: ":bfloat16" where 16-bit
    /// integers stand for bfloat16; ":first", for each of its last axes along which all elements
    /// are one; ":token" where the axis of tokens is missing, because there is one.
    explicit DeclaredCall(std::string_view text);

    [[nodiscard]] Phase phase() const noexcept { return phase_; }
    [[nodiscard]] const Options& options() const noexcept { return options_; }
    [[nodiscard]] const std::vector<Slot>& slots() const noexcept { return slots_; }
    [[nodiscard]] bool has_workspace() const noexcept { return has_workspace_; }

    /// The variant's spec for inputs such as these (the views are in the order of slots()).
    [[nodiscard]] std::shared_ptr<const Spec> spec(std::span<const TensorView> views);
    [[nodiscard]] Arguments arguments(std::span<const TensorView> views) const;
    /// Replaces the tensors in `arguments`, which arguments() made.
    void replace(Arguments& arguments, std::span<const TensorView> views) const;
    /// The results, as these arguments make them.
    [[nodiscard]] std::vector<Output> outputs(const Spec& spec, const Arguments& arguments) const;
    /// An earlier call to start from, the caller's alone until it is kept again; null if there is
    /// none with this scale and tensors of the same devices, dtypes, shapes, strides and alignment.
    [[nodiscard]] std::unique_ptr<BoundCall> take(std::span<const TensorView> views,
                                                  const std::optional<double>& scale);
    /// Only calls on a GPU: those on the CPU also depend on what index tensors hold.
    void keep(std::unique_ptr<BoundCall> call);
    /// Gives `arguments` the memory of the result `name`.
    static void attach(Arguments& arguments, const std::string& name, const TensorView& view);

  private:
    void read_item(std::string_view key, std::string value);
    void read_option(const std::string& name, const std::string& value);

    Phase phase_ = Phase::kPrefill;
    std::string variant_;
    std::map<std::string, std::string> settings_;
    Options options_;
    std::vector<Slot> slots_;
    struct Result {
        std::string name;
        bool is_token;
    };
    std::vector<Result> results_;
    bool has_workspace_ = false;
    /// By the ranks of the inputs: what a variant's form may depend on besides their names.
    std::map<std::vector<int>, std::shared_ptr<const Spec>> specs_;
    /// The last one kept last. Several threads, or shapes that alternate, have one each.
    std::vector<std::unique_ptr<BoundCall>> kept_;
    std::mutex mutex_;
};

/// The number of the call that `text` declares; the same text has the same number.
[[nodiscard]] std::int64_t declare(const std::string& text);
[[nodiscard]] DeclaredCall& declared(std::int64_t number);

}  // namespace sluice::python
