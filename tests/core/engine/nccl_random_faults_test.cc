// SPDX-License-Identifier: Apache-2.0
//
// Random faults of three ranks that train by NCCL: a seed draws the fault, the
// rank that has it, its place and the form of the training. Every rank ends in
// time, with the error of the fault and the name of the rank where that is
// known; a later call has that error, too; nothing is left; and new engines in
// the same process train right. SHARD_TEST_LONG tries 1,000 seeds,
// SHARD_TEST_SEED one. And each call of NCCL fails once.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/dice.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/hang_alarm.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"
#include "tests/ranks/ranks.h"

namespace shard::nccl_random_faults_test {
namespace {

using nccl_training::Form;
using nccl_training::MakePlan;
using nccl_training::RankTraining;
using testing::Dice;
using testing::ResetWithNccl;
using testing::fake_nccl::Result;

constexpr int kSteps = 3;
// The engine's timeout, in seconds, where a fault lasts until then; and where
// it is found before.
constexpr double kShort = kSanitized ? 3 : 1;
constexpr double kLong = 20;
// Beyond the timeout: a second, on a machine that does nothing else.
const double kSlack =
    !kSanitized && std::getenv("SHARD_TEST_LONG") != nullptr ? 1 : 5;
// To end an engine where the others do not end theirs.
const double kEnd = 2 + kSlack;

// ---- Faults ----------------------------------------------------------------

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
constexpr int kKinds = 10;
constexpr const char* kNames[kKinds] = {
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

  const char* name() const { return kNames[static_cast<int>(kind)]; }
  bool lasts() const {
    return kind == Kind::kLate || kind == Kind::kDead || kind == Kind::kStuck ||
           kind == Kind::kNeverDone || kind == Kind::kSwapped;
  }
  double timeout() const { return lasts() ? kShort : kLong; }
  std::string Text() const {
    return StrCat(form.Text(), ": rank ", rank, " ", name(), " from step ",
                  step, " on, number ", number, " ", symbol, ", result ",
                  static_cast<int>(result));
  }
};

// Communicators are split for groups of ranks.
void MakeHybrid(Form* form) {
  form->stage = 3;
  form->world_size = 4;
  form->shard_group_size = 2;
}

Case Draw(uint64_t seed) {
  Dice dice(seed);
  Case drawn;
  // In turn, so that few seeds have all of them.
  drawn.kind = static_cast<Kind>(seed % kKinds);
  Form& form = drawn.form;
  form.stage = dice.Roll(4);
  if (form.stage == 3 && dice.Chance(40)) MakeHybrid(&form);
  form.overlap = dice.Chance(50);
  form.reports = dice.Chance(50);
  form.deterministic = dice.Chance(50);
  drawn.rank = dice.Roll(form.world_size);
  drawn.step = dice.Roll(kSteps + 1);
  switch (drawn.kind) {
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
          {"ncclCommInitRankConfig", "ncclCommSplit", "ncclGroupEnd"});
      if (drawn.symbol == "ncclCommSplit") MakeHybrid(&form);
      if (drawn.symbol == "ncclGroupEnd") {
        drawn.number = static_cast<uint64_t>(1 + dice.Roll(10));
      } else {
        drawn.step = 0;
      }
      break;
    case Kind::kFailedCall:
      drawn.symbol = dice.Pick<std::string>(
          {"ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRankConfig",
           "ncclCommSplit", "ncclCommGetAsyncError", "ncclGroupStart",
           "ncclGroupEnd", "ncclSend", "ncclRecv", "ncclReduceScatter",
           "ncclAllGather", "ncclBroadcast", "ncclCommFinalize"});
      drawn.number = static_cast<uint64_t>(1 + dice.Roll(10));
      if (drawn.symbol == "ncclCommSplit") MakeHybrid(&form);
      if (drawn.symbol == "ncclReduceScatter") form.deterministic = false;
      if (drawn.symbol == "ncclSend" || drawn.symbol == "ncclRecv") {
        form.deterministic = true;
      }
      if (drawn.symbol == "ncclGetVersion" ||
          drawn.symbol == "ncclGetUniqueId" ||
          drawn.symbol == "ncclCommInitRankConfig" ||
          drawn.symbol == "ncclCommSplit") {
        drawn.step = 0;
        drawn.number = 1;
      }
      break;
    default:
      break;
  }
  if (drawn.kind == Kind::kAsyncError || drawn.kind == Kind::kFailedCall) {
    drawn.result = dice.Pick<Result>(
        {Result::kUnhandledCudaError, Result::kSystemError,
         Result::kInternalError, Result::kInvalidUsage, Result::kRemoteError});
  }
  return drawn;
}

testing::fake_nccl::Options OptionsOf(const Case& drawn) {
  testing::fake_nccl::Options options;
  if (drawn.kind == Kind::kSlowCalls) {
    options.polls = {20, 20, 20, 20, 5, 5};
    options.call_delay = std::chrono::microseconds(300);
  }
  return options;
}

// Arms the fault, as its rank does.
void Arm(const Case& drawn) {
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

// ---- Ranks -----------------------------------------------------------------

// How a rank has ended.
struct End {
  Status first;        // The first error.
  std::string call;    // That returned it.
  double seconds = 0;  // Of that call.
  Status later;        // The error of a call after it.
  bool has_later = false;
  double end_seconds = 0;
  std::vector<float> values;
};

Status Train(const Case* fault, int steps, RankTraining* rank, End* end) {
  const bool is_mine = fault != nullptr && fault->rank == rank->rank();
  for (int step = 0; step <= steps; ++step) {
    bool calls_others = false;
    if (is_mine && fault->step == step) {
      Arm(*fault);
      if (fault->kind == Kind::kLeaves) return Cancelled("this rank leaves");
      if (fault->kind == Kind::kLate) {
        std::this_thread::sleep_for(
            std::chrono::duration<double>(fault->timeout() + 0.5));
      }
      calls_others = fault->kind == Kind::kOtherCalls;
    }
    if (step == 0) {
      SHARD_RETURN_IF_ERROR(rank->Create());
      SHARD_RETURN_IF_ERROR(rank->Fill());
    } else if (calls_others && fault->form.stage < 2) {
      SHARD_RETURN_IF_ERROR(rank->Read().status());
    } else if (calls_others) {
      SHARD_RETURN_IF_ERROR(rank->Step(step, {4, 2, 3, 1, 0}));
    } else {
      SHARD_RETURN_IF_ERROR(rank->Step(step));
    }
  }
  SHARD_ASSIGN_OR_RETURN(end->values, rank->Read());
  return rank->Synchronize();
}

// Runs the ranks of a training, each a thread.
std::vector<End> RunTraining(const Form& form, const Case* fault, int steps,
                             double timeout) {
  const auto plan = MakePlan(form);
  std::vector<End> ends(static_cast<size_t>(form.world_size));
  const std::string url = StrCat("threads:", form.world_size,
                                 "?direct=0&name=", testing::UniqueName());
  std::vector<std::thread> threads;
  for (int r = 0; r < form.world_size; ++r) {
    threads.emplace_back([&, r] {
      End& end = ends[static_cast<size_t>(r)];
      CommOptions options;
      options.rank = r;
      options.world_size = form.world_size;
      auto comm = OpenCommunicator(url, options);
      ASSERT_OK(comm);
      RankTraining rank(form, plan, *comm, timeout);
      end.first = Train(fault, steps, &rank, &end);
      end.call = rank.call();
      end.seconds = rank.seconds();
      const bool leaves = end.first.code() == StatusCode::kCancelled;
      if (!end.first.ok() && !leaves && rank.engine() != nullptr) {
        end.has_later = true;
        end.later = rank.engine()->Step(StepOptions(), nullptr);
      }
      if (end.first.ok()) {
        const Status met = (*comm)->Barrier("trained", Deadline::After(kLong));
        if (!met.ok()) end.first = met;
      }
      rank.End();
      end.end_seconds = rank.seconds();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

// ---- Verdicts --------------------------------------------------------------

// The parameters of trainings without a fault, by form and steps.
const std::vector<float>& Expected(const Form& form, int steps) {
  static std::map<std::string, std::vector<float>> known;
  Form plain = form;
  plain.overlap = plain.reports = false;
  auto& values = known[StrCat(plain.Text(), steps)];
  if (values.empty()) {
    testing::fake_cuda::Options gpus;
    gpus.devices = form.world_size;
    const testing::FakeNccl fake(gpus);
    const auto ends = RunTraining(plain, nullptr, steps, kLong);
    for (const End& end : ends) EXPECT_OK(end.first);
    values = ends[0].values;
  }
  return values;
}

StatusCode CodeOf(const Case& drawn) {
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
bool IsOf(const Status& status, StatusCode code) {
  if (status.code() == code) return true;
  return status.code() == StatusCode::kPoisoned &&
         status.message().find(StatusCodeName(code)) != std::string::npos;
}

// Whether an error names the rank of a fault that is known by its rank.
bool Names(const Status& status, const Case& drawn) {
  switch (drawn.kind) {
    case Kind::kLeaves:
      return status.rank() == drawn.rank;
    case Kind::kLate: {
      // Among others, where a group of ranks waits for it.
      const std::string& text = status.message();
      const size_t begin = text.find("rank [");
      if (begin == std::string::npos) return false;
      const std::string late =
          text.substr(begin, text.find(']', begin) - begin);
      return late.find(StrCat(drawn.rank)) != std::string::npos;
    }
    case Kind::kOtherCalls:
      // The first rank that differs from rank 0.
      return (drawn.rank == 0 || status.rank() == drawn.rank ||
              status.code() == StatusCode::kPoisoned) &&
             status.message().find(StrCat("rank ", drawn.rank, " ")) !=
                 std::string::npos;
    default:
      return true;
  }
}

// Returns what is wrong with the end of a rank; "" for nothing.
std::string Judge(const Case& drawn, int rank, const End& end) {
  if (drawn.kind == Kind::kLeaves && rank == drawn.rank) return "";
  const StatusCode code = CodeOf(drawn);
  if (end.first.ok()) {
    // Others may come too late.
    const bool must_fail =
        drawn.kind == Kind::kLeaves || drawn.kind == Kind::kLate ||
        drawn.kind == Kind::kDead || drawn.kind == Kind::kOtherCalls;
    if (must_fail) return "has no error";
    return end.values == Expected(drawn.form, kSteps) ? "" : "has other values";
  }
  if (!IsOf(end.first, code)) {
    return StrCat("is not ", StatusCodeName(code));
  }
  if (!Names(end.first, drawn)) return "does not name the rank";
  if (end.seconds > drawn.timeout() + kSlack) {
    return StrCat("took ", end.seconds, " s");
  }
  if (end.end_seconds > kEnd) {
    return StrCat("took ", end.end_seconds, " s to end");
  }
  if (end.has_later && !IsOf(end.later, code)) {
    return StrCat("comes before ", end.later.ToString());
  }
  return "";
}

// By fault and code, the ranks, and the longest time that one took.
struct Tally {
  int ranks = 0;
  double seconds = 0;
  double end_seconds = 0;
};
std::map<std::string, Tally> tallies;

class NcclRandomFaultsTest : public ::testing::TestWithParam<int> {
 protected:
  static void TearDownTestSuite() {
    for (const auto& [text, tally] : tallies) {
      std::printf("%-50s %5d ranks, %.2f s, %.2f s to end\n", text.c_str(),
                  tally.ranks, tally.seconds, tally.end_seconds);
    }
  }
};

TEST_P(NcclRandomFaultsTest, EndsInTimeAndTrainsAgain) {
  const auto seed = static_cast<uint64_t>(GetParam());
  const Case drawn = Draw(seed);
  const std::string text =
      StrCat("SHARD_TEST_SEED=", seed, " is ", drawn.Text());
  const testing::HangAlarm alarm(text);
  Expected(drawn.form, kSteps);
  const std::vector<float>& expected = Expected(drawn.form, 1);
  testing::fake_cuda::Options gpus;
  gpus.devices = drawn.form.world_size;
  ResetWithNccl(gpus, OptionsOf(drawn));
  const auto ends = RunTraining(drawn.form, &drawn, kSteps, drawn.timeout());
  std::string wrong;
  for (int r = 0; r < drawn.form.world_size; ++r) {
    const End& end = ends[static_cast<size_t>(r)];
    Tally& tally = tallies[StrCat(drawn.name(), " ", drawn.symbol, ": ",
                                  StatusCodeName(end.first.code()))];
    ++tally.ranks;
    tally.seconds = std::max(tally.seconds, end.seconds);
    tally.end_seconds = std::max(tally.end_seconds, end.end_seconds);
    const std::string judged = Judge(drawn, r, end);
    if (!judged.empty()) {
      StrAppend(&wrong, "\nrank ", r, ", ", end.call, ": ",
                end.first.ToString(), " ", judged);
    }
  }
  testing::fake_nccl::ClearFaults();
  // NCCL launched one of them after the events that the host takes for later.
  if (drawn.kind == Kind::kSwapped) {
    testing::fake_nccl::ClearViolations();
    testing::fake_cuda::ClearViolations();
  }
  for (const End& end : RunTraining(drawn.form, nullptr, 1, kLong)) {
    if (!end.first.ok()) {
      StrAppend(&wrong, "\nafterwards: ", end.first.ToString());
    } else if (end.values != expected) {
      StrAppend(&wrong, "\nafterwards: other values");
    }
  }
  EXPECT_EQ(wrong, "");
  testing::FakeNccl::Check();
  if (HasFailure()) std::printf("FAILED: %s\n", text.c_str());
}

// ---- Each call -------------------------------------------------------------

// Every call of NCCL that one rank of a training makes fails once, from the
// creation of its engine to its end: all of them in the long form, else some.
TEST(NcclFailedCallTest, AnyCallMayFail) {
  Case drawn;
  drawn.kind = Kind::kFailedCall;
  drawn.form = {.world_size = 2, .stage = 3};
  drawn.rank = 1;
  drawn.result = Result::kSystemError;
  const std::vector<float>& expected = Expected(drawn.form, 1);
  Expected(drawn.form, kSteps);
  testing::fake_cuda::Options gpus;
  gpus.devices = drawn.form.world_size;
  std::map<std::string, uint64_t> calls;
  {
    const testing::FakeNccl fake(gpus);
    RunTraining(drawn.form, nullptr, kSteps, kLong);
    calls = testing::fake_nccl::Count({.rank = drawn.rank}).calls;
    // Some have no communicator, and are those of any rank.
    calls.merge(testing::fake_nccl::Count().calls);
  }
  EXPECT_GE(calls.size(), 10u);
  std::set<std::string> failed;
  const bool all = std::getenv("SHARD_TEST_LONG") != nullptr;
  for (const auto& [symbol, count] : calls) {
    const uint64_t step = all ? 1 : std::max<uint64_t>(1, (count + 1) / 2);
    for (uint64_t number = 1; number <= count; number += step) {
      drawn.symbol = symbol;
      drawn.number = number;
      const std::string text = drawn.Text();
      const testing::HangAlarm alarm(text);
      SCOPED_TRACE(text);
      ResetWithNccl(gpus);
      const auto ends =
          RunTraining(drawn.form, &drawn, kSteps, drawn.timeout());
      for (int r = 0; r < drawn.form.world_size; ++r) {
        EXPECT_EQ(Judge(drawn, r, ends[static_cast<size_t>(r)]), "");
        if (!ends[static_cast<size_t>(r)].first.ok()) failed.insert(symbol);
      }
      testing::fake_nccl::ClearFaults();
      for (const End& end : RunTraining(drawn.form, nullptr, 1, kLong)) {
        EXPECT_OK(end.first);
        EXPECT_TRUE(end.values == expected);
      }
      EXPECT_EQ(testing::fake_nccl::ViolationText(), "");
      // What cannot be ended, or freed, stays.
      if (symbol != "ncclCommAbort" && symbol != "ncclCommDestroy" &&
          symbol != "ncclMemFree") {
        testing::FakeNccl::Check();
      }
      if (HasFailure()) return;
    }
  }
  // An error of a call that ends communicators ends nothing else.
  for (const char* symbol : {"ncclCommInitRankConfig", "ncclGroupEnd",
                             "ncclReduceScatter", "ncclAllGather"}) {
    EXPECT_EQ(failed.count(symbol), 1u) << symbol;
  }
}

// With SHARD_TEST_SEED, that one alone.
std::pair<int, int> Seeds() {
  if (const char* const one = std::getenv("SHARD_TEST_SEED")) {
    return {std::atoi(one), std::atoi(one) + 1};
  }
  return {0, std::getenv("SHARD_TEST_LONG") != nullptr ? 1000 : 20};
}

INSTANTIATE_TEST_SUITE_P(Seeds, NcclRandomFaultsTest,
                         ::testing::Range(Seeds().first, Seeds().second));

}  // namespace
}  // namespace shard::nccl_random_faults_test
