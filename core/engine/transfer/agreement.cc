// SPDX-License-Identifier: Apache-2.0

#include "core/engine/transfer/agreement.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "core/base/strings.h"
#include "core/comm/first_difference.h"

namespace shard {

namespace {

// The phase of all agreements: one name, so that ranks that propose different
// operations still exchange their proposals.
constexpr std::string_view kAgree = "agree on operation";

static_assert(std::has_unique_object_representations_v<int32_t>);
static_assert(sizeof(Proposal) == 3 * sizeof(int32_t) + 4 * sizeof(uint8_t) +
                                      3 * sizeof(int64_t) + sizeof(StepEntry),
              "no padding, which would be sent unset");

std::string_view VerbOf(Activity activity) {
  switch (activity) {
    case Activity::kReduce:
      return "reduces the gradients of ";
    case Activity::kGather:
      return "gathers the parameters of ";
    case Activity::kBeginStep:
      return "begins a step";
    case Activity::kStep:
      return "steps";
    case Activity::kCapture:
      return "captures a step";
    case Activity::kReplay:
      return "replays a captured step";
    case Activity::kJoin:
      return "waits in join";
    case Activity::kSummon:
      return "summons full parameters";
    case Activity::kReplan:
      return "changes groups or trainable parameters";
    case Activity::kSave:
      return "saves a checkpoint";
    case Activity::kLoad:
      return "loads a state";
    case Activity::kGatherState:
      return "gathers a state";
    case Activity::kBroadcastHostTensors:
      return "broadcasts buffers of the model";
    case Activity::kBroadcastParams:
      return "broadcasts parameters";
  }
  return "does something unknown";
}

// Describes the name alone. `arguments` must outlive the result.
DescribeFacts DescribeName(const Arguments& arguments) {
  return [&arguments](FactSink* sink) {
    sink->Add("", "its arguments", arguments.what);
  };
}

std::string DescribeProposal(
    int rank, const Proposal& proposal,
    const std::function<std::string(int32_t unit)>& unit_name) {
  return StrCat("rank ", rank, " ", VerbOf(proposal.activity),
                proposal.unit >= 0 ? unit_name(proposal.unit) : "",
                proposal.activity == Activity::kGather && proposal.slot >= 0
                    ? StrCat(" into slot ", proposal.slot, " of its host")
                    : "",
                proposal.activity == Activity::kReduce && proposal.zeroed > 0
                    ? StrCat(" (zero_grad calls since the last step: ",
                             proposal.zeroed, ")")
                    : "",
                proposal.more != 0 ? ", and has another backward pass" : "");
}

Status DifferentThings(std::string_view leader, int rank,
                       std::string_view other) {
  return Desync(rank, "the ranks do different things: ", leader, ", ", other);
}

bool SomeFailed(const std::vector<Proposal>& proposals) {
  return std::any_of(
      proposals.begin(), proposals.end(),
      [](const Proposal& proposal) { return proposal.failed != 0; });
}

bool HasArguments(const Proposal& proposal) {
  return proposal.arguments_name != 0;
}

}  // namespace

bool SameWork(const Proposal& a, const Proposal& b) {
  return a.activity == b.activity && a.unit == b.unit &&
         (a.activity != Activity::kReduce || a.zeroed == b.zeroed) &&
         (a.activity != Activity::kGather || a.slot == b.slot);
}

bool SamePass(const Proposal& a, const Proposal& b) {
  return SameWork(a, b) && a.more == b.more;
}

StatusOr<Decision> Decide(
    const std::vector<Proposal>& proposals, int rank, bool allow_missing,
    const std::function<std::string(int32_t unit)>& unit_name) {
  const auto describe = [&](size_t r) {
    return DescribeProposal(static_cast<int>(r), proposals[r], unit_name);
  };
  // The leader is the first rank that moves a unit, gradients before parameters
  // where ranks may lack gradients; or else the first rank that has not joined.
  constexpr size_t kNone = SIZE_MAX;
  size_t reducer = kNone;
  size_t mover = kNone;
  size_t stayer = kNone;
  Decision decision = {0, false, 0};
  for (size_t r = 0; r < proposals.size(); ++r) {
    decision.active += proposals[r].active;
    if (proposals[r].activity == Activity::kJoin) continue;
    if (proposals[r].activity == Activity::kReduce &&
        (reducer == kNone || proposals[r].zeroed < proposals[reducer].zeroed)) {
      reducer = r;
    }
    if (MovesUnit(proposals[r].activity)) mover = std::min(mover, r);
    stayer = std::min(stayer, r);
  }
  if (allow_missing && reducer != kNone) mover = reducer;
  const size_t leader = mover != kNone ? mover : stayer != kNone ? stayer : 0;
  const Proposal& led = proposals[leader];

  const auto may_follow = [&](const Proposal& proposal) {
    if (proposal.activity == Activity::kJoin) {
      return MovesUnit(led.activity) || led.activity == Activity::kStep ||
             led.activity == Activity::kBeginStep;
    }
    if (!allow_missing) return false;
    if (proposal.activity == Activity::kStep) return MovesUnit(led.activity);
    return MovesUnit(proposal.activity) && led.activity == Activity::kReduce;
  };
  for (size_t r = 0; r < proposals.size(); ++r) {
    const bool same = allow_missing ? SameWork(proposals[r], led)
                                    : SamePass(proposals[r], led);
    if (same || may_follow(proposals[r])) continue;
    const bool same_unit = proposals[r].activity == Activity::kGather &&
                           proposals[r].unit == led.unit;
    return DifferentThings(
        describe(leader), static_cast<int>(r),
        StrCat(describe(r), same_unit ? "; acquire and release units in the "
                                        "same order on all ranks"
                                      : ""));
  }
  decision.leader = static_cast<int32_t>(leader);
  decision.follows = !SameWork(proposals[static_cast<size_t>(rank)], led);
  return decision;
}

StatusOr<std::unique_ptr<Notices>> OpenProposals(Communicator* comm,
                                                 const Deadline& deadline) {
  return comm->OpenNotices(kAgree, sizeof(Proposal), deadline);
}

Notices::Compare Agreement::CompareMoves(uint64_t* first) const {
  return [first](int, uint64_t number, const void* theirs, const void* ours) {
    Proposal other;
    Proposal own;
    std::memcpy(&other, theirs, sizeof(other));
    std::memcpy(&own, ours, sizeof(own));
    // A rank that has failed ends the group, and one in join takes part.
    if (SamePass(own, other) || other.failed != 0 ||
        other.activity == Activity::kJoin) {
      return;
    }
    *first = std::min(*first, number);
  };
}

Status Agreement::Announce(const Proposal& mine, const Deadline& deadline) {
  uint64_t different = kNone;
  SHARD_RETURN_IF_ERROR(
      notices_->Post(&mine, CompareMoves(&different), deadline));
  if (different != kNone) return FailDifferent(different, deadline);
  return Status();
}

StatusOr<Decision> Agreement::Agree(Proposal mine, const Status& local,
                                    const Arguments& arguments,
                                    const Deadline& deadline) {
  mine.failed = local.ok() ? 0 : 1;
  mine.arguments_name =
      arguments.describe ? HashFacts(DescribeName(arguments)) : 0;
  mine.arguments = arguments.fingerprint;
  met_ = false;
  uint64_t different = kNone;
  SHARD_RETURN_IF_ERROR(notices_->Meet(&mine, CompareMoves(&different),
                                       proposals_.data(), deadline));
  if (different != kNone) return FailDifferent(different, deadline);
  met_ = true;
  if (SomeFailed(proposals_)) {
    SHARD_RETURN_IF_ERROR(FailedError(local, deadline));
  }
  SHARD_ASSIGN_OR_RETURN(const Decision decision, DecideNow());
  SHARD_RETURN_IF_ERROR(CompareArguments(arguments, deadline));
  return decision;
}

Status Agreement::FailDifferent(uint64_t number, const Deadline& deadline) {
  // Which ranks the error names depends on all.
  SHARD_RETURN_IF_ERROR(AwaitFirstDifference(
      notices_, [this](uint64_t* first) { return CompareMoves(first); },
      &number, proposals_.data(), deadline));
  if (SomeFailed(proposals_)) return FailedError(Status(), deadline);
  return DecideNow().status();
}

bool Agreement::SomeWentOn() const {
  return announces() && std::any_of(proposals_.begin(), proposals_.end(),
                                    [](const Proposal& proposal) {
                                      return MovesUnit(proposal.activity) &&
                                             proposal.failed == 0;
                                    });
}

Status Agreement::FailedError(const Status& local, const Deadline& deadline) {
  if (!SomeWentOn()) return AgreeOnStatus(comm_, kAgree, local, deadline);
  // The first rank that has failed ends the group with its error, as
  // AgreeOnStatus would return it. The others wait for that.
  const auto first = std::find_if(
      proposals_.begin(), proposals_.end(),
      [](const Proposal& proposal) { return proposal.failed != 0; });
  const auto rank = static_cast<size_t>(first - proposals_.begin());
  if (IsMine(rank)) {
    notices_->Fail(Status(local.code(),
                          StrCat("rank ", rank, ": ", local.message()),
                          static_cast<int>(rank)));
    return notices_->failure();
  }
  // Not in a collective of the communicator, where the compute stream may meet
  // the ranks.
  const Proposal mine = proposals_[static_cast<size_t>(comm_->rank())];
  uint64_t different = kNone;
  const Status met = notices_->Meet(&mine, CompareMoves(&different),
                                    proposals_.data(), deadline);
  return CommonError(met.ok() && different != kNone
                         ? FailDifferent(different, deadline)
                         : met);
}

StatusOr<Decision> Agreement::DecideNow() {
  auto decision = Decide(proposals_, comm_->rank(), allow_missing_, unit_name_);
  if (decision.ok() || !SomeWentOn()) return decision;
  notices_->Fail(decision.status());
  return notices_->failure();
}

Status Agreement::CommonError(const Status& error) const {
  if (error.code() != StatusCode::kPoisoned) return error;
  const Status failure = notices_->failure();
  return failure.ok() ? error : failure;
}

Status Agreement::CompareArguments(const Arguments& arguments,
                                   const Deadline& deadline) {
  size_t with_arguments = 0;
  for (const Proposal& proposal : proposals_) {
    if (HasArguments(proposal)) ++with_arguments;
  }
  if (with_arguments == 0) return Status();
  std::vector<FingerprintVote> names;
  std::vector<FingerprintVote> fingerprints;
  for (const Proposal& proposal : proposals_) {
    const bool counts = HasArguments(proposal);
    names.push_back({proposal.arguments_name, counts});
    fingerprints.push_back({proposal.arguments, counts});
  }
  SHARD_RETURN_IF_ERROR(CompareFingerprints(comm_, "the operation", names,
                                            DescribeName(arguments), deadline));
  // The name of the exchange must be the same on all ranks, and one without
  // arguments does not have theirs.
  const bool all = with_arguments == proposals_.size();
  return CompareFingerprints(comm_,
                             all ? arguments.what : "the operation's arguments",
                             fingerprints, arguments.describe, deadline);
}

}  // namespace shard
