// The independent tasks of a problem: sequences x value heads x value tiles, over threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>

#include "cpu/team.hpp"
#include "sluice/problem.hpp"

namespace sluice::cpu {

struct Task {
    std::int64_t sequence = 0;
    std::int64_t head = 0;
    std::int64_t value_begin = 0;
    std::int64_t value_end = 0;
    [[nodiscard]] std::int64_t values() const { return value_end - value_begin; }
    [[nodiscard]] bool first_tile() const { return value_begin == 0; }
};

/// Runs `make_worker()` once per thread and the returned worker on every task. Tasks share nothing,
/// so that neither their order nor the number of threads can change a bit. The first exception of a
/// worker is rethrown on the calling thread.
template <class MakeWorker>
void for_each_task(const Problem& problem, std::int64_t value_tile, int threads,
                   MakeWorker&& make_worker) {
    const std::int64_t tiles = (problem.dims.V + value_tile - 1) / value_tile;
    const std::int64_t total = problem.dims.N * problem.dims.HV * tiles;
    std::atomic<std::int64_t> next = 0;
    std::exception_ptr failure;
    const int team = team_size(static_cast<int>(std::clamp<std::int64_t>(total, 1, threads)));
    // Not an `omp for`: a thread whose worker cannot be made must be able to leave.
#pragma omp parallel num_threads(team)
    {
        try {
            auto worker = make_worker();
            for (std::int64_t i = next++; i < total; i = next++) {
                Task task;
                task.sequence = i / (problem.dims.HV * tiles);
                task.head = i / tiles % problem.dims.HV;
                task.value_begin = i % tiles * value_tile;
                task.value_end = std::min(task.value_begin + value_tile, problem.dims.V);
                worker(task);
            }
        } catch (...) {
#pragma omp critical
            if (!failure) failure = std::current_exception();
        }
    }
    if (failure) std::rethrow_exception(failure);
}

}  // namespace sluice::cpu
