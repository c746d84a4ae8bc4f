// SPDX-License-Identifier: Apache-2.0
//
// The program from outside: real training, on ranks that are threads and on
// ranks that are processes, compared by its logs.

#include <signal.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/base/sanitizers.h"
#include "tests/samples/gpt/train_gpt_fixture.h"

namespace train_gpt_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// ---- Training -------------------------------------------------------------

TEST_F(TrainGptTest, CurveDoesNotDependOnTheWorldSize) {
  const auto alone = Train("--rank-threads 1");
  ExpectSameCurve(alone, Train("--rank-threads 2"));
  ExpectSameCurve(alone, Train("--rank-threads 4"));
  // The model learns.
  const std::vector<double> losses = Losses(alone);
  EXPECT_NEAR(losses.front(), std::log(256.0), 0.1);
  EXPECT_LT(losses.back(), 4);
}

TEST_F(TrainGptTest, CurveDoesNotDependOnHowStatesAreSharded) {
  const auto alone = Train("--rank-threads 1 --stage 0");
  ExpectSameCurve(alone, Train("--rank-threads 4 --stage 0"));
  ExpectSameCurve(alone, Train("--rank-threads 4 --partition greedy"));
}

TEST_F(TrainGptTest, CurveDoesNotDependOnTheWorldSizeWhenClipped) {
  const auto alone = Train("--rank-threads 1 --clip 0.1");
  ExpectSameCurve(alone, Train("--rank-threads 2 --clip 0.1"));
  ExpectSameCurve(alone, Train("--rank-threads 4 --clip 0.1"));
  EXPECT_NE(alone, Train("--rank-threads 1 --clip 1"));
}

TEST_F(TrainGptTest, TwoRunsGiveTheSameBits) {
  for (const char* arguments :
       {"--rank-threads 2", "--rank-threads 2 --clip 0.1",
        "--rank-threads 2 --clip 0", "--rank-threads 4 --partition greedy"}) {
    // Under a sanitizer, the run with most threads is enough.
    if (shard::kSanitized &&
        !std::string_view(arguments).starts_with("--rank-threads 4")) {
      continue;
    }
    const auto first = Train(arguments);
    EXPECT_EQ(first, Train(arguments)) << arguments;
  }
}

TEST_F(TrainGptTest, WithoutClippingThereIsNoNorm) {
  EXPECT_THAT(Train("--clip 0")[0], HasSubstr("\"grad_norm\":null"));
  EXPECT_THAT(Train("--clip 1")[0], Not(HasSubstr("\"grad_norm\":null")));
}

// Losses and gradient norms agree to the bit: both kinds of ranks add in one
// order.
TEST_F(TrainGptTest, ProcessesGiveTheBitsOfThreads) {
  const auto processes = Log(RunProcesses(2, Tiny("")));
  EXPECT_THAT(processes[0], HasSubstr("\"grad_norm\":"));
  EXPECT_EQ(processes, Train("--rank-threads 2"));
  EXPECT_EQ(processes, Log(RunProcesses(2, Tiny(""))));
}

TEST_F(TrainGptTest, CurveDoesNotDependOnHowManyProcessesThereAre) {
  const auto alone = Train("--rank-threads 1");
  EXPECT_EQ(alone, Log(RunProcesses(1, Tiny(""))));
  const auto four = Log(RunProcesses(4, Tiny("")));
  ExpectSameCurve(alone, four);
  EXPECT_EQ(four, Train("--rank-threads 4"));
}

// The bar ends before the sample begins, and nothing is drawn after it.
TEST_F(TrainGptTest, TheSampleComesAfterTheBar) {
  setenv("SHARD_TERMINAL", "1", 1);
  const Outcome outcome = Run(Tiny("--rank-threads 2"));
  unsetenv("SHARD_TERMINAL");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const size_t bar = outcome.out.rfind('\r');
  ASSERT_NE(bar, std::string::npos);
  const size_t end = outcome.out.find('\n', bar);
  EXPECT_THAT(outcome.out.substr(bar, end - bar), HasSubstr(" 50/50  loss "));
  // The rest is a blank line, 20 bytes of text, a blank line, and the result.
  const std::string rest = outcome.out.substr(end);
  EXPECT_THAT(rest, ::testing::StartsWith("\n\n"));
  EXPECT_EQ(rest.find("\n\nvalidation loss ", 22), 22u) << rest;
}

TEST_F(TrainGptTest, AnotherSeedIsAnotherRun) {
  EXPECT_NE(Losses(Train("--seed 1")), Losses(Train("--seed 2")));
}

TEST_F(TrainGptTest, PrintsSummary) {
  const Outcome outcome =
      Run("--layers 1 --width 8 --heads 1 --context 8 --steps 1 --batch 2 "
          "--sample 0 --rank-threads 2 --text " +
          folder_ + "/text");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      AllOf(HasSubstr("ranks "), HasSubstr("text    " + folder_),
            HasSubstr(" parameters: 1 layers, width 8"),
            HasSubstr("plan    stage 1, even; 2 units\n"
                      "memory  KiB per rank: parameters "),
            HasSubstr(
                ", transient 0\ngroup 0 adamw?lr=0.004&beta1=0.9&beta2=0.95&"
                "eps=1e-08&weight_decay=0.1&"),
            // This is the group of the vectors.
            HasSubstr("\ngroup 1 adamw?lr=0.004&beta1=0.9&beta2=0.95&"
                      "eps=1e-08&weight_decay=0&"),
            Not(HasSubstr("\ngroup 2 "))));
  // The result is the last line.
  const size_t last = outcome.out.rfind('\n', outcome.out.size() - 2);
  EXPECT_THAT(outcome.out.substr(last + 1),
              ::testing::StartsWith("validation loss "));
}

TEST_F(TrainGptTest, SummarizesMuonAndNarrowStates) {
  const Outcome outcome =
      Run(Tiny("--optimizer muon --states q8 --weight-decay 0.3"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("&states=q8\ngroup 1 adamw?"),
                                 HasSubstr("&states=q8\ngroup 2 muon?lr=0.003&"
                                           "weight_decay=0.3&"),
                                 HasSubstr("&adjust_lr_fn=match_rms_adamw&"
                                           "matmul_precision=highest\n")));
}

TEST_F(TrainGptTest, ChecksItsBackward) {
  const Outcome outcome = Run("--check");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("h.1.mlp.c_proj.weight"),
                                 Not(HasSubstr("WRONG"))));
}

TEST_F(TrainGptTest, Helps) {
  const Outcome outcome = Run("--help");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("--weight-decay"));
}

// ---- Bad input ------------------------------------------------------------

TEST_F(TrainGptTest, ABadOptionEndsWithTwo) {
  const Outcome outcome = Run("--width 12x");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("train_gpt: --width: \"12x\" is not"));
  EXPECT_EQ(outcome.out, "");
}

TEST_F(TrainGptTest, ABatchThatDoesNotDivideNamesBothNumbers) {
  const Outcome outcome = Run("--batch 6 --rank-threads 4");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--batch: 6 does not divide by 4 ranks"));
}

TEST_F(TrainGptTest, ABatchThatDoesNotDivideByTheProcessesNamesBothNumbers) {
  const Outcome outcome = RunProcesses(2, Tiny("--batch 5"));
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err,
              HasSubstr(": --batch: 5 does not divide by 2 ranks"));
}

TEST_F(TrainGptTest, AMissingTextIsNamedByEveryRank) {
  const Outcome outcome = Run("--rank-threads 2 --text " + folder_ + "/none");
  EXPECT_EQ(outcome.exit_code, 1);
  for (const char* rank : {"rank 0", "rank 1"}) {
    EXPECT_THAT(outcome.err, HasSubstr(rank));
  }
  EXPECT_THAT(outcome.err,
              HasSubstr("--text: " + folder_ + "/none: No such file"));
}

TEST_F(TrainGptTest, ATextThatIsTooShortIsNamed) {
  std::ofstream(folder_ + "/short") << "short";
  const Outcome outcome = Run("--text " + folder_ + "/short");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("train_gpt: rank 0: --text: "),
                                 HasSubstr(folder_ + "/short: too short")));
}

// Rank 0 alone writes the log: when it cannot, the other ranks must not wait
// for it.
TEST_F(TrainGptTest, ARankThatFailsAloneEndsTheOthers) {
  const Outcome outcome =
      Run("--rank-threads 4 --timeout 30 --log /no/such/folder/log --text " +
          folder_ + "/text");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("train_gpt: rank 0: --log: "
                                     "/no/such/folder/log: No such file"));
  for (const char* rank : {"rank 1", "rank 2", "rank 3"}) {
    EXPECT_THAT(outcome.err, HasSubstr(rank + std::string(": loss: POISONED")));
  }
}

TEST_F(TrainGptTest, ALogThatDoesNotFitIsAnError) {
  const Outcome outcome =
      Run("--layers 1 --width 8 --heads 1 --context 8 --steps 1 --batch 2 "
          "--rank-threads 2 --log /dev/full --text " +
          folder_ + "/text");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("rank 0: --log: the log was not written"));
}

// The exit code tells shardctl run that this rank only followed.
TEST_F(TrainGptTest, EndsAsOneThatFollowedWhenARankIsKilled) {
  const std::string train =
      "samples/gpt/train_gpt " + Tiny("--steps 100000000 --val-every 0 ");
  const Outcome outcome = RunCommand(
      "tests/samples/gpt/run_ranks 2 sh -c '"
      "if [ $SHARD_RANK = 0 ]; then " +
      train +
      "; code=$?; echo code $code; exit $code; fi; "
      "(until [ -s " +
      folder_ + "/log ]; do :; done; kill -KILL $$) & exec " + train + "'");
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("code 65"));
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 was ended by signal 9"));
}

}  // namespace
}  // namespace train_gpt_test
