// Recurrent states between memory (any dtype, layout, slot) and a task's [K, columns] buffer.
#pragma once

#include <algorithm>

#include "core/convert.hpp"
#include "cpu/task_grid.hpp"
#include "sluice/problem.hpp"

namespace sluice::cpu {

/// A task's state: K rows of value channels [value_begin, value_end), `stride` elements apart. A
/// normalised spec keeps its sum of keys in one more column, after the value channels.
template <class Real>
struct StateBuffer {
    Real* data;
    std::int64_t stride;
};

/// Value channels copied together where the state lies value-first in memory: as many streams of
/// keys.
inline constexpr std::int64_t kValueGroup = 16;

/// f(k, v, count): every row's value channels, whole or, where keys are the contiguous ones, in
/// groups, all keys of a group first.
template <class F>
void for_each_state_run(const BoundState& state, std::int64_t keys, std::int64_t values, F&& f) {
    const bool value_first = state.stride_v != 1 && state.stride_k == 1;
    const std::int64_t group = value_first ? kValueGroup : values;
    for (std::int64_t v = 0; v < values; v += group) {
        for (std::int64_t k = 0; k < keys; ++k) f(k, v, std::min(group, values - v));
    }
}

template <class Real>
void load_state(const Problem& problem, const Task& task, std::int64_t slot,
                const StateBuffer<Real>& state) {
    const std::int64_t keys = problem.dims.K;
    const std::int64_t values = task.values();
    std::fill_n(state.data, keys * state.stride, Real(0));
    if (!problem.initial || slot < 0) return;
    const BoundState& s = problem.initial;
    const std::int64_t base =
        slot * s.stride_slot + task.head * s.stride_head + task.value_begin * s.stride_v;
    for_each_state_run(s, keys, values, [&](std::int64_t k, std::int64_t v, std::int64_t count) {
        load_row(s.data, s.dtype, base + k * s.stride_k + v * s.stride_v, s.stride_v, count,
                 state.data + k * state.stride + v);
    });
    const BoundState& sum = problem.initial_key_sum;
    for (std::int64_t k = 0; sum && k < keys; ++k) {
        state.data[k * state.stride + values] = static_cast<Real>(
            load_element(sum.data, sum.dtype,
                         slot * sum.stride_slot + task.head * sum.stride_head + k * sum.stride_k));
    }
}

template <class Real>
void store_state(const Problem& problem, const BoundState& target, const Task& task,
                 std::int64_t slot, const StateBuffer<Real>& state) {
    if (!target || slot < 0) return;
    const std::int64_t base = slot * target.stride_slot + task.head * target.stride_head +
                              task.value_begin * target.stride_v;
    for_each_state_run(target, problem.dims.K, task.values(),
                       [&](std::int64_t k, std::int64_t v, std::int64_t count) {
                           store_row(target.data, target.dtype,
                                     base + k * target.stride_k + v * target.stride_v,
                                     target.stride_v, count, state.data + k * state.stride + v);
                       });
}

/// The state after a sequence (or, in step(), after a token), with its key sum.
template <class Real>
void store_final(const Problem& problem, const Task& task, std::int64_t slot,
                 const StateBuffer<Real>& state) {
    store_state(problem, problem.final, task, slot, state);
    const BoundState& sum = problem.final_key_sum;
    if (!sum || slot < 0 || !task.first_tile()) return;
    for (std::int64_t k = 0; k < problem.dims.K; ++k) {
        store_element(sum.data, sum.dtype,
                      slot * sum.stride_slot + task.head * sum.stride_head + k * sum.stride_k,
                      static_cast<double>(state.data[k * state.stride + task.values()]));
    }
}

/// Columns of a task's state: its value channels, and the sum of keys.
[[nodiscard]] inline std::int64_t state_columns(const Problem& problem, std::int64_t values) {
    return values + (problem.spec.normalize ? 1 : 0);
}

/// Output rows [0, length) of a tile: dense rows of `stride` elements to o's memory.
template <class Real>
void store_output(const Problem& problem, const Task& task, std::int64_t batch, std::int64_t begin,
                  std::int64_t length, const Real* rows, std::int64_t stride) {
    const BoundInput& o = problem.o;
    const auto at = [&](Axis axis) { return o.stride[static_cast<std::size_t>(axis)]; };
    for (std::int64_t t = 0; t < length; ++t) {
        store_row(o.data, o.dtype,
                  batch * at(Axis::kB) + (begin + t) * at(Axis::kT) + task.head * at(Axis::kHV) +
                      task.value_begin * at(Axis::kV),
                  at(Axis::kV), task.values(), rows + t * stride);
    }
}

}  // namespace sluice::cpu
