// SPDX-License-Identifier: Apache-2.0
//
// Faults of ranks that train by NCCL, which a seed draws: the fault, the rank
// that has it, its place, the form of the training, the number of ranks, and
// NCCL's version, windows and delays; and which errors the ranks are to have.

#ifndef SHARD_TESTS_CORE_ENGINE_NCCL_RANDOM_FAULTS_H_
#define SHARD_TESTS_CORE_ENGINE_NCCL_RANDOM_FAULTS_H_

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/strings.h"
#include "tests/core/base/dice.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/core/engine/sixty_calls.h"
#include "tests/fake_nccl/fake_nccl.h"

namespace shard::nccl_random_faults {

using nccl_training::Form;
using testing::Dice;
using testing::fake_nccl::Result;

inline constexpr int kSteps = 3;
// The engine's timeout, in seconds, where a fault lasts until then; and where
// it is found before.
inline constexpr double kShort = kSanitized ? 3 : 1;
inline constexpr double kLong = 20;

enum class Kind {
  kLeaves,      // The rank ends without shutdown.
  kLate,        // The rank comes too late.
  kDead,        // NCCL's part of the rank never arrives.
  kStuck,       // A collective never ends.
  kNeverDone,   // A call stays in progress.
  kSwapped,     // NCCL launches two collectives in the other order.
  kOtherCalls,  // The rank goes through the units in another order.
  kFailedCall,
  kAsyncError,
  kSlowCalls,  // No fault: calls take time, and one is in progress for long.
};
// Without kSlowCalls.
inline constexpr int kFaults = 9;
inline constexpr const char* kNames[kFaults + 1] = {
    "leaves",      "is late",        "is dead",      "is stuck",
    "is not done", "swaps launches", "calls others", "fails a call",
    "fails later", "is slow"};

struct Case {
  Form form;
  Kind kind = Kind::kLeaves;
  int rank = 0;
  int step = 0;  // The fault is armed before this step; 0: before creation.
  uint64_t number = 1;
  std::string symbol;
  Result result = Result::kSuccess;
  testing::fake_nccl::Options nccl;

  const char* name() const { return kNames[static_cast<int>(kind)]; }
  bool lasts() const {
    return kind == Kind::kLate || kind == Kind::kDead || kind == Kind::kStuck ||
           kind == Kind::kNeverDone || kind == Kind::kSwapped;
  }
  double timeout() const { return lasts() ? kShort : kLong; }
  // Returns whether the failed call is of no communicator, and so of any rank.
  bool IsOfAnyRank() const {
    return kind == Kind::kFailedCall &&
           (symbol.empty() || symbol == "ncclGetVersion" ||
            symbol == "ncclGetUniqueId" || symbol == "ncclCommInitRankConfig" ||
            symbol == "ncclMemAlloc" || symbol == "ncclMemFree" ||
            symbol == "ncclGroupStart" || symbol == "ncclGroupEnd");
  }
  std::string Text() const {
    return StrCat(
        form.Text(), ": rank ", rank, " ", name(), " from step ", step,
        " on, number ", number, " ", symbol, ", result ",
        static_cast<int>(result), ", NCCL ", nccl.version,
        nccl.makes_windows ? "" : " without windows",
        nccl.rank_without_windows < 0
            ? ""
            : StrCat(", rank ", nccl.rank_without_windows, " without windows"),
        ", calls of ", nccl.call_delay.count(), " us");
  }
};

// The versions of NCCL; the last one makes windows.
inline constexpr int kMakesWindows = 23102;
inline const std::vector<int> kVersions = {
    21805, 21903, 22005,         22304,         22703,        22809,
    22907, 23004, kMakesWindows, kMakesWindows, kMakesWindows};

inline void DrawNccl(Dice* dice, Case* drawn) {
  testing::fake_nccl::Options& nccl = drawn->nccl;
  nccl.version = dice->Pick<int>(kVersions);
  nccl.makes_windows = !dice->Chance(20);
  if (dice->Chance(15)) {
    nccl.rank_without_windows = dice->Roll(drawn->form.world_size);
  }
  nccl.call_delay = std::chrono::microseconds(dice->Pick<int>({0, 0, 50, 300}));
}

inline void MakeAllWindows(testing::fake_nccl::Options* nccl) {
  nccl->version = kMakesWindows;
  nccl->makes_windows = true;
  nccl->rank_without_windows = -1;
}

// Communicators are split for groups of ranks.
inline void MakeHybrid(Form* form) {
  form->stage = 3;
  form->world_size = 4;
  form->shard_group_size = 2;
}

inline void DrawFailedCall(Dice* dice, Case* drawn) {
  std::vector<std::string> symbols = {"ncclGetVersion",
                                      "ncclGetUniqueId",
                                      "ncclCommInitRankConfig",
                                      "ncclCommGetAsyncError",
                                      "ncclMemAlloc",
                                      "ncclCommRegister",
                                      "ncclCommWindowRegister",
                                      "ncclGroupStart",
                                      "ncclGroupEnd",
                                      "ncclSend",
                                      "ncclRecv",
                                      "ncclAllGather",
                                      "ncclReduceScatter"};
  if (drawn->form.shard_group_size > 0) symbols.emplace_back("ncclCommSplit");
  drawn->symbol = dice->Pick<std::string>(symbols);
  drawn->number = static_cast<uint64_t>(1 + dice->Roll(10));
  if (drawn->symbol == "ncclReduceScatter") drawn->form.deterministic = false;
  if (drawn->symbol == "ncclSend" || drawn->symbol == "ncclRecv") {
    drawn->form.deterministic = true;
  }
  if (drawn->symbol == "ncclGetVersion" || drawn->symbol == "ncclGetUniqueId" ||
      drawn->symbol == "ncclCommInitRankConfig" ||
      drawn->symbol == "ncclCommSplit") {
    drawn->step = 0;
    drawn->number = 1;
  }
  if (drawn->symbol == "ncclMemAlloc" || drawn->symbol == "ncclCommRegister") {
    drawn->step = 0;
    if (drawn->nccl.version < 21900) drawn->nccl.version = kMakesWindows;
  }
  if (drawn->symbol == "ncclCommWindowRegister") {
    drawn->step = 0;
    drawn->number = static_cast<uint64_t>(1 + dice->Roll(2));
    MakeAllWindows(&drawn->nccl);
  }
}

// Returns the numbers of the calls of an entry point that fail, one at a time:
// in the long form up to 60, else the first one and one in the middle.
inline std::vector<uint64_t> NumbersOf(uint64_t calls) {
  // ncclCommGetAsyncError has hundreds of calls, as many as there is time for.
  if (std::getenv("SHARD_TEST_LONG") != nullptr) return SixtyOf(calls);
  std::vector<uint64_t> numbers = {1};
  if (calls > 1) numbers.push_back(1 + (calls + 1) / 2);
  return numbers;
}

// The ranks that a fault is drawn for.
enum class Ranks {
  kThree,
  kTwoOrFour,
  kHybrid,  // Four, in two groups.
};

inline Case Draw(Kind kind, Ranks ranks, uint64_t seed) {
  Dice dice(seed);
  Case drawn;
  drawn.kind = kind;
  Form& form = drawn.form;
  form.stage = dice.Roll(4);
  form.world_size = ranks == Ranks::kThree ? 3 : 2 + 2 * dice.Roll(2);
  if (ranks == Ranks::kHybrid) MakeHybrid(&form);
  form.overlap = dice.Chance(50);
  form.reports = dice.Chance(50);
  form.deterministic = dice.Chance(50);
  drawn.rank = dice.Roll(form.world_size);
  drawn.step = dice.Roll(kSteps + 1);
  DrawNccl(&dice, &drawn);
  switch (kind) {
    case Kind::kOtherCalls:
      drawn.step = std::max(drawn.step, 1);
      break;
    case Kind::kStuck:
    case Kind::kAsyncError:
      drawn.number = static_cast<uint64_t>(1 + dice.Roll(20));
      break;
    case Kind::kSwapped:
      drawn.number = static_cast<uint64_t>(1 + dice.Roll(8));
      break;
    case Kind::kNeverDone:
      drawn.symbol = dice.Pick<std::string>(
          {"ncclCommInitRankConfig",
           ranks == Ranks::kHybrid ? "ncclCommSplit" : "",
           "ncclCommWindowRegister", "ncclGroupEnd"});
      if (drawn.symbol == "ncclGroupEnd") {
        drawn.number = static_cast<uint64_t>(1 + dice.Roll(10));
      } else {
        drawn.step = 0;
      }
      if (drawn.symbol == "ncclCommWindowRegister") MakeAllWindows(&drawn.nccl);
      break;
    case Kind::kFailedCall:
      DrawFailedCall(&dice, &drawn);
      break;
    default:
      break;
  }
  if (kind == Kind::kAsyncError || kind == Kind::kFailedCall) {
    drawn.result = dice.Pick<Result>(
        {Result::kUnhandledCudaError, Result::kSystemError,
         Result::kInternalError, Result::kInvalidUsage, Result::kRemoteError});
  }
  return drawn;
}

inline testing::fake_nccl::Options OptionsOf(const Case& drawn) {
  testing::fake_nccl::Options options = drawn.nccl;
  if (drawn.kind == Kind::kSlowCalls) {
    options.polls = {20, 20, 20, 20, 5, 5};
    options.call_delay = std::chrono::microseconds(300);
  }
  return options;
}

// Arms the fault, as its rank does.
inline void Arm(const Case& drawn) {
  const testing::fake_nccl::Target target = {.rank = drawn.rank};
  switch (drawn.kind) {
    case Kind::kDead:
      return testing::fake_nccl::Kill(drawn.rank);
    case Kind::kStuck:
      return testing::fake_nccl::StickAt(drawn.number, target);
    case Kind::kNeverDone:
      return testing::fake_nccl::SlowCall(drawn.symbol, drawn.number, INT_MAX,
                                          target);
    case Kind::kSwapped:
      return testing::fake_nccl::SwapAt(drawn.number, target);
    case Kind::kFailedCall:
      return testing::fake_nccl::FailCall(drawn.symbol, drawn.number,
                                          drawn.result, target);
    case Kind::kAsyncError:
      return testing::fake_nccl::FailAsyncAt(drawn.number, drawn.result,
                                             target);
    case Kind::kSlowCalls:
      return testing::fake_nccl::SlowCall("", 20, 200, target);
    default:
      return;
  }
}

// Returns whether the fault is one of the rank itself, and not of its NCCL.
inline bool IsOfTheHost(Kind kind) {
  return kind == Kind::kLeaves || kind == Kind::kLate ||
         kind == Kind::kOtherCalls;
}

inline StatusCode CodeOf(const Case& drawn) {
  switch (drawn.kind) {
    case Kind::kLeaves:
      return StatusCode::kRankLost;
    case Kind::kOtherCalls:
      return StatusCode::kDesync;
    case Kind::kAsyncError:
    case Kind::kFailedCall:
      if (drawn.symbol == "ncclGetVersion") {
        return StatusCode::kBackendUnavailable;
      }
      return drawn.result == Result::kInternalError ? StatusCode::kInternal
             : drawn.result == Result::kInvalidUsage
                 ? StatusCode::kInvalidArgument
                 : StatusCode::kUnavailable;
    case Kind::kSlowCalls:
      return StatusCode::kOk;
    default:
      return StatusCode::kDeadlineExceeded;
  }
}

// Whether an error is of a code, or tells that one of it has ended the group.
inline bool IsOf(const Status& status, StatusCode code) {
  if (status.code() == code) return true;
  return status.code() == StatusCode::kPoisoned &&
         status.message().find(StatusCodeName(code)) != std::string::npos;
}

// Whether the ranks that are late are told, and a rank is among them.
inline bool TellsLate(const Status& status, int rank) {
  const std::string& text = status.message();
  const size_t begin = text.find("rank [");
  if (begin == std::string::npos) return false;
  const std::string late = text.substr(begin, text.find(']', begin) - begin);
  return late.find(StrCat(rank)) != std::string::npos;
}

// Whether an error names the rank of a fault that is known by its rank, and no
// other one.
inline bool Names(const Status& status, const Case& drawn) {
  switch (drawn.kind) {
    case Kind::kLeaves:
      return status.rank() == drawn.rank;
    case Kind::kAsyncError:
      return status.rank() == drawn.rank;
    case Kind::kFailedCall:
      // A library that cannot be used is no fault of the rank that says so.
      if (drawn.symbol == "ncclGetVersion") {
        return status.message().find("nccl: rank ") != std::string::npos;
      }
      return drawn.IsOfAnyRank() ? status.rank() >= 0
                                 : status.rank() == drawn.rank;
    case Kind::kLate:
      // Among others, where a group of ranks waits for it.
      return TellsLate(status, drawn.rank);
    case Kind::kSwapped:
      // The rank may go ahead, for which a launch in the wrong order seems to
      // be done; then it names those that it waits for.
      return true;
    case Kind::kOtherCalls:
      // The first rank that differs from rank 0.
      return (drawn.rank == 0 || status.rank() == drawn.rank ||
              status.code() == StatusCode::kPoisoned) &&
             status.message().find(StrCat("rank ", drawn.rank, " ")) !=
                 std::string::npos;
    default:
      // All hosts have entered the collective: nobody knows which GPU is late,
      // and the first rank that gives up may be named as that. A rank whose own
      // call of NCCL does not return tells it. A group of ranks may wait for
      // the rank, and other groups for it in turn.
      return status.rank() == -1 || TellsLate(status, drawn.rank) ||
             status.message().find("has not made its windows") !=
                 std::string::npos ||
             (drawn.kind == Kind::kNeverDone && status.rank() == drawn.rank) ||
             status.message().find(
                 StrCat("rank ", status.rank(), " aborted the group")) !=
                 std::string::npos;
  }
}

}  // namespace shard::nccl_random_faults

#endif  // SHARD_TESTS_CORE_ENGINE_NCCL_RANDOM_FAULTS_H_
