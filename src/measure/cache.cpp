#include "measure/cache.hpp"

#include <algorithm>

namespace sluice::measure {

namespace {
constexpr std::int64_t kMaxBytes = 256LL << 20;
}

CacheFlusher::CacheFlusher(std::int64_t cache_bytes)
    : buffer_(static_cast<std::size_t>(std::min(2 * cache_bytes, kMaxBytes)) /
              sizeof(std::uint64_t)),
      complete_(2 * cache_bytes <= kMaxBytes) {}

void CacheFlusher::operator()() {
    // Read and write, by all threads: every core's own cache is evicted too.
    const auto size = static_cast<std::int64_t>(buffer_.size());
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < size; ++i) ++buffer_[static_cast<std::size_t>(i)];
}

}  // namespace sluice::measure
