// SPDX-License-Identifier: Apache-2.0
//
// Imports the state of a run that began in another program.

#include "core/engine/state/import_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/q8.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/training.h"

namespace shard::import_state_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kNumel = 700;

// The other program: Adam by its formula, in double.
struct Adam {
  std::vector<double> p, m, v;

  explicit Adam(size_t count) : p(count), m(count), v(count) {
    for (size_t i = 0; i < count; ++i) {
      p[i] = static_cast<double>(InitialValue(0, static_cast<int64_t>(i)));
    }
  }

  void Step(int step) {
    for (size_t i = 0; i < p.size(); ++i) {
      const double g =
          static_cast<double>(GradientValue(step, 0, static_cast<int64_t>(i)));
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.99 * v[i] + 0.01 * g * g;
      const double denominator =
          std::sqrt(v[i] / (1 - std::pow(0.99, step))) + 1e-8;
      p[i] -= 0.01 * m[i] / (1 - std::pow(0.9, step)) / denominator;
    }
  }
};

std::vector<float> Floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

StatusOr<std::unique_ptr<Engine>> MakeEngine(
    const std::shared_ptr<Communicator>& comm, const std::string& optimizer,
    DType dtype = DType::kF32, Partition partition = Partition::kEven) {
  const auto model = ModelOf({{kNumel}, {5}}, dtype);
  SHARD_RETURN_IF_ERROR(model->SetTrainable(1, false));
  PlanOptions options;
  options.world_size = comm->world_size();
  options.partition = partition;
  SHARD_ASSIGN_OR_RETURN(options.groups, PlanGroups(*model, optimizer));
  SHARD_ASSIGN_OR_RETURN(const auto plan, Plan::Create(model, options));
  return CreateEngine(plan, comm);
}

TEST(ImportStateTest, ARunContinuesFromTheMiddle) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Partition partition : {Partition::kEven, Partition::kGreedy}) {
      RunThreadRanks(3, [&](const std::shared_ptr<Communicator>& comm) {
        Adam other(kNumel);
        for (int step = 1; step <= 20; ++step) other.Step(step);

        auto made =
            MakeEngine(comm, "adam?lr=0.01&beta2=0.99", dtype, partition);
        ASSERT_OK(made);
        Engine* engine = made->get();
        const std::vector<float> param = Floats(other.p);
        std::vector<unsigned char> bytes(DTypeBytes(dtype, kNumel));
        Store(dtype, param, bytes.data());
        ASSERT_OK(engine->SetParam(0, bytes.data(), bytes.size()));
        ASSERT_OK(engine->BroadcastParams(0));
        ASSERT_OK(engine->SetState(0, "exp_avg", Floats(other.m).data(),
                                   other.m.size()));
        ASSERT_OK(engine->SetState(0, "exp_avg_sq", Floats(other.v).data(),
                                   other.v.size()));
        if (dtype != DType::kF32) {
          ASSERT_OK(
              engine->SetState(0, "master_param", param.data(), param.size()));
        }
        ASSERT_OK(engine->SetStep(20));
        for (int step = 21; step <= 40; ++step) {
          other.Step(step);
          std::vector<float> grad;
          for (int64_t i = 0; i < kNumel; ++i) {
            grad.push_back(GradientValue(step, 0, i));
          }
          Store(dtype, grad, engine->Grad(0)->data);
          StepReport report;
          ASSERT_OK(engine->Step(StepOptions(), &report));
          EXPECT_EQ(report.step, step);
        }
        const std::vector<float> ours =
            Load(dtype, engine->Param(0)->data, kNumel);
        // Gradients in bf16, and a last rounding of parameters to bf16.
        const double tolerance = dtype == DType::kF32 ? 2e-6 : 2e-2;
        for (size_t i = 0; i < ours.size(); ++i) {
          ASSERT_NEAR(static_cast<double>(ours[i]), other.p[i], tolerance)
              << "element " << i;
        }
      });
    }
  }
}

TEST(ImportStateTest, EightBitStatesAreRoundedToTheNearest) {
  RunThreadRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    auto made = MakeEngine(comm, "adam?states=q8");
    ASSERT_OK(made);
    Engine* engine = made->get();
    ASSERT_OK(engine->BroadcastParams(0));
    std::vector<float> values;
    for (int64_t i = 0; i < kNumel; ++i) {
      values.push_back(1.0f + static_cast<float>(i % 7));
    }
    ASSERT_OK(engine->SetState(0, "exp_avg_sq", values.data(), values.size()));
    const EngineBuffer& buffer = engine->memory().buffers()[0];
    const auto shard = static_cast<size_t>(buffer.plan->layout.shard_numel());
    const auto begin = static_cast<size_t>(comm->rank()) * shard;
    ASSERT_LT(begin, values.size());
    const size_t count = std::min(values.size() - begin, shard);
    std::vector<float> decoded(count);
    const unsigned char* const state = testing::KernelView(buffer.states[1]);
    DecodeQ8(StateKind::kSquareAverage, state,
             reinterpret_cast<const float*>(state + shard), decoded.data(),
             count);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_NEAR(decoded[i], values[begin + i], 0.04f * values[begin + i]);
    }
  });
}

TEST(ImportStateTest, WrongArgumentsAreNamed) {
  RunThreadRanks(1, [](const std::shared_ptr<Communicator>& comm) {
    auto made = MakeEngine(comm, "adam");
    ASSERT_OK(made);
    Engine* engine = made->get();
    std::vector<float> values(kNumel);
    const auto set = [&](ParamId param, const char* name, size_t count) {
      return engine->SetState(param, name, values.data(), count);
    };
    EXPECT_EQ(set(0, "exp_avg", kNumel).code(),
              StatusCode::kFailedPrecondition);
    EXPECT_EQ(engine->SetStep(1).code(), StatusCode::kFailedPrecondition);
    ASSERT_OK(engine->BroadcastParams(0));
    const Status unknown = set(0, "momentum", kNumel);
    EXPECT_EQ(unknown.code(), StatusCode::kNotFound);
    EXPECT_THAT(unknown.message(), HasSubstr("exp_avg, exp_avg_sq"));
    // Parameters in fp32 have no master weights.
    EXPECT_EQ(set(0, "master_param", kNumel).code(), StatusCode::kNotFound);
    ExpectInvalid(set(0, "exp_avg", 3), {"'exp_avg'", "700", "not 3"});
    ExpectInvalid(set(7, "exp_avg", 3), {"7"});
    EXPECT_EQ(set(1, "exp_avg", 5).code(), StatusCode::kFailedPrecondition);
    values[9] = -1;
    EXPECT_OK(set(0, "exp_avg", kNumel));
    ExpectInvalid(set(0, "exp_avg_sq", kNumel),
                  {"'exp_avg_sq'", "element 9", "-1", "at least 0"});
    values[9] = std::nanf("");
    ExpectInvalid(set(0, "exp_avg", kNumel), {"element 9", "nan", "finite"});
    ExpectInvalid(engine->SetStep(-1), {"step -1", "0 to 4294967294"});
    ExpectInvalid(engine->SetStep(int64_t{1} << 32), {"step 4294967296"});
  });
}

}  // namespace
}  // namespace shard::import_state_test
