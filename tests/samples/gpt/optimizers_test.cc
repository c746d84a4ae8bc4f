// SPDX-License-Identifier: Apache-2.0
//
// --optimizer, --states and --partition: the program trains with any choice,
// the ranks agree, and narrow states cost no loss.

#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/base/sanitizers.h"
#include "tests/samples/gpt/train_gpt_fixture.h"

namespace optimizers_test {
namespace {

using ::testing::HasSubstr;

class OptimizersTest : public TrainGptTest {};

// ---- Every combination ----------------------------------------------------

// The optimizer and its states.
using Choice = std::tuple<const char*, const char*>;

class CombinationTest : public TrainGptTest,
                        public ::testing::WithParamInterface<Choice> {
 protected:
  std::string Chosen(const std::string& arguments) const {
    return std::string("--batch 12 --optimizer ") + std::get<0>(GetParam()) +
           " --states " + std::get<1>(GetParam()) + " " + arguments;
  }
};

// No bit depends on the rank that steps a parameter. The number of ranks only
// changes the order of sums.
TEST_P(CombinationTest, CurveDependsOnNeitherPartitionNorWorldSize) {
  const auto alone = Train(Chosen("--rank-threads 1"));
  for (const char* ranks : {"1", "2", "3"}) {
    if (shard::kSanitized && std::string_view(ranks) == "2") continue;
    const std::string threads = std::string("--rank-threads ") + ranks;
    const auto even = Train(Chosen(threads + " --partition even"));
    ExpectSameCurve(alone, even);
    EXPECT_EQ(even, Train(Chosen(threads + " --partition greedy"))) << threads;
  }
  EXPECT_LT(Losses(alone).back(), 4);
}

TEST_P(CombinationTest, ProcessesGiveTheBitsOfThreads) {
  EXPECT_EQ(Log(RunProcesses(3, Tiny(Chosen("")))),
            Train(Chosen("--rank-threads 3")));
}

std::vector<Choice> Choices() {
  // The core's tests step every optimizer under the sanitizers, and the other
  // tests here AdamW.
  if (shard::kSanitized) return {{"muon", "q8"}};
  return {{"adamw", "f32"}, {"adamw", "bf16"}, {"adamw", "q8"},
          {"muon", "f32"},  {"muon", "bf16"},  {"muon", "q8"}};
}

INSTANTIATE_TEST_SUITE_P(All, CombinationTest, ::testing::ValuesIn(Choices()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param);
                         });

// Curves would agree as well if the program ignored the options.
TEST_F(OptimizersTest, EachIsAnotherRun) {
  const auto adamw = Train("");
  for (const char* other : {"--states bf16", "--states q8", "--optimizer muon",
                            "--optimizer muon --states q8"}) {
    const auto curve = Train(other);
    // The first loss is from before the first update.
    EXPECT_EQ(curve[0], adamw[0]) << other;
    EXPECT_NE(curve, adamw) << other;
  }
}

TEST_F(OptimizersTest, WordsThatAreNoneAreNamed) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--optimizer", "adam", "adamw|muon"},
      {"--states", "q4", "f32|bf16|q8"},
      {"--partition", "odd", "even|greedy"}};
  for (const auto& words : wrong) {
    const Outcome outcome = Run(words[0] + " " + words[1]);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(words[0] + ": \"" + words[1] +
                                       "\" is none of " + words[2]));
    EXPECT_EQ(outcome.out, "");
  }
}

// ---- The losses that they reach -------------------------------------------

// Trains a small model for 400 steps, most of the way from 5.5 to the 0.41 of
// the text, on enough text that it learns the words and not their order.
class LossTest : public TrainGptTest {
 protected:
  void SetUp() override {
    TrainGptTest::SetUp();
    WriteText(40000);
  }
  double Loss(const std::string& arguments) const {
    return ValidationLoss(
        Run("--layers 2 --width 32 --heads 2 --context 32 --batch 8 "
            "--steps 400 --warm-up 10 --lr 5e-3 --sample 0 --val-every 0 "
            "--rank-threads 2 --text " +
            folder_ + "/text " + arguments));
  }
};

// Medians end within 0.3 percent. With codes that are always rounded down they
// end 3 percent apart, with scales that are 3 percent too large 17. One run in
// ten ends 2 percent higher than the others, and which ones do depends on the
// processor: two of the first three do on one with AVX2. So the median is one
// of seven.
TEST_F(LossTest, NarrowStatesEndCloseToF32) {
  if (shard::kSanitized) {
    GTEST_SKIP() << "what it trains to is no question of memory or threads";
  }
  const auto median = [this](const std::string& states) {
    std::vector<double> losses;
    for (const char* seed : {"1", "2", "3", "4", "5", "6", "7"}) {
      losses.push_back(Loss("--states " + states + " --seed " + seed));
    }
    std::sort(losses.begin(), losses.end());
    return losses[losses.size() / 2];
  };
  const double f32 = median("f32");
  EXPECT_LT(f32, 0.5);
  EXPECT_NEAR(median("bf16"), f32, 0.01 * f32);
  EXPECT_NEAR(median("q8"), f32, 0.01 * f32);
}

TEST_F(LossTest, MuonTrains) {
  if (shard::kSanitized) {
    GTEST_SKIP() << "what it trains to is no question of memory or threads";
  }
  EXPECT_LT(Loss("--optimizer muon"), 0.5);
}

}  // namespace
}  // namespace optimizers_test
