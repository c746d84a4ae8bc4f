// SPDX-License-Identifier: Apache-2.0
//
// Stages, units, and the options that decide when they are sent: with any
// choice, ranks train the same model, to the bit.

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/base/sanitizers.h"
#include "tests/samples/gpt/train_gpt_fixture.h"

namespace stages_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class StagesTest : public TrainGptTest {
 protected:
  // Returns arguments for 6 steps of a model with so many blocks that sharding
  // them saves more than the slots of the two in use cost: libshard shards
  // nothing else.
  std::string Deep(const std::string& arguments) const {
    return Tiny(
        "--layers 6 --width 32 --steps 6 --val-every 3 --warm-up 3 "
        "--timeout 20 " +
        mode_ + arguments);
  }
  std::vector<std::string> TrainDeep(const std::string& arguments) const {
    return Log(Run(Deep(arguments)), 8);
  }

  std::string mode_ = "--deterministic ";
};

// ---- Stages ---------------------------------------------------------------

class WorldTest : public StagesTest,
                  public ::testing::WithParamInterface<const char*> {
 protected:
  std::string Ranks(const std::string& arguments) const {
    return std::string("--rank-threads ") + GetParam() + " " + arguments;
  }
};

TEST_P(WorldTest, EveryStageGivesTheSameBits) {
  const auto whole = TrainDeep(Ranks("--stage 0 --wrap none"));
  EXPECT_LT(Losses(whole)[6], Losses(whole)[0]);  // The model learns.
  for (const char* stage : {"0", "1", "2", "3"}) {
    for (const char* how :
         {"", "--no-shared-memory", "--no-shared-memory --overlap"}) {
      // Four instrumented ranks have half a core each.
      if (shard::kSanitized && std::string_view(GetParam()) == "4" &&
          std::string_view(how) == "--no-shared-memory") {
        continue;
      }
      const std::string arguments =
          Ranks("--stage " + std::string(stage) + " " + how);
      EXPECT_EQ(TrainDeep(arguments), whole) << arguments;
    }
  }
}

// In stage 3 without shared memory rank 0 has the parameters only with the help
// of all other ranks.
TEST_P(WorldTest, TheSampleIsTheSame) {
  const std::string expected =
      SampleOf(Run(Deep(Ranks("--stage 1 --sample 60"))));
  EXPECT_GT(expected.size(), 60u);
  for (const char* how : {"--stage 3", "--stage 3 --no-shared-memory",
                          "--stage 3 --no-shared-memory --overlap"}) {
    const Outcome outcome = Run(Deep(Ranks(std::string(how) + " --sample 60")));
    EXPECT_EQ(SampleOf(outcome), expected) << how;
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, WorldTest, ::testing::Values("2", "4"),
                         [](const auto& info) {
                           return std::string(info.param) + "Threads";
                         });

TEST_F(StagesTest, ProcessesGiveTheBitsOfThreads) {
  const auto threads = TrainDeep("--rank-threads 2 --stage 1");
  for (const char* how :
       {"--stage 2", "--stage 3 --no-shared-memory --overlap"}) {
    EXPECT_EQ(Log(RunProcesses(2, Deep(how)), 8), threads) << how;
  }
}

// The runs above test sharding only if they did shard.
TEST_F(StagesTest, EachStageTakesLessMemory) {
  const auto memory = [&](const std::string& arguments) {
    return MemoryOf(
        Run(Deep("--rank-threads 4 --steps 1 --sample 0 " + arguments)));
  };
  const Memory one = memory("--stage 1 --no-shared-memory");
  const Memory two = memory("--stage 2 --no-shared-memory");
  const Memory three = memory("--stage 3 --no-shared-memory");
  const Memory shared = memory("--stage 3");
  EXPECT_EQ(one.transient, 0);
  EXPECT_LT(two.grads, one.grads / 3);
  EXPECT_EQ(two.params, one.params);
  EXPECT_GT(two.transient, 0);
  EXPECT_LT(two.grads + two.transient, one.grads);
  EXPECT_LT(three.params, one.params / 3);
  EXPECT_GT(three.transient, two.transient);
  EXPECT_LT(three.params + three.grads + three.transient,
            one.params + one.grads);
  EXPECT_EQ(shared.params, one.params);
  EXPECT_EQ(shared.transient, two.transient);

  const Memory hybrid = memory("--stage 3 --no-shared-memory --hybrid 2");
  EXPECT_GT(hybrid.params, three.params);
  EXPECT_LT(hybrid.params, one.params);
  EXPECT_LT(memory("--stage 3 --no-shared-memory --prefetch 0").transient,
            three.transient);
}

// ---- Units, and the time of transfers ---------------------------------------

TEST_F(StagesTest, UnitsMoveNoBit) {
  const auto expected = TrainDeep("--rank-threads 2 --stage 1 --wrap none");
  int turn = 0;
  for (const char* how :
       {"--wrap none", "--wrap always", "--wrap 'class?names=Attention,MLP'",
        "--wrap 'class?names=Linear'", "--wrap 'size?min_numel=10000'",
        "--wrap 'class?names=MLP|class?names=Block'",
        "--prefetch 2 --wrap 'class?names=Attention,MLP'", "--prefetch 0",
        "--prefetch 0 --overlap",
        "--overlap --device 'cpu-async?max_delay=0.0002&seed=3'"}) {
    for (const char* ranks : {"", "--no-shared-memory "}) {
      // Under a sanitizer, each choice runs with or without shared memory, in
      // turn.
      const bool apart = *ranks != '\0';
      if (shard::kSanitized && apart == (turn % 2 == 0)) continue;
      const std::string arguments =
          "--rank-threads 2 --stage 3 " + std::string(ranks) + how;
      may_keep_whole_ = std::string(how) == "--wrap none";
      EXPECT_EQ(TrainDeep(arguments), expected) << arguments;
    }
    ++turn;
  }
}

TEST_F(StagesTest, HybridShardingMovesNoBit) {
  const auto expected = TrainDeep("--rank-threads 4 --stage 1");
  EXPECT_EQ(TrainDeep("--rank-threads 4 --stage 3 --hybrid 2"), expected);
  for (const char* groups : {"1", "2", "4"}) {
    // Groups of one rank have all parameters.
    may_keep_whole_ = std::string(groups) == "1";
    EXPECT_EQ(
        TrainDeep("--rank-threads 4 --stage 3 --no-shared-memory --hybrid " +
                  std::string(groups)),
        expected);
  }
}

// Each group adds up its own sums first.
TEST_F(StagesTest, OtherwiseHybridShardingChangesTheOrderOfSums) {
  mode_ = "";
  const auto expected = TrainDeep("--rank-threads 4 --stage 1");
  for (const char* stage : {"--stage 2", "--stage 3", "--stage 3 --hybrid 2"}) {
    ExpectSameCurve(
        TrainDeep("--rank-threads 4 --no-shared-memory " + std::string(stage)),
        expected, 1e-5);
  }
}

TEST_F(StagesTest, OptimizersOfWholeParametersTrainInEveryStage) {
  const auto expected =
      TrainDeep("--rank-threads 2 --optimizer muon --stage 1");
  EXPECT_EQ(TrainDeep("--rank-threads 2 --optimizer muon --stage 3 "
                      "--no-shared-memory --overlap"),
            expected);
  EXPECT_NE(TrainDeep("--rank-threads 2 --stage 1"), expected);
}

// At the end of the held-out text, some of 4 ranks have nothing to read.
TEST_F(StagesTest, RanksWithoutHeldOutTextTakePartInItsPasses) {
  int words = 400;
  int sequences = 0;
  Outcome whole;
  const std::string short_run =
      "--rank-threads 4 --batch 4 --steps 1 --val-every 0 ";
  for (; sequences % 4 != 1 && words < 440; words += 2) {
    WriteText(words);
    whole = Run(Deep(short_run + "--stage 1"));
    const size_t at = whole.out.find(" to train on, ");
    ASSERT_NE(at, std::string::npos) << whole.err;
    sequences = (std::atoi(whole.out.c_str() + at + 14) - 1) / 16;
  }
  ASSERT_EQ(sequences % 4, 1);
  const double expected = ValidationLoss(whole);
  EXPECT_EQ(
      ValidationLoss(Run(Deep(short_run + "--stage 3 --no-shared-memory"))),
      expected);
}

TEST_F(StagesTest, TheLogSaysWhatWasSent) {
  const auto first_step = [&](const std::string& arguments) {
    const Outcome outcome = Run(Deep("--rank-threads 2 " + arguments));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return ReadFile(folder_ + "/log");
  };
  const std::string none = ",\"bytes_communicated\":0,";
  EXPECT_THAT(first_step("--stage 1"), HasSubstr(none));
  const std::string sent = first_step("--stage 3 --no-shared-memory");
  EXPECT_THAT(sent, HasSubstr(",\"bytes_communicated\":"));
  EXPECT_THAT(sent, ::testing::Not(HasSubstr(none)));
}

// ---- Options that do not work -----------------------------------------------

TEST_F(StagesTest, AnErrorOfThePlanIsPrinted) {
  const std::vector<std::array<std::string, 2>> wrong = {
      {"--stage 3 --hybrid 3",
       "shard_group_size 3 does not divide world_size "},
      {"--wrap 'clas?names=Block'", "clas"},
      {"--device abacus", "abacus"}};
  for (const auto& [arguments, message] : wrong) {
    const Outcome outcome = Run(Deep("--rank-threads 4 " + arguments));
    EXPECT_EQ(outcome.exit_code, 1) << arguments;
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr("train_gpt: rank "), HasSubstr(message)));
  }
}

// The token embedding is in use from the first layer to the last.
TEST_F(StagesTest, UnitsThatFindNoRoomAreNamedByEveryRank) {
  const Outcome outcome =
      Run(Deep("--rank-threads 2 --stage 3 --wrap always --prefetch 0 "
               "--no-shared-memory"));
  EXPECT_EQ(outcome.exit_code, 1);
  for (const char* rank : {"rank 0: forward: ", "rank 1: forward: "}) {
    EXPECT_THAT(outcome.err, HasSubstr(rank));
  }
  EXPECT_THAT(outcome.err, HasSubstr("no slot for the parameters of unit "
                                     "'wpe' (2): they are in use by unit "
                                     "'wte' (1)"));
}

}  // namespace
}  // namespace stages_test
