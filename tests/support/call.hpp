// A small correct call, for tests that spoil one thing at a time.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "sluice/sluice.hpp"

namespace sluice::test {

/// Gated delta rule, B 2, T 70, H 2, HV 4, K 8, V 12, float32. Outputs are poison.
struct Call {
    static constexpr std::int64_t kB = 2, kT = 70, kH = 2, kHV = 4, kK = 8, kV = 12;

    Call();
    Call(Spec spec_of_inputs, const Dims& dims);

    /// Fresh memory that lives as long as the call: zeros, or poison (all bits one).
    TensorView zeros(DType dtype, std::initializer_list<std::int64_t> shape);
    TensorView poison(DType dtype, std::initializer_list<std::int64_t> shape);
    TensorView ints(std::initializer_list<std::int64_t> values, DType dtype = DType::kInt64);
    /// The view given for an input.
    TensorView& input(const std::string& name);
    void remove(const std::string& name);

    /// Dense initial and final states, memory of their own.
    void add_states();
    /// Pools of six slots: sequences 0 and 1 read slots 4 and 2, and write slots 1 and 5.
    void add_pools();
    /// After 64 tokens of both sequences, to slots 2 and 0 of a pool of three.
    void add_checkpoints();
    /// B 1 and offsets 0, 30, 70.
    void pack();

    void run(Phase phase) const;
    /// Every byte of the call's memory: equal before and after a call that wrote nothing.
    [[nodiscard]] std::vector<std::byte> bytes() const;

    Spec spec;
    Dims dims;
    Arguments arguments;
    Options options;

  private:
    void make(const Dims& wanted);

    std::vector<Tensor> memory_;
};

}  // namespace sluice::test
