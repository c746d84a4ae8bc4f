// SPDX-License-Identifier: Apache-2.0
//
// Training in steps of one kernel, for tests: ranks on GPUs of the fakes whose
// kernels reach the memory of all of them.

#ifndef SHARD_TESTS_CORE_ENGINE_ONE_KERNEL_TRAINING_H_
#define SHARD_TESTS_CORE_ENGINE_ONE_KERNEL_TRAINING_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "core/engine/transfer/collectives_memory.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::one_kernel_training {

using nccl_training::MakeEngineOn;
using testing::FakeNccl;

inline constexpr int kSteps = 3;
inline constexpr int kMakesWindows = 23102;

inline testing::fake_cuda::Options Gpus(int count) {
  testing::fake_cuda::Options options;
  options.devices = count;
  return options;
}

inline testing::fake_nccl::Options WithPeers() {
  testing::fake_nccl::Options options;
  options.version = kMakesWindows;
  return options;
}

struct Form {
  const char* name = "";
  int ranks = 2;
  int stage = 1;
  std::string optimizer = "adamw?lr=0.1";
  std::string second = "";  // The optimizer of parameter 1, if another one.
  DType dtype = DType::kF32;
  bool f32_grads = false;
  Masters masters = Masters::kF32;
  bool whole_grads = false;
  bool deterministic = true;
  int shard_group_size = 0;
  int64_t alignment_bytes = PlanOptions().alignment_bytes;
  std::vector<int64_t> sizes = {2000, 2700, 3400};
  int clipped_step = 0;  // 0: none.
  int thawed_at = 0;     // Parameter 1 is frozen before this step.
  // From this step on gradients are marked when they are ready; 0: never.
  int marked_from = 0;
  bool begins = false;  // These steps are begun before.
  // The last rank has input for so many steps, and then joins; 0: for all.
  int steps_of_last = 0;

  // Returns whether each step is one kernel.
  bool IsOneKernel() const { return clipped_step == 0 && marked_from == 0; }
  bool IsOneKernel(int step) const {
    return step != clipped_step && (marked_from == 0 || step < marked_from);
  }
};

inline std::shared_ptr<const Plan> MakePlan(const Form& form) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Net");
  for (size_t u = 0; u < form.sizes.size(); ++u) {
    const ModuleId block =
        *training.model->AddModule(kRootModule, StrCat("block", u), "Block");
    EXPECT_OK(
        training.model->AddParam(block, "weight", form.dtype, {form.sizes[u]}));
  }
  if (!form.second.empty()) {
    EXPECT_OK(training.model->AddParamGroup(form.second, std::vector{1}));
  }
  if (form.thawed_at > 0) EXPECT_OK(training.model->SetTrainable(1, false));
  training.optimizer = form.optimizer;
  training.wrap = "class?names=Block";
  training.plan.world_size = form.ranks;
  training.plan.stage = form.stage;
  training.plan.whole_grads = form.whole_grads;
  training.plan.shard_group_size = form.shard_group_size;
  training.plan.alignment_bytes = form.alignment_bytes;
  training.plan.f32_grads = form.f32_grads;
  training.plan.masters = form.masters;
  training.plan.deterministic = form.deterministic;
  training.plan.prefetch = 0;
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  // Small states take a page on each rank.
  if (form.stage > 0 && form.sizes == Form().sizes) {
    EXPECT_TRUE(ShardsAsItsStage(**plan));
  }
  return *plan;
}

// Writes this rank's gradients of a step where they lie.
inline Status WriteGrads(Engine* engine, int rank, int step) {
  SHARD_RETURN_IF_ERROR(engine->Synchronize(0));
  const auto& params = engine->plan().model().params();
  for (size_t p = 0; p < params.size(); ++p) {
    const auto param = static_cast<ParamId>(p);
    if (!engine->plan().buffer(engine->plan().place(param).buffer).trainable) {
      continue;
    }
    SHARD_ASSIGN_OR_RETURN(const Engine::Tensor grad, engine->Grad(param));
    std::vector<float> values(static_cast<size_t>(grad.numel));
    for (int64_t i = 0; i < grad.numel; ++i) {
      values[static_cast<size_t>(i)] = GradientValue(step, param + 3 * rank, i);
    }
    Store(engine->plan().buffer(engine->plan().place(param).buffer).grad_dtype,
          values, grad.data);
  }
  return Status();
}

inline Status Step(Engine* engine, int rank, int step,
                   const StepOptions& options = {}) {
  SHARD_RETURN_IF_ERROR(WriteGrads(engine, rank, step));
  return engine->Step(options, nullptr);
}

// Makes a step of a form.
inline Status TrainStep(const Form& form, Engine* engine, int rank, int step) {
  if (step == form.thawed_at) {
    SHARD_RETURN_IF_ERROR(engine->SetTrainable(std::vector{1}, true, 0));
  }
  const StepOptions options =
      step == form.clipped_step ? cuda_training::Clipped() : StepOptions();
  if (form.marked_from == 0 || step < form.marked_from) {
    return Step(engine, rank, step, options);
  }
  if (form.begins) SHARD_RETURN_IF_ERROR(engine->BeginStep(options));
  SHARD_RETURN_IF_ERROR(WriteGrads(engine, rank, step));
  const auto units = static_cast<int32_t>(engine->plan().units().size());
  for (int32_t unit = units; unit-- > 0;) {
    SHARD_RETURN_IF_ERROR(engine->MarkUnitGradsReady(unit));
  }
  return engine->Step(options, nullptr);
}

// Returns the bytes of all parameters.
inline std::vector<std::byte> ParamsOf(Engine* engine) {
  std::vector<std::byte> bytes;
  const auto& params = engine->plan().model().params();
  for (size_t p = 0; p < params.size(); ++p) {
    const auto param = engine->Param(static_cast<ParamId>(p));
    EXPECT_OK(param);
    const auto* const begin = static_cast<const std::byte*>(param->data);
    bytes.insert(bytes.end(), begin,
                 begin + DTypeBytes(params[p].dtype, param->numel));
  }
  return bytes;
}

struct Result {
  std::vector<std::vector<std::byte>> params;  // By rank.
  bool of_cpu = false;
  std::string json;          // Of rank 0.
  CollectivesMemory memory;  // Of rank 0.
  uint64_t reductions = 0;   // Calls of NCCL, in all steps.
  uint64_t gathers = 0;
  // On all GPUs, in all steps, by kernel.
  std::map<std::string, uint64_t> launches;

  uint64_t Launches() const { return LaunchesOf(""); }
  uint64_t Updates() const { return LaunchesOf("shard_update_"); }

 private:
  uint64_t LaunchesOf(std::string_view prefix) const {
    uint64_t sum = 0;
    for (const auto& [kernel, count] : launches) {
      if (kernel.starts_with(prefix)) sum += count;
    }
    return sum;
  }
};

// Trains on "cuda", with or without steps of one kernel, or on "cpu", where
// ranks share memory.
inline Result Train(const std::string& device, const Form& form,
                    const testing::fake_nccl::Options& nccl = WithPeers(),
                    bool one_kernel = true) {
  const FakeNccl fake(Gpus(form.ranks), nccl);
  const auto plan = MakePlan(form);
  Result result;
  result.params.resize(static_cast<size_t>(form.ranks));
  result.of_cpu = device == "cpu";
  testing::fake_cuda::Counters before;
  RunThreadRanks(
      form.ranks,
      [&](const std::shared_ptr<Communicator>& comm) {
        EngineOptions options;
        options.one_kernel = one_kernel && device != "cpu";
        const auto engine = MakeEngineOn(device, plan, comm, options);
        ASSERT_OK(engine);
        ASSERT_OK(cuda_training::Fill(engine->get()));
        ASSERT_OK((*engine)->Synchronize(0));
        ASSERT_OK(comm->Barrier("all are filled", Deadline::After(30)));
        if (comm->rank() == 0) before = testing::fake_cuda::Count();
        ASSERT_OK(comm->Barrier("counted before", Deadline::After(30)));
        const bool is_last = comm->rank() == form.ranks - 1;
        const int steps =
            is_last && form.steps_of_last > 0 ? form.steps_of_last : kSteps;
        for (int step = 1; step <= steps; ++step) {
          ASSERT_OK(TrainStep(form, engine->get(), comm->rank(), step));
        }
        if (form.steps_of_last > 0) {
          int64_t joined = 0;
          ASSERT_OK((*engine)->Join(0, &joined));
          EXPECT_EQ(joined, kSteps - steps);
        }
        ASSERT_OK((*engine)->Synchronize(0));
        result.params[static_cast<size_t>(comm->rank())] =
            ParamsOf(engine->get());
        ASSERT_OK(comm->Barrier("all are trained", Deadline::After(30)));
        if (comm->rank() == 0) {
          result.launches = testing::fake_cuda::CountSince(before).launches;
          result.json = (*engine)->ToJson();
          result.memory = (*engine)->collectives_memory();
        }
        ASSERT_OK(comm->Barrier("all have read", Deadline::After(30)));
      },
      30, device == "cpu" ? "" : "direct=0");
  const auto counts = testing::fake_nccl::Count({});
  result.reductions =
      counts.Calls("ncclReduceScatter") + counts.Calls("ncclSend");
  result.gathers = counts.Calls("ncclAllGather");
  return result;
}

// Returns the launches of kernels that update, on all GPUs and in all steps: a
// step of one kernel has one on each GPU for each optimizer, and another step
// one for each buffer.
inline uint64_t ExpectedUpdates(const Form& form) {
  const size_t optimizers = form.second.empty() ? 1 : 2;
  uint64_t updates = 0;
  for (int step = 1; step <= kSteps; ++step) {
    updates += form.IsOneKernel(step) ? optimizers : form.sizes.size();
  }
  return updates * static_cast<uint64_t>(form.ranks);
}

// Expects the same parameters on each rank.
inline void ExpectSame(const Result& got, const Result& expected) {
  // The thread sanitizer's configuration has no fused multiply-add on the CPU,
  // whose ranks then only tell which ranks have the same parameters.
  const bool same_bits =
      SHARD_TESTS_THREAD_SANITIZER == 0 || got.of_cpu == expected.of_cpu;
  ASSERT_EQ(got.params.size(), expected.params.size());
  ASSERT_FALSE(got.params.empty());
  for (size_t rank = 0; rank < got.params.size(); ++rank) {
    SCOPED_TRACE(StrCat("rank ", rank));
    EXPECT_FALSE(got.params[rank].empty());
    EXPECT_EQ(got.params[rank].size(), expected.params[rank].size());
    EXPECT_EQ(got.params[rank] == got.params[0],
              expected.params[rank] == expected.params[0]);
    if (!same_bits) continue;
    EXPECT_TRUE(got.params[rank] == expected.params[rank]);
  }
}

// Enqueues a kernel that ends once `released` is set.
inline void HoldStream(Stream* stream, const std::atomic<bool>* released) {
  stream->Native("a test", [released](void* native) {
    int device = 0;
    const testing::fake_cuda::WaitingKernel kernel = {
        .name = "held",
        .context = testing::fake_cuda::CurrentContext(&device),
        .streams = {static_cast<cuda::CuStream>(native)},
        .begin = [released] {
          return [released] {
            return *released ? testing::fake_cuda::Progress::kDone
                             : testing::fake_cuda::Progress::kWaits;
          };
        }};
    EXPECT_EQ(testing::fake_cuda::LaunchWaiting(kernel),
              cuda::CuResult::kSuccess);
    return Status();
  });
}

// The memory is the one that a plan predicts.
inline void ExpectMemory(const CollectivesMemory& memory, const Form& form,
                         bool one_kernel) {
  CollectivesMemory expected =
      CollectivesMemoryOf(*MakePlan(form), Transport::kNccl);
  if (one_kernel) expected += MeetingsMemory(form.ranks, Transport::kNccl);
  EXPECT_EQ(memory.device_bytes, expected.device_bytes);
  EXPECT_EQ(memory.host_bytes, expected.host_bytes);
}

}  // namespace shard::one_kernel_training

#endif  // SHARD_TESTS_CORE_ENGINE_ONE_KERNEL_TRAINING_H_
