// SPDX-License-Identifier: Apache-2.0
//
// Engines on the device cuda, over the fake of its driver: what a steady step
// costs, and what becomes of an engine when the driver fails.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/driver.h"
#include "core/engine/engine.h"
#include "core/optim/loss_scaler.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/in_child.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_engine_test {
namespace {

using cuda::CuResult;
using testing::FakeCuda;
using testing::FakeCudaTest;
using testing::fake_cuda::Alive;
using testing::fake_cuda::AliveText;
using testing::fake_cuda::Count;
using testing::fake_cuda::CountAlive;
using testing::fake_cuda::Counters;
using testing::fake_cuda::CountSince;
using testing::fake_cuda::FailCall;
using testing::fake_cuda::LoseAtCall;
using testing::fake_cuda::Reset;
using testing::fake_cuda::RunAll;
using testing::fake_cuda::ViolationText;

struct Form {
  int units = 1;
  int tensors_per_unit = 1;
  int world_size = 1;
  int stage = 1;
};

std::shared_ptr<const Plan> MakePlan(const Form& form) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Net");
  for (int u = 0; u < form.units; ++u) {
    const ModuleId block =
        *training.model->AddModule(kRootModule, StrCat("block", u), "Block");
    for (int t = 0; t < form.tensors_per_unit; ++t) {
      EXPECT_OK(training.model->AddParam(block, StrCat("weight", t),
                                         DType::kF32,
                                         {4000 / form.tensors_per_unit}));
    }
  }
  training.wrap = "class?names=Block";
  training.plan.world_size = form.world_size;
  training.plan.stage = form.stage;
  training.plan.prefetch = 0;
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  return *plan;
}

StatusOr<std::unique_ptr<Engine>> MakeEngine(
    const std::shared_ptr<const Plan>& plan,
    const std::shared_ptr<Communicator>& comm) {
  EngineOptions options;
  SHARD_ASSIGN_OR_RETURN(options.loss_scaler,
                         LossScaler::Parse("dynamic?init_scale=8"));
  SHARD_ASSIGN_OR_RETURN(options.opened_device, cuda::OpenDevice("0"));
  return Engine::Create(plan, comm, options);
}

StepOptions Clipped() {
  StepOptions options;
  options.max_grad_norm = 0.5;
  return options;
}

Status Fill(Engine* engine) {
  const auto& params = engine->plan().model().params();
  for (size_t p = 0; p < params.size(); ++p) {
    const std::vector<float> values(static_cast<size_t>(params[p].numel), 1.0f);
    SHARD_RETURN_IF_ERROR(engine->SetParam(
        static_cast<ParamId>(p), values.data(), values.size() * sizeof(float)));
  }
  return engine->BroadcastParams(0);
}

std::vector<ParamId> ParamsOf(const Plan& plan, int32_t unit) {
  std::vector<ParamId> params;
  for (size_t p = 0; p < plan.places().size(); ++p) {
    const auto param = static_cast<ParamId>(p);
    if (plan.buffer(plan.place(param).buffer).unit == unit) {
      params.push_back(param);
    }
  }
  return params;
}

// Writes the gradients where they lie, when nobody uses them, and steps.
Status TrainOneStep(Engine* engine, int step) {
  SHARD_RETURN_IF_ERROR(engine->Synchronize(0));
  const auto units = static_cast<int32_t>(engine->plan().units().size());
  for (int32_t unit = units; unit-- > 0;) {
    SHARD_RETURN_IF_ERROR(engine->UnitAcquire(unit, Pass::kBackward, 0));
    for (const ParamId param : ParamsOf(engine->plan(), unit)) {
      SHARD_ASSIGN_OR_RETURN(const Engine::Tensor grad, engine->Grad(param));
      auto* const values = static_cast<float*>(grad.data);
      SHARD_RETURN_IF_ERROR(engine->Synchronize(0));
      for (int64_t i = 0; i < grad.numel; ++i) {
        values[i] = GradientValue(step, param, i);
      }
    }
    SHARD_RETURN_IF_ERROR(engine->MarkUnitGradsReady(unit));
    SHARD_RETURN_IF_ERROR(engine->UnitRelease(unit));
  }
  StepReport report;
  return engine->Step(Clipped(), &report);
}

// Returns the elements of parameter 0 after three steps.
StatusOr<std::vector<float>> Train(const std::shared_ptr<const Plan>& plan,
                                   const std::shared_ptr<Communicator>& comm) {
  SHARD_ASSIGN_OR_RETURN(const auto engine, MakeEngine(plan, comm));
  SHARD_RETURN_IF_ERROR(Fill(engine.get()));
  for (int step = 1; step <= 3; ++step) {
    SHARD_RETURN_IF_ERROR(TrainOneStep(engine.get(), step));
  }
  SHARD_RETURN_IF_ERROR(engine->Summon(0, -1, 0));
  SHARD_ASSIGN_OR_RETURN(const Engine::Tensor param, engine->Param(0));
  const auto* const values = static_cast<const float*>(param.data);
  std::vector<float> result(values, values + param.numel);
  SHARD_RETURN_IF_ERROR(engine->EndSummon(false, 0));
  return result;
}

using Result = StatusOr<std::vector<float>>;

std::vector<Result> TrainRanks(const Form& form) {
  const auto plan = MakePlan(form);
  std::vector<Result> results(static_cast<size_t>(form.world_size),
                              Result(Status(StatusCode::kUnknown, "no rank")));
  RunThreadRanks(form.world_size, [&](const auto& comm) {
    Result& result = results[static_cast<size_t>(comm->rank())];
    result = Train(plan, comm);
    // As a host does that goes on no more.
    if (!result.ok()) comm->Abort(result.status());
  });
  return results;
}

// ---- What a step costs
// -------------------------------------------------------

// A stream of the host's, so that steps return once they are enqueued.
class HostsStream {
 public:
  HostsStream() : api_((*cuda::Driver::Load())->api()) {
    cuda::CuContext context = nullptr;
    api_.DevicePrimaryCtxRetain(&context, 0);
    api_.CtxPushCurrent(context);
    api_.StreamCreate(&stream_, cuda::kStreamNonBlocking);
  }
  ~HostsStream() {
    cuda::CuContext context = nullptr;
    api_.StreamDestroy(stream_);
    api_.CtxPopCurrent(&context);
    api_.DevicePrimaryCtxRelease(0);
  }
  HostsStream(const HostsStream&) = delete;
  HostsStream& operator=(const HostsStream&) = delete;

  cuda::CuStream get() const { return stream_; }

 private:
  const cuda::DriverApi& api_;
  cuda::CuStream stream_ = nullptr;
};

void ExpectOnGpu(const StatusOr<Engine::Tensor>& tensor) {
  ASSERT_OK(tensor);
  const auto device = cuda::OpenDevice("0");
  ASSERT_OK(device);
  EXPECT_OK((*device)->CheckPlace(tensor->data, MemoryPlace::kDevice));
}

// Returns what the fourth step calls, from the declaration of its gradients on.
Counters CountStep(const Form& form) {
  Counters counters;
  const FakeCuda fake;
  const auto plan = MakePlan(form);
  RunThreadRanks(1, [&](const auto& comm) {
    const HostsStream stream;
    const auto engine = MakeEngine(plan, comm);
    ASSERT_OK(engine);
    ASSERT_OK((*engine)->SetStream(stream.get()));
    ASSERT_OK(Fill(engine->get()));
    for (ParamId p = 0; p < static_cast<ParamId>(plan->places().size()); ++p) {
      ExpectOnGpu((*engine)->Param(p));
      ExpectOnGpu((*engine)->Grad(p));
    }
    for (int step = 1; step <= 4; ++step) {
      // Then each wait of the host is one query.
      RunAll();
      const Counters before = Count();
      for (auto unit = static_cast<int32_t>(plan->units().size());
           unit-- > 0;) {
        ASSERT_OK((*engine)->MarkUnitGradsReady(unit));
      }
      ASSERT_OK((*engine)->Step(Clipped(), nullptr));
      counters = CountSince(before);
    }
    ASSERT_OK((*engine)->Synchronize(0));
  });
  return counters;
}

class StepCostTest : public ::testing::Test {};

TEST_F(StepCostTest, WaitsOnceAndAllocatesNothing) {
  for (const int stage : {0, 1}) {
    const Counters counters = CountStep({.stage = stage});
    EXPECT_EQ(counters.Calls("cuEventQuery"), 1u);
    EXPECT_EQ(counters.waits_of_host, 0u);
    EXPECT_EQ(counters.pageable_copies, 0u);
    for (const char* const call :
         {"cuMemAlloc", "cuMemAllocFromPoolAsync", "cuMemHostAlloc",
          "cuMemFree", "cuMemFreeAsync", "cuMemFreeHost", "cuStreamCreate",
          "cuEventCreate", "cuModuleLoadData", "cuMemPoolTrimTo"}) {
      EXPECT_EQ(counters.Calls(call), 0u) << call;
    }
    // The sum of one buffer, its scale, and its update.
    EXPECT_EQ(counters.Launches(), 3u);
    EXPECT_EQ(counters.Launches("shard_add_to_norm"), 1u);
    EXPECT_EQ(counters.Launches("shard_finish_norm"), 1u);
    // The step's values, and its results.
    EXPECT_EQ(counters.to_device.count, 1u);
    EXPECT_EQ(counters.to_host.count, 1u);
    EXPECT_LE(counters.to_device.bytes + counters.to_host.bytes, 4096u);
  }
}

TEST_F(StepCostTest, DependsOnUnitsAlone) {
  const Counters one = CountStep({});
  const Counters tensors = CountStep({.tensors_per_unit = 1000});
  EXPECT_EQ(tensors.calls, one.calls);
  EXPECT_EQ(tensors.launches, one.launches);
  const Counters two = CountStep({.units = 2});
  const Counters ten = CountStep({.units = 10});
  EXPECT_EQ(ten.Calls("cuEventQuery"), 1u);
  // The sum of the buffer and its update.
  EXPECT_EQ(two.Launches(), one.Launches() + 2);
  EXPECT_EQ(ten.Launches(), one.Launches() + 2 * 9);
  EXPECT_EQ(ten.to_device.count, 1u);
  EXPECT_EQ(ten.Calls() - two.Calls(), 8 * (two.Calls() - one.Calls()));
}

// ---- Failures
// ----------------------------------------------------------------

// Makes one call of the driver fail, in a training of so many ranks.
struct Fault {
  std::string symbol;
  uint64_t call;
  bool loses;
};

std::string TextOf(const Fault& fault) {
  return StrCat(fault.symbol, " number ", fault.call,
                fault.loses ? " loses the device" : " fails");
}

// Returns whether a failed call leaves the library without knowledge of whether
// its work has ended. Then it leaves everything as it is.
bool MayBeAbandoned(const Fault& fault) {
  return fault.symbol == "cuEventCreate" || fault.symbol == "cuEventRecord" ||
         fault.symbol == "cuEventQuery" || fault.symbol == "cuCtxPushCurrent";
}

// Trains with a fault. Returns whether any rank had an error.
bool TrainWith(const Fault& fault, const Form& form,
               const std::vector<float>& expected) {
  SCOPED_TRACE(TextOf(fault));
  Reset();
  if (fault.loses) {
    LoseAtCall(fault.symbol, fault.call);
  } else {
    FailCall(fault.symbol, fault.call, CuResult::kUnknown);
  }
  bool failed = false;
  for (const Result& result : TrainRanks(form)) {
    if (result.ok()) {
      EXPECT_EQ(*result, expected);
      continue;
    }
    failed = true;
    EXPECT_FALSE(result.status().message().empty());
    EXPECT_NE(result.status().code(), StatusCode::kDeadlineExceeded)
        << result.status().ToString();
  }
  EXPECT_EQ(ViolationText(), "");
  EXPECT_EQ(CountAlive().current_contexts, 0u);
  if (!fault.loses && !MayBeAbandoned(fault)) {
    EXPECT_EQ(AliveText(), "");
  }
  return failed;
}

// Every call of every entry point, or in the normal run some of them.
void TrainWithEveryFault(const Form& form, uint64_t stride) {
  if (kSanitized) stride *= 5;
  if (std::getenv("SHARD_TEST_LONG") != nullptr) stride = 1;
  Reset();
  const std::vector<Result> plain = TrainRanks(form);
  ASSERT_OK(plain[0]);
  const Counters counters = Count();
  EXPECT_GT(counters.Calls(), 200u);
  int runs = 0;
  int failed = 0;
  for (const auto& [symbol, calls] : counters.calls) {
    for (uint64_t call = 1; call <= calls; call += stride) {
      for (const bool loses : {false, true}) {
        failed += TrainWith({symbol, call, loses}, form, *plain[0]) ? 1 : 0;
        ++runs;
      }
    }
  }
  EXPECT_GT(failed, runs / 2);
  // What failed leaves nothing behind.
  const FakeCuda fake;
  for (const Result& result : TrainRanks(form)) {
    ASSERT_OK(result);
    EXPECT_EQ(*result, *plain[0]);
  }
  ::testing::Test::RecordProperty("runs", runs);
}

class CudaFaultTest : public ::testing::Test {
 protected:
  void TearDown() override { Reset(); }
};

TEST_F(CudaFaultTest, AnErrorOfAnyCallIsAnErrorOfTheTraining) {
  TrainWithEveryFault({}, 1);
}

TEST_F(CudaFaultTest, AnErrorOfAnyCallEndsBothRanks) {
  TrainWithEveryFault({.units = 2, .world_size = 2}, 23);
}

class CudaEngineTest : public FakeCudaTest {};

TEST_F(CudaEngineTest, MemoryThatRunsOutIsNamed) {
  Reset({.memory_bytes = size_t{1} << 20});
  const auto plan = MakePlan({.units = 100});
  RunThreadRanks(1, [&](const auto& comm) {
    const auto engine = MakeEngine(plan, comm);
    ExpectError(engine, StatusCode::kResourceExhausted,
                {"cuda:0", "free of 1.0 MiB", "shardctl plan"});
  });
}

// A child of fork has the parent's handles, and nothing of CUDA works there.
TEST_F(CudaEngineTest, AForkedChildLeavesTheDeviceAlone) {
  const auto plan = MakePlan({});
  CommOptions options;
  options.world_size = 1;
  auto comm = OpenCommunicator("local:", options);
  ASSERT_OK(comm);
  auto engine = MakeEngine(plan, *comm);
  ASSERT_OK(engine);
  ASSERT_OK(Fill(engine->get()));
  ASSERT_OK(TrainOneStep(engine->get(), 1));
  const Alive before = CountAlive();
  testing::InChild([&] {
    ExpectError(cuda::OpenDevice("0"), StatusCode::kFailedPrecondition,
                {"was forked from", "exec"});
    engine->reset();
  });
  EXPECT_EQ(CountAlive(), before);
  EXPECT_OK(TrainOneStep(engine->get(), 2));
}

}  // namespace
}  // namespace shard::cuda_engine_test
