#include "cpu/team.hpp"

#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>

namespace sluice::cpu {

namespace {

std::atomic<bool> has_had_team = false;
std::atomic<bool> is_left_alone = false;

void after_fork() { is_left_alone = has_had_team.load(); }

}  // namespace

int thread_count(int requested) {
    return requested > 0 ? requested : std::max(1, omp_get_max_threads());
}

int team_size(int wanted) {
    if (wanted <= 1 || is_left_alone) return 1;
    [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, after_fork);
    has_had_team = true;
    return wanted;
}

}  // namespace sluice::cpu
