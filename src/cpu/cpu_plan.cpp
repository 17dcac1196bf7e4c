#include "cpu/cpu_plan.hpp"

#include <algorithm>
#include <array>

#include "cpu/aligned.hpp"
#include "cpu/chunked.hpp"
#include "cpu/recurrent.hpp"
#include "cpu/task_grid.hpp"

namespace sluice::cpu {

namespace {

/// Sequences at most this long run token by token.
constexpr std::int64_t kShortSequence = 8;
/// Value tiles are at least this wide: each tile repeats the scores.
constexpr std::int64_t kSmallestTile = 32;

// The model: operations by kind, each at its share of the core's matrix-product rate; estimates,
// set beside measurements in docs/kernels/cpu.md.
constexpr double kProductShare = 0.70;      // small products out of the cache
constexpr double kElementFlops = 6.0;       // one pass over an element: load, multiply, store
constexpr double kExponentialFlops = 60.0;  // one exp
constexpr double kTimeLoopShare = 0.40;     // the time loop's multiply-adds

/// Operations of one token of one task, as FLOPs at the full matrix-product rate.
double token_cost(const Problem& problem, int chunk, std::int64_t tile) {
    const auto k = static_cast<double>(problem.dims.K);
    const auto v = static_cast<double>(tile);
    const Decay decay = problem.spec.decay();
    const Update update = problem.spec.update;
    const double exponentials = decay == Decay::kVector ? k : decay == Decay::kNone ? 0 : 1;
    if (chunk == 1) {
        const double passes = update == Update::kDelta ? 7 : update == Update::kRankOne ? 9 : 5;
        return passes * k * v / kTimeLoopShare + kExponentialFlops * exponentials;
    }
    // Average columns of a block's scores: everything before it and itself.
    const double columns = (chunk + static_cast<double>(kBlock)) / 2;
    const double score_sets = update == Update::kAdditive ? 1 : update == Update::kDelta ? 2 : 4;
    const double state_reads = update == Update::kAdditive ? 1 : 2;
    const double state_writes = update == Update::kRankOne ? 2 : 1;
    double flops = score_sets * 2 * columns * (k + v);
    flops += (state_reads + state_writes) * 2 * k * v;
    // The state's read, scaling and write back, once a chunk.
    const double passes_over_state = 2 * k * v / chunk;
    const double anchoring =
        decay == Decay::kNone ? 0 : (chunk / static_cast<double>(kBlock) - 1) / 2;
    const double key_passes =
        5 + anchoring + (decay == Decay::kVector ? 4 : 0) + 3 * (score_sets - 1);
    double passes = key_passes * k + 4 * v + passes_over_state;
    if (update != Update::kAdditive) passes += kBlock / 2.0 * v;  // substitution
    return flops / kProductShare + kElementFlops * passes + kExponentialFlops * exponentials;
}

double predicted_us(const Problem& problem, const Plan& plan, const DeviceSpec& device) {
    if (device.matmul_flops_per_s <= 0 || device.multiprocessors <= 0) return 0;
    const double rate = device.matmul_flops_per_s / device.multiprocessors;
    const double double_width = plan.precision == Precision::kFloat64 ? 2 : 1;
    const double per_token = double_width * token_cost(problem, plan.chunk, plan.value_tile) / rate;
    double tokens = 0;
    std::int64_t longest = 0;
    for (const Sequence& s : problem.sequences) {
        tokens += static_cast<double>(s.length());
        longest = std::max(longest, s.length());
    }
    const std::int64_t tiles = (problem.dims.V + plan.value_tile - 1) / plan.value_tile;
    const auto tasks_per_sequence = static_cast<double>(problem.dims.HV * tiles);
    const double threads = std::min(plan.threads, device.multiprocessors);
    // No thread finishes before the longest task, nor before its share of all.
    const double rounds =
        std::max(tokens * tasks_per_sequence / threads, static_cast<double>(longest));
    return 1e6 * rounds * per_token;
}

std::int64_t value_tile(const Problem& problem, int threads) {
    // Every tile reads the sum of keys, and the first writes it, maybe in place.
    if (problem.spec.normalize) return problem.dims.V;
    const std::int64_t pairs = std::max<std::int64_t>(problem.dims.N * problem.dims.HV, 1);
    const std::int64_t wanted = (threads + pairs - 1) / pairs;
    const std::int64_t tile = round_up((problem.dims.V + wanted - 1) / wanted, kSmallestTile);
    return std::min(problem.dims.V, tile);
}

/// By cost per token alone: a chunk may not depend on how many threads or neighbours there are, so
/// the whole value head stands for the tile. The bf16 mode takes the GPU kernels' chunk.
int default_chunk(const Problem& problem) {
    if (problem.precision == Precision::kBFloat16) return 64;
    constexpr std::array kCandidates = {32, 64, 128};
    return *std::min_element(kCandidates.begin(), kCandidates.end(), [&](int a, int b) {
        return token_cost(problem, a, problem.dims.V) < token_cost(problem, b, problem.dims.V);
    });
}

std::int64_t workspace_bytes(const Problem& problem, const Plan& plan) {
    const bool wide = plan.precision == Precision::kFloat64;
    std::int64_t bytes = 0;
    if (plan.chunk == 1) {
        bytes = wide ? recurrent_workspace_bytes<double>(problem, plan.value_tile)
                     : recurrent_workspace_bytes<float>(problem, plan.value_tile);
    } else {
        bytes = wide ? chunked_workspace_bytes<double>(problem, plan.chunk, plan.value_tile)
                     : chunked_workspace_bytes<float>(problem, plan.chunk, plan.value_tile);
    }
    return bytes * std::clamp<std::int64_t>(plan.tasks, 1, plan.threads);
}

}  // namespace

bool runs_recurrent(const Problem& problem) {
    if (problem.algorithm != Algorithm::kAuto) return problem.algorithm == Algorithm::kRecurrent;
    if (problem.precision == Precision::kBFloat16) return false;
    if (!problem.token_write_slots.empty()) return true;
    // One long neighbour would change the kernel, and with it the bits.
    if (problem.batch_invariant) return problem.phase == Phase::kDecode;
    std::int64_t longest = 0;
    for (const Sequence& s : problem.sequences) longest = std::max(longest, s.length());
    return longest <= kShortSequence;
}

Plan make_plan(const Problem& problem, const DeviceSpec& device) {
    Plan plan;
    plan.backend = "cpu";
    plan.precision = problem.precision;
    plan.threads = thread_count(problem.threads);
    plan.value_tile = value_tile(problem, plan.threads);
    plan.tasks = problem.dims.N * problem.dims.HV *
                 ((problem.dims.V + plan.value_tile - 1) / plan.value_tile);
    plan.floor = floor_on(device, work(problem));
    if (runs_recurrent(problem)) {
        plan.kernel = "recurrent";
        plan.chunk = 1;
        plan.block = 1;
    } else {
        plan.kernel = "chunked";
        plan.block = static_cast<int>(kBlock);
        plan.chunk = problem.chunk;
        if (plan.chunk == 0) plan.chunk = default_chunk(problem);
    }
    plan.workspace_bytes = workspace_bytes(problem, plan);
    plan.predicted_us = predicted_us(problem, plan, device);
    return plan;
}

}  // namespace sluice::cpu
