// A case in memory: its tensors, what the oracle says, and whether a backend agrees.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/sluice.hpp"
#include "support/cases.hpp"
#include "support/guarded.hpp"
#include "support/metrics.hpp"

namespace sluice::test {

/// How one result of a run compares with the oracle's.
struct Finding {
    std::string name;  // "o", "state.final", "checkpoints", "final_key_sum"
    Quantity quantity = Quantity::kOutput;
    Accuracy accuracy;
    double bound = 0;
    bool rounded = false;  // stored in fewer bits than it was computed in; the bound allows for it
    [[nodiscard]] bool ok() const { return within(accuracy, bound); }
};

class Instance {
  public:
    explicit Instance(const Case& c);

    [[nodiscard]] const Spec& spec() const noexcept { return spec_; }
    [[nodiscard]] const Arguments& arguments() const noexcept { return arguments_; }
    [[nodiscard]] const Options& options() const noexcept { return options_; }

    /// Runs the oracle into float64 tensors of its own, then `backend` into the case's, and
    /// compares, by the bounds of the plan's precision. Once per instance: a state in place is
    /// spent.
    [[nodiscard]] std::vector<Finding> judge(const std::string& backend);
    /// After judge(): everything that was written or changed and should not have been.
    [[nodiscard]] std::vector<std::string> memory_faults() const;
    /// After judge(): the plan that ran.
    [[nodiscard]] const Plan& plan() const noexcept { return plan_; }

  private:
    Guarded& keep(std::string name, Guarded tensor);
    TensorView index_vector(const char* name, const std::vector<std::int64_t>& values,
                            DType dtype = DType::kInt64);
    std::vector<std::int64_t> state_shape(std::int64_t slots, bool key_sum) const;
    void make_inputs();
    void make_states();
    void choose_slots(Random& random);
    void make_state_pair(bool key_sum);
    void make_checkpoints(Random& random);
    void run_oracle();
    Finding finding(const char* name, Quantity quantity, const std::vector<Block>& blocks,
                    DType stored) const;
    void compare_states(const char* name, const TensorView& result, const TensorView& reference,
                        const std::vector<std::int64_t>& slots, std::vector<Finding>& findings);

    const Case case_;
    Spec spec_;
    Arguments arguments_;
    Options options_;
    Plan plan_;
    std::map<std::string, Guarded> tensors_;
    std::vector<Sequence> sequences_;

    std::int64_t initial_slots_ = 0, final_slots_ = 0;
    std::vector<std::int64_t> read_slots_, write_slots_;  // as given; empty for dense states
    std::vector<std::int64_t> checkpoint_slots_;

    // The oracle's results; states by the slot of the case's own pools.
    Tensor o_, final_, checkpoints_, final_key_sum_;
};

}  // namespace sluice::test
