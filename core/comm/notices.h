// SPDX-License-Identifier: Apache-2.0
//
// Notices: numbered control data of all ranks, which a rank posts without
// waiting for the others. Ranks that make the same calls post the same number
// of notices, and need not meet to see that they do: each compares its notice
// with those of the same number that are there. A rank that has to know all
// notices of a number waits for them, which is a meeting of the ranks.
//
// Opened by Communicator::OpenNotices. Notices have a sequence of their own:
// they are not ordered with the collectives of the communicator. They belong to
// its family: an error of either ends both, with the same code and rank. The
// errors of a wait are those of a collective: kRankLost, kDeadlineExceeded with
// the ranks that did not come, kDesync of hosts that wait for each other.
//
// Threads: one at a time posts and awaits, not always the same; Check, Fail and
// failure may be called from any thread.

#ifndef SHARD_CORE_COMM_NOTICES_H_
#define SHARD_CORE_COMM_NOTICES_H_

#include <cstdint>
#include <functional>
#include <string_view>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/observe/collective_ring.h"

namespace shard {

class Notices {
 public:
  // A rank may be this many notices ahead of another one.
  static constexpr int kMostAhead = 127;

  // Is given a notice of `rank`, and this rank's of the same number, from 1.
  using Compare = std::function<void(int rank, uint64_t number,
                                     const void* theirs, const void* mine)>;

  // May be destroyed before or after the communicator.
  virtual ~Notices() = default;

  // Makes this rank's next notice, of the size that the notices were opened
  // with, visible to all ranks. Does not wait for them to post theirs, except
  // for a rank that is kMostAhead notices behind. Then calls `compare` for each
  // notice of another rank that is there, of this number or one before, and was
  // not compared. Every two ranks of a host are compared on one of the two, or
  // on both where they post at the same time. The notices of two hosts may
  // cross; one of the ranks then compares them in its next Post or Meet.
  virtual Status Post(const void* notice, const Compare& compare,
                      const Deadline& deadline) = 0;

  // Waits until all ranks have posted notice `number`, calls `compare` for
  // those up to it that were not compared, and copies the notices of this
  // number, by rank, into `recv`. Where several ranks wait, all succeed or all
  // fail. REQUIRES: this rank has posted it, and no rank is kMostAhead notices
  // ahead of it.
  virtual Status Await(uint64_t number, const Compare& compare, void* recv,
                       const Deadline& deadline) = 0;

  // Does what Post and Await do, for a rank that compares the notices of this
  // number once all are there. Calls `compare` for those of the numbers before
  // that were not compared.
  virtual Status Meet(const void* notice, const Compare& compare, void* recv,
                      const Deadline& deadline) = 0;

  // Returns what a wait for notice `number`, from 1, would return if it ended
  // now, but changes nothing: the error that has ended the family; kRankLost
  // for a rank that has not posted the notice and never will; once `deadline`
  // has passed, kDeadlineExceeded, with the ranks that have not posted it; else
  // OK. `what` names the wait in these errors, but not in one that has ended
  // the family. Any thread.
  virtual Status Check(uint64_t number, std::string_view what,
                       const Deadline& deadline) const = 0;

  // Ends the family for all ranks with `error`, which becomes the error of
  // their current or next Await as it is, and of later calls as of a
  // communicator. The first error stays.
  virtual void Fail(const Status& error) = 0;

  // As Fail, but does not call the host's log function, as
  // Communicator::AbortUnlogged.
  virtual void FailUnlogged(const Status& error) { Fail(error); }

  // Sets what describes a notice in the record of collectives (Observer), for
  // notices that announce collectives. Called before the first Post.
  using Describe = std::function<void(const void* notice, CollectiveCall*)>;
  virtual void DescribeBy(Describe /*describe*/) {}
  // Records how the collectives ended that the notices up to `number`
  // announced. Any thread.
  virtual void RecordEnd(uint64_t /*number*/, const Status& /*result*/) {}

  // Returns the error that has ended the family, as it was recorded; OK while
  // it goes on. Any part of the family may have ended it.
  virtual Status failure() const = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_COMM_NOTICES_H_
