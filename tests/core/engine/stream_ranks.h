// SPDX-License-Identifier: Apache-2.0
//
// Ranks whose hosts set streams of their own, for tests of Engine::SetStream.

#ifndef SHARD_TESTS_CORE_ENGINE_STREAM_RANKS_H_
#define SHARD_TESTS_CORE_ENGINE_STREAM_RANKS_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/test_device.h"
#include "tests/core/engine/async_host.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"

namespace shard {

// A rank whose host makes streams. The device is destroyed after the engine.
struct StreamRank {
  std::shared_ptr<testing::AsyncHostDevice> device;
  std::unique_ptr<Engine> engine;

  // Makes a stream and sets it.
  Stream* SetStream() const {
    const auto stream = device->MakeHostStream();
    EXPECT_OK(stream);
    EXPECT_OK(engine->SetStream(*stream));
    return *stream;
  }
};

inline StreamRank MakeStreamRank(const UnitTraining& training,
                                 const std::shared_ptr<const Plan>& plan,
                                 const std::shared_ptr<Communicator>& comm) {
  StreamRank rank;
  const auto device = testing::OpenTestDevice(
      TestsAreOn("fake_nccl") ? StrCat("cuda:", comm->rank())
                              : "cpu-async?max_delay=0.001");
  EXPECT_OK(device);
  rank.device = std::make_shared<testing::AsyncHostDevice>(*device);
  EngineOptions options = training.engine;
  options.opened_device = rank.device;
  auto engine = CreateEngine(plan, comm, options);
  EXPECT_OK(engine);
  rank.engine = *std::move(engine);
  return rank;
}

using StreamScript = std::function<void(StreamRank& rank)>;

// Runs `script` on two ranks, whose parameters have values.
inline void OnStreamRanks(const StreamScript& script, const char* link = "") {
  const UnitTraining training = RunOf(1, link).training;
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  RunThreadRanks(
      2,
      [&](const auto& comm) {
        StreamRank rank = MakeStreamRank(training, *plan, comm);
        UnitTrainer(training, rank.engine.get()).Fill();
        script(rank);
      },
      30, link);
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_STREAM_RANKS_H_
