// SPDX-License-Identifier: Apache-2.0
//
// ControlBlock: the memory in which ranks that share memory meet in each round.
//
// A round is one "everybody has arrived". Rank r arrives at round s by writing
// its cell of s and then storing s into its `arrived`. The cells of a rank form
// a ring of n, and the cell of round s is number s % n: a rank may be n - 1
// rounds ahead of a peer that still reads, so it arrives at round s only when
// all ranks have arrived at s - n + 1, and a cell that a slow peer reads is
// never overwritten. With n = 2 the rank has waited for that already: it was
// there when the round before was complete.
//
// `state` is the one place where a round is decided: (rounds completed,
// failer). A rank that sees that all have arrived at s moves it to s; a rank
// that gives up sets the failer to its rank + 1. Both are a compare-and-swap
// from "less than s completed, no failer", so a round completes for all ranks
// or fails for all ranks, whatever the timing; a rank killed between any two
// instructions leaves the round decidable.
//
// The block is zero at birth, lives in heap memory (threads) or in a memfd
// (processes), and holds no pointers. Atomics are lock-free, hence valid
// between processes.
//
// Ranks on several hosts have a block on each of them, which mirrors keep alike
// (core/comm/network/helper/mirror.h): what a rank writes is written into the
// other blocks in the same order. Each block then has a `state` of its own, and
// a round that one host decides is decided alike by the others, but for one
// that fails where another host has completed it: there the next round fails.

#ifndef SHARD_CORE_COMM_DIRECT_CONTROL_BLOCK_H_
#define SHARD_CORE_COMM_DIRECT_CONTROL_BLOCK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/comm/host_waits.h"
#include "core/comm/rank_set.h"

namespace shard::direct {

// The most ranks of a group, on one host or several. The failer field and the
// file descriptors (on one host a pidfd per peer) would allow some more.
inline constexpr int kMaxRanks = 512;

// Copy into a cell, and from one. A cell may be read while its rank writes it
// again, by a reader that then throws away what it has read: relaxed words make
// that race a defined one, and a reader of new bytes sees, after LoadWords,
// what the rank stored before StoreWords. The cell's bytes begin at a multiple
// of 8, and are written up to the next one, with zeros.
void StoreWords(const void* from, size_t bytes, void* to);
void LoadWords(const void* from, size_t bytes, void* to);

// Bytes of control data in a round. Larger gathers take several rounds.
inline constexpr size_t kPayloadBytes = 8192;
inline constexpr size_t kWhatBytes = 80;
inline constexpr size_t kMessageBytes = 1024;

// Two lines: the adjacent-line prefetcher pulls pairs.
inline constexpr size_t kLine = 128;

enum class Operation : uint32_t {
  kBarrier = 1,
  kAllGather = 2,
  kAllocatePerRank = 3,
  kAllocatePerHost = 4,
  kShutdown = 5,
  kReduceScatter = 6,
  kAllGatherBlocks = 7,
  kBroadcast = 8,
  kDuplicate = 9,
  kOpenExchange = 10,
  kOpenNotices = 11,
  kNotice = 12,
  kGatherOnHosts = 13,
};

// The arguments of a tensor collective, beside the number of elements or bytes
// in Fingerprint::bytes. They must be the same on all ranks, except for the
// first rank of the set.
struct TensorCall {
  RankSet set;
  int32_t root;
  int32_t dtype;
  int32_t recv_dtype;
  int32_t add;
  int32_t block_groups;
};

// The call of a rank, which must be the same on all ranks.
struct Fingerprint {
  uint32_t operation;
  uint32_t what_bytes;  // Bytes of `what`, which is cut to fit.
  uint64_t what_hash;   // Hash of the text before the cut.
  uint64_t bytes;
  uint64_t number;  // Number of collectives before this one.
  TensorCall tensor;
  int32_t direct;  // Whether the ranks may see each other's memory.
  char what[kWhatBytes];
};

// The head of a cell; the payload follows it.
struct alignas(64) Cell {
  Fingerprint call;
  uint64_t payload_bytes;  // In use.
  // The number of this round among those that the rank has entered in all
  // blocks of the family, from 1; 0 without a mirror.
  uint64_t order;

  std::byte* payload() { return reinterpret_cast<std::byte*>(this + 1); }
};

// The cells of a rank.
struct CellRing {
  size_t count;
  size_t payload_bytes;  // In one round.

  // Returns the bytes from one cell to the next.
  constexpr size_t stride() const {
    return sizeof(Cell) +
           (payload_bytes + alignof(Cell) - 1) / alignof(Cell) * alignof(Cell);
  }
};

// The cells of ranks that wait for each other in every round.
inline constexpr CellRing kRoundCells = {2, kPayloadBytes};
// The cells of an exchange, whose ranks are up to two rounds ahead of the round
// that they read (direct_exchange.h).
inline constexpr CellRing kExchangeCells = {4, kPayloadBytes};

struct FailureRecord {
  int32_t code;  // StatusCode
  int32_t rank;  // Status::rank()
  uint32_t message_bytes;
  char message[kMessageBytes];
};

// The presence of a rank; kept in the first block of a family, not in those of
// duplicates.
enum Presence : uint32_t {
  kPresent = 0,
  kLeft = 1,      // Left without Shutdown: lost for the others.
  kShutDown = 2,  // Left after a Shutdown that completed.
  // Said of a rank by the mirror (below); what a rank said itself stays.
  kDied = 3,         // Died or was killed.
  kUnreachable = 4,  // Its host cannot be reached.
};

struct alignas(kLine) RankSlot {
  std::atomic<uint64_t> arrived;
  std::atomic<uint32_t> presence;
  // Read by others only when `state` names this rank as the failer.
  FailureRecord failure;
  alignas(kLine) HostWait host_wait;
  // The round for which the rank waits, once it has waited for some time. The
  // wait goes on until that round is complete. Never less than before.
  std::atomic<uint64_t> awaited;
  // The rounds of this rank, from the first, of which the mirror has read the
  // cells. Unused without a mirror.
  std::atomic<uint64_t> mirrored;
};

struct alignas(kLine) ControlBlock {
  std::atomic<uint64_t> state;
  // The futex word: changes whenever `state` or a `presence` does, and when a
  // rank has arrived that does not wait.
  alignas(kLine) std::atomic<uint32_t> event;
  // The number of waiting ranks. Only saves wake-ups: a count left behind by a
  // killed rank does no harm.
  std::atomic<uint32_t> waiters;
  // In the first block of a family, for its mirror: whether it must be woken
  // (bell.h), and a count that is odd while it writes the waits of other hosts'
  // ranks, which are to be read together.
  alignas(kLine) std::atomic<uint32_t> mirror_sleeps;
  std::atomic<uint64_t> mirror_writes;

  // Wakes the waiting ranks, after a change.
  void Announce();

  // The slots follow the block, and the cells of all ranks follow the slots.
  RankSlot* slots() { return reinterpret_cast<RankSlot*>(this + 1); }

  static constexpr size_t Bytes(int world_size,
                                const CellRing& ring = kRoundCells) {
    return sizeof(ControlBlock) +
           static_cast<size_t>(world_size) *
               (sizeof(RankSlot) + ring.count * ring.stride());
  }
};

// A block and the layout that its ranks have agreed on.
struct BlockView {
  ControlBlock* block;
  int world_size;
  CellRing ring = kRoundCells;
  // Another block in which the ranks publish work of their libraries' threads
  // on this one, and the waits of their hosts for that work. May be null.
  ControlBlock* work_block = nullptr;

  RankSlot& slot(int rank) const { return block->slots()[rank]; }
  const RankSlot& work_slot(int rank) const {
    return (work_block != nullptr ? work_block : block)->slots()[rank];
  }
  Cell& cell(int rank, uint64_t round) const {
    auto* cells = reinterpret_cast<std::byte*>(block->slots() + world_size);
    const size_t index =
        static_cast<size_t>(rank) * ring.count + round % ring.count;
    return *reinterpret_cast<Cell*>(cells + index * ring.stride());
  }
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<uint32_t>) == 4, "it is a futex word");
static_assert(kMaxRanks < (1 << 16), "State keeps the failer in 16 bits");

// The packed `state`.
struct State {
  uint64_t completed;
  int failer;  // -1: none

  static State Unpack(uint64_t word) {
    return {word >> 16, static_cast<int>(word & 0xFFFF) - 1};
  }
  uint64_t Pack() const {
    return (completed << 16) | static_cast<uint64_t>(failer + 1);
  }
};

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_CONTROL_BLOCK_H_
