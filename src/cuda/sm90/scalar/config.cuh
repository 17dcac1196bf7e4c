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
    /// Outputs are divided by what queries read of the sum of keys (normalizer.cuh).
    static constexpr bool kNormalized = SLUICE_NORMALIZED;
    /// First pass of a split sequence: only each segment's own state and decay.
    static constexpr bool kStateOnly = SLUICE_STATE_ONLY;
    /// Blocks of the first launch have computed the scores, once for all blocks of a key head;
    /// otherwise each block computes its own.
    static constexpr bool kLoadsScores = SLUICE_SHARED_SCORES;
    static constexpr int kStages = SLUICE_STAGES;  // chunks in flight
    /// Chunks that wait for math when the scores role is done with them. First launch: a stage's,
    /// without scores.
    static constexpr int kSlots = kStateOnly ? kStages : 2;
    static constexpr int kOutputs = 2;  // chunks of O on their way out

    static constexpr int kChunk = 64;
    static constexpr int kValueBoxes = kHeads * kTiles;  // of 64 value channels of a head
    /// Warpgroups that share a box's state, 64 x 256 being twice what one has registers for: each
    /// has half of the key channels, and the first finishes the output.
    static constexpr int kKeyHalves = kKeys > 128 ? 2 : 1;
    static constexpr int kGroupKeys = kKeys / kKeyHalves;
    /// Boxes that a warpgroup has: of four heads in the first launch, which has no more than states
    /// to keep in registers, two.
    static constexpr int kGroupBoxes = kValueBoxes > 2 ? 2 : 1;
    static constexpr int kMathGroups = kValueBoxes * kKeyHalves / kGroupBoxes;
    static constexpr int kMathThreads = 128 * kMathGroups;
    static constexpr int kScoreThreads = 128;  // first launch: the gates' instead
    /// Who clears what a last chunk has too many, and converts fp16; of normalised outputs' first
    /// launch also who adds up keys.
    static constexpr int kTidyThreads = kStateOnly && !kNormalized ? 64 : kScoreThreads;
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
    static constexpr int kLoadRegisters = !kWhole            ? 56
                                          : kGroupBoxes == 2 ? 32
                                          : kStateOnly       ? 64
                                          : kLoadsScores     ? 40
                                                             : 32;
    static constexpr int kScoreRegisters = kMathGroups == 1   ? 168
                                           : !kWhole          ? 104
                                           : kGroupBoxes == 2 ? 64
                                           : kStateOnly       ? 96
                                           : kLoadsScores     ? 40
                                           : kNormalized      ? 96
                                                              : 64;
    static constexpr int kMathRegisters = kMathGroups == 1   ? 232
                                          : !kWhole          ? 176
                                          : kGroupBoxes == 2 ? 208
                                          : kStateOnly       ? 176
                                          : kLoadsScores     ? 216
                                          : kNormalized      ? 192
                                                             : 208;
    /// A chunk's values stay in registers from before its products to after them.
    static constexpr bool kReadsEarly = kLoadsScores;
    static constexpr bool kKeepsValues = kMathGroups == 1;
    static_assert(128 * kLoadRegisters + kScoreThreads * kScoreRegisters +
                      kMathThreads * kMathRegisters <=
                  kThreads * kLaunchRegisters);

    // Gates of a head: a warp beside load and store, or in the scores role's place.
    static_assert(kHeads == 1 || kHeads == 2 || kStateOnly && kHeads == 4);
    static_assert(kKeys == 64 || kKeys == 128 || kKeys == 256);
    static_assert(kKeyHalves == 1 || kValueBoxes == 1);
    static_assert(kMathGroups == 1 || kMathGroups == 2);
    static_assert(kStages >= 2);
    static_assert(!kLoadsScores || !kStateOnly && !kConverted);
    static_assert(!kNormalized || kGate == Gate::kNone && kHeads == 1 && !kLoadsScores);
};

}  // namespace sluice::scalar
