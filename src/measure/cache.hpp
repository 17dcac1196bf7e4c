// Cold caches, for timings that must not profit from the run before.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::measure {

/// Evicts the caches by streaming a buffer of twice the last-level cache through them. Virtual
/// machines report the whole socket's cache; the buffer is capped, and the caches may then stay
/// partly warm: is_complete() says so.
class CacheFlusher {
  public:
    explicit CacheFlusher(std::int64_t cache_bytes);
    void operator()();
    [[nodiscard]] bool is_complete() const noexcept { return complete_; }

  private:
    std::vector<std::uint64_t> buffer_;
    bool complete_;
};

}  // namespace sluice::measure
