// Denormal numbers in the inner loops.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace sluice::cpu {

/// While alive, this thread's float operations take and give zero instead of denormals. Strong
/// decays make them by the million, and each costs the processor a hundred cycles. What is lost is
/// under 1e-38 of one. The caller's mode comes back at the end.
class FlushDenormals {
  public:
#if defined(__SSE__)
    FlushDenormals() : saved_(_mm_getcsr()) {
        constexpr unsigned kFlushToZero = 0x8000;
        constexpr unsigned kDenormalsAreZero = 0x0040;
        _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero);
    }
    ~FlushDenormals() { _mm_setcsr(saved_); }

  private:
    unsigned saved_;

  public:
#else
    FlushDenormals() = default;
#endif
    FlushDenormals(const FlushDenormals&) = delete;
    FlushDenormals& operator=(const FlushDenormals&) = delete;
};

}  // namespace sluice::cpu
