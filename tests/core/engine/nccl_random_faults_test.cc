// SPDX-License-Identifier: Apache-2.0
//
// Random faults of ranks that train by NCCL (nccl_random_faults.h). Every rank
// ends in time, with the error of the fault and the name of the rank where that
// is known; later calls have that error, too; nothing is left; and new engines
// in the same process train right. SHARD_TEST_LONG tries 1,000 faults of three
// ranks that have come, SHARD_TEST_SEED one seed. And calls of each entry point
// of NCCL fail one by one.

#include "tests/core/engine/nccl_random_faults.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/hang_alarm.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"
#include "tests/ranks/ranks.h"

namespace shard::nccl_random_faults_test {
namespace {

using nccl_random_faults::Case;
using nccl_random_faults::IsOf;
using nccl_random_faults::Kind;
using nccl_random_faults::kLong;
using nccl_random_faults::kSteps;
using nccl_random_faults::NumbersOf;
using nccl_training::Form;
using nccl_training::MakePlan;
using nccl_training::RankTraining;
using testing::ResetWithNccl;
using testing::fake_nccl::Result;
namespace fake_cuda = testing::fake_cuda;
namespace fake_nccl = testing::fake_nccl;

// Beyond the timeout: a second, on a machine that does nothing else.
const double kSlack =
    !kSanitized && std::getenv("SHARD_TEST_LONG") != nullptr ? 1 : 5;
// To find a fault that nobody waits for until the timeout, and to end after it.
const double kAtOnce = 1 + kSlack;
// To end an engine where the others do not end theirs.
const double kEnd = 2 + kSlack;

// ---- Ranks -----------------------------------------------------------------

struct Call {
  std::string name;
  Status status;
  double seconds = 0;
};

// How a rank has ended.
struct End {
  Call first;               // Its first error, or its last call.
  std::vector<Call> later;  // What calls after an error have returned.
  double end_seconds = 0;   // Of the end of its engine.
  bool has_fired = false;   // The fault, before that.
  std::vector<float> values;
};

Status Train(const Case* fault, int steps, RankTraining* rank, End* end) {
  const bool is_mine = fault != nullptr && fault->rank == rank->rank();
  for (int step = 0; step <= steps; ++step) {
    bool calls_others = false;
    if (is_mine && fault->step == step) {
      Arm(*fault);
      end->has_fired = IsOfTheHost(fault->kind);
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
  SHARD_RETURN_IF_ERROR(rank->Synchronize());
  SHARD_RETURN_IF_ERROR(rank->Meet("trained"));
  if (fake_nccl::NumFaults() > 0) end->has_fired = true;
  return rank->Meet("counted");
}

// Makes calls after an error, which all fail.
std::vector<Call> CallLater(RankTraining* rank) {
  std::vector<Call> calls;
  const auto add = [&](const Status& status) {
    calls.push_back({rank->call(), status, rank->seconds()});
  };
  if (rank->engine() != nullptr) {
    add(rank->Update());
    add(rank->Update());
    add(rank->Read().status());
    add(rank->Meet("later"));
  }
  return calls;
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
      const Status status = Train(fault, steps, &rank, &end);
      end.first = {rank.call(), status, rank.seconds()};
      const bool leaves = status.code() == StatusCode::kCancelled;
      if (!status.ok() && !leaves) end.later = CallLater(&rank);
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
    fake_cuda::Options gpus;
    gpus.devices = form.world_size;
    const testing::FakeNccl fake(gpus);
    const auto ends = RunTraining(plain, nullptr, steps, kLong);
    for (const End& end : ends) EXPECT_OK(end.first.status);
    values = ends[0].values;
  }
  return values;
}

// Returns what is wrong with a call of a rank that fails; "" for nothing.
// `seconds`: that it may take.
std::string JudgeCall(const Case& drawn, const Call& call, double seconds) {
  if (!IsOf(call.status, CodeOf(drawn))) {
    return StrCat(" is not ", StatusCodeName(CodeOf(drawn)));
  }
  if (!Names(call.status, drawn)) return " does not name the rank";
  if (call.seconds > seconds) return StrCat(" took ", call.seconds, " s");
  return "";
}

// Returns what is wrong with calls after an error: an engine gives the error
// again, or that which has ended the group; the communicator is poisoned, or
// keeps the rank that is lost.
std::string JudgeLater(const End& end) {
  for (const Call& call : end.later) {
    const Status& status = call.status;
    const bool is_same = status.code() == end.first.status.code() &&
                         status.rank() == end.first.status.rank() &&
                         call.name != "meet";
    if (is_same || status.code() == StatusCode::kPoisoned ||
        status.code() == StatusCode::kRankLost) {
      continue;
    }
    return StrCat("\n", call.name, " returns later ", status.ToString());
  }
  return "";
}

// Returns whether a fault that has come may be without an error: NCCL may do
// the same in the other order, memory that is not registered is used all the
// same, and memory that is not freed stays until the engine ends.
bool MayPass(const Case& drawn) {
  static const std::set<std::string> may_fail = {
      "ncclCommAbort",    "ncclCommDeregister", "ncclCommDestroy",
      "ncclCommFinalize", "ncclCommRegister",   "ncclMemAlloc",
      "ncclMemFree"};
  return drawn.kind == Kind::kSwapped || drawn.kind == Kind::kSlowCalls ||
         may_fail.count(drawn.symbol) != 0;
}

// Returns what is wrong with the end of a rank; "" for nothing.
std::string Judge(const Case& drawn, int rank, const std::vector<End>& ends) {
  const End& end = ends[static_cast<size_t>(rank)];
  const End& faulty = ends[static_cast<size_t>(drawn.rank)];
  std::string wrong;
  const auto add = [&](const Call& call, const std::string& text) {
    if (text.empty()) return;
    StrAppend(&wrong, "\nrank ", rank, ", ", call.name, ": ",
              call.status.ToString(), text);
  };
  if (end.end_seconds > kEnd) {
    add(end.first, StrCat(" took ", end.end_seconds, " s to end"));
  }
  if (drawn.kind == Kind::kLeaves && rank == drawn.rank) return wrong;
  if (end.first.status.ok()) {
    const bool has_fired = end.has_fired || faulty.has_fired;
    if (has_fired && !MayPass(drawn)) {
      add(end.first, " has no error");
    } else if (end.values != Expected(drawn.form, kSteps)) {
      add(end.first, " has other values");
    }
    return wrong;
  }
  double seconds = drawn.lasts() ? drawn.timeout() + kSlack : kAtOnce;
  // The others learn of its end by its communicator's.
  if (drawn.kind == Kind::kLeaves) seconds += faulty.end_seconds;
  add(end.first, JudgeCall(drawn, end.first, seconds));
  for (const Call& call : end.later) {
    add(call, JudgeCall(drawn, call, kAtOnce));
  }
  return wrong + JudgeLater(end);
}

// Returns the violations that are not of a fault; forgets all of them. NCCL
// launches a collective that was swapped after the events that the host takes
// for later, and other ranks have another one there.
std::string TakeViolations(const Case& drawn) {
  std::string text;
  const bool is_swapped = drawn.kind == Kind::kSwapped;
  for (const auto& it : fake_nccl::Violations()) {
    if (is_swapped && it.kind == fake_nccl::ViolationKind::kMismatch) continue;
    StrAppend(&text, "\nNCCL: ", it.text);
  }
  for (const auto& it : fake_cuda::Violations()) {
    if (is_swapped && it.kind == fake_cuda::ViolationKind::kUnordered) continue;
    StrAppend(&text, "\ndriver: ", it.text);
  }
  fake_nccl::ClearViolations();
  fake_cuda::ClearViolations();
  return text;
}

// By fault and code, the ranks, and the longest time that one took.
struct Tally {
  int ranks = 0;
  double seconds = 0, later_seconds = 0, end_seconds = 0;
};
std::map<std::string, Tally> tallies;
std::map<int, int> faults;  // That ranks have seen, by world size.

void Count(const Case& drawn, const std::vector<End>& ends) {
  for (const End& end : ends) {
    Tally& tally = tallies[StrCat(drawn.name(), " ", drawn.symbol, ": ",
                                  StatusCodeName(end.first.status.code()))];
    ++tally.ranks;
    tally.seconds = std::max(tally.seconds, end.first.seconds);
    tally.end_seconds = std::max(tally.end_seconds, end.end_seconds);
    for (const Call& call : end.later) {
      tally.later_seconds = std::max(tally.later_seconds, call.seconds);
    }
  }
}

class NcclRandomTest : public ::testing::TestWithParam<int> {
 protected:
  static void TearDownTestSuite() {
    for (const auto& [text, tally] : tallies) {
      std::printf("%-50s %5d ranks, %.2f s, %.2f s later, %.2f s to end\n",
                  text.c_str(), tally.ranks, tally.seconds, tally.later_seconds,
                  tally.end_seconds);
    }
    for (const auto& [world_size, count] : faults) {
      std::printf("%d faults of %d ranks\n", count, world_size);
    }
    tallies.clear();
    faults.clear();
  }

  // Trains with a fault, and again without. Returns whether a rank has seen it.
  static bool Run(const Case& drawn, const std::string& text) {
    const testing::HangAlarm alarm(text);
    Expected(drawn.form, kSteps);
    const std::vector<float>& expected = Expected(drawn.form, 1);
    fake_cuda::Options gpus;
    gpus.devices = drawn.form.world_size;
    ResetWithNccl(gpus, OptionsOf(drawn));
    const auto ends = RunTraining(drawn.form, &drawn, kSteps, drawn.timeout());
    Count(drawn, ends);
    std::string wrong;
    std::set<int> named;
    for (int r = 0; r < drawn.form.world_size; ++r) {
      const Status& status = ends[static_cast<size_t>(r)].first.status;
      if (!status.ok()) named.insert(status.rank());
      wrong += Judge(drawn, r, ends);
    }
    if (drawn.kind == Kind::kFailedCall && named.size() > 1) {
      wrong += "\nthe ranks name different ranks";
    }
    fake_nccl::ClearFaults();
    wrong += TakeViolations(drawn);
    for (const End& end : RunTraining(drawn.form, nullptr, 1, kLong)) {
      if (!end.first.status.ok()) {
        StrAppend(&wrong, "\nafterwards: ", end.first.status.ToString());
      } else if (end.values != expected) {
        StrAppend(&wrong, "\nafterwards: other values");
      }
    }
    EXPECT_EQ(wrong, "");
    testing::FakeNccl::Check();
    if (HasFailure()) std::printf("FAILED: %s\n", text.c_str());
    return !named.empty();
  }

  // Draws faults until one has come.
  static void RunUntilOneComes(int seed, bool is_hybrid) {
    constexpr int kDraws = 50;
    // In turn, so that few seeds have all of them.
    const auto kind = static_cast<Kind>(seed % nccl_random_faults::kFaults);
    for (int draw = 0; draw < kDraws && !HasFailure(); ++draw) {
      const Case drawn = Draw(
          kind, is_hybrid,
          static_cast<uint64_t>(seed) * kDraws + static_cast<uint64_t>(draw));
      if (Run(drawn, StrCat("SHARD_TEST_SEED=", seed, " is ", drawn.Text()))) {
        ++faults[drawn.form.world_size];
        return;
      }
    }
    ADD_FAILURE() << "no fault of seed " << seed << " has come";
  }
};

class NcclRandomFaultsTest : public NcclRandomTest {};

TEST_P(NcclRandomFaultsTest, EndsInTimeAndTrainsAgain) {
  RunUntilOneComes(GetParam(), false);
}

// Ranks in groups, which have communicators of their own.
class NcclRandomHybridFaultsTest : public NcclRandomTest {};

TEST_P(NcclRandomHybridFaultsTest, EndsInTimeAndTrainsAgain) {
  RunUntilOneComes(GetParam(), true);
}

class NcclSlowCallsTest : public NcclRandomTest {};

TEST_P(NcclSlowCallsTest, AreNoFault) {
  const int seed = GetParam();
  const Case drawn =
      Draw(Kind::kSlowCalls, seed % 4 == 0, static_cast<uint64_t>(seed));
  EXPECT_FALSE(
      Run(drawn, StrCat("SHARD_TEST_SEED=", seed, " is ", drawn.Text())));
}

// ---- Each call -------------------------------------------------------------

// Calls of NCCL that one rank of a training makes fail once each, from the
// creation of its engine to its end.
TEST(NcclFailedCallTest, AnyCallMayFail) {
  Case drawn;
  drawn.kind = Kind::kFailedCall;
  drawn.form = {.world_size = 2, .stage = 3};
  drawn.rank = 1;
  drawn.result = Result::kSystemError;
  const std::vector<float>& expected = Expected(drawn.form, 1);
  Expected(drawn.form, kSteps);
  fake_cuda::Options gpus;
  gpus.devices = drawn.form.world_size;
  std::map<std::string, uint64_t> calls;
  {
    const testing::FakeNccl fake(gpus);
    RunTraining(drawn.form, nullptr, kSteps, kLong);
    calls = fake_nccl::Count({.rank = drawn.rank}).calls;
    // Some have no communicator, and are those of any rank.
    calls.merge(fake_nccl::Count().calls);
  }
  EXPECT_GE(calls.size(), 10u);
  std::set<std::string> failed;
  for (const auto& [symbol, count] : calls) {
    for (const uint64_t number : NumbersOf(count)) {
      drawn.symbol = symbol;
      drawn.number = number;
      const std::string text = drawn.Text();
      const testing::HangAlarm alarm(text);
      SCOPED_TRACE(text);
      ResetWithNccl(gpus);
      const auto ends =
          RunTraining(drawn.form, &drawn, kSteps, drawn.timeout());
      for (int r = 0; r < drawn.form.world_size; ++r) {
        EXPECT_EQ(Judge(drawn, r, ends), "");
        if (!ends[static_cast<size_t>(r)].first.status.ok()) {
          failed.insert(symbol);
        }
      }
      fake_nccl::ClearFaults();
      for (const End& end : RunTraining(drawn.form, nullptr, 1, kLong)) {
        EXPECT_OK(end.first.status);
        EXPECT_TRUE(end.values == expected);
      }
      EXPECT_EQ(fake_nccl::ViolationText(), "");
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

// Every k-th call of NCCL fails on all ranks, until the engines have ended.
TEST(NcclFailedCallTest, EveryKthCallMayFail) {
  Case drawn;
  drawn.kind = Kind::kFailedCall;
  drawn.form = {.world_size = 3, .stage = 2};
  drawn.result = Result::kSystemError;
  Expected(drawn.form, kSteps);
  const std::vector<float>& expected = Expected(drawn.form, 1);
  fake_cuda::Options gpus;
  gpus.devices = drawn.form.world_size;
  for (const uint64_t every : {1, 2, 3, 7, 40, 150, 300}) {
    const std::string text = StrCat("every call of ", every, " fails");
    const testing::HangAlarm alarm(text);
    SCOPED_TRACE(text);
    ResetWithNccl(gpus);
    fake_nccl::FailEveryCall("", every, drawn.result);
    const auto ends = RunTraining(drawn.form, nullptr, kSteps, kLong);
    EXPECT_GE(fake_nccl::NumFaults(), 1u);
    for (int r = 0; r < drawn.form.world_size; ++r) {
      const Call& first = ends[static_cast<size_t>(r)].first;
      EXPECT_TRUE(IsOf(first.status, StatusCode::kUnavailable) ||
                  IsOf(first.status, StatusCode::kBackendUnavailable))
          << first.status.ToString();
      EXPECT_NE(first.status.message().find("rank "), std::string::npos);
      EXPECT_LT(first.seconds, kAtOnce);
      EXPECT_LT(ends[static_cast<size_t>(r)].end_seconds, kEnd);
    }
    fake_nccl::ClearFaults();
    for (const End& end : RunTraining(drawn.form, nullptr, 1, kLong)) {
      EXPECT_OK(end.first.status);
      EXPECT_TRUE(end.values == expected);
    }
    EXPECT_EQ(fake_nccl::ViolationText(), "");
    if (HasFailure()) return;
  }
}

// With SHARD_TEST_SEED, that one alone; else those below `most`, or
// `in_long_form`.
std::pair<int, int> Seeds(int most, int in_long_form) {
  if (const char* const one = std::getenv("SHARD_TEST_SEED")) {
    return {std::atoi(one), std::atoi(one) + 1};
  }
  return {0, std::getenv("SHARD_TEST_LONG") != nullptr ? in_long_form : most};
}
const auto kFaultSeeds = Seeds(kSanitized ? 8 : 18, 1000);
const auto kHybridSeeds = Seeds(kSanitized ? 2 : 4, 200);
const auto kSlowSeeds = Seeds(2, 100);

INSTANTIATE_TEST_SUITE_P(Seeds, NcclRandomFaultsTest,
                         ::testing::Range(kFaultSeeds.first,
                                          kFaultSeeds.second));
INSTANTIATE_TEST_SUITE_P(Seeds, NcclRandomHybridFaultsTest,
                         ::testing::Range(kHybridSeeds.first,
                                          kHybridSeeds.second));
INSTANTIATE_TEST_SUITE_P(Seeds, NcclSlowCallsTest,
                         ::testing::Range(kSlowSeeds.first, kSlowSeeds.second));

}  // namespace
}  // namespace shard::nccl_random_faults_test
