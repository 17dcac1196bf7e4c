// How many threads a parallel region may have.
#pragma once

namespace sluice::cpu {

/// The caller's number, or as many as OpenMP gives (0).
[[nodiscard]] int thread_count(int requested);

/// `wanted`; one in a process that was forked from one which has had more. The others did not come
/// along, and OpenMP's run time would wait for them for ever.
[[nodiscard]] int team_size(int wanted);

}  // namespace sluice::cpu
