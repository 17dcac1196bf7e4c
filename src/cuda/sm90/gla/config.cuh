// Compile-time choices of the GLA kernel; the plan passes them as definitions.
#pragma once

namespace sluice::gla {

enum class InputType { kBFloat16, kFloat16 };
enum class GateType { kBFloat16, kFloat16, kFloat32 };

struct Config {
    static constexpr int kKeys = SLUICE_KEYS;                    // of a block; 64 or 128
    static constexpr int kKeyParts = SLUICE_KEY_PARTS;           // blocks that K is spread over
    static constexpr int kMathGroups = SLUICE_MATH_GROUPS;       // 64 value channels each
    static constexpr int kStages = SLUICE_STAGES;                // chunks in flight
    static constexpr InputType kInput = InputType::SLUICE_INPUT;
    static constexpr GateType kGate = GateType::SLUICE_GATE;
    /// First pass of a split sequence: only each segment's own state and decay.
    static constexpr bool kStateOnly = SLUICE_STATE_ONLY;
    /// The blocks of a head's key channels are a cluster and add up their outputs; each stores the
    /// sum for its share of the chunk's tokens.
    static constexpr bool kClustered = kKeyParts > 1 && !kStateOnly;
    /// Two blocks with neighbouring tiles of a head's value channels are a cluster that prepares each
    /// chunk once: of the two teams each block has one, which writes its chunks into both.
    static constexpr bool kPaired = SLUICE_PAIRED;

    static constexpr int kChunk = 64;
    static constexpr int kBlock = 16;   // rows per decay anchor
    static constexpr int kBlocks = kChunk / kBlock;
    static constexpr int kTeams = SLUICE_TEAMS;         // chunks in preparation at a time
    static constexpr int kPrepareGroups = kKeys / 64;   // warpgroups of a team
    static constexpr int kTeamThreads = 128 * kPrepareGroups;
    static constexpr int kOwnTeams = kPaired ? 1 : kTeams;  // of the block
    static constexpr int kPrepareThreads = kOwnTeams * kTeamThreads;
    static constexpr int kSlots = 2 / kTeams;           // items of a team that wait for math
    static constexpr int kMathThreads = 128 * kMathGroups;
    /// Loads by a warpgroup of its own, or by a thread of math: then its registers are the others'.
    static constexpr bool kLoadRole = SLUICE_LOAD_ROLE;
    static constexpr int kLoadThreads = kLoadRole ? 128 : 0;
    static constexpr int kThreads = kPrepareThreads + kMathThreads + kLoadThreads;
    static constexpr int kValueTile = 64 * kMathGroups;

    static constexpr int kOutputTokens = kChunk / kKeyParts;  // of a chunk that a block stores

    static constexpr int kBoxBytes = 64 * 128;  // 64 tokens of 128 bytes
    static constexpr int kOutputBytes = kOutputTokens * 128;
    static constexpr int kKeyBytes = kKeys / 64 * kBoxBytes;
    static constexpr int kValueBytes = kMathGroups * kBoxBytes;
    static constexpr int kGateBytes = kGate == GateType::kFloat32 ? 2 * kKeyBytes : kKeyBytes;
    static constexpr int kStageBytes =
        (kStateOnly ? 1 : 2) * kKeyBytes + kValueBytes + kGateBytes;

    // Registers a thread has at launch, and what the roles exchange. The block's pool is what it was
    // launched with, and a warpgroup that asks for more than is left waits for ever.
    static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
    static constexpr int kLoadRegisters = 24;
    static constexpr int kPrepareRegisters = SLUICE_PREPARE_REGISTERS;
    static constexpr int kMathRegisters = SLUICE_MATH_REGISTERS;
    static_assert(kLoadThreads * kLoadRegisters + kPrepareThreads * kPrepareRegisters +
                      kMathThreads * kMathRegisters <=
                  kThreads * kLaunchRegisters);

    /// A product may not write more registers than a thread is launched with has room for.
    static constexpr bool kWholeStateProduct = kKeys == 64 || kLaunchRegisters > 100;
    /// Running sums of the gates stay in registers where there are enough.
    static constexpr bool kKeepSums = kPrepareRegisters >= 112;

    // Distances inside a stage (storage.cuh, Stage): k, v, g, q.
    static constexpr int kGateOffset = kKeyBytes + kValueBytes;
    static constexpr int kQueryOffset = kGateOffset + (kPaired ? 0 : kGateBytes);

    static_assert(kKeys == 64 || kKeys == 128);
    static_assert(kKeyParts == 1 || kKeyParts == 2);
    static_assert(kMathGroups == 1 || kMathGroups == 2);
    static_assert(kTeams == 1 || kTeams == 2);
    static_assert(kStages >= kTeams + 1);
    // A stage always serves the same team. Else a team could wait for its chunk before another's has come
    // into the same stage (copies overtake each other), and the parity of two phases ago would let it in.
    static_assert(kStages % kTeams == 0);
    static_assert(!kPaired || (kTeams == 2 && kMathGroups == 1 && kKeyParts == 1 && kLoadRole));
    static_assert(!kPaired || (kKeepSums && !kStateOnly));
    static_assert(!kPaired || (kInput == InputType::kBFloat16 && kGate != GateType::kFloat32));
};

}  // namespace sluice::gla
