// Two blocks that prepare chunks for each other: a cluster of neighbouring tiles of a head's value
// channels. Block r prepares the chunks i with i % 2 = r in its own stage and slot, and the send role
// copies q~, k~ and the slot to the same places in the other block, which has loaded V there.
//
//   barrier       its phase ends when                               who waits
//   stage_full    own: q, k, v and g have come                      prepare
//                 given: V has come, and q~ and k~                  math
//   rows_full     own: prepare has written q~ and k~                send
//   slot_full     own: prepare has written the slot                 math, send
//                 given: the slot has come                          math
//   stage_empty   own: math is done with it, the other has it       load
//                 given: math is done with it                       load
//   slot_empty    own: math is done with it                         prepare
//   other_done    math of the other is done with the own slot       prepare
//   gates_empty   prepare has read the gates                        load
//
// A stage and a slot are own or given throughout: chunk i is in stage i % kStages and slot i % 2, and
// kStages is even. Where a chunk goes is free when it is sent. Its slot: prepare has filled its own after
// other_done of the chunk i - 2. Its stage: the send role has sent the slot of i - 2, which prepare had
// filled after other_done of i - 4. No phase ends a second time before all who wait for its first end have
// seen that: what would end it needs what they do next. Say rows_full: chunk i + 4 has q~ only after it was
// loaded, into a stage that the other block had received, from the send role.
#pragma once

#include "sm90/gla/state.cuh"

namespace sluice::gla {

/// The send role: one thread.
__device__ inline void send_all(Storage& s) {
    const u32 rank = cluster_rank(), other = rank ^ 1;
    const auto send = [&](const void* from, u32 bytes, const Barrier& full) {
        copy_to_cluster(cluster_address(shared_address(from), other), from, bytes,
                        cluster_address(shared_address(&full.word), other));
    };
    const int chunks = s.task.end - s.task.first;
    for (int i = static_cast<int>(rank); i < chunks; i += Config::kTeams) {
        const int stage = i % Config::kStages, slot = i % Config::kTeams;
        s.rows_full[stage].wait(i / Config::kStages & 1);
        send(s.stage[stage].k, Config::kKeyBytes, s.stage_full[stage]);
        send(s.stage[stage].q, Config::kKeyBytes, s.stage_full[stage]);
        s.slot_full[slot].wait(i / Config::kTeams & 1);
        send(&s.slot[slot], SlotStorage::kSentBytes, s.slot_full[slot]);
    }
}

/// The segment's i-th chunk, given by the other block: math waits for its rows, has its slot counted, and
/// clears the rows of V from the `valid`-th on, which hold the sequence's neighbour: zero times infinity is
/// NaN.
__device__ inline void receive_chunk(Storage& s, const Fragment& at, int i, int stage, int slot,
                                     int valid) {
    if (at.thread == 0) s.slot_full[slot].arrive_expect(SlotStorage::kSentBytes);
    s.stage_full[stage].wait(i / Config::kStages & 1);
    arrive_cluster_warp(
        cluster_address(shared_address(&s.stage_empty[stage].word), cluster_rank() ^ 1));
    if (valid >= Config::kChunk) return;
    const u32 v = shared_address(s.stage[stage].v);
    for (int byte = valid * 128 + at.thread * 4; byte < Config::kBoxBytes; byte += 512) {
        store_shared(v + byte, 0);
    }
    fence_async_proxy();
    named_barrier(kMathBarrier + at.group, 128);
}

/// Math is done with a chunk: to those who fill its stage and slot again.
__device__ inline void release_chunk(Storage& s, int stage, int slot, bool own) {
    s.stage_empty[stage].arrive_warp();
    if (own) return s.slot_empty[slot].arrive_warp();
    arrive_cluster_warp(cluster_address(shared_address(&s.other_done.word), cluster_rank() ^ 1));
}

}  // namespace sluice::gla
