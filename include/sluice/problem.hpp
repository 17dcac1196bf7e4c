// Arguments of a call, its options, and Problem: the two validated against a Spec.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/error.hpp"
#include "sluice/spec.hpp"
#include "sluice/tensor.hpp"

namespace sluice {

/// Tensors by name, in the caller's order.
using NamedTensors = std::vector<std::pair<std::string, TensorView>>;

/// The recurrent state around a call. All members are optional.
///
/// `initial` and `final` are dense, [N, HV, K, V] (kKeyFirst) or [N, HV, V, K] (kValueFirst), row n
/// for sequence n, or pools [slots, HV, ...] when slot indices are given (any slot stride).
/// float32, bfloat16, float16 or float64 in memory; float32 or float64 in arithmetic.
/// `initial` and `final` may be the same memory (a state updated in place).
struct StateArguments {
    std::optional<TensorView> initial;
    std::optional<TensorView> final;
    /// int32/int64 [N]: the slot of `initial` that sequence n starts from; -1 starts from zero.
    /// In step() also [N, M]: sequence n reads column accepted[n] - 1 (0 without `accepted`).
    std::optional<TensorView> read_slots;
    /// int32/int64 [N]: the slot of `final` that sequence n ends in; -1 discards. No slot twice.
    /// In step() also [N, T]: the slot for the state after each token (speculative decoding).
    std::optional<TensorView> write_slots;
    /// bool [N]: false starts sequence n from zero whatever `initial` holds.
    std::optional<TensorView> has_initial;
    /// int32/int64 [N], step() with 2-D read_slots: how many of the last call's tokens were kept.
    std::optional<TensorView> accepted;

    /// States inside the sequence (prefix caching), forward() only: after `checkpoint_positions[i]`
    /// tokens of sequence `checkpoint_sequences[i]` the state goes to slot `checkpoint_slots[i]` of
    /// the pool `checkpoints`. int32/int64 [M]; positions are multiples of 64, at most the
    /// sequence's length; slot -1 discards.
    std::optional<TensorView> checkpoints;
    std::optional<TensorView> checkpoint_sequences;
    std::optional<TensorView> checkpoint_positions;
    std::optional<TensorView> checkpoint_slots;

    /// Normalised specs only: the running sum of keys n, [N, HV, K] (or [slots, HV, K], through the
    /// same slot indices), so that a sequence can be continued.
    std::optional<TensorView> initial_key_sum;
    std::optional<TensorView> final_key_sum;
};

/// One call: inputs by the spec's names, and the outputs.
struct Arguments {
    NamedTensors inputs;
    TensorView o;  // output, [B, T, HV, V], any floating dtype
    /// Packed sequences: B = 1 and offsets [N + 1], int32 or int64, non-decreasing, from 0 to T.
    /// Empty sequences are legal.
    std::optional<TensorView> cu_seqlens;
    StateArguments state;
    /// Tensors on a CUDA device only: memory of at least plan().workspace_bytes for the call's own
    /// use, any dtype, contiguous, aligned to 256 bytes. Absent: allocated and freed in the
    /// stream's order.
    std::optional<TensorView> workspace;
};

enum class Precision : unsigned char {
    kAuto,      // float64 if every floating input is; on a CUDA device bfloat16 if the channels
                // of q, k and v (or of what they are made of) are 16 bits wide, whatever gates,
                // time steps and rates are; else float32
    kFloat32,   // float32 operands and sums
    kFloat64,   // float64 operands and sums
    kBFloat16,  // float32 sums; operands of products may be rounded to bfloat16. The CPU rounds
                // them where the GPU kernels do; Plan::precision says what a call did
};
[[nodiscard]] const char* to_string(Precision precision) noexcept;
[[nodiscard]] Precision parse_precision(std::string_view name);

enum class Algorithm : unsigned char {
    kAuto,       // the planner chooses
    kChunked,    // products over chunks of tokens
    kRecurrent,  // token by token
};
[[nodiscard]] const char* to_string(Algorithm algorithm) noexcept;
[[nodiscard]] Algorithm parse_algorithm(std::string_view name);

struct Options {
    std::optional<double> scale;              // unset: the spec's default (K^-0.5)
    std::optional<StateLayout> state_layout;  // unset: the spec's default
    Precision precision = Precision::kAuto;
    std::string backend;  // unset: SLUICE_BACKEND, else the first that takes it
    Algorithm algorithm = Algorithm::kAuto;
    int chunk = 0;                 // tokens, chunked only; 0: the planner chooses
    int threads = 0;               // 0: all cores; results do not depend on it
    bool batch_invariant = false;  // only plans that do not depend on the neighbours
    bool validate = false;         // also check values that a device would have to read back: log
                                   // decays <= 0, no NaN, and index tensors in device memory.
                                   // Waits for the device; not while its stream is captured

    // CUDA devices only.
    void* stream = nullptr;  // cudaStream_t or CUstream that the work is put on; null: the default
    /// A kernel that prepare() did not make ready may be compiled by the call that needs it
    /// (seconds; Plan::notice says so). False, or while the stream is captured: Error(kUnsupported)
    /// instead.
    bool compile = true;
};

enum class Phase : unsigned char { kPrefill, kDecode };
[[nodiscard]] const char* to_string(Phase phase) noexcept;
[[nodiscard]] Phase parse_phase(std::string_view name);

struct Dims {
    std::int64_t B = 0, T = 0, H = 0, HV = 0, K = 0, V = 0;
    std::int64_t N = 0;  // sequences

    [[nodiscard]] std::int64_t extent(Axis axis) const noexcept {
        const std::int64_t by_axis[kNumAxes] = {B, T, H, HV, K, V};
        return by_axis[static_cast<int>(axis)];
    }
};

/// An input as the back ends read it: element (b, t, h, hv, c) is at `data` plus the dot product of
/// the indices with `stride` (zero along axes that the input does not have).
struct BoundInput {
    std::string name;
    void* data = nullptr;
    DType dtype = DType::kFloat32;
    std::array<std::int64_t, kNumAxes> stride{};  // by Axis, in elements
    bool has(Axis axis) const noexcept { return axis_mask >> static_cast<int>(axis) & 1U; }
    unsigned axis_mask = 0;
};

/// A state tensor as the back ends read it: element (slot, hv, k, v) by strides.
struct BoundState {
    void* data = nullptr;  // null when absent
    DType dtype = DType::kFloat32;
    std::int64_t slots = 0;
    std::int64_t stride_slot = 0, stride_head = 0, stride_k = 0, stride_v = 0;
    explicit operator bool() const noexcept { return data != nullptr; }
};

/// One sequence: tokens [begin, end) of batch row `batch`, and where its states live (slot -1:
/// none).
struct Sequence {
    std::int64_t batch = 0, begin = 0, end = 0;
    std::int64_t read_slot = -1;
    std::int64_t write_slot = -1;
    bool skip = false;  // a padding row of step(): output zero, nothing else touched
    [[nodiscard]] std::int64_t length() const noexcept { return end - begin; }
};

struct Checkpoint {
    std::int64_t position = 0;  // tokens since the sequence began
    std::int64_t slot = -1;
};

/// An index tensor in device memory: kernels read it, the host never does.
struct DeviceIndices {
    const void* data = nullptr;  // null when absent
    DType dtype = DType::kInt32;
    std::array<std::int64_t, 2> extents{}, strides{};  // in elements
    explicit operator bool() const noexcept { return data != nullptr; }
};

/// A spec bound to arguments: everything that a plan and a back end need, checked.
///
/// On a CUDA device the index tensors stay where they are: `sequences`, `sequence_checkpoints` and
/// `token_write_slots` are empty, and `indices` names the tensors instead.
struct Problem {
    /// Which bind() made it, and its copies: what follows from the spec need not be found again for
    /// each run. 0: none did.
    std::uint64_t bind_number = 0;
    Spec spec;
    Phase phase = Phase::kPrefill;
    Dims dims;
    double scale = 1;
    StateLayout state_layout = StateLayout::kKeyFirst;
    Precision precision = Precision::kFloat32;  // never kAuto
    Algorithm algorithm = Algorithm::kAuto;
    int chunk = 0;
    int threads = 0;
    bool batch_invariant = false;
    Device device{};

    std::vector<BoundInput> inputs;  // in the order of spec.inputs
    BoundInput o;
    BoundState initial, final, checkpoints;
    BoundState initial_key_sum, final_key_sum;  // stride_v unused
    std::vector<Sequence> sequences;            // N of them
    std::vector<std::vector<Checkpoint>>
        sequence_checkpoints;  // per sequence, sorted; may be empty
    /// step() with 2-D write_slots: [N * T] slots, row-major; else empty.
    std::vector<std::int64_t> token_write_slots;

    struct {
        DeviceIndices cu_seqlens, read_slots, write_slots, has_initial, accepted;
        DeviceIndices checkpoint_sequences, checkpoint_positions, checkpoint_slots;
    } indices;
    void* stream = nullptr;
    bool compile = true;
    void* workspace = nullptr;  // null: the back end allocates
    std::int64_t workspace_bytes = 0;

    [[nodiscard]] const BoundInput& input(const std::string& name) const;
    /// "gla B1 T4096 H16 HV16 K128 V128 bfloat16"
    [[nodiscard]] std::string to_string() const;
};

/// The extents that the inputs (and cu_seqlens) agree on, checked as bind() checks them; for
/// callers that allocate outputs. arguments.o and the states are not looked at.
[[nodiscard]] Dims infer_dims(const Spec& spec, const Arguments& arguments);

/// Validates `arguments` against `spec` and binds them. Throws Error; reads no tensor elements but
/// those of the (CPU) index tensors. (options.validate is forward()'s and step()'s.)
[[nodiscard]] Problem bind(const Spec& spec, const Arguments& arguments, const Options& options,
                           Phase phase = Phase::kPrefill);

/// bind() again where only addresses, the workspace and the stream differ, for a fraction of its
/// time: points `problem`, in place, at the memory of `arguments`. It is the caller's to know that
/// it came from bind() with the same spec, options and phase and with tensors alike (which there
/// are, devices, dtypes, shapes, strides). Throws Error as bind() does, for what addresses can get
/// wrong; `problem` is then of no use. On CUDA devices only: on the CPU a problem also holds what
/// index tensors say.
void rebind(Problem& problem, const Arguments& arguments, const Options& options);

}  // namespace sluice
