// Timing work on a GPU.
#pragma once

#include <functional>

#include "cuda/engine/driver.hpp"
#include "sluice/tensor.hpp"

namespace sluice::measure {

/// Events on a GPU's default stream, and memory to flush its L2 with (768 MB). Throws Error.
class GpuTimer {
  public:
    explicit GpuTimer(int gpu_index);
    ~GpuTimer();
    GpuTimer(const GpuTimer&) = delete;
    GpuTimer& operator=(const GpuTimer&) = delete;

    /// Microseconds on the GPU of what `run` puts on the default stream, with an L2 that holds
    /// nothing of it. The flush takes the GPU 0.2 ms, in which the host gets ahead: launching is
    /// not timed unless it takes longer.
    [[nodiscard]] double gpu_us(const std::function<void()>& run) const;

    /// Microseconds that one call of `run` keeps the host, which does not wait for the GPU: the
    /// median of many in a row, of about `expected_gpu_us` each.
    [[nodiscard]] double host_us(const std::function<void()>& run, double expected_gpu_us) const;

  private:
    void flush() const;

    int gpu_;
    Tensor memory_;
    cuda::Event begin_ = nullptr, end_ = nullptr;
};

}  // namespace sluice::measure
