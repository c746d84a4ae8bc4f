// SPDX-License-Identifier: Apache-2.0
//
// Two ranks that capture steps as graphs, each on a GPU of its own, with
// collectives by NCCL; on the fakes of both libraries.

#ifndef SHARD_TESTS_CORE_ENGINE_CUDA_GRAPH_RANKS_H_
#define SHARD_TESTS_CORE_ENGINE_CUDA_GRAPH_RANKS_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/device/cuda/cuda_device.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_graph_host.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::cuda_graphs {

inline constexpr int kRanks = 2;

// Runs `body` on each rank. Plans are deterministic: their gradients are summed
// by kernels of the communication stream. `hook`: CommOptions::phase_hook.
inline void RunGraphRanks(
    const std::function<void(Host*, Communicator*)>& body,
    std::function<void(std::string_view what)> hook = nullptr) {
  CommOptions comm_options;
  comm_options.timeout = 30;
  comm_options.phase_hook = std::move(hook);
  const testing::FakeNccl fake({.devices = kRanks});
  RunThreadRanks(
      kRanks,
      [&](const std::shared_ptr<Communicator>& comm) {
        EngineOptions options;
        options.timeout = 20;
        options.transport = Transport::kNccl;
        options.opened_device = *cuda::OpenDevice(StrCat(comm->rank()));
        auto engine = Engine::Create(
            cuda_training::MakePlan(
                {.units = 2, .world_size = kRanks, .deterministic = true}),
            comm, options);
        ASSERT_OK(engine);
        Host host(*std::move(engine), comm->rank());
        body(&host, comm.get());
      },
      comm_options, "direct=0");
}

}  // namespace shard::cuda_graphs

#endif  // SHARD_TESTS_CORE_ENGINE_CUDA_GRAPH_RANKS_H_
