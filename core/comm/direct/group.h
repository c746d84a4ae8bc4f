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
// its own. Notices (core/comm/notices.h) are rounds in a block of their own,
// too, with more cells: a rank may be many rounds ahead of the others.
// Duplicates and notices share their origin, the group that was opened: the
// origin knows which ranks are there, and every group of the family reports its
// errors to the origin. Their waits check the origin, at the same
// intervals, for errors of the other groups. Waits also look, at these
// intervals, for deadlocks of hosts in different groups (deadlock.h).
//
// Threads: one thread at a time calls Begin, Continue, Meet, Post, Await and
// SleepUntil; Check, Fail, failure, ShutDown, failed and is_shut_down may be
// called from any thread.

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
#include "core/comm/direct/bell.h"
#include "core/comm/direct/call.h"
#include "core/comm/direct/control_block.h"
#include "core/comm/direct/liveness.h"
#include "core/comm/direct/membership.h"
#include "core/comm/host_waits.h"

namespace shard::direct {

class Group {
 public:
  // `block` owns its memory; `membership` is one in `block`; `liveness` may be
  // null. `find_deadlocks_at_once`: of CommOptions. `bell`: that of the mirror
  // of this family, where ranks are on several hosts. REQUIRES: 0 <=
  // membership.rank() < world_size <= kMaxRanks.
  Group(std::shared_ptr<ControlBlock> block, Membership membership,
        int world_size, std::shared_ptr<const Liveness> liveness,
        bool find_deadlocks_at_once = false,
        std::shared_ptr<const Bell> bell = nullptr);

  // Makes a duplicate of `group`.
  Group(std::shared_ptr<ControlBlock> block,
        const std::shared_ptr<Group>& group);
  // Makes a group for rounds that threads of `group` enter beside its own. Work
  // of the library's threads that is counted in `group`'s HostWaits may be work
  // on this one.
  Group(std::shared_ptr<ControlBlock> block,
        const std::shared_ptr<Group>& group, const CellRing& ring);
  ~Group();

  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  HostWaits& host_waits() { return host_waits_; }

  // Runs the first round of `call`: compares the ranks' fingerprints (kDesync
  // when they differ) and sends `send`. REQUIRES: `bytes` fit into a cell.
  Status Begin(const Call& call, const void* send, size_t bytes,
               const Deadline& deadline);

  // Runs a further round of the same call. REQUIRES: Begin succeeded.
  Status Continue(const Call& call, const void* send, size_t bytes,
                  const Deadline& deadline);

  // Runs the first round of `call` without comparing fingerprints.
  Status Meet(const Call& call, const void* send, size_t bytes,
              const Deadline& deadline);

  // Enters the next round of `call`, and sends `send`, without waiting for
  // other ranks to enter it. Waits for a rank that is so many rounds behind
  // that no cell is free. REQUIRES: as Begin.
  Status Post(const Call& call, const void* send, size_t bytes,
              const Deadline& deadline);
  // Enters a further round of the same call likewise. REQUIRES: Post succeeded.
  Status PostNext(const Call& call, const void* send, size_t bytes,
                  const Deadline& deadline);
  // Returns the number of the round that this rank has entered last.
  uint64_t round() const { return round_; }
  // Waits until `round` is complete. REQUIRES: this rank has entered it.
  Status Await(const Call& call, uint64_t round, const Deadline& deadline) {
    return Wait(call, round, deadline);
  }
  Status Await(const Call& call, const Deadline& deadline) {
    return Wait(call, round_, deadline);
  }
  // Compares the ranks' fingerprints in the first round of a call that was
  // posted. REQUIRES: `round` is complete, its cells are in use.
  Status CompareCalls(uint64_t round);
  const CellRing& ring() const { return view_.ring; }
  // Returns what a wait until `round` is complete would return if it ended now,
  // but changes nothing. Any thread.
  Status Check(const Call& call, uint64_t round,
               const Deadline& deadline) const;
  // Returns the round that `rank` has entered last. Of two ranks of one host
  // that have entered a round and then ask, at least one sees the other there.
  uint64_t arrived(int rank) const {
    return slot(rank).arrived.load(std::memory_order_seq_cst);
  }

  // Sleeps until `end`. Returns the group's error if it fails meanwhile. Fails
  // the group when `deadline` comes first.
  Status SleepUntil(const Call& call, const Deadline& end,
                    const Deadline& deadline);

  // Returns the bytes that `rank` sent in the last round; valid until the next.
  // REQUIRES: `rank` has entered it, as every rank after Begin, Continue and
  // Await.
  const std::byte* payload(int rank) const { return payload(rank, round_); }
  // Returns those of another round, whose cells are in use.
  const std::byte* payload(int rank, uint64_t round) const {
    return view_.cell(rank, round).payload();
  }

  // Ends the group and its origin for all ranks with `error`, unless they have
  // failed already. Allocates nothing, because memory may have run out.
  void Fail(const Status& error);

  // Returns whether the group or its origin has failed.
  bool failed() const;
  // Returns the error that ended the group, or else its origin, as it was
  // recorded; OK while both go on.
  Status failure() const;

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

  Group(std::shared_ptr<ControlBlock> block,
        const std::shared_ptr<Group>& group, const CellRing& ring,
        std::shared_ptr<Group> worker);

  // Runs a round of the call in progress.
  Status Round(const Call& call, const void* send, size_t bytes,
               const Deadline& deadline);
  // Enters a round of the call in progress.
  Status Enter(const Call& call, const void* send, size_t bytes,
               const Deadline& deadline);
  // Waits until the mirror has read this rank's rounds up to `round`, whose
  // cell is about to be written again.
  Status AwaitMirror(const Call& call, uint64_t round,
                     const Deadline& deadline);
  // Tells the ranks of this host and the mirror of a change.
  void Announce();
  // Waits until `round` is complete. REQUIRES: this rank has entered it.
  Status Wait(const Call& call, uint64_t round, const Deadline& deadline);
  bool AllArrived(uint64_t round) const;
  // Returns the error of a rank that has not arrived at `round` and never will.
  Status FindLost(const Call& call, uint64_t round) const;
  // Returns kDesync when `round` waits for hosts that wait for each other in
  // groups of the family.
  Status CheckForDeadlock(uint64_t round) const;
  Status DescribeLate(const Call& call, uint64_t round,
                      const Deadline& deadline) const;
  // Fails `round` unless it has been decided meanwhile; returns the result of
  // the round.
  Status FailRound(uint64_t round, const Status& error);
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
  std::string LastCallOf(int rank, uint64_t round) const;
  RankSlot& slot(int rank) const { return view_.slot(rank); }
  Cell& cell(int rank) const { return view_.cell(rank, round_); }
  State state() const;

  const Group& origin() const { return origin_ != nullptr ? *origin_ : *this; }

  // The blocks of a family that this rank has.
  struct Family {
    std::mutex mutex;
    std::vector<BlockView> blocks;  // GUARDED_BY(mutex)
    // The rounds that this rank has entered, where a mirror reads them.
    std::atomic<uint64_t> entered{0};
  };

  const std::shared_ptr<Group> origin_;  // Null in the origin.
  // The group whose HostWaits count work on this one, too; may be null.
  const std::shared_ptr<Group> worker_;
  const std::shared_ptr<ControlBlock> block_;
  const BlockView view_;
  Membership membership_;  // In no group in a duplicate.
  const int rank_;
  const int world_size_;
  const std::shared_ptr<const Liveness> liveness_;
  const std::shared_ptr<const Bell> bell_;  // Null on one host.
  const int spins_;
  const bool find_deadlocks_at_once_;
  const pid_t owner_;
  const std::shared_ptr<Family> family_;
  HostWaits host_waits_;
  std::atomic<bool> shut_down_{false};
  uint64_t round_ = 0;  // The last that this rank has entered.
  uint64_t met_ = 0;    // A round that all ranks have entered.
  uint64_t calls_ = 0;
  Fingerprint mine_{};       // The call in progress.
  std::mutex record_mutex_;  // Guards this rank's FailureRecord.
};

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_GROUP_H_
