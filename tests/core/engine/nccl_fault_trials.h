// SPDX-License-Identifier: Apache-2.0
//
// Trainings of ranks that are threads, of which one has a fault
// (nccl_random_faults.h), and what is wrong with how they have ended: with the
// time of each call, the errors, the calls after an error, and the values.

#ifndef SHARD_TESTS_CORE_ENGINE_NCCL_FAULT_TRIALS_H_
#define SHARD_TESTS_CORE_ENGINE_NCCL_FAULT_TRIALS_H_

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/run_delay.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/nccl_random_faults.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"
#include "tests/ranks/ranks.h"

namespace shard::nccl_fault_trials {

namespace fake_cuda = testing::fake_cuda;
namespace fake_nccl = testing::fake_nccl;
using nccl_random_faults::Case;
using nccl_random_faults::IsOf;
using nccl_random_faults::Kind;
using nccl_random_faults::kLong;
using nccl_random_faults::kSteps;
using nccl_training::Form;
using nccl_training::MakePlan;
using nccl_training::RankTraining;
using testing::JudgeTime;

// Beyond the timeout: a second, on a machine that does nothing else.
inline constexpr double kSlack = kSanitized ? 5 : 1;
// To find a fault that nobody waits for until the timeout, and to end after it.
inline constexpr double kAtOnce = 1 + kSlack;
// To end an engine where the others do not end theirs.
inline constexpr double kEnd = 2 + kSlack;

// ---- Ranks -----------------------------------------------------------------

struct Call {
  std::string name;
  Status status;
  double seconds = 0;
};

// How a rank has ended.
struct End {
  Call first;               // Its first error, or its last call.
  Call slowest;             // Of those until then.
  std::vector<Call> later;  // What calls after an error have returned.
  double end_seconds = 0;   // Of the end of its engine.
  double run_delay = 0;     // See RunDelay: of the whole training.
  bool has_fired = false;   // The fault, before that.
  // It came while the rank's engine was made.
  bool is_early = false;
  std::vector<float> values;
};

inline Status Train(const Case* fault, int steps, RankTraining* rank,
                    End* end) {
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
      end->is_early = is_mine && fake_nccl::NumFaults() > 0;
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
inline std::vector<Call> CallLater(RankTraining* rank) {
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
inline std::vector<End> RunTraining(const Form& form, const Case* fault,
                                    int steps, double timeout) {
  const auto plan = MakePlan(form);
  testing::RunDelay delay;
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
      end.slowest = {rank.slowest().name, Status(), rank.slowest().seconds};
      const bool leaves = status.code() == StatusCode::kCancelled;
      if (!status.ok() && !leaves) end.later = CallLater(&rank);
      rank.End();
      end.end_seconds = rank.seconds();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (End& end : ends) end.run_delay = delay.seconds();
  return ends;
}

// ---- Verdicts --------------------------------------------------------------

// The parameters of trainings without a fault, by form and steps.
inline const std::vector<float>& Expected(const Form& form, int steps) {
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

// Returns what is wrong with the error of a rank's call; "" for nothing.
inline std::string JudgeError(const Case& drawn, const Call& call) {
  if (!IsOf(call.status, CodeOf(drawn))) {
    return StrCat(" is not ", StatusCodeName(CodeOf(drawn)));
  }
  if (!Names(call.status, drawn)) return " does not name the rank";
  return "";
}

// Returns what is wrong with calls after an error: an engine gives the error
// again, or that which has ended the group; the communicator is poisoned, or
// keeps the rank that is lost.
inline std::string JudgeLater(const End& end) {
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
// same, and memory that is not freed stays until the engine ends. `faulty`: the
// rank with the fault.
inline bool MayPass(const Case& drawn, const End& faulty) {
  static const std::set<std::string> may_fail = {"ncclCommAbort",
                                                 "ncclCommDeregister",
                                                 "ncclCommDestroy",
                                                 "ncclCommFinalize",
                                                 "ncclCommRegister",
                                                 "ncclCommWindowDeregister",
                                                 "ncclCommWindowRegister",
                                                 "ncclMemAlloc",
                                                 "ncclMemFree"};
  return drawn.kind == Kind::kSwapped || drawn.kind == Kind::kSlowCalls ||
         may_fail.count(drawn.symbol) != 0 ||
         // An engine that is made tries to register memory, and frees it: these
         // calls may fail, and ask for errors, too.
         (drawn.symbol == "ncclCommGetAsyncError" && faulty.is_early);
}

// Returns what is wrong with the end of a rank; "" for nothing.
inline std::string Judge(const Case& drawn, int rank,
                         const std::vector<End>& ends) {
  const End& end = ends[static_cast<size_t>(rank)];
  const End& faulty = ends[static_cast<size_t>(drawn.rank)];
  std::string wrong;
  const auto add = [&](const Call& call, const std::string& text) {
    if (text.empty()) return;
    StrAppend(&wrong, "\nrank ", rank, ", ", call.name, ": ",
              call.status.ToString(), text);
  };
  const auto add_time = [&](const std::string& name, double seconds,
                            double most) {
    wrong += JudgeTime(StrCat("rank ", rank, ", ", name), seconds, most,
                       end.run_delay);
  };
  add_time("the end", end.end_seconds, kEnd);
  if (drawn.kind == Kind::kLeaves && rank == drawn.rank) return wrong;
  // Calls that take time are no fault, and take it.
  const bool is_slow = drawn.kind == Kind::kSlowCalls;
  double most = drawn.lasts() || is_slow ? drawn.timeout() + kSlack : kAtOnce;
  // The others learn of its end by its communicator's.
  if (drawn.kind == Kind::kLeaves) most += faulty.end_seconds;
  add_time(end.slowest.name, end.slowest.seconds, most);
  if (end.first.status.ok()) {
    const bool has_fired = end.has_fired || faulty.has_fired;
    if (has_fired && !MayPass(drawn, faulty)) {
      add(end.first, " has no error");
    } else if (end.values != Expected(drawn.form, kSteps)) {
      add(end.first, " has other values");
    }
    return wrong;
  }
  add(end.first, JudgeError(drawn, end.first));
  for (const Call& call : end.later) {
    add(call, JudgeError(drawn, call));
    add_time(StrCat(call.name, ", later,"), call.seconds, kAtOnce);
  }
  return wrong + JudgeLater(end);
}

// Returns the violations that are not of a fault; forgets all of them. NCCL
// launches a collective that was swapped after the events that the host takes
// for later, and other ranks have another one there.
inline std::string TakeViolations(const Case& drawn) {
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

}  // namespace shard::nccl_fault_trials

#endif  // SHARD_TESTS_CORE_ENGINE_NCCL_FAULT_TRIALS_H_
