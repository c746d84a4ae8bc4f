// SPDX-License-Identifier: Apache-2.0
//
// Engines whose plan or options do not let a step be one kernel, though it was
// asked for and the GPUs reach each other's memory: they say why, in JSON on
// all ranks and in the log once, and make the launches, the calls of NCCL and
// the bits of engines that were not asked. So do single steps that need all
// gradients first, of which nothing is said.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/base/transport.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/offload/offloading_device.h"
#include "core/engine/engine.h"
#include "core/observe/logger.h"
#include "core/optim/loss_scaler.h"
#include "tests/core/engine/one_kernel_training.h"

namespace shard::nccl_one_kernel_reasons_test {
namespace {

using one_kernel_training::FakeNccl;
using one_kernel_training::Form;
using one_kernel_training::Gpus;
using one_kernel_training::kSteps;
using one_kernel_training::MakePlan;
using one_kernel_training::ParamsOf;
using one_kernel_training::Step;
using one_kernel_training::WithPeers;

struct Case {
  const char* name;
  // "": steps are one kernel, but those that need a norm.
  std::string reason = "";
  // The group whose optimizer is the reason; -1: none.
  int group = -1;
  Form form = {.ranks = 3};
  bool offloads = false;
  bool overlap = false;
  MissingGrads missing_grads = MissingGrads::kError;
  // The last rank does not declare the gradients of unit 1, so that units are
  // acquired.
  bool lacks = false;
  Transport transport = Transport::kNccl;
  std::string loss_scaler = "";
  StepOptions step = {};
};

std::ostream& operator<<(std::ostream& out, const Case& of) {
  return out << of.name;
}

// The lines about steps of one kernel in the logs of all ranks.
class Lines {
 public:
  Logger MakeLogger() {
    return Logger(
        [](int32_t /*level*/, const char* message, void* to) {
          const std::string_view text = message;
          if (text.find("one kernel") == text.npos) return;
          auto* const lines = static_cast<Lines*>(to);
          const std::lock_guard<std::mutex> lock(lines->mutex_);
          lines->texts_.emplace_back(text);
        },
        LogLevel::kInfo, this);
  }
  std::vector<std::string> Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::move(texts_);
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

struct Outcome {
  std::vector<std::string> jsons;              // By rank.
  std::vector<std::vector<std::byte>> first;   // By rank, before the steps.
  std::vector<std::vector<std::byte>> params;  // After them.
  std::map<std::string, uint64_t> launches;    // Sums over ranks, in the steps.
  std::vector<std::string> lines;
};

StatusOr<std::unique_ptr<Engine>> MakeEngine(
    const Case& of, bool one_kernel, const std::shared_ptr<const Plan>& plan,
    const std::shared_ptr<Communicator>& comm) {
  EngineOptions options;
  options.one_kernel = one_kernel;
  options.overlap = of.overlap;
  options.missing_grads = of.missing_grads;
  options.transport = of.transport;
  SHARD_ASSIGN_OR_RETURN(options.loss_scaler,
                         LossScaler::Parse(of.loss_scaler));
  SHARD_ASSIGN_OR_RETURN(options.opened_device,
                         cuda::OpenDevice(StrCat(comm->rank())));
  if (of.offloads) {
    SHARD_ASSIGN_OR_RETURN(auto host, OpenDevice("cpu"));
    options.opened_device =
        OffloadStates(std::move(options.opened_device), std::move(host),
                      {.threads = 2, .window = 512});
  }
  return Engine::Create(plan, comm, options);
}

// Writes gradients while their unit is acquired, and declares them.
Status StepByUnits(const Case& of, Engine* engine, int rank, int step) {
  const Plan& plan = engine->plan();
  const auto units = static_cast<int32_t>(plan.units().size());
  for (int32_t unit = units; unit-- > 0;) {
    SHARD_RETURN_IF_ERROR(engine->UnitAcquire(unit, Pass::kBackward, 0));
    SHARD_RETURN_IF_ERROR(engine->Synchronize(0));
    for (const ParamId param : cuda_training::ParamsOf(plan, unit)) {
      SHARD_ASSIGN_OR_RETURN(const Engine::Tensor grad, engine->Grad(param));
      auto* const values = static_cast<float*>(grad.data);
      for (int64_t i = 0; i < grad.numel; ++i) {
        values[i] = GradientValue(step, param + 3 * rank, i);
      }
    }
    const bool lacks = of.lacks && unit == 1 && rank + 1 == of.form.ranks;
    if (!lacks) SHARD_RETURN_IF_ERROR(engine->MarkUnitGradsReady(unit));
    SHARD_RETURN_IF_ERROR(engine->UnitRelease(unit));
  }
  return engine->Step(of.step, nullptr);
}

// Returns all parameters, those of other ranks too. COLLECTIVE.
StatusOr<std::vector<std::byte>> ReadAll(Engine* engine) {
  SHARD_RETURN_IF_ERROR(engine->Summon(kRootModule, -1, 0));
  SHARD_RETURN_IF_ERROR(engine->Synchronize(0));
  auto params = ParamsOf(engine);
  SHARD_RETURN_IF_ERROR(engine->EndSummon(false, 0));
  return params;
}

Outcome Train(const Case& of, bool one_kernel) {
  const FakeNccl fake(Gpus(of.form.ranks), WithPeers());
  const auto plan = MakePlan(of.form);
  const bool by_units = of.lacks || of.form.stage > 1;
  const auto ranks = static_cast<size_t>(of.form.ranks);
  Outcome outcome;
  outcome.jsons.resize(ranks);
  outcome.first.resize(ranks);
  outcome.params.resize(ranks);
  Lines lines;
  CommOptions comm_options;
  comm_options.timeout = 30;
  comm_options.logger = lines.MakeLogger();
  testing::fake_cuda::Counters before;
  RunThreadRanks(
      of.form.ranks,
      [&](const std::shared_ptr<Communicator>& comm) {
        const auto rank = static_cast<size_t>(comm->rank());
        const auto made = MakeEngine(of, one_kernel, plan, comm);
        ASSERT_OK(made);
        Engine* const engine = made->get();
        outcome.jsons[rank] = engine->ToJson();
        ASSERT_OK(cuda_training::Fill(engine));
        const auto first = ReadAll(engine);
        ASSERT_OK(first);
        outcome.first[rank] = *first;
        ASSERT_OK(engine->Synchronize(0));
        ASSERT_OK(comm->Barrier("filled", Deadline::After(30)));
        if (rank == 0) before = testing::fake_cuda::Count();
        ASSERT_OK(comm->Barrier("counted before", Deadline::After(30)));
        for (int step = 1; step <= kSteps; ++step) {
          ASSERT_OK(by_units ? StepByUnits(of, engine, comm->rank(), step)
                             : Step(engine, comm->rank(), step, of.step));
        }
        EXPECT_EQ(engine->step(), kSteps);
        ASSERT_OK(engine->Synchronize(0));
        ASSERT_OK(comm->Barrier("trained", Deadline::After(30)));
        if (rank == 0) {
          outcome.launches = testing::fake_cuda::CountSince(before).launches;
        }
        ASSERT_OK(comm->Barrier("counted", Deadline::After(30)));
        const auto params = ReadAll(engine);
        ASSERT_OK(params);
        outcome.params[rank] = *params;
        ASSERT_OK(comm->Barrier("read", Deadline::After(30)));
      },
      comm_options, "direct=0");
  outcome.lines = lines.Take();
  return outcome;
}

std::string ReasonOf(const Case& of) {
  if (of.group < 0) return of.reason;
  const auto plan = MakePlan(of.form);
  const auto group = static_cast<size_t>(of.group);
  return StrCat("'", plan->options().groups[group].optimizer,
                "' updates whole tensors");
}

// The steps of both have the same launches, those of NCCL too, and bits.
void ExpectSame(const Outcome& got, const Outcome& expected) {
  EXPECT_FALSE(got.launches.empty());
  EXPECT_EQ(got.launches, expected.launches);
  for (size_t rank = 0; rank < got.params.size(); ++rank) {
    EXPECT_FALSE(got.params[rank].empty());
    EXPECT_TRUE(got.params[rank] == expected.params[rank]) << "rank " << rank;
    EXPECT_TRUE(got.params[rank] == got.params[0]) << "rank " << rank;
    EXPECT_FALSE(got.params[rank] == got.first[rank]) << "rank " << rank;
  }
}

class OneKernelReasonsTest : public ::testing::TestWithParam<Case> {};

TEST_P(OneKernelReasonsTest, AreToldAndStepsAreMadeOfParts) {
  const Case& of = GetParam();
  const std::string reason = ReasonOf(of);
  const Outcome plain = Train(of, /*one_kernel=*/false);
  for (const std::string& json : plain.jsons) {
    EXPECT_EQ(json.find("one_kernel"), std::string::npos) << json;
  }
  EXPECT_TRUE(plain.lines.empty()) << plain.lines[0];
  const Outcome parts = Train(of, /*one_kernel=*/true);
  for (const std::string& json : parts.jsons) {
    if (reason.empty()) {
      EXPECT_NE(json.find("\"one_kernel\":true"), std::string::npos) << json;
      continue;
    }
    EXPECT_NE(json.find(StrCat("\"one_kernel\":false,\"not_one_kernel\":\"",
                               reason, "\"")),
              std::string::npos)
        << json;
  }
  if (reason.empty()) {
    EXPECT_TRUE(parts.lines.empty()) << parts.lines[0];
  } else {
    ASSERT_EQ(parts.lines.size(), 1u);
    EXPECT_NE(parts.lines[0].find(StrCat("a step is not one kernel: ", reason)),
              std::string::npos)
        << parts.lines[0];
  }
  ExpectSame(parts, plain);
}

INSTANTIATE_TEST_SUITE_P(
    Plans, OneKernelReasonsTest,
    ::testing::Values(
        Case{.name = "stage2",
             .reason = "stage 2 reduces gradients unit by unit; use "
                       "whole_grads, or stage 1",
             .form = {.ranks = 3, .stage = 2}},
        Case{.name = "stage3",
             .reason = "stage 3 gathers parameters unit by unit",
             .form = {.ranks = 3, .stage = 3}},
        Case{.name = "stage3_whole_grads",
             .reason = "stage 3 gathers parameters unit by unit",
             .form = {.ranks = 3, .stage = 3, .whole_grads = true}},
        Case{.name = "shard_groups",
             .reason = "ranges of shard groups are not in the order of ranks",
             .form = {.ranks = 4, .shard_group_size = 2}},
        Case{.name = "lamb",
             .group = 0,
             .form = {.ranks = 3, .optimizer = "lamb"}},
        Case{.name = "adafactor",
             .group = 0,
             .form = {.ranks = 3, .optimizer = "adafactor"}},
        // One of the two optimizers is enough.
        Case{.name = "some_lamb",
             .group = 1,
             .form = {.ranks = 3, .second = "lamb"}},
        Case{.name = "alignment",
             .reason = "blocks are aligned to 8 bytes, and not to 16",
             .form = {.ranks = 3, .alignment_bytes = 8}}),
    [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Options, OneKernelReasonsTest,
    ::testing::Values(
        Case{.name = "offload",
             .reason = "offloaded states are updated by the host's processors",
             .offloads = true},
        Case{.name = "overlap",
             .reason = "overlap sends parameters after the step",
             .overlap = true},
        Case{.name = "missing_zero",
             .reason = "missing_grads chooses parameters in each step",
             .missing_grads = MissingGrads::kZero,
             .lacks = true},
        Case{.name = "missing_skip",
             .reason = "missing_grads chooses parameters in each step",
             .missing_grads = MissingGrads::kSkip},
        Case{.name = "staged",
             .reason = "tensors pass through the host's memory",
             .transport = Transport::kStaged}),
    [](const auto& info) { return std::string(info.param.name); });

// The engine makes other steps of one kernel.
INSTANTIATE_TEST_SUITE_P(
    Steps, OneKernelReasonsTest,
    ::testing::Values(
        Case{.name = "skip_nonfinite", .step = {.skip_nonfinite = true}},
        Case{.name = "norm", .step = {.max_grad_norm = 0.5}},
        Case{.name = "norm_of_p",
             .step = {.max_grad_norm = 0.5, .grad_norm_type = 3}},
        Case{.name = "loss_scale", .loss_scaler = "dynamic?init_scale=8"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace shard::nccl_one_kernel_reasons_test
