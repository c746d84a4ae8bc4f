// SPDX-License-Identifier: Apache-2.0

#include "core/engine/units/meetings.h"

#include <algorithm>

#include "core/engine/transfer/ok_or_abort.h"

namespace shard {

Status Meetings::MarkBroken(const Status& error) {
  if (broken_.ok()) broken_ = agreement_.CommonError(error);
  return broken_;
}

Status Meetings::Fail(const Status& error) {
  return MarkBroken(OkOrAbort(deps_.comm, error));
}

Status Meetings::Drain(const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(broken_);
  const Status drained = deps_.queue->Drain(deadline);
  return drained.ok() ? drained : Fail(drained);
}

Status Meetings::AwaitStreams(const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(deps_.host->Synchronize(deadline));
  return deps_.compute->Synchronize(deadline);
}

StatusOr<Decision> Meetings::Meet(const Proposal& proposal, const Status& local,
                                  const Arguments& arguments,
                                  const Deadline& deadline) {
  auto decision = agreement_.Agree(proposal, local, arguments, deadline);
  if (decision.ok()) return decision;
  if (decision.status().code() == StatusCode::kPoisoned) {
    // The group ended before; a stream of this rank may know why.
    SHARD_RETURN_IF_ERROR(Drain(deadline));
    const Status computing = deps_.compute->status();
    if (!computing.ok()) return Fail(computing);
  }
  return HandleFailedAgreement(decision.status(), proposal.activity);
}

Status Meetings::Report(Activity activity, const Status& local,
                        const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(TakeAgreement(deadline));
  // A step that has returned early may still meet the ranks.
  const Status idle = AwaitStreams(deadline);
  if (!idle.ok()) return Fail(idle);
  Proposal proposal;
  proposal.activity = activity;
  return Meet(proposal, local, Arguments(), deadline).status();
}

Status Meetings::HandleFailedAgreement(const Status& error, Activity activity) {
  // Nobody here knows the other ranks' proposals, and some may have gone on.
  if (agreement_.announces() && !agreement_.met()) return MarkBroken(error);
  // Ranks that came for the same operation, and did not do it, are still in
  // step; so are ranks that would have followed. A rank whose gradients or
  // parameters were in transfer has reported its error already. All ranks must
  // come to the same result, those in join too.
  const std::vector<Proposal>& all = proposals();
  if (!MovesUnit(activity)) {
    for (const Proposal& proposal : all) {
      if (proposal.activity == Activity::kJoin) continue;
      activity = proposal.activity;
      break;
    }
  }
  const bool moves = MovesUnit(activity);
  const bool together =
      std::all_of(all.begin(), all.end(), [&](const Proposal& p) {
        if (!moves && p.activity == Activity::kJoin) return true;
        return p.activity == activity && (!moves || p.failed != 0);
      });
  return together ? error : MarkBroken(error);
}

}  // namespace shard
