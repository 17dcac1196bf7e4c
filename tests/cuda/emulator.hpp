// CUDA's words for the host's compiler: a block's threads take turns on one core.
//
// Enough for kernels of plain arithmetic: barriers, exchanges inside a warp, shared memory. A
// thread runs until it waits for others; then the next one does. Included before a kernel's text,
// which is compiled with it into a shared library.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static

struct Index {
    unsigned x = 0;
};
inline Index threadIdx, blockIdx;

struct alignas(16) float4 {
    float x, y, z, w;
};

inline float __uint_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
inline unsigned __float_as_uint(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline int __ffs(int x) { return __builtin_ffs(x); }
template <class T>
T min(T a, T b) {
    return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
    return a < b ? b : a;
}

namespace emulator {

constexpr unsigned kWarp = 32;

/// All threads of a warp leave a number and wait for the others'. Two sets take turns: who is quick
/// writes the next number while the slow still read.
struct Exchange {
    std::uint64_t numbers[2][kWarp];
    unsigned arrived[2] = {0, 0};
};

struct Thread {
    ucontext_t start;
    jmp_buf at;
    bool started = false, done = false;
    unsigned exchanges = 0;
    std::unique_ptr<char[]> stack;
};

class Block {
  public:
    static constexpr std::size_t kStackBytes = 256 * 1024;

    template <class F>
    void run(unsigned threads, F&& body) {
        threads_ = std::vector<Thread>(threads);
        warps_ = std::vector<Exchange>(threads / kWarp);
        arrived_ = generation_ = 0;
        body_ = [](void* f) { (*static_cast<F*>(f))(); };
        argument_ = &body;
        current_ = this;
        for (Thread& thread : threads_) {
            thread.stack = std::make_unique<char[]>(kStackBytes);
            getcontext(&thread.start);
            thread.start.uc_stack.ss_sp = thread.stack.get();
            thread.start.uc_stack.ss_size = kStackBytes;
            thread.start.uc_link = nullptr;
            makecontext(&thread.start, enter, 0);
        }
        alive_ = threads;
        if (_setjmp(caller_) == 0) go(0);
    }

    /// Lets the other threads run.
    void yield() {
        const unsigned self = threadIdx.x;
        if (_setjmp(threads_[self].at) == 0) go_on();
        threadIdx.x = self;
    }

    void barrier() {
        const unsigned generation = generation_;
        if (++arrived_ == threads_.size()) {
            arrived_ = 0;
            ++generation_;
        }
        while (generation_ == generation) yield();
    }

    /// The numbers of all threads of the warp.
    const std::uint64_t* exchange(std::uint64_t number) {
        const unsigned self = threadIdx.x;
        Exchange& warp = warps_[self / kWarp];
        const unsigned set = threads_[self].exchanges++ % 2;
        warp.numbers[set][self % kWarp] = number;
        if (++warp.arrived[set] == kWarp) warp.arrived[1 - set] = 0;
        while (warp.arrived[set] != kWarp) yield();
        return warp.numbers[set];
    }

    static Block& current() { return *current_; }

  private:
    static void enter() {
        Block& block = *current_;
        block.body_(block.argument_);
        block.threads_[threadIdx.x].done = true;
        if (--block.alive_ == 0) _longjmp(block.caller_, 1);
        block.go_on();
    }

    void go_on() {
        unsigned next = threadIdx.x;
        do {
            next = (next + 1) % threads_.size();
        } while (threads_[next].done);
        go(next);
    }

    void go(unsigned index) {
        threadIdx.x = index;
        Thread& thread = threads_[index];
        if (thread.started) _longjmp(thread.at, 1);
        thread.started = true;
        setcontext(&thread.start);
    }

    inline static Block* current_ = nullptr;
    std::vector<Thread> threads_;
    std::vector<Exchange> warps_;
    std::size_t arrived_ = 0, alive_ = 0;
    unsigned generation_ = 0;
    void (*body_)(void*) = nullptr;
    void* argument_ = nullptr;
    jmp_buf caller_;
};

template <class T>
T exchange(T x, unsigned source) {
    std::uint64_t number = 0;
    std::memcpy(&number, &x, sizeof x);
    number = Block::current().exchange(number)[source];
    std::memcpy(&x, &number, sizeof x);
    return x;
}

}  // namespace emulator

inline void __syncthreads() { emulator::Block::current().barrier(); }
template <class T>
T __shfl_xor_sync(unsigned, T x, int mask) {
    return emulator::exchange(x, threadIdx.x % emulator::kWarp ^ static_cast<unsigned>(mask));
}
template <class T>
T __shfl_sync(unsigned, T x, int source) {
    return emulator::exchange(x, static_cast<unsigned>(source) % emulator::kWarp);
}
inline unsigned __ballot_sync(unsigned, bool value) {
    const std::uint64_t* all = emulator::Block::current().exchange(value);
    unsigned bits = 0;
    for (unsigned i = 0; i < emulator::kWarp; ++i) bits |= static_cast<unsigned>(all[i]) << i;
    return bits;
}
