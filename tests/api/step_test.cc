// SPDX-License-Identifier: Apache-2.0

#include <cmath>
#include <cstring>
#include <functional>
#include <future>
#include <limits>
#include <nlohmann/json.hpp>
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

TEST(StepTest, TheLastReportIsThatOfTheLastStep) {
  shard_step_report last = SHARD_STEP_REPORT_INIT;
  EXPECT_FAILS(shard_engine_last_report(nullptr, &last), SHARD_INVALID_ARGUMENT,
               "engine is NULL");
  RunRanks(2, [](int rank, shard_comm* comm) {
    const Engine engine = TrainingEngine(comm);
    EXPECT_FAILS(shard_engine_last_report(engine.get(), nullptr),
                 SHARD_INVALID_ARGUMENT, "report is NULL");
    shard_step_report last = SHARD_STEP_REPORT_INIT;
    last.step = 7;
    EXPECT_FAILS(shard_engine_last_report(engine.get(), &last),
                 SHARD_FAILED_PRECONDITION, "last_report before the first");
    EXPECT_EQ(last.step, 0);

    FillGrad(engine.get(), 1.0f);
    shard_step_options options = SHARD_STEP_OPTIONS_INIT;
    options.max_grad_norm = 1;
    shard_step_report report = SHARD_STEP_REPORT_INIT;
    ASSERT_OK(shard_engine_step(engine.get(), &options, &report));
    ASSERT_OK(shard_engine_last_report(engine.get(), &last));
    EXPECT_EQ(std::memcmp(&last, &report, sizeof(last)), 0);

    // A step that fails leaves the report as it was.
    options.max_grad_norm = rank == 0 ? -1 : 1;
    EXPECT_FAILS(shard_engine_step(engine.get(), &options, nullptr),
                 SHARD_INVALID_ARGUMENT, "max_grad_norm=-1");
    ASSERT_OK(shard_engine_last_report(engine.get(), &last));
    EXPECT_EQ(std::memcmp(&last, &report, sizeof(last)), 0);

    // Without a report of the call, and on a rank that has joined.
    if (rank == 0) {
      FillGrad(engine.get(), 1.0f);
      ASSERT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
    }
    ASSERT_OK(shard_engine_join(engine.get(), 0, nullptr));
    ASSERT_OK(shard_engine_last_report(engine.get(), &last));
    EXPECT_EQ(last.step, 2);
    EXPECT_EQ(last.active_ranks, 1);
    EXPECT_EQ(last.grad_norm, -1);
    EXPECT_GT(last.seconds_total, 0);
    EXPECT_OK(shard_comm_shutdown(comm, 0));
  });
}

TEST(StepTest, SynchronizeWaitsForTheEnginesWork) {
  EXPECT_FAILS(shard_engine_synchronize(nullptr, 0), SHARD_INVALID_ARGUMENT,
               "engine is NULL");
  // Set when rank 0 has waited in vain: no call of the library, which would
  // find that the ranks wait for each other.
  std::promise<void> waited;
  RunRanks(
      2,
      [&waited](int rank, shard_comm* comm) {
        const Engine engine = TrainingEngine(comm);
        EXPECT_OK(shard_engine_synchronize(engine.get(), 0));
        FillGrad(engine.get(), 1.0f);
        if (rank == 1) waited.get_future().wait();
        ASSERT_OK(shard_engine_mark_unit_grads_ready(engine.get(), 0));
        if (rank == 0) {
          // The engine's thread may not be there yet when a call ends.
          const std::string reduces = "it is at 'reduce gradients of unit 0'";
          Outcome outcome;
          for (int tries = 0; tries < 30000; ++tries) {
            outcome = Take(shard_engine_synchronize(engine.get(), 1e-3));
            if (outcome.message.find(reduces) != std::string::npos) break;
          }
          ExpectError(outcome, SHARD_DEADLINE_EXCEEDED,
                      {"shard-comm", reduces});
          waited.set_value();
        }
        for (const double timeout : {0.0, 30.0, -1.0}) {
          EXPECT_OK(shard_engine_synchronize(engine.get(), timeout));
        }
        ASSERT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
        EXPECT_EQ(WeightOf(engine.get())[0], 0.5f);
        EXPECT_OK(shard_comm_shutdown(comm, 0));
      },
      "direct=0");
}

TEST(StepTest, DevicesAreDescribed) {
  size_t length = 7;
  EXPECT_OK(shard_devices_json(nullptr, 0, &length));
  std::string text(length + 1, 'x');
  EXPECT_OK(shard_devices_json(text.data(), text.size(), &length));
  text.resize(length);
  // The plugin lies beside libshard.so only where it was built before, which
  // may have been for another libshard.so.
  const nlohmann::json cuda = nlohmann::json::parse(text).at("cuda");
  const std::string error = cuda.at("error");
  if (cuda.at("devices").is_null()) {
    EXPECT_NE(error.find("libshard_cuda.so"), std::string::npos) << text;
    EXPECT_TRUE(error.starts_with("loading ") ||
                error.find("is of another build") != std::string::npos)
        << text;
  } else {
    // A driver that cannot be used may tell its version.
    EXPECT_TRUE(!error.empty() || cuda.at("driver") != "") << text;
    EXPECT_TRUE(cuda.at("devices").is_array()) << text;
    EXPECT_TRUE(cuda.at("nccl").contains("library")) << text;
    EXPECT_TRUE(cuda.at("cublas").contains("library")) << text;
  }
  EXPECT_FAILS(shard_devices_json(text.data(), 3, nullptr),
               SHARD_INVALID_ARGUMENT, "length is NULL");
  EXPECT_FAILS(shard_devices_json(nullptr, 3, &length), SHARD_INVALID_ARGUMENT,
               "buffer is NULL");
}

// Returns how an engine works.
nlohmann::json JsonOf(const shard_engine* engine) {
  size_t length = 0;
  EXPECT_OK(shard_engine_json(engine, nullptr, 0, &length));
  std::string text(length + 1, 'x');
  EXPECT_OK(shard_engine_json(engine, text.data(), text.size(), &length));
  text.resize(length);
  return nlohmann::json::parse(text);
}

TEST(StepTest, AnEngineIsDescribed) {
  size_t length = 7;
  EXPECT_FAILS(shard_engine_json(nullptr, nullptr, 0, &length),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  EXPECT_EQ(length, 0u);
  const struct {
    int ranks;
    const char* options;
    const char* transport;
  } cases[] = {{1, "", "none"}, {2, "", "direct"}, {2, "direct=0", "host"}};
  for (const auto& it : cases) {
    RunRanks(
        it.ranks,
        [&it](int, shard_comm* comm) {
          const Engine engine =
              MakeEngine(SmallPlan(shard_comm_world_size(comm)).get(), comm);
          EXPECT_EQ(JsonOf(engine.get()),
                    nlohmann::json({{"device", "cpu"},
                                    {"transport", it.transport},
                                    {"sum_order", "ranks"}}));
          EXPECT_FAILS(shard_engine_json(engine.get(), nullptr, 0, nullptr),
                       SHARD_INVALID_ARGUMENT, "length is NULL");
          EXPECT_OK(shard_comm_shutdown(comm, 0));
        },
        it.options);
  }
}

TEST(StepTest, ProcessorsHaveNoStreamsOfAHost) {
  EXPECT_FAILS(shard_engine_set_stream(nullptr, nullptr),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  shard_device_kind kind = 7;
  int32_t ordinal = 7;
  EXPECT_FAILS(shard_engine_device(nullptr, &kind, &ordinal),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  EXPECT_EQ(kind, 0);
  EXPECT_EQ(ordinal, 0);
  RunRanks(2, [](int rank, shard_comm* comm) {
    const Engine engine =
        MakeEngine(SmallPlan(shard_comm_world_size(comm)).get(), comm);
    shard_device_kind kind = 0;
    int32_t ordinal = -1;
    EXPECT_OK(shard_engine_device(engine.get(), &kind, &ordinal));
    EXPECT_EQ(kind, SHARD_DEVICE_CPU);
    EXPECT_EQ(ordinal, 0);
    EXPECT_OK(shard_engine_device(engine.get(), &kind, nullptr));
    EXPECT_FAILS(shard_engine_device(engine.get(), nullptr, &ordinal),
                 SHARD_INVALID_ARGUMENT, "kind is NULL");
    EXPECT_OK(shard_engine_set_stream(engine.get(), nullptr));
    EXPECT_OK(shard_engine_broadcast_params(engine.get(), 0));
    // The call is local, so ranks may differ.
    if (rank == 1) {
      int stream = 0;
      EXPECT_FAILS(shard_engine_set_stream(engine.get(), &stream),
                   SHARD_INVALID_ARGUMENT, "set_stream", "'cpu'", "null");
      EXPECT_OK(shard_engine_set_stream(engine.get(), nullptr));
    }
    ASSERT_OK(
        shard_engine_unit_acquire(engine.get(), 0, SHARD_PASS_BACKWARD, 0));
    EXPECT_FAILS(shard_engine_set_stream(engine.get(), nullptr),
                 SHARD_FAILED_PRECONDITION, "BACKWARD_PRE", "set_stream");
    ASSERT_OK(shard_engine_unit_release(engine.get(), 0));
    ASSERT_OK(shard_engine_begin_step(engine.get(), nullptr));
    EXPECT_FAILS(shard_engine_set_stream(engine.get(), nullptr),
                 SHARD_FAILED_PRECONDITION, "after begin_step");
    ASSERT_OK(shard_engine_mark_unit_grads_ready(engine.get(), 0));
    ASSERT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
    ASSERT_OK(shard_engine_summon(engine.get(), 0, -1, 0));
    EXPECT_FAILS(shard_engine_set_stream(engine.get(), nullptr),
                 SHARD_FAILED_PRECONDITION, "SUMMON_FULL_PARAMS");
    ASSERT_OK(shard_engine_summon_end(engine.get(), 0, 0));
    EXPECT_OK(shard_engine_set_stream(engine.get(), nullptr));
    EXPECT_OK(shard_comm_shutdown(comm, 0));
  });
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
