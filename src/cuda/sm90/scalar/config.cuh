// Compile-time choices of the kernel for scalar decays; the plan passes them as definitions.
#pragma once

namespace sluice::scalar {

/// Where a token's log decay and the weight of its value come from (gates.cuh).
enum class Gate {
    kNone,
    kConstant,  // per head
    kGiven,     // per token and head
    kTimeStep,  // Mamba-2: from a time step per token and a rate per head
};

/// What q, k, v, z and o hold.
enum class Input { kBFloat16, kFloat16 };

/// D x added to the output.
enum class Skip { kNone, kHead, kChannel };

struct Config {
    static constexpr int kKeys = SLUICE_KEYS;    // 64, 128 or 256; K padded
    static constexpr int kHeads = SLUICE_HEADS;  // value heads of one key head, which share scores
    static constexpr int kTiles =
        SLUICE_TILES;  // of 64 value channels, which share a head's scores
    static constexpr Input kInput = Input::SLUICE_INPUT;
    /// fp16's range holds neither states nor weighed values: products with them take q and k as
    /// bf16.
    static constexpr bool kConverted = kInput == Input::kFloat16;
    static constexpr Gate kGate = Gate::SLUICE_GATE;
    static constexpr Skip kSkip = Skip::SLUICE_SKIP;
    static constexpr bool kGated = SLUICE_GATED;  // the output is times silu(z)
    /// First pass of a split sequence: only each segment's own state and decay.
    static constexpr bool kStateOnly = SLUICE_STATE_ONLY;
    /// Blocks of the first launch have computed the scores, once for all blocks of a key head;
    /// otherwise each block computes its own.
    static constexpr bool kLoadsScores = SLUICE_SHARED_SCORES;
    static constexpr int kStages = SLUICE_STAGES + (kStateOnly ? 3 : 0);  // chunks in flight
    /// Chunks that wait for math when the scores role is done with them; where scores are shared,
    /// that role has a part in few.
    static constexpr int kSlots = kStateOnly ? 4 : kLoadsScores ? 1 : 2;
    static constexpr int kOutputs = 2;  // chunks of O on their way out

    static constexpr int kChunk = 64;
    static constexpr int kValueBoxes = kHeads * kTiles;  // of 64 value channels of a head
    /// Warpgroups that share a box's state, 64 x 256 being twice what one has registers for: each
    /// has half of the key channels, and the first finishes the output.
    static constexpr int kKeyHalves = kKeys > 128 ? 2 : 1;
    static constexpr int kGroupKeys = kKeys / kKeyHalves;
    static constexpr int kMathGroups = kValueBoxes * kKeyHalves;
    static constexpr int kMathThreads = 128 * kMathGroups;
    static constexpr int kScoreThreads = 128;
    /// Warps that release a stage: math's, and scores' where math does not wait for that role.
    static constexpr int kStageReaders = (kMathThreads + (kLoadsScores ? kScoreThreads : 0)) / 32;
    static constexpr int kThreads = kMathThreads + kScoreThreads + 128;
    static constexpr int kValueTile = 64 * kTiles;

    static constexpr int kBoxBytes = 64 * 128;  // 64 tokens of 128 bytes
    static constexpr int kKeyBytes = kKeys / 64 * kBoxBytes;
    static constexpr int kValueBytes = kValueBoxes * kBoxBytes;
    static constexpr int kStageBytes =
        (kStateOnly ? 1 : 2) * kKeyBytes + kValueBytes + (kLoadsScores ? kBoxBytes : 0);
    /// Shared scores: chunks of q and k in flight, in the place of stages.
    static constexpr int kPairs = 2;

    // Registers a thread has at launch, and what the roles exchange.
    static constexpr int kLaunchRegisters =
        65536 / kThreads / 8 * 8 < 168 ? 65536 / kThreads / 8 * 8 : 168;
    static constexpr bool kWhole =
        kMathGroups == 2 && kGroupKeys == 128;  // every register is taken
    // The first launch has no scores, and its gates are more chunks ahead.
    static constexpr int kLoadRegisters = !kWhole ? 56 : kStateOnly ? 64 : kLoadsScores ? 40 : 32;
    static constexpr int kScoreRegisters = kMathGroups == 1 ? 168
                                           : !kWhole        ? 104
                                           : kStateOnly     ? 96
                                           : kLoadsScores   ? 40
                                                            : 64;
    static constexpr int kMathRegisters = kMathGroups == 1 ? 232
                                          : !kWhole        ? 176
                                          : kStateOnly     ? 176
                                          : kLoadsScores   ? 216
                                                           : 208;
    /// A chunk's values stay in registers from before its products to after them.
    static constexpr bool kReadsEarly = kLoadsScores;
    static_assert(128 * kLoadRegisters + kScoreThreads * kScoreRegisters +
                      kMathThreads * kMathRegisters <=
                  kThreads * kLaunchRegisters);

    static_assert(kHeads == 1 || kHeads == 2);  // gates of a head: a warp beside load and store
    static_assert(kKeys == 64 || kKeys == 128 || kKeys == 256);
    static_assert(kKeyHalves == 1 || kValueBoxes == 1);
    static_assert(kMathGroups == 1 || kMathGroups == 2);
    static_assert(kStages >= 2);
    static_assert(!kLoadsScores || !kStateOnly && !kConverted);
};

}  // namespace sluice::scalar
