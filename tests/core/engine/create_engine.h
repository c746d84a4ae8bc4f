// SPDX-License-Identifier: Apache-2.0
//
// Makes the engines of tests, on the devices of OpenTestDevice, or on another
// that SHARD_TEST_DEVICE in the environment names:
//
//   guarded   Guard devices (tests/core/device/guard_device.h) around those of
//             the tests, which show that the host touches tensors through
//             HostAccess alone.
//   async     "cpu-async" instead of "cpu": the thread sanitizer then sees each
//             edge between streams that is missing.
//   fake_cuda "cuda:0" instead of "cpu", on a fake of CUDA's driver, which sees
//             each such edge as well.
//   offloaded The same with "cuda:0?offload=states".
//   fake_nccl The same with a GPU for each rank, "cuda:RANK", between which a
//             fake of NCCL moves tensors.
//   tcp       The devices of the tests, for ranks on several hosts
//             (thread_ranks.h).
//
// Tests read and write tensors at KernelView's addresses, as a host's kernels
// do.

#ifndef SHARD_TESTS_CORE_ENGINE_CREATE_ENGINE_H_
#define SHARD_TESTS_CORE_ENGINE_CREATE_ENGINE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "tests/core/device/guard_device.h"
#include "tests/core/device/guard_memory.h"
#include "tests/core/device/test_device.h"

namespace shard {

using testing::TestsAreOn;

inline StatusOr<std::unique_ptr<Engine>> CreateEngine(
    std::shared_ptr<const Plan> plan, const std::shared_ptr<Communicator>& comm,
    StatusOr<EngineOptions> options = EngineOptions()) {
  const bool guard = TestsAreOn("guarded");
  bool nccl = false;
  if (options.ok()) {
    if (TestsAreOn("async") &&
        (options->device.empty() || options->device == "cpu")) {
      options->device = "cpu-async";
    }
    const bool gpu = testing::TestsAreOnGpu() &&
                     options->opened_device == nullptr &&
                     (options->device.empty() || options->device == "cpu");
    if (gpu) {
      options->device = TestsAreOn("offloaded") ? "cuda:0?offload=states"
                        : TestsAreOn("fake_nccl")
                            ? StrCat("cuda:", comm->rank())
                            : "cuda:0";
    }
    nccl = gpu && TestsAreOn("fake_nccl");
    if (nccl) options->transport = Transport::kNccl;
    if (options->opened_device == nullptr) {
      // A wrong spec is left to the engine.
      auto device = testing::OpenTestDevice(options->device);
      if (device.ok()) options->opened_device = *std::move(device);
      if (device.ok() && gpu) {
        options->opened_device =
            testing::WithHostThread(options->opened_device);
      }
    }
    if (guard && options->opened_device != nullptr) {
      options->opened_device =
          testing::GuardTensors(std::move(options->opened_device));
    }
  }
  auto engine = Engine::Create(
      std::move(plan), guard ? testing::GuardTensors(comm) : comm, options);
  if (nccl && engine.ok() && comm->world_size() > 1) {
    const std::string moves = (*engine)->ToJson();
    EXPECT_NE(moves.find("nccl "), std::string::npos) << moves;
  }
  return engine;
}

// Returns the elements of a tensor in fp32, where kernels see them.
inline float* FloatsOf(const Engine::Tensor& tensor) {
  return testing::KernelView(static_cast<float*>(tensor.data));
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_CREATE_ENGINE_H_
