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
//   fake_nccl "cuda:RANK" instead of "cpu" and cpu-async: a GPU for each rank,
//             between which a fake of NCCL moves tensors. The host's work is as
//             late as on the test's device. A test whose ranks move tensors in
//             another way fails: devices/nccl.bzl leaves it out, with a
//             reason.
//   tcp       The devices of the tests, for ranks on several hosts
//             (thread_ranks.h).
//
// Tests read and write tensors at KernelView's addresses, as a host's kernels
// do.

#ifndef SHARD_TESTS_CORE_ENGINE_CREATE_ENGINE_H_
#define SHARD_TESTS_CORE_ENGINE_CREATE_ENGINE_H_

#include <gtest/gtest.h>

#include <cstdlib>
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

// Returns the device of a rank of tests on GPUs, instead of `device`, which the
// test names; "" where the test's own is meant.
inline std::string GpuInsteadOf(std::string_view device, int rank) {
  if (TestsAreOn("fake_nccl")) {
    // A wrong name is the engine's to refuse.
    const bool is_hosts =
        device.empty() || device == "cpu" || device.starts_with("cpu-async");
    return is_hosts ? StrCat("cuda:", rank) : "";
  }
  if (!testing::TestsAreOnGpu() || !(device.empty() || device == "cpu")) {
    return "";
  }
  return TestsAreOn("offloaded") ? "cuda:0?offload=states" : "cuda:0";
}

// Whether the tests are on another device in its short form, in which those
// that go through many combinations try some: their own device has all.
inline bool TriesFew() {
  const auto is_set = [](const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr && *value != '\0';
  };
  return is_set("SHARD_TEST_DEVICE") && !is_set("SHARD_TEST_LONG");
}

// Whether the form of a test with this link is that without a link: tensors on
// GPUs and on several hosts are in no memory that ranks share.
inline bool IsAsWithoutLink(std::string_view link) {
  return !link.empty() && (testing::TestsAreOnGpu() || TestsAreOn("tcp"));
}

// Returns the seconds of a test's short timeout. NCCL makes communicators
// within that of an engine.
inline double ShortTimeout(double usual) {
  return TestsAreOn("fake_nccl") ? 10 * usual : usual;
}

// Makes an engine whose results others are compared with: on processors,
// whatever device the tests are on.
inline StatusOr<std::unique_ptr<Engine>> CreateReferenceEngine(
    std::shared_ptr<const Plan> plan, const std::shared_ptr<Communicator>& comm,
    EngineOptions options) {
  options.device = "cpu";
  return Engine::Create(std::move(plan), comm, options);
}

inline StatusOr<std::unique_ptr<Engine>> CreateEngine(
    std::shared_ptr<const Plan> plan, const std::shared_ptr<Communicator>& comm,
    StatusOr<EngineOptions> options = EngineOptions()) {
  const bool guard = TestsAreOn("guarded");
  const bool nccl = TestsAreOn("fake_nccl");
  if (options.ok()) {
    if (TestsAreOn("async") &&
        (options->device.empty() || options->device == "cpu")) {
      options->device = "cpu-async";
    }
    if (options->opened_device == nullptr) {
      const bool async_host =
          options->device.find("host=async") != std::string::npos;
      const std::string gpu = GpuInsteadOf(options->device, comm->rank());
      if (!gpu.empty()) options->device = gpu;
      // A wrong spec is left to the engine.
      auto device = testing::OpenTestDevice(options->device);
      if (device.ok()) options->opened_device = *std::move(device);
      if (device.ok() && !gpu.empty()) {
        options->opened_device =
            async_host ? std::make_shared<testing::AsyncHostDevice>(
                             std::move(options->opened_device))
                       : testing::WithHostThread(options->opened_device);
      }
    }
    if (nccl && options->opened_device != nullptr &&
        options->opened_device->id().kind == DeviceId::Kind::kCuda) {
      options->transport = Transport::kNccl;
    }
    if (guard && options->opened_device != nullptr) {
      options->opened_device =
          testing::GuardTensors(std::move(options->opened_device));
    }
  }
  auto engine = Engine::Create(
      std::move(plan), guard ? testing::GuardTensors(comm) : comm, options);
  if (nccl && engine.ok() && comm->world_size() > 1) {
    const std::string json = (*engine)->ToJson();
    EXPECT_NE(json.find(R"("transport":"nccl )"), std::string::npos)
        << "the test runs on fake_nccl, and its ranks move tensors without "
           "NCCL: let it use the test device, or leave it out in "
           "devices/nccl.bzl, with a reason: "
        << json;
  }
  return engine;
}

// Returns the elements of a tensor in fp32, where kernels see them.
inline float* FloatsOf(const Engine::Tensor& tensor) {
  return testing::KernelView(static_cast<float*>(tensor.data));
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_CREATE_ENGINE_H_
