// SPDX-License-Identifier: Apache-2.0
//
// The loss that the program promises with its defaults, on the text for which
// it is meant. The test takes six minutes on two cores, so it runs only when
// SHARD_TEST_LONG is set.

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "tests/samples/gpt/train_gpt_fixture.h"

namespace {

class DefaultTrainingTest : public TrainGptTest {
 protected:
  void SetUp() override {
    if (std::getenv("SHARD_TEST_LONG") == nullptr) {
      GTEST_SKIP() << "six minutes: SHARD_TEST_LONG is not set";
    }
    TrainGptTest::SetUp();
  }

  // Returns the mean loss of three seeds. A single run is as good as its
  // batches, and runs of one kind end several percent apart.
  double MeanLoss(const std::string& arguments) const {
    double sum = 0;
    for (const char* seed : {"1", "2", "3"}) {
      sum += ValidationLoss(
          Run("--rank-threads 2 --sample 0 --val-every 0 --seed " +
              std::string(seed) + " " + arguments));
    }
    return sum / 3;
  }
};

TEST_F(DefaultTrainingTest, EightBitStatesCostNoMoreThanAPercent) {
  const double f32 = MeanLoss("--states f32");
  EXPECT_LT(f32, 1.6);
  EXPECT_LT(MeanLoss("--states q8"), 1.01 * f32);
}

}  // namespace
