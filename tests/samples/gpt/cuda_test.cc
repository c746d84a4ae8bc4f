// SPDX-License-Identifier: Apache-2.0
//
// --device cuda: the program trains on a fake of NVIDIA's driver, which runs
// the kernels on the host, and has the processor's loss curve to 1e-3. The fake
// fails the program at its end where work had no order, or is not freed.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/samples/gpt/train_gpt_fixture.h"

namespace cuda_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CudaTest : public TrainGptTest {
 protected:
  // Runs the program where it finds the fakes of the driver and of cuBLAS.
  Outcome RunOnFake(const std::string& arguments,
                    const std::string& environment = "") const {
    return RunCommand(
        "env SHARD_FAKE_CUDA_STRICT=1 "
        "LD_LIBRARY_PATH=\"$PWD/api:$PWD/tests/samples/gpt/fake_cuda:"
        "$PWD/tests/fake_cuda\" " +
        environment + " samples/gpt/train_gpt " + arguments);
  }

  // Returns arguments for 20 steps of a model with as many blocks as make
  // sharding worth it.
  std::string Short(const std::string& arguments) const {
    return Tiny("--layers 6 --heads 2 --steps 20 --val-every 10 --batch 4 " +
                arguments);
  }
  // The 20 steps and 2 validations.
  std::vector<std::string> TrainOnCpu(const std::string& arguments) const {
    return Log(Run(Short(arguments)), 22);
  }
  std::vector<std::string> TrainOnFake(const std::string& arguments) const {
    return Log(RunOnFake(Short(arguments)), 22);
  }
};

TEST_F(CudaTest, HasTheCurveOfTheProcessor) {
  const auto expected = TrainOnCpu("");
  const auto losses = TrainOnFake("--device cuda:0");
  ExpectSameCurve(losses, expected, 1e-3);
  EXPECT_LT(Losses(losses)[20], Losses(losses)[0]);  // The model learns.
  // No sum depends on what runs when.
  EXPECT_EQ(TrainOnFake("--device cuda:0"), losses);
}

}  // namespace
}  // namespace cuda_test
