// SPDX-License-Identifier: Apache-2.0
//
// Poison in the StepBlock of a GPU's kernels: it survives steps, and comes with
// each replay of a graph.

#include "core/engine/step/step_latch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "core/device/cuda/cuda_device.h"
#include "core/optim/optimizer.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_graph_host.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::step_latch_test {
namespace {

using cuda_graphs::Host;
using cuda_graphs::MakePlan;
using testing::FakeCudaTest;

class StepLatchTest : public FakeCudaTest {
 protected:
  // Returns the poison that kernels see once the stream is done.
  static uint32_t Read(const StepLatch& latch, Stream* stream) {
    uint32_t word = 7;
    stream->Copy(&word, &latch.kernels_block()->poisoned, sizeof(word));
    EXPECT_OK(stream->Synchronize(Deadline::After(30)));
    return word;
  }
};

TEST_F(StepLatchTest, PoisonStaysAndComesWithEachReplay) {
  const auto plan = MakePlan("adamw");
  const auto device = *cuda::OpenDevice("0");
  StepLatch latch = *StepLatch::Create(*plan, device.get());
  Host host(plan);
  const auto stream = *device->WrapStream(host.stream().get());
  ASSERT_OK(host.CaptureWith([&] {
    latch.UploadPoison(stream.get());
    return Status();
  }));
  host.Launch();
  EXPECT_EQ(Read(latch, stream.get()), 0u);
  latch.Poison();
  EXPECT_EQ(Read(latch, stream.get()), 0u);
  host.Launch();
  EXPECT_EQ(Read(latch, stream.get()), 1u);
  // The values of another step take nothing away.
  const std::vector<Optimizer> optimizers(plan->options().groups.size(),
                                          *Optimizer::Parse("adamw"));
  StepInput input = {};
  input.optimizers = &optimizers;
  input.step = 2;
  latch.Latch(input);
  (void)latch.Upload(stream.get());
  EXPECT_EQ(Read(latch, stream.get()), 1u);
  host.Launch();
  EXPECT_EQ(Read(latch, stream.get()), 1u);
}

}  // namespace
}  // namespace shard::step_latch_test
