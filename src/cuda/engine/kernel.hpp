// A kernel loaded on a GPU, and the process's table of them.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/engine/cubins.hpp"
#include "cuda/engine/driver.hpp"

namespace sluice::cuda {

struct Grid {
    unsigned x = 1, y = 1, z = 1;
};

/// Kernels of this library take one struct by value (__grid_constant__).
class Kernel {
  public:
    /// Loads `function` of a cubin and allows it all the dynamic shared memory the GPU has.
    Kernel(int gpu_index, const std::string& cubin, const std::string& function);
    ~Kernel();
    Kernel(const Kernel&) = delete;
    Kernel& operator=(const Kernel&) = delete;

    /// Asynchronous; `params` is copied before the call returns. kBeforeEnd: may begin before the
    /// launch before it in the stream has ended, whose kernel allows it and whose end this kernel
    /// waits for.
    enum class Start : unsigned char { kAfterEnd, kBeforeEnd };
    void launch(Grid grid, unsigned block_threads, std::size_t dynamic_shared_bytes, Stream stream,
                const void* params, Start start = Start::kAfterEnd) const;

    [[nodiscard]] int attribute(FunctionAttribute which) const;

  private:
    int gpu_index_;
    std::string name_;
    Module module_ = nullptr;
    Function function_ = nullptr;
};

/// The kernel, loaded on first use and kept until the process ends. Thread-safe; calls for
/// different kernels do not wait for each other. Sets `compiled` if this call had to compile it.
[[nodiscard]] const Kernel& find_kernel(const KernelSource& source, int gpu_index,
                                        CompilePolicy policy, bool* compiled = nullptr);

}  // namespace sluice::cuda
