// SPDX-License-Identifier: Apache-2.0
//
// Pinned memory that runs out under engines on the device cuda, over the fake
// of its driver, and engines that lack nothing, to compare with.

#ifndef SHARD_TESTS_CORE_ENGINE_CUDA_PINNED_MEMORY_H_
#define SHARD_TESTS_CORE_ENGINE_CUDA_PINNED_MEMORY_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/base/deadline.h"
#include "core/base/offload.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/device/cuda/cuda_device.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_offload_training.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_pinned_memory {

using cuda_offload::Case;
using cuda_offload::ExpectSame;
using cuda_offload::FillWith;
using cuda_offload::kBf16;
using cuda_offload::kOffload;
using cuda_offload::Train;
using cuda_training::Clipped;
using cuda_training::MakeEngine;
using testing::fake_cuda::ClearFailures;
using testing::fake_cuda::FailCall;

// Makes the n-th allocation of pinned memory from now on fail, on any rank, and
// those that follow: an allocation that fails is tried a second time, and
// several threads allocate.
inline void FailAllocations(uint64_t n) {
  constexpr uint64_t kFollowing = 40;
  for (uint64_t i = 0; i < kFollowing; ++i) {
    FailCall("cuMemHostAlloc", n + i, cuda::CuResult::kOutOfMemory);
  }
}

// Gives the driver the pinned memory back that the device keeps for reuse, so
// that what is allocated next is a call.
inline void FreeKept() {
  const auto device = cuda::OpenDevice("0");
  ASSERT_OK(device);
  FailCall("cuMemHostAlloc", 1, cuda::CuResult::kOutOfMemory);
  EXPECT_OK((*device)->AllocateHost(1, "one byte"));
}

// Expects an error that says how much pinned memory there was not, and what to
// do.
inline void ExpectLack(const Status& status) {
  ExpectError(status, StatusCode::kResourceExhausted,
              {" of the host's memory that stays in place (pinned) for cuda:0; "
               "free memory, or raise the limit of the container"});
  const std::string text(status.message());
  const size_t end = text.find(" bytes) of the host's memory");
  ASSERT_NE(end, std::string::npos) << text;
  const uint64_t bytes =
      std::strtoull(text.c_str() + text.rfind('(', end) + 1, nullptr, 10);
  EXPECT_GT(bytes, 0u) << text;
  EXPECT_NE(text.find(StrCat(": ", FormatBytes(bytes), " (", bytes, " bytes)")),
            std::string::npos)
      << text;
}

// Ranks of engines.
struct Form {
  const char* name;
  bool offloads;
  int ranks;
};

// The engine of one rank, and one on a processor, which has the same bits.
struct Engines {
  Engines(const Form& form, const std::shared_ptr<Communicator>& comm) {
    Case of = kBf16;
    of.deterministic = true;
    plan = cuda_offload::MakePlan(of, form.ranks);
    if (form.offloads) offload = kOffload;
    EngineOptions cpu;
    cpu.loss_scaler = *LossScaler::Parse("dynamic?init_scale=8");
    auto made = Engine::Create(plan, comm, cpu);
    EXPECT_OK(made);
    expected = *std::move(made);
  }

  Status Make(const std::shared_ptr<Communicator>& comm) {
    SHARD_ASSIGN_OR_RETURN(engine, MakeEngine(plan, comm, offload));
    return Status();
  }
  void TrainBoth(int step) {
    Train(expected.get(), step, Clipped());
    Train(engine.get(), step, Clipped());
    ExpectSame(engine.get(), expected.get());
  }

  std::shared_ptr<const Plan> plan;
  std::optional<Offload> offload;
  std::unique_ptr<Engine> expected;
  std::unique_ptr<Engine> engine;
};

inline void Meet(Communicator* comm) {
  ASSERT_OK(comm->Barrier("test", Deadline::After(30)));
}

// Calls `body` on rank 0 alone, while the others wait.
inline void OnRankZero(Communicator* comm, const std::function<void()>& body) {
  Meet(comm);
  if (comm->rank() == 0) body();
  Meet(comm);
}

// Saves a checkpoint, and waits for it.
inline Status Save(Engine* engine, const std::string& path, bool is_async) {
  SaveOptions options;
  options.async = is_async;
  options.overwrite = true;
  SHARD_ASSIGN_OR_RETURN(const auto save, engine->Save(path, options));
  return save == nullptr ? Status() : save->Wait(Deadline::After(30));
}

}  // namespace shard::cuda_pinned_memory

#endif  // SHARD_TESTS_CORE_ENGINE_CUDA_PINNED_MEMORY_H_
