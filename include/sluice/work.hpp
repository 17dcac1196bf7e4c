// Work of a problem: FLOPs and bytes, and the shortest time a device could need for them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sluice/problem.hpp"

namespace sluice {

/// What a device can do, measured or tabulated.
struct DeviceSpec {
    std::string name;
    std::string source;                    // "measured 2026-11-29" or where the numbers come from
    double copy_bytes_per_s = 0;           // large copy, bytes read + bytes written
    double matmul_flops_per_s = 0;         // large matrix product in the device's preferred type
    int multiprocessors = 0;               // cores of a CPU
    std::int64_t cache_bytes = 0;          // last-level (L2 of a GPU)
    std::int64_t shared_memory_bytes = 0;  // per multiprocessor
};

/// One H200 as measured by this project (see docs/devices.md).
[[nodiscard]] const DeviceSpec& h200();

/// The shape of a problem without its tensors: what work() needs.
struct Shape {
    Dims dims;
    std::int64_t tokens = 0;              // over all sequences
    DType dtype = DType::kBFloat16;       // q, k, v, o
    DType gate_dtype = DType::kBFloat16;  // g or raw gates
    DType state_dtype = DType::kFloat32;
    bool reads_state = false, writes_state = false;
    /// Of tensors at hand, as shape_of() fills them in: all inputs with their own dtypes, an
    /// element that expanded (stride 0) dimensions repeat counted once; and the dtype of the state
    /// read. Unset: dense inputs of the dtypes above (float32 without tokens), and state_dtype.
    std::optional<double> input_bytes;
    std::optional<DType> initial_dtype;
};

struct Work {
    /// FLOPs by the C = 64 chunk formula, whatever a kernel does (decode: by the recurrence).
    /// Per token and value head: scores 2CK, A U 2CV, q S 2KV, k^T U 2KV; delta rules add
    /// L 2CK, the solve CV, and k S 2KV. Without a vector decay the terms in CK count once per key
    /// head (all value heads of a group share the products).
    double flops = 0;
    double bytes_read = 0;     // each input once, and the initial state
    double bytes_written = 0;  // each output once
    [[nodiscard]] double bytes() const noexcept { return bytes_read + bytes_written; }
};

[[nodiscard]] Shape shape_of(const Problem& problem);
[[nodiscard]] Work work(const Spec& spec, const Shape& shape, Phase phase);
[[nodiscard]] Work work(const Problem& problem);

struct Floor {
    double memory_us = 0;   // bytes / copy rate
    double compute_us = 0;  // FLOPs / matmul rate
    [[nodiscard]] double us() const noexcept {
        return memory_us > compute_us ? memory_us : compute_us;
    }
};
[[nodiscard]] Floor floor_on(const DeviceSpec& device, const Work& work);

}  // namespace sluice
