// SPDX-License-Identifier: Apache-2.0
//
// Ranks that run out of input at different times, compared with a reference in
// double: every number of batches per rank, two epochs in a row.
// SHARD_TEST_LONG tries all combinations, those of two and three ranks in all
// forms; otherwise some combinations are tried in one form or several. On GPUs,
// each of whose steps takes many calls of a fake, the long form tries those of
// three ranks in one form, and some of four ranks.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/exact_training.h"
#include "tests/core/engine/six_blocks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"

namespace shard::join_test {
namespace {

struct Form {
  const char* name;
  int stage;
  const char* link = "";
  int prefetch = 1;
  const char* device = "cpu";
  bool overlap = false;
  bool whole_grads = false;
  int passes = 1;
};

constexpr Form kForms[] = {
    {.name = "stage 0", .stage = 0},
    {.name = "stage 1 async",
     .stage = 1,
     .device = "cpu-async?max_delay=0.00005&seed=1&host=async"},
    {.name = "stage 2", .stage = 2, .passes = 2},
    {.name = "stage 3", .stage = 3, .prefetch = 0},
    {.name = "apart stage 0", .stage = 0, .link = "direct=0"},
    {.name = "apart stage 1 overlap",
     .stage = 1,
     .link = "direct=0",
     .overlap = true},
    {.name = "apart stage 2 overlap",
     .stage = 2,
     .link = "direct=0",
     .overlap = true,
     .passes = 2},
    {.name = "apart stage 3", .stage = 3, .link = "direct=0", .prefetch = 0},
    {.name = "apart stage 3 prefetch",
     .stage = 3,
     .link = "direct=0",
     .prefetch = 1},
    {.name = "apart stage 3 whole gradients",
     .stage = 3,
     .link = "direct=0",
     .whole_grads = true,
     .passes = 2},
    {.name = "apart stage 3 async",
     .stage = 3,
     .link = "direct=0",
     .device = "cpu-async?max_delay=0.00005&seed=2&host=async"},
};
constexpr int kNumForms = static_cast<int>(std::size(kForms));

std::shared_ptr<const Plan> PlanFor(const Form& form, int world_size) {
  UnitTraining training = SixBlocks();
  training.optimizer = "adamw?lr=0.02";
  training.plan.stage = form.stage;
  training.plan.world_size = world_size;
  training.plan.prefetch = form.prefetch;
  training.plan.whole_grads = form.whole_grads;
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  if (!plan.ok()) return nullptr;
  EXPECT_TRUE(ShardsAsItsStage(**plan));
  return *plan;
}

// Options that a form is combined with.
struct Extras {
  bool average_active = false;
  bool new_lr = false;  // Set on active ranks before every step.
  double max_grad_norm = 0;
  const char* loss_scaling = "";
};

constexpr Extras kExtras[] = {
    {},
    {.average_active = true},
    {.new_lr = true},
    {.average_active = true, .new_lr = true, .max_grad_norm = 0.5},
    {.max_grad_norm = 0.5, .loss_scaling = "static?scale=1024"},
    {.average_active = true,
     .loss_scaling = "dynamic?init_scale=8&growth_interval=2"},
};
constexpr int kNumExtras = static_cast<int>(std::size(kExtras));

double LrOf(int step) { return 0.03 / step; }

// Trains two epochs; in the second, `batches` are those of the next rank.
// Returns the first failure, or "".
std::string TrainEpochs(const Form& form, const Extras& extras,
                        const std::vector<int>& batches) {
  const auto world_size = static_cast<int>(batches.size());
  ExactTraining training;
  training.plan = PlanFor(form, world_size);
  training.link = form.link;
  training.passes = form.passes;
  training.nested = false;
  training.engine.device = form.device;
  training.engine.overlap = form.overlap;
  training.engine.loss_scaler = *LossScaler::Parse(extras.loss_scaling);
  training.step.average_active = extras.average_active;
  training.step.max_grad_norm = extras.max_grad_norm;
  const auto batches_of = [&](int epoch, int rank) {
    return batches[static_cast<size_t>((rank + epoch) % world_size)];
  };
  const int most = *std::max_element(batches.begin(), batches.end());

  ExactReference reference(*training.plan);
  std::vector<DoubleTensors> expected = {reference.values()};
  for (int step = 1; step <= 2 * most; ++step) {
    const int epoch = (step - 1) / most;
    const auto active = [&](int rank) {
      return batches_of(epoch, rank) >= step - epoch * most;
    };
    int ranks = 0;
    for (int rank = 0; rank < world_size; ++rank) ranks += active(rank);
    if (extras.new_lr) {
      EXPECT_OK(reference.optimizer(0).Set("lr", LrOf(step)));
    }
    reference.Step(SumsOf(training, step, false, active),
                   extras.average_active ? ranks : world_size,
                   extras.max_grad_norm);
    expected.push_back(reference.values());
  }

  std::vector<std::string> failures(batches.size());
  RunThreadRanks(
      world_size,
      [&](const auto& comm) {
        const int rank = comm->rank();
        std::string& failure = failures[static_cast<size_t>(rank)];
        auto made = CreateEngine(training.plan, comm, training.engine);
        ASSERT_OK(made);
        Engine& engine = **made;
        FillExactly(&engine);
        ExactTrainer trainer(training, &engine);
        for (int epoch = 0; epoch < 2; ++epoch) {
          const int mine = batches_of(epoch, rank);
          for (int batch = 1; batch <= mine && trainer.ok(); ++batch) {
            const int step = epoch * most + batch;
            trainer.Passes(step, expected[static_cast<size_t>(step - 1)]);
            if (extras.new_lr) {
              ASSERT_OK(engine.SetHyper(kAllGroups, "lr", LrOf(step)));
            }
            StepReport report;
            trainer.Step(&report);
            int active = 0;
            for (int r = 0; r < world_size; ++r) {
              active += batches_of(epoch, r) >= batch;
            }
            if (trainer.ok() && report.active != active) {
              failure = StrCat("active ranks: ", report.active);
            }
          }
          if (!trainer.ok()) break;
          // Ranks with the most batches read the result before they join.
          if (batches_of(epoch, rank) == most && epoch == 0) {
            trainer.Forward(expected[static_cast<size_t>(most)]);
          }
          int64_t steps = -1;
          const Status joined = engine.Join(0, &steps);
          if (!joined.ok() || steps != most - mine) {
            failure =
                StrCat("rank ", rank, ", epoch ", epoch,
                       ": join: ", joined.ToString(), ", ", steps, " steps");
            return;
          }
        }
        if (trainer.ok()) trainer.Forward(expected.back());
        if (!trainer.ok()) failure = trainer.failure();
      },
      20, training.link);
  for (const std::string& failure : failures) {
    if (!failure.empty()) return failure;
  }
  return "";
}

// Calls `visit(index, batches)` for every number of batches from 0 to `most` on
// every rank.
template <typename Visit>
void ForEachCombination(int world_size, int most, Visit visit) {
  std::vector<int> batches(static_cast<size_t>(world_size));
  for (int index = 0;; ++index) {
    visit(index, batches);
    size_t digit = 0;
    while (digit < batches.size() && ++batches[digit] > most) {
      batches[digit++] = 0;
    }
    if (digit == batches.size()) return;
  }
}

class JoinTest : public ::testing::TestWithParam<int> {};

TEST_P(JoinTest, MatchesTheReferenceForEveryNumberOfBatches) {
  const int world_size = GetParam();
  const bool all = std::getenv("SHARD_TEST_LONG") != nullptr;
  // There are 64, 512 and 4096 combinations. A step that is no power of two
  // changes every rank's number of batches.
  const int all_shares[] = {1, 1, testing::TestsAreOnGpu() ? 11 : 1};
  const int shares[] = {1, 11, 131};
  const int sanitized_shares[] = {7, 53, 751};
  const int share = (all          ? all_shares
                     : kSanitized ? sanitized_shares
                                  : shares)[world_size - 2];
  // All forms of all combinations of four ranks would take an hour. Two forms
  // of each of two ranks' are more than there are pairs of a form and extras.
  const int few_forms = world_size == 2 ? 2 : 1;
  const int most_in_all_forms = testing::TestsAreOnGpu() ? 2 : 3;
  const int forms =
      all && world_size <= most_in_all_forms ? kNumForms : few_forms;
  int tried = 0;
  int failed = 0;
  ForEachCombination(
      world_size, 7, [&](int index, const std::vector<int>& batches) {
        if (index % share != 0 || failed > 5) return;
        for (int f = 0; f < forms; ++f) {
          // Their numbers have no common divisor, so that all pairs come.
          static_assert(std::gcd(kNumForms, kNumExtras) == 1);
          const int form = tried % kNumForms;
          const int extras = tried % kNumExtras;
          ++tried;
          const std::string failure =
              TrainEpochs(kForms[form], kExtras[extras], batches);
          if (failure.empty()) continue;
          ++failed;
          std::string text;
          for (const int n : batches) StrAppend(&text, " ", n);
          ADD_FAILURE() << kForms[form].name << ", extras " << extras
                        << ", batches" << text << ": " << failure;
        }
      });
  EXPECT_GT(tried, 5);
}

INSTANTIATE_TEST_SUITE_P(Ranks, JoinTest, ::testing::Values(2, 3, 4));

class JoinFormsTest : public ::testing::TestWithParam<int> {};

// Trains one combination in every form.
TEST_P(JoinFormsTest, MatchesTheReference) {
  const int form = GetParam();
  for (const Extras& extras : kExtras) {
    // With a sanitizer, tries every extra and every form, but not all pairs.
    if (kSanitized && form % kNumExtras != &extras - kExtras) continue;
    if (TriesFew() && form % 2 != (&extras - kExtras) % 2) continue;
    EXPECT_EQ(TrainEpochs(kForms[form], extras, {2, 0, 3}), "")
        << "extras " << &extras - kExtras;
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, JoinFormsTest, ::testing::Range(0, kNumForms),
                         [](const auto& info) {
                           std::string name = kForms[info.param].name;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

// ---- Wrong calls -----------------------------------------------------------

// Each stage with and without shared memory.
bool IsTriedWithErrors(const Form& form) {
  return form.device == std::string("cpu") && !IsAsWithoutLink(form.link);
}

// Calls `body(engine)` on two ranks with filled engines, for each of these
// forms.
template <typename Body>
void OnTwoRanks(Body body) {
  for (const Form& form : kForms) {
    if (!IsTriedWithErrors(form)) continue;
    SCOPED_TRACE(form.name);
    const auto plan = PlanFor(form, 2);
    RunThreadRanks(
        2,
        [&](const auto& comm) {
          auto made = CreateEngine(plan, comm, EngineOptions());
          ASSERT_OK(made);
          FillExactly(made->get());
          body(made->get());
        },
        5, form.link);
  }
}

void TrainOn(Engine* engine, int step) {
  ExactTraining training;
  training.nested = false;
  ExactTrainer trainer(training, engine);
  for (size_t u = 0; u < engine->plan().units().size(); ++u) {
    const auto unit = static_cast<int32_t>(u);
    ASSERT_OK(engine->UnitAcquire(unit, Pass::kBackward, 0));
    ASSERT_OK(engine->MarkUnitGradsReady(unit));
    ASSERT_OK(engine->UnitRelease(unit));
  }
  StepReport report;
  ASSERT_OK(engine->Step(StepOptions(), &report));
  EXPECT_EQ(report.step, step);
}

TEST(JoinErrorsTest, RefusesUnitsInUseOnAllRanks) {
  OnTwoRanks([](Engine* engine) {
    ASSERT_OK(engine->UnitAcquire(1, Pass::kForward, 0));
    int64_t steps = -1;
    ExpectError(engine->Join(0, &steps), StatusCode::kFailedPrecondition,
                {"rank 0", "unit 'b0' (1)", "FORWARD", "join"});
    EXPECT_EQ(steps, 0);
    // All ranks made the same mistake, and can go on.
    ASSERT_OK(engine->UnitRelease(1));
    ASSERT_OK(engine->Join(0, &steps));
    TrainOn(engine, 1);
  });
}

TEST(JoinErrorsTest, RefusesAUnitInUseOnOneRank) {
  OnTwoRanks([](Engine* engine) {
    // Where UnitAcquire gathers, both ranks have to call it.
    ASSERT_OK(engine->UnitAcquire(1, Pass::kForward, 0));
    const int rank = engine->comm()->rank();
    if (rank == 0) ASSERT_OK(engine->UnitRelease(1));
    int64_t steps = -1;
    const Status joined = engine->Join(0, &steps);
    ExpectError(joined, StatusCode::kFailedPrecondition,
                {"rank 1", "unit 'b0' (1)", "FORWARD", "join"});
    EXPECT_EQ(joined.rank(), 1);
    if (rank == 1) ASSERT_OK(engine->UnitRelease(1));
    ASSERT_OK(engine->Join(0, &steps));
    TrainOn(engine, 1);
  });
}

TEST(JoinErrorsTest, RefusesReadyGradients) {
  OnTwoRanks([](Engine* engine) {
    for (size_t u = 0; u < engine->plan().units().size(); ++u) {
      const auto unit = static_cast<int32_t>(u);
      ASSERT_OK(engine->UnitAcquire(unit, Pass::kBackward, 0));
      ASSERT_OK(engine->MarkUnitGradsReady(unit));
      ASSERT_OK(engine->UnitRelease(unit));
    }
    int64_t steps = -1;
    if (engine->comm()->rank() == 1) {
      StepReport report;
      ExpectError(engine->Step(StepOptions(), &report),
                  StatusCode::kFailedPrecondition, {"rank 0", "ready"});
      // Rank 0's mistake leaves rank 1's step possible.
      ASSERT_OK(engine->Step(StepOptions(), &report));
      EXPECT_EQ(report.active, 2);
    } else {
      ExpectError(engine->Join(0, &steps), StatusCode::kFailedPrecondition,
                  {"rank 0", "ready", "step first"});
      StepReport report;
      ASSERT_OK(engine->Step(StepOptions(), &report));
    }
    TrainOn(engine, 2);
  });
}

TEST(JoinErrorsTest, RefusesAJoinBeforeBroadcast) {
  for (const Form& form : kForms) {
    if (!IsTriedWithErrors(form)) continue;
    SCOPED_TRACE(form.name);
    const auto plan = PlanFor(form, 2);
    RunThreadRanks(
        2,
        [&](const auto& comm) {
          auto made = CreateEngine(plan, comm, EngineOptions());
          ASSERT_OK(made);
          int64_t steps = -1;
          ExpectError((*made)->Join(0, &steps), StatusCode::kFailedPrecondition,
                      {"rank 0", "join", "FILLING", "broadcast_params"});
          FillExactly(made->get());
          TrainOn(made->get(), 1);
        },
        5, form.link);
  }
}

// One rank joins and the other broadcasts; the error is final.
TEST(JoinErrorsTest, AJoinDuringTheFirstBroadcastIsRefused) {
  for (const char* link : {"", "direct=0"}) {
    const auto plan = PlanFor(kForms[0], 2);
    RunThreadRanks(
        2,
        [&](const auto& comm) {
          auto made = CreateEngine(plan, comm, EngineOptions());
          ASSERT_OK(made);
          int64_t steps = -1;
          const Status status = comm->rank() == 0 ? (*made)->Join(0, &steps)
                                                  : (*made)->BroadcastParams(0);
          ExpectError(status, StatusCode::kFailedPrecondition,
                      {"rank 0: join needs parameters that were broadcast"});
        },
        5, link);
  }
}

TEST(JoinErrorsTest, AJoinDuringAnotherCollectiveIsADesync) {
  OnTwoRanks([](Engine* engine) {
    int64_t steps = -1;
    const bool joins = engine->comm()->rank() == 0;
    const Status status =
        joins ? engine->Join(0, &steps) : engine->BroadcastHostTensors(0, 0);
    ExpectError(status, StatusCode::kDesync,
                {"rank 0 waits in join", "rank 1 broadcasts buffers"});
    // Neither rank has begun anything, so both go on.
    EXPECT_OK(engine->Join(0, &steps));
  });
}

// Step options that two ranks disagree on are an error on all ranks, also on
// the one that waits in join.
TEST(JoinErrorsTest, StepsThatDifferAreADesyncOnAllRanks) {
  for (const Form& form : kForms) {
    if (!IsTriedWithErrors(form)) continue;
    SCOPED_TRACE(form.name);
    const auto plan = PlanFor(form, 3);
    RunThreadRanks(
        3,
        [&](const auto& comm) {
          auto made = CreateEngine(plan, comm, EngineOptions());
          ASSERT_OK(made);
          Engine& engine = **made;
          FillExactly(&engine);
          Status status;
          if (comm->rank() == 1) {
            int64_t steps = -1;
            status = engine.Join(0, &steps);
            EXPECT_EQ(steps, 0);
          } else {
            for (size_t u = 0; u < plan->units().size(); ++u) {
              const auto unit = static_cast<int32_t>(u);
              ASSERT_OK(engine.UnitAcquire(unit, Pass::kBackward, 0));
              ASSERT_OK(engine.MarkUnitGradsReady(unit));
              ASSERT_OK(engine.UnitRelease(unit));
            }
            const StepOptions options = {.max_grad_norm = 1.0 + comm->rank()};
            StepReport report;
            status = engine.Step(options, &report);
          }
          ExpectError(status, StatusCode::kDesync,
                      {"max_grad_norm", "rank 0 has 1", "rank 2 has 3"});
          EXPECT_EQ(status.rank(), 2);
        },
        5, form.link);
  }
}

}  // namespace
}  // namespace shard::join_test
