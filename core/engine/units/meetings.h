// SPDX-License-Identifier: Apache-2.0
//
// Meetings: what a rank does before and after it agrees with the others on an
// operation. Where others then use its memory it comes to a meeting with its
// own work done, but to that of a step, whose compute streams meet once more;
// an error after which the ranks are out of step is final.
//
// Threads: one at a time, as the engine. Where ranks announce the moves of
// units (Agreement::announces), the agreement is the host's thread's; elsewhere
// it is the queue's thread's while the queue is not empty.

#ifndef SHARD_CORE_ENGINE_UNITS_MEETINGS_H_
#define SHARD_CORE_ENGINE_UNITS_MEETINGS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/host_stream.h"
#include "core/device/stream.h"
#include "core/engine/transfer/agreement.h"
#include "core/engine/transfer/comm_queue.h"

namespace shard {

class Meetings {
 public:
  struct Dependencies {
    Communicator* comm;
    Notices* proposals;  // OpenProposals(comm).
    HostStream* host;
    Stream* compute;
    CommQueue* queue;
    bool allow_missing;  // Gradients may be missing.
  };

  // All of `deps` must outlive this. `unit_name` names a unit in errors.
  Meetings(const Dependencies& deps,
           std::function<std::string(int32_t unit)> unit_name)
      : deps_(deps),
        agreement_(deps.comm, deps.proposals, deps.allow_missing,
                   std::move(unit_name)) {}

  // Returns the error after which the ranks are out of step.
  const Status& broken() const { return broken_; }
  // Makes `error` final, and ends the group with it: the error may be of this
  // rank alone, for which the others would wait.
  Status Fail(const Status& error);

  // Waits for transfers in progress. Returns the final error, if there is one.
  Status Drain(const Deadline& deadline);
  // Makes the agreement the host's thread's: waits for transfers whose ranks
  // meet on the queue. Returns the final error, if there is one.
  Status TakeAgreement(const Deadline& deadline) {
    return agreement_.announces() ? broken_ : Drain(deadline);
  }
  // Blocks until the host's stream and the compute stream have done all that
  // they were given: for memory that this thread uses itself, or that other
  // ranks use once they know that this one is here.
  Status AwaitStreams(const Deadline& deadline);

  // Returns whether they never have any of it left.
  bool StreamsAreInline() const {
    return deps_.host->get()->IsInline() && deps_.compute->IsInline();
  }

  // Exchanges proposals and returns the decision. COLLECTIVE. `local`: an error
  // of this rank, which becomes an error of all. The error is final where the
  // ranks that have not joined did not all come for the same. REQUIRES:
  // TakeAgreement.
  StatusOr<Decision> Meet(const Proposal& proposal, const Status& local,
                          const Arguments& arguments, const Deadline& deadline);
  // Tells the other ranks, which propose an operation with a unit, that this
  // rank cannot do it. COLLECTIVE.
  Status Report(Activity activity, const Status& local,
                const Deadline& deadline);

  // Returns the proposals of the last meeting, by rank.
  const std::vector<Proposal>& proposals() const {
    return agreement_.proposals();
  }
  Agreement& agreement() { return agreement_; }

 private:
  // Makes an error final that all ranks know.
  Status MarkBroken(const Status& error);
  // Returns the error of a meeting to which this rank came for `activity`.
  Status HandleFailedAgreement(const Status& error, Activity activity);

  const Dependencies deps_;
  Agreement agreement_;
  Status broken_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_UNITS_MEETINGS_H_
