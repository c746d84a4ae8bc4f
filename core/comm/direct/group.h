// SPDX-License-Identifier: Apache-2.0
//
// Group: one rank's view of a ControlBlock: arrive, wait, agree on failure.
//
// Every wait is bounded by its deadline and looks, in slices, for peers that
// can no longer arrive. A round ends the same way on all ranks: complete, or
// failed with one recorded error. A rank that dies after it has arrived does
// not spoil the round: the next one reports it.
//
// Threads: one thread at a time calls Round; Fail, Leave and failed may be
// called from any thread.

#ifndef SHARD_CORE_COMM_DIRECT_GROUP_H_
#define SHARD_CORE_COMM_DIRECT_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/direct/control_block.h"
#include "core/comm/direct/liveness.h"

namespace shard::direct {

// A collective as its caller named it.
struct Call {
  Operation operation;
  std::string_view what;
  uint64_t bytes = 0;
  bool direct = true;
  TensorCall tensor = {};
};

class Group {
 public:
  // `block` must stay mapped while the group lives; `liveness` may be null.
  // REQUIRES: 0 <= rank < world_size <= kMaxRanks.
  Group(ControlBlock* block, int rank, int world_size,
        std::unique_ptr<Liveness> liveness);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  // The first round of `call`: compares the ranks' fingerprints (kDesync when
  // they differ) and carries `send`. REQUIRES: bytes <= kPayloadBytes.
  Status Begin(const Call& call, const void* send, size_t bytes,
               const Deadline& deadline);

  // A further round of the same call. REQUIRES: Begin succeeded.
  Status Continue(const Call& call, const void* send, size_t bytes,
                  const Deadline& deadline);

  // Sleeps until `end`, at most until the group fails, which is then the
  // result. Fails the group when `deadline` comes first.
  Status SleepUntil(const Call& call, const Deadline& end,
                    const Deadline& deadline);

  // What `rank` sent in the round just completed; valid until the next.
  const std::byte* payload(int rank) const;

  // Ends the group for all ranks with `error`, unless it has failed already.
  void Fail(const Status& error);

  // True once the group has failed.
  bool failed() const;

  // Tells the peers that this rank will not come again.
  void Leave(Presence how);

 private:
  Status Round(const Call& call, const void* send, size_t bytes,
               const Deadline& deadline);
  Status Wait(const Call& call, const Deadline& deadline);
  Status CompareCalls();
  bool AllArrived() const;
  Status FindLost(const Call& call) const;
  Status DescribeLate(const Call& call, const Deadline& deadline) const;
  // Fails the current round unless it has been decided meanwhile; the result
  // is that of the round.
  Status FailRound(const Status& error);
  // The recorded error as this round's result, or as that of a later call.
  Status Recorded(const State& state) const;
  Status Sticky(const State& state) const;
  void Record(const Status& error);
  void Announce();
  std::string NameOf(int rank) const;
  std::string LastCallOf(int rank) const;
  RankSlot& slot(int rank) const { return block_->slots()[rank]; }
  State state() const;

  ControlBlock* const block_;
  const int rank_;
  const int world_size_;
  const std::unique_ptr<Liveness> liveness_;
  const int spins_;
  uint64_t round_ = 0;
  uint64_t calls_ = 0;
  Fingerprint mine_{};       // The call in progress.
  std::mutex record_mutex_;  // Guards this rank's FailureRecord.
};

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_GROUP_H_
