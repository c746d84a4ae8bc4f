// SPDX-License-Identifier: Apache-2.0
//
// --device cuda: the program trains on a fake of NVIDIA's driver, which runs
// the kernels on the host, and has the processor's loss curve. Only the order
// of float sums differs. The fake complains at a program's end where work had
// no order, or where something is not freed.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/base/sanitizers.h"
#include "tests/samples/gpt/cuda_fixture.h"

namespace cuda_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Relative. A GPU is to stay within 1e-3.
constexpr double kTolerance = 1e-5;

TEST_F(CudaTest, HasTheCurveAndTheSampleOfTheProcessor) {
  const Outcome processor = Run(Short(""));
  const auto expected = ShortLog(processor);
  const Outcome gpu = RunOnFake(Short("--device cuda:0"));
  const auto losses = ShortLog(gpu);
  ExpectSameCurve(losses, expected, kTolerance);
  EXPECT_EQ(SampleOf(gpu), SampleOf(processor));
  EXPECT_LT(Losses(losses)[20], Losses(losses)[0]);  // The model learns.
}

// No sum depends on the order in which work happens to run. With the guard the
// program faults where the host uses the GPU's memory.
TEST_F(CudaTest, RunsReproduceAndLeaveTheGpusMemoryToIt) {
  const std::string run = Brief("--device cuda:0 --sample 5");
  const Outcome guarded = RunOnFake(run, "SHARD_FAKE_CUDA_GUARD=1");
  EXPECT_EQ(BriefLog(RunOnFake(run)), BriefLog(guarded));
}

TEST_F(CudaTest, RanksThatShardHaveTheSameCurve) {
  const Outcome processor = Run(Short(""));
  const auto expected = ShortLog(processor);
  const std::string ranks = "--device cuda:0 --rank-threads 2 --stage ";
  const Outcome one = RunOnFake(Short(ranks + "1 --steps 1 --sample 0"));
  const Outcome two = RunOnFake(Short(ranks + "2"));
  ExpectSameCurve(ShortLog(two), expected, kTolerance);
  const Outcome three = RunOnFake(Short(ranks + "3 --overlap"));
  ExpectSameCurve(ShortLog(three), expected, kTolerance);
  // GPUs share no memory: a rank has its part alone, and room for some units.
  EXPECT_LT(MemoryOf(two).grads, MemoryOf(one).grads * 2 / 3);
  EXPECT_LT(MemoryOf(three).grads, MemoryOf(one).grads * 2 / 3);
  EXPECT_LT(MemoryOf(three).params, MemoryOf(one).params * 2 / 3);
  EXPECT_GT(MemoryOf(three).transient, MemoryOf(two).transient);
  EXPECT_EQ(SampleOf(three), SampleOf(processor));
}

// The fake has two GPUs.
TEST_F(CudaTest, RanksTakeTheGpusInTurn) {
  const auto expected = BriefLog(Run(Brief("")));
  for (const char* how : {"cuda:1", "cuda --rank-threads 2 --stage 3",
                          "'cuda?offload=states' --rank-threads 2 --stage 2",
                          "'cuda:0?offload=states&offload_threads=2'"}) {
    const Outcome outcome = RunOnFake(Brief("--device " + std::string(how)));
    ExpectSameCurve(BriefLog(outcome), expected, kTolerance);
  }
  const Outcome missing = RunOnFake(Brief("--device cuda:2"));
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("cuda:2"));
}

TEST_F(CudaTest, GoesOnFromACheckpointOnEitherDevice) {
  const std::string saved = folder_ + "/saved";
  const auto whole = Losses(ShortLog(
      RunOnFake(Short("--device cuda:0 --save-every 10 --save " + saved))));
  const std::string resume = "--resume " + saved + "/step-000010 ";
  for (const std::string device : {"--device cuda:0 --rank-threads 2 --stage 3",
                                   "--device cuda:0", "--device cpu"}) {
    // A validation, 10 steps, and a validation.
    const auto rest = Losses(Log(RunOnFake(Short(resume + device)), 12));
    ASSERT_EQ(rest.size(), 12u);
    for (size_t i = 0; i < rest.size(); i++) {
      EXPECT_NEAR(rest[i], whole[10 + i], kTolerance * whole[10 + i]) << device;
    }
    // Under a sanitizer, the run that has most to it.
    if (shard::kSanitized) break;
  }
}

TEST_F(CudaTest, OptimizersOfWholeMatricesTrain) {
  // libshard multiplies with cuBLASLt there.
  ExpectSameCurve(
      BriefLog(RunOnFake(Brief("--optimizer muon --device cuda:0"))),
      BriefLog(Run(Brief("--optimizer muon"))), 1e-3);
}

TEST_F(CudaTest, ChecksTheDeviceByTheProcessor) {
  const Outcome outcome =
      RunOnFake("--check --device cuda:0", "SHARD_FAKE_CUDA_GUARD=1");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("on cuda:0 against the processor"),
                                 HasSubstr("loss "), HasSubstr("ln_f.bias "),
                                 Not(HasSubstr("WRONG"))));
  const Outcome two = RunCommand(
      "tests/samples/gpt/run_ranks 2 samples/gpt/train_gpt --check "
      "--device cpu-async");
  EXPECT_EQ(two.exit_code, 1);
  EXPECT_THAT(two.err, HasSubstr("--check: runs on one rank"));
}

}  // namespace
}  // namespace cuda_test
