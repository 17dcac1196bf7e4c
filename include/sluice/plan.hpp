// Plan: how a back end will run a problem. A value: it prints itself and hashes itself.
#pragma once

#include <cstdint>
#include <string>

#include "sluice/problem.hpp"
#include "sluice/work.hpp"

namespace sluice {

struct Plan {
    std::string backend;  // "cpu", "oracle", "cuda"
    std::string kernel;   // "chunked", "recurrent"; on CUDA "gla" or "recurrent"
    Precision precision = Precision::kFloat32;
    int chunk = 0;                     // tokens per chunk (1: recurrent)
    int block = 0;                     // rows per decay anchor
    std::int64_t value_tile = 0;       // value channels per task
    int segments = 1;                  // parts of a sequence that run at the same time
    int stages = 0;                    // CUDA: chunks in flight in a block of threads
    std::int64_t tasks = 0;            // independent: sequences x heads x value tiles x segments
    int threads = 1;                   // CPU threads; never changes the result
    std::int64_t workspace_bytes = 0;  // over all threads
    double predicted_us = 0;
    Floor floor;         // on the device planned for
    std::string notice;  // what the caller may want to know: a kernel was compiled, say; else empty

    /// Several lines, "name: value".
    [[nodiscard]] std::string to_string() const;
    /// FNV-1a of everything in a plan that can change a result's bits (states at positions, which
    /// cut chunks, are the problem's): not threads, nor the value tile (every value channel is
    /// computed in the same order whatever its tile), nor predictions.
    [[nodiscard]] std::uint64_t hash() const noexcept;
};

}  // namespace sluice
