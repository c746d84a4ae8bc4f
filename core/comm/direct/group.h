// SPDX-License-Identifier: Apache-2.0
//
// Group: one rank's view of a ControlBlock: arrive, wait, agree on failure.
//
// Every wait is bounded by its deadline and checks at intervals for peers that
// can no longer arrive. A round ends the same way on all ranks: complete, or
// failed with one recorded error. A rank that dies after it has arrived does
// not fail the round: the next round reports it.
//
// A duplicate is a group of the same ranks with a block, and so with rounds, of
// its own. The duplicates share their origin, the group that was opened: the
// origin knows which ranks are there, and every group of the family reports its
// errors to the origin. The waits of a duplicate check the origin, at the same
// intervals, for errors of the other groups. Waits also look, at these
// intervals, for deadlocks of hosts in different groups (deadlock.h).
//
// Threads: one thread at a time calls Begin, Continue and SleepUntil; Fail,
// ShutDown, failed and is_shut_down may be called from any thread.

#ifndef SHARD_CORE_COMM_DIRECT_GROUP_H_
#define SHARD_CORE_COMM_DIRECT_GROUP_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/direct/call.h"
#include "core/comm/direct/control_block.h"
#include "core/comm/direct/liveness.h"
#include "core/comm/direct/membership.h"
#include "core/comm/host_waits.h"

namespace shard::direct {

class Group {
 public:
  // `block` owns its memory; `membership` is one in `block`; `liveness` may be
  // null. `find_deadlocks_at_once`: of CommOptions. REQUIRES: 0 <=
  // membership.rank() < world_size <= kMaxRanks.
  Group(std::shared_ptr<ControlBlock> block, Membership membership,
        int world_size, std::shared_ptr<const Liveness> liveness,
        bool find_deadlocks_at_once = false);

  // Makes a duplicate of `group`.
  Group(std::shared_ptr<ControlBlock> block,
        const std::shared_ptr<Group>& group);
  ~Group();

  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  HostWaits& host_waits() { return host_waits_; }

  // Runs the first round of `call`: compares the ranks' fingerprints (kDesync
  // when they differ) and sends `send`. REQUIRES: bytes <= kPayloadBytes.
  Status Begin(const Call& call, const void* send, size_t bytes,
               const Deadline& deadline);

  // Runs a further round of the same call. REQUIRES: Begin succeeded.
  Status Continue(const Call& call, const void* send, size_t bytes,
                  const Deadline& deadline);

  // Sleeps until `end`. Returns the group's error if it fails meanwhile. Fails
  // the group when `deadline` comes first.
  Status SleepUntil(const Call& call, const Deadline& end,
                    const Deadline& deadline);

  // Returns the bytes that `rank` sent in the last round; valid until the next.
  const std::byte* payload(int rank) const;

  // Ends the group and its origin for all ranks with `error`, unless they have
  // failed already. Allocates nothing, because memory may have run out.
  void Fail(const Status& error);

  // Returns whether the group or its origin has failed.
  bool failed() const;

  // Shuts down after the last collective: a duplicate alone, or an origin with
  // all its duplicates. A rank that leaves afterwards is not lost.
  void ShutDown();
  bool is_shut_down() const;

 private:
  // An error, with a view of its text.
  struct Reason {
    StatusCode code;
    int rank;
    std::string_view message;
  };
  static Reason ReasonOf(const Status& error) {
    return {error.code(), error.rank(), error.message()};
  }

  Status Round(const Call& call, const void* send, size_t bytes,
               const Deadline& deadline);
  Status Wait(const Call& call, const Deadline& deadline);
  Status CompareCalls();
  bool AllArrived() const;
  // Returns the error of a rank that has not arrived and never will.
  Status FindLost(const Call& call) const;
  // Returns kDesync when this round waits for hosts that wait for each other in
  // groups of the family.
  Status CheckForDeadlock() const;
  Status DescribeLate(const Call& call, const Deadline& deadline) const;
  // Fails the current round unless it has been decided meanwhile; returns the
  // result of the round.
  Status FailRound(const Status& error);
  void FailThis(const Reason& reason);
  Reason RecordedReason(const State& state) const;
  Status Recorded(const State& state) const;
  // Returns the recorded error as the result of this group, and reports it to
  // the origin.
  Status Failure(const State& state);
  // Returns the origin's error; OK when it has none, or this is the origin.
  Status OriginFailure() const;
  void Record(const Reason& reason);
  std::string NameOf(int rank) const;
  std::string LastCallOf(int rank) const;
  RankSlot& slot(int rank) const { return block_->slots()[rank]; }
  State state() const;

  const Group& origin() const { return origin_ != nullptr ? *origin_ : *this; }

  // The blocks of a family that this rank has.
  struct Family {
    std::mutex mutex;
    std::vector<ControlBlock*> blocks;  // GUARDED_BY(mutex)
  };

  const std::shared_ptr<Group> origin_;  // Null in the origin.
  const std::shared_ptr<ControlBlock> block_;
  Membership membership_;  // In no group in a duplicate.
  const int rank_;
  const int world_size_;
  const std::shared_ptr<const Liveness> liveness_;
  const int spins_;
  const bool find_deadlocks_at_once_;
  const pid_t owner_;
  const std::shared_ptr<Family> family_;
  HostWaits host_waits_;
  std::atomic<bool> shut_down_{false};
  uint64_t round_ = 0;
  uint64_t calls_ = 0;
  Fingerprint mine_{};       // The call in progress.
  std::mutex record_mutex_;  // Guards this rank's FailureRecord.
};

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_GROUP_H_
