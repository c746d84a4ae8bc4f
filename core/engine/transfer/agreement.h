// SPDX-License-Identifier: Apache-2.0
//
// Agreement: an exchange of proposals between ranks before a collective
// operation, and the decision that every rank draws from them. Before each
// operation, whichever it is, every rank posts a proposal of one form. So ranks
// that are about to do different operations get an error that names both, and a
// rank without an operation of its own (it is out of input, or has no gradients
// for a unit) learns of the operation of the others and takes part in it.
//
// The decision is a pure function of the proposals, so all ranks come to the
// same one. A rank needs all proposals where another one's operation may come
// before its own, and where ranks use each other's memory from here on: it
// meets the others. Elsewhere (announces()) a rank that moves a unit does what
// it has proposed, or gets an error. It announces the move and goes on; of
// every two ranks one compares their proposals. A rank that can do nothing but
// wait for others, in join or with an error of its own, meets them.
//
// Errors have the same code and rank on all ranks: those of the first
// operations that differ, as the proposals of all ranks have them. Where the
// announcements of two hosts cross, one rank may find the difference here and
// another one in the collective, which says it in other words: "do different
// things", "called different things". Ranks that all wait in the meeting go on
// after the error. A rank that has announced its operation does not learn of
// the error there, which therefore ends the family of the communicator.
//
// Threads: one at a time; see Meetings.

#ifndef SHARD_CORE_ENGINE_TRANSFER_AGREEMENT_H_
#define SHARD_CORE_ENGINE_TRANSFER_AGREEMENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/facts.h"
#include "core/base/status.h"
#include "core/comm/check_agreement.h"
#include "core/comm/communicator.h"
#include "core/comm/notices.h"

namespace shard {

// The operation that a rank proposes. The values are sent, and are
// part of no file.
enum class Activity : int32_t {
  kReduce = 1,  // The gradients of a unit.
  kGather,      // The parameters of a unit.
  kBeginStep,
  kStep,
  kCapture,  // A step, as part of a graph.
  kReplay,   // Of the step that was captured.
  kJoin,     // Out of input: follows the others until all ranks are.
  kSummon,
  kReplan,
  kSave,
  kLoad,
  kGatherState,
  kBroadcastHostTensors,
  kBroadcastParams,
};

// The values on which the ranks of a step agree. All are doubles, so that the
// bytes have no padding.
struct StepEntry {
  double hypers;
  double max_grad_norm;
  double grad_norm_type;
  double clip_value;
  double grad_divisor;
  double average_active;
  double loss_scale;
  double skip_nonfinite;
  double step;
};

// The value of Proposal::zeroed before the first zero_grad.
inline constexpr int64_t kNeverZeroed = -1;

// Returns whether an activity completes a step.
constexpr bool IsStep(Activity activity) {
  return activity == Activity::kStep || activity == Activity::kCapture ||
         activity == Activity::kReplay;
}

// Returns whether an activity moves the tensors of a unit.
constexpr bool MovesUnit(Activity activity) {
  return activity == Activity::kReduce || activity == Activity::kGather;
}

struct Proposal {
  Activity activity = Activity::kStep;
  int32_t unit = -1;  // For kReduce and kGather.
  // The slot of this rank's gradients of the unit, or that to which its
  // parameters are gathered, where the ranks of a host share it.
  int32_t slot = -1;
  uint8_t failed = 0;  // Something is wrong on this rank.
  uint8_t more = 0;    // kReduce: another backward pass follows.
  uint8_t active = 1;  // Not joined.
  // kStep, where parameters or more are shared: this rank's streams may still
  // write gradients and read parameters.
  uint8_t async = 0;
  // Calls of zero_grad since the last step, where gradients are sharded. A rank
  // may have called zero_grad already, while a slower rank's gradients are from
  // before its call. For kJoin: kNeverZeroed unless this rank discarded
  // gradients of its own, which are in sums of all ranks.
  int64_t zeroed = 0;
  // The hash of the name of the operation's Arguments; 0: it has none.
  uint64_t arguments_name = 0;
  uint64_t arguments = 0;  // Their fingerprint.
  StepEntry step = {};
};

// The arguments of an operation, which must be the same on all ranks. Empty
// `describe`: the operation has none, or they are compared elsewhere.
struct Arguments {
  Arguments() = default;
  // Takes the hash of the facts as the fingerprint. `what` names the arguments
  // in errors, and must outlive this.
  Arguments(std::string_view what, DescribeFacts describe)
      : what(what),
        fingerprint(HashFacts(describe)),
        describe(std::move(describe)) {}
  Arguments(std::string_view what, uint64_t fingerprint, DescribeFacts describe)
      : what(what), fingerprint(fingerprint), describe(std::move(describe)) {}

  std::string_view what;
  uint64_t fingerprint = 0;
  DescribeFacts describe;
};

// Returns whether two ranks come for the same operation. Gradients from before
// a zero_grad and from after it are not reduced together.
bool SameWork(const Proposal& a, const Proposal& b);
// Returns whether they also come from the same backward pass: neither has
// another one before the step, or both have.
bool SamePass(const Proposal& a, const Proposal& b);

// The decision that follows from all proposals.
struct Decision {
  // The rank whose operation all ranks do now.
  int32_t leader;
  // Whether this rank came for another operation: it takes part, then
  // proposes its own again.
  bool follows;
  int32_t active;  // Ranks that have not joined.
};

// Returns the operation that ranks do next, when they come with different
// proposals:
//   - a rank in kJoin follows kReduce, kGather, kBeginStep and kStep;
//   - where ranks may lack gradients, one in kStep follows kReduce and kGather,
//     one in kGather follows kReduce, and of several kReduce that with the
//     fewest zero_grads before it goes first, and among these the lowest
//     rank's;
//   - anything else is kDesync, naming two ranks and their operations. So are
//     passes of one unit, where ranks may not lack gradients, after which only
//     some ranks have another backward pass.
// `unit_name` names a unit in errors. REQUIRES: no proposal has failed.
StatusOr<Decision> Decide(
    const std::vector<Proposal>& proposals, int rank, bool allow_missing,
    const std::function<std::string(int32_t unit)>& unit_name);

// Opens the notices by which ranks exchange proposals. COLLECTIVE.
StatusOr<std::unique_ptr<Notices>> OpenProposals(Communicator* comm,
                                                 const Deadline& deadline);

class Agreement {
 public:
  // `notices`: of OpenProposals(comm). Both must outlive this.
  Agreement(Communicator* comm, Notices* notices, bool allow_missing,
            std::function<std::string(int32_t unit)> unit_name)
      : comm_(comm),
        notices_(notices),
        allow_missing_(allow_missing),
        unit_name_(std::move(unit_name)),
        proposals_(static_cast<size_t>(comm->world_size())) {}

  // Returns whether ranks announce the moves of units.
  bool announces() const { return !comm_->direct() && !allow_missing_; }

  // Proposes the move of a unit, which this rank does whatever others propose.
  // COLLECTIVE, but does not wait for ranks that make the same call later. An
  // error, of ranks that propose something else, has ended the group. REQUIRES:
  // announces().
  Status Announce(const Proposal& mine, const Deadline& deadline);

  // Exchanges proposals and returns the decision. COLLECTIVE. `local`: an error
  // of this rank, which becomes an error of all. Fingerprints of `arguments`
  // are exchanged with the proposals; where they differ the error is kDesync,
  // with the first fact that differs (core/comm/check_agreement.h). A rank
  // without arguments takes part in the search for that fact, and is not
  // compared. `mine.failed`, `mine.arguments_name` and `mine.arguments` need
  // not be set. REQUIRES: not announces(), or `mine` moves no unit, or `local`
  // is an error.
  StatusOr<Decision> Agree(Proposal mine, const Status& local,
                           const Arguments& arguments,
                           const Deadline& deadline);

  // Returns whether the last Agree learned the proposals of all ranks. If not,
  // the group has ended.
  bool met() const { return met_; }
  // Returns the proposals of the last Agree, by rank.
  const std::vector<Proposal>& proposals() const { return proposals_; }

  // Returns `error` of this rank, or the error that has ended the group where
  // `error` only says that something did.
  Status CommonError(const Status& error) const;

 private:
  bool IsMine(size_t rank) const {
    return static_cast<int>(rank) == comm_->rank();
  }
  static constexpr uint64_t kNone = UINT64_MAX;
  // Returns whether a rank has announced its operation, and does not wait for
  // the result of this meeting.
  bool SomeWentOn() const;
  // Returns what notices are compared with: sets `first` to the lowest number
  // of an announced move that another rank did not propose as well. REQUIRES:
  // `first` is such a number, or kNone.
  Notices::Compare CompareMoves(uint64_t* first) const;
  // Ends the group with the error of the first moves that differ. `number`:
  // those of some moves that do. Returns the group's error.
  Status FailDifferent(uint64_t number, const Deadline& deadline);
  // Returns the error of proposals some of which have failed. COLLECTIVE.
  Status FailedError(const Status& local, const Deadline& deadline);
  // Returns the decision from proposals none of which has failed.
  StatusOr<Decision> DecideNow();
  // Compares the arguments of the ranks that have any. COLLECTIVE where they
  // differ: the proposals alone, which all ranks have, decide on each exchange.
  Status CompareArguments(const Arguments& arguments, const Deadline& deadline);

  Communicator* const comm_;
  Notices* const notices_;
  const bool allow_missing_;
  const std::function<std::string(int32_t unit)> unit_name_;
  std::vector<Proposal> proposals_;
  bool met_ = false;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_TRANSFER_AGREEMENT_H_
