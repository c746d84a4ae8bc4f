// SPDX-License-Identifier: Apache-2.0

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/api/api_testing.h"

namespace shard_api_testing::step_test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

using Change = std::function<void(shard_step_options&)>;

Outcome TryStep(shard_engine* engine, const Change& change) {
  shard_step_options options = SHARD_STEP_OPTIONS_INIT;
  change(options);
  return Take(shard_engine_step(engine, &options, nullptr));
}

// Makes a step with gradients that average to 1, and expects it to be good: lr
// is 0.5, so every weight falls by 0.5.
void ExpectTrains(shard_engine* engine, int rank, shard_comm* comm,
                  int64_t step) {
  const float before = WeightOf(engine)[0];
  EXPECT_OK(shard_comm_barrier(comm, 0));
  FillGrad(engine, rank == 0 ? 2.0f : 0.0f);
  shard_step_report report = SHARD_STEP_REPORT_INIT;
  EXPECT_OK(shard_engine_step(engine, nullptr, &report));
  EXPECT_EQ(report.step, step);
  EXPECT_EQ(report.skipped, 0);
  EXPECT_EQ(report.grad_norm, -1);
  EXPECT_EQ(WeightOf(engine)[11], before - 0.5f);
  EXPECT_OK(shard_comm_barrier(comm, 0));
}

TEST(StepTest, Values) {
  const Comm comm = OpenLocal();
  const Engine engine = TrainingEngine(comm.get());
  const struct {
    const char* name;
    double shard_step_options::*field;
  } fields[] = {{"max_grad_norm", &shard_step_options::max_grad_norm},
                {"grad_divisor", &shard_step_options::grad_divisor},
                {"loss_scale", &shard_step_options::loss_scale}};
  for (const auto& field : fields) {
    for (const double bad : {-1.0, kInf, -kInf, std::nan("")}) {
      ExpectError(TryStep(engine.get(), [&](auto& o) { o.*field.field = bad; }),
                  SHARD_INVALID_ARGUMENT,
                  {field.name, "allowed: a finite number"});
    }
  }
  for (const int32_t bad : {-1, 2}) {
    ExpectError(TryStep(engine.get(), [&](auto& o) { o.skip_nonfinite = bad; }),
                SHARD_INVALID_ARGUMENT,
                {"skip_nonfinite", std::to_string(bad), "0 or 1"});
  }
  for (const double timeout : {-1.0, kInf, std::nan("")}) {
    EXPECT_EQ(
        TryStep(engine.get(), [&](auto& o) { o.timeout = timeout; }).message,
        "");
  }
}

TEST(StepTest, ClippingAndSkipping) {
  const Comm comm = OpenLocal();
  const Engine engine = TrainingEngine(comm.get());
  FillGrad(engine.get(), 1.0f);
  shard_step_options options = SHARD_STEP_OPTIONS_INIT;
  options.max_grad_norm = 0.5;
  shard_step_report report = SHARD_STEP_REPORT_INIT;
  ASSERT_OK(shard_engine_step(engine.get(), &options, &report));
  EXPECT_NEAR(report.grad_norm, std::sqrt(12.0), 1e-6);
  EXPECT_NEAR(WeightOf(engine.get())[0], 1 - 0.5 * 0.5 / std::sqrt(12.0), 1e-6);

  const float before = WeightOf(engine.get())[0];
  FillGrad(engine.get(), static_cast<float>(std::nan("")));
  options.max_grad_norm = 0;
  options.skip_nonfinite = 1;
  ASSERT_OK(shard_engine_step(engine.get(), &options, &report));
  EXPECT_EQ(report.skipped, 1);
  EXPECT_EQ(report.step, 1);
  EXPECT_EQ(WeightOf(engine.get())[0], before);
}

TEST(StepTest, OptionsThatDifferAreDesync) {
  const struct {
    const char* name;
    Change change;
  } cases[] = {
      {"max_grad_norm", [](auto& o) { o.max_grad_norm = 1; }},
      {"grad_divisor", [](auto& o) { o.grad_divisor = 7; }},
      {"loss_scale", [](auto& o) { o.loss_scale = 2; }},
      {"skip_nonfinite", [](auto& o) { o.skip_nonfinite = 1; }},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.name);
    RunRanks(3, [&](int rank, shard_comm* comm) {
      const Engine engine = TrainingEngine(comm);
      FillGrad(engine.get(), 1.0f);
      const Outcome outcome = TryStep(
          engine.get(), rank == 1 ? one.change : [](auto&) {});
      ExpectError(outcome, SHARD_DESYNC, {one.name, "rank 0", "rank 1"});
      EXPECT_EQ(outcome.rank, 1);
      EXPECT_EQ(WeightOf(engine.get())[0], 1.0f);
    });
  }
}

// A wrong argument on one rank is the same error on every rank and names that
// rank. It changes nothing, and training goes on.
TEST(StepTest, AWrongArgumentOnOneRankIsAnErrorOfAll) {
  RunRanks(3, [](int rank, shard_comm* comm) {
    const Engine engine = TrainingEngine(comm);
    const auto wrong_on = [&](int wrong, const Change& change) {
      FillGrad(engine.get(), 1.0f);
      Outcome outcome = TryStep(
          engine.get(), rank == wrong ? change : [](auto&) {});
      EXPECT_EQ(outcome.rank, wrong);
      EXPECT_EQ(WeightOf(engine.get())[0], 1.0f);
      EXPECT_OK(shard_comm_barrier(comm, 0));
      return outcome;
    };
    ExpectError(wrong_on(1, [](auto& o) { o.max_grad_norm = -3; }),
                SHARD_INVALID_ARGUMENT, {"rank 1", "max_grad_norm=-3"});
    ExpectError(wrong_on(2, [](auto& o) { o.skip_nonfinite = 9; }),
                SHARD_INVALID_ARGUMENT, {"rank 2", "skip_nonfinite", "9"});
    ExpectError(wrong_on(0, [](auto& o) { o.struct_size = 3; }),
                SHARD_INVALID_ARGUMENT, {"rank 0", "struct_size"});

    shard_step_report report = SHARD_STEP_REPORT_INIT;
    if (rank == 1) report.struct_size = 0;
    ExpectError(Take(shard_engine_step(engine.get(), nullptr, &report)),
                SHARD_INVALID_ARGUMENT, {"rank 1", "shard_step_report"});

    // When two ranks are wrong, all errors name the lower one.
    ExpectError(TryStep(engine.get(),
                        [&](auto& o) {
                          if (rank >= 1) o.loss_scale = -rank;
                        }),
                SHARD_INVALID_ARGUMENT, {"rank 1", "loss_scale=-1"});
    EXPECT_OK(shard_comm_barrier(comm, 0));
    FillGrad(engine.get(), 1.0f);
    EXPECT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
    EXPECT_EQ(WeightOf(engine.get())[0], 0.5f);
    EXPECT_OK(shard_comm_shutdown(comm, 0));
  });
}

TEST(StepTest, TooEarlyIsNoHarm) {
  RunRanks(2, [](int rank, shard_comm* comm) {
    const Engine engine = MakeEngine(SmallPlan(2).get(), comm);
    const Outcome outcome =
        Take(shard_engine_step(engine.get(), nullptr, nullptr));
    ExpectError(outcome, SHARD_FAILED_PRECONDITION, {"broadcast_params"});
    EXPECT_EQ(outcome.rank, 0);
    EXPECT_OK(shard_engine_broadcast_params(engine.get(), 0));
    ExpectTrains(engine.get(), rank, comm, 1);
    EXPECT_FAILS(shard_engine_broadcast_params(engine.get(), 0),
                 SHARD_FAILED_PRECONDITION, "broadcast before");
    ExpectTrains(engine.get(), rank, comm, 2);
    EXPECT_OK(shard_comm_shutdown(comm, 0));
  });
}

TEST(StepTest, AbortEndsTheStepOfTheOthers) {
  RunRanks(2, [](int rank, shard_comm* comm) {
    const Engine engine = TrainingEngine(comm);
    if (rank == 0) {
      EXPECT_OK(shard_comm_abort(comm, "out of data"));
      return;
    }
    for (int i = 0; i < 2; ++i) {
      const Outcome outcome =
          Take(shard_engine_step(engine.get(), nullptr, nullptr));
      ExpectError(outcome, SHARD_POISONED, {"rank 0", "out of data"});
      EXPECT_EQ(outcome.rank, 0);
    }
  });
}

}  // namespace
}  // namespace shard_api_testing::step_test
