// SPDX-License-Identifier: Apache-2.0
//
// Saved runs go on: bit by bit at the same number of ranks, and on the same
// curve at another, with any stage and units of either run.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/base/sanitizers.h"
#include "tests/samples/gpt/train_gpt_fixture.h"

namespace resume_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Lines = std::vector<std::string>;

class ResumeTest : public TrainGptTest {
 protected:
  // Returns arguments for 15 steps, validated at 5, 10 and 15, with a batch
  // that 1, 2, 3 and 4 ranks can share, and so many blocks that sharding them
  // saves memory.
  std::string Short(const std::string& arguments) const {
    return Tiny(
        "--layers 6 --width 32 --batch 12 --steps 15 --val-every 5 "
        "--timeout 30 " +
        arguments);
  }
  std::string Checkpoints() const { return folder_ + "/checkpoints"; }
  std::string At5() const { return Checkpoints() + "/step-000005"; }

  // Makes a whole run that is saved at 5, 10 and 15. Returns its log from
  // after step 5 on: a validation, 10 steps, and two more validations.
  Lines TrainAndSave(const std::string& arguments) const {
    const Lines lines = Log(
        Run(Short("--save " + Checkpoints() + " --save-every 5 " + arguments)),
        18);
    return Lines(lines.begin() + std::min<size_t>(5, lines.size()),
                 lines.end());
  }
  // Returns the log of the run that goes on after step 5.
  Lines Resume(const std::string& arguments) const {
    return Log(Run(Short("--resume " + At5() + " " + arguments)), 13);
  }

  // Returns a text of all files in a checkpoint, to compare.
  static std::string BytesOf(const std::string& checkpoint) {
    Lines files;
    for (const auto& file : std::filesystem::directory_iterator(checkpoint)) {
      files.push_back(file.path().filename().string());
    }
    std::sort(files.begin(), files.end());
    std::string bytes;
    for (const std::string& file : files) {
      bytes += file + "\n" + ReadFile(checkpoint + "/" + file);
    }
    return bytes;
  }
};

// ---- At the same number of ranks --------------------------------------------

// Compares losses, gradient norms and rates to the bit, and at the end also
// parameters, states and all else that is in a checkpoint.
class SameRanksTest : public ResumeTest,
                      public ::testing::WithParamInterface<const char*> {};

TEST_P(SameRanksTest, GoesOnBitByBit) {
  const std::string arguments = GetParam();
  const Lines whole = TrainAndSave(arguments);
  const std::string other = folder_ + "/other";
  EXPECT_EQ(Resume(arguments + " --save " + other), whole);
  EXPECT_EQ(BytesOf(other + "/step-000015"),
            BytesOf(Checkpoints() + "/step-000015"));
  // Other steps do differ.
  EXPECT_NE(BytesOf(Checkpoints() + "/step-000010"),
            BytesOf(Checkpoints() + "/step-000015"));
}

std::vector<const char*> Runs() {
  std::vector<const char*> runs = {
      "--rank-threads 2 --partition greedy --stage 2",
      "--rank-threads 2 --stage 3 --wrap always --overlap --states bf16 "
      "--no-shared-memory",
      "--rank-threads 2 --optimizer muon --states q8"};
  // Under a sanitizer, the other tests run what these run.
  if (shard::kSanitized) return runs;
  runs.insert(runs.end(), {"--rank-threads 1", "--rank-threads 2",
                           "--rank-threads 3 --stage 3 --no-shared-memory"});
  return runs;
}

INSTANTIATE_TEST_SUITE_P(Runs, SameRanksTest, ::testing::ValuesIn(Runs()));

// Processes saved the run; threads go on, with another stage and other units.
TEST_F(ResumeTest, GoesOnBitByBitInAnotherStage) {
  const std::string save = "--save " + Checkpoints() + " --save-every 5 ";
  const Lines lines =
      Log(RunProcesses(2, Short(save + "--deterministic --stage 1")), 18);
  const Lines whole(lines.begin() + 5, lines.end());
  for (const char* arguments :
       {"--stage 3 --no-shared-memory", "--stage 0 --wrap none",
        "--stage 2 --partition greedy --overlap --no-shared-memory"}) {
    EXPECT_EQ(
        Resume(std::string("--rank-threads 2 --deterministic ") + arguments),
        whole)
        << arguments;
  }
}

// ---- At another number of ranks ---------------------------------------------

TEST_F(ResumeTest, GoesOnAtAnotherWorldSize) {
  const std::string sharded = "--stage 3 --no-shared-memory ";
  const Lines whole = TrainAndSave("--rank-threads 2 " + sharded);
  for (const char* arguments :
       {"--rank-threads 1", "--rank-threads 3", "--rank-threads 4 --stage 3",
        "--rank-threads 3 --stage 3 --wrap always --no-shared-memory",
        "--rank-threads 3 --partition greedy"}) {
    // Under a sanitizer, the last two: more ranks, in other units and whole.
    if (shard::kSanitized &&
        !std::string_view(arguments).starts_with("--rank-threads 3 --")) {
      continue;
    }
    ExpectSameCurve(whole, Resume(arguments));
  }
}

TEST_F(ResumeTest, GoesOnWithFewerRanks) {
  const Lines whole = TrainAndSave("--rank-threads 3 --states q8");
  ExpectSameCurve(whole, Resume("--rank-threads 2 --states q8"));
  // With other states the curve is not the same, but near.
  const Lines wide = Resume("--rank-threads 2 --states f32 --stage 3");
  ExpectSameCurve({whole[0], whole[1]}, {wide[0], wide[1]});
  ExpectSameCurve(whole, wide, 0.02);
}

TEST_F(ResumeTest, SaysWhatItGoesOnFrom) {
  TrainAndSave("--rank-threads 3 --keep 1");
  EXPECT_FALSE(std::filesystem::exists(At5()));  // --keep 1 removed it.
  const Outcome outcome = Run(Short("--steps 17 --resume " + Checkpoints() +
                                    " --save " + Checkpoints()));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("\nresumed " + Checkpoints() +
                              ": step 15 saved by 3 ranks\n"
                              "step 15/17  validation "),
                    HasSubstr("\nstep 16/17  loss "),
                    HasSubstr("\nsaved   " + Checkpoints() + ": step 17\n")));
  EXPECT_EQ(ReadFile(Checkpoints() + "/LATEST"), "step-000017\n");
}

// There are no steps left: the run is validated, and saved by these ranks.
TEST_F(ResumeTest, AtItsLastStepItOnlyValidates) {
  const Lines whole = TrainAndSave("--rank-threads 2");
  const Lines lines =
      Log(Run(Short("--rank-threads 3 --resume " + Checkpoints() + " --save " +
                    Checkpoints())),
          1);
  ExpectSameCurve({whole.back()}, lines);
  EXPECT_TRUE(
      std::filesystem::exists(Checkpoints() + "/step-000015/data-00002.bin"));
}

// Exports the checkpoint that 2 ranks saved, and then the one that 3 ranks
// saved again.
TEST_F(ResumeTest, ExportsWhatItSaved) {
  const std::string first = folder_ + "/first.safetensors";
  TrainAndSave("--rank-threads 2 --stage 3 --export " + first);
  const std::string bytes = ReadFile(first);
  ASSERT_GT(bytes.size(), 8u);
  // The file has parameters and no states; the tied one is there once.
  EXPECT_THAT(
      bytes,
      AllOf(HasSubstr("\"wte.weight\""), HasSubstr("\"h.5.mlp.c_proj.bias\""),
            Not(HasSubstr("\"lm_head.weight\"")), Not(HasSubstr("exp_avg"))));
  const std::string again = folder_ + "/again.safetensors";
  const Outcome outcome =
      Run(Short("--rank-threads 3 --resume " + Checkpoints() + " --save " +
                Checkpoints() + " --export " + again));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\nexported " + again + "\n"));
  EXPECT_EQ(ReadFile(again), bytes);
}

// ---- Runs that are killed ---------------------------------------------------

// The rates do not depend on --steps, so a run without an end and one with an
// end have the same curve.
TEST_F(ResumeTest, GoesOnAfterAKill) {
  const std::string steady =
      "--lr 3e-3 --min-lr 3e-3 --warm-up 0 --rank-threads 2 --sample 0 ";
  const std::string endless =
      Short(steady +
            "--val-every 0 --steps 100000000 --save-every 5 --keep 2 "
            "--save " +
            Checkpoints());
  const pid_t run = fork();
  if (run == 0) {
    const std::string command =
        "exec samples/gpt/train_gpt " + endless + " >/dev/null 2>&1";
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  ASSERT_GT(run, 0);
  // LATEST is replaced at every save, so the run is most likely killed within
  // one.
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto saved = [&] { return ReadFile(Checkpoints() + "/LATEST"); };
  while (saved() < "step-000015" &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  ASSERT_EQ(kill(run, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(waitpid(run, &status, 0), run);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;

  // The checkpoint that LATEST names is whole. There may be a newer one, just
  // renamed.
  const std::string latest = saved();
  const int step = std::atoi(latest.c_str() + std::string("step-").size());
  ASSERT_GE(step, 15) << latest;
  const std::string end = "--steps " + std::to_string(step + 5) + " ";
  const Lines after =
      Log(Run(Short(steady + end + "--val-every 0 --resume " + Checkpoints() +
                    " --save " + Checkpoints() + " --keep 1")),
          7);
  const Lines whole = Log(Run(Short(steady + end + "--val-every 0 ")),
                          static_cast<size_t>(step) + 6);
  // After the first validation come the steps, and the last validation.
  EXPECT_EQ(Lines(after.begin() + 1, after.end()),
            Lines(whole.end() - 6, whole.end()));
  // The unfinished save of the killed run is gone, and so are older
  // checkpoints.
  int left = 0;
  for (const auto& entry : std::filesystem::directory_iterator(Checkpoints())) {
    left++;
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr(".tmp-")));
  }
  EXPECT_EQ(left, 2);  // These are LATEST and one checkpoint.
}

// ---- Runs that do not fit ---------------------------------------------------

class RefusedTest : public ResumeTest {
 protected:
  void ExpectRefused(const std::string& arguments, const std::string& why) {
    const Outcome outcome = Run(Short("--rank-threads 2 " + arguments));
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("train_gpt: rank 0: --resume: "),
                                   HasSubstr("train_gpt: rank 1: --resume: "),
                                   HasSubstr(why)));
  }
};

TEST_F(RefusedTest, IsToldWhatIsWrong) {
  const std::string save = "--steps 2 --rank-threads 2 --save ";
  ASSERT_EQ(Run(Short(save + Checkpoints())).exit_code, 0);
  const std::string resume = "--resume " + Checkpoints() + " ";
  ExpectRefused("--resume " + folder_ + "/none", "NOT_FOUND: ");
  ExpectRefused("--resume " + folder_, "no checkpoint in '" + folder_);
  ExpectRefused(resume + "--layers 7", "36 missing");
  ExpectRefused(resume + "--layers 5", "0 missing; 36 unexpected");
  ExpectRefused(resume + "--width 48",
                "'wte.weight' has shape [256, 32] in the store and [256, 48]");
  ExpectRefused(resume + "--optimizer muon", "momentum_buffer");
  ExpectRefused(resume + "--seed 2", "begun with --seed 1, not 2");
  ExpectRefused(resume + "--steps 1", "at step 2, beyond --steps 1");
}

// A save that fails while training goes on is not lost: the next one says so.
TEST_F(ResumeTest, ASaveThatFailsIsAnErrorOfTheNext) {
  const Outcome outcome =
      RunCommand("trap '' XFSZ; ulimit -f 100; samples/gpt/train_gpt " +
                 Short("--save-every 5 --val-every 0 --save " + Checkpoints()));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("rank 0: --save: RESOURCE_EXHAUSTED: "),
                    HasSubstr("step-000005")));
  const std::string log = ReadFile(folder_ + "/log");
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 10);
}

TEST_F(ResumeTest, AFolderThatCannotBeMadeEndsTheRun) {
  const Outcome outcome =
      Run(Short("--rank-threads 2 --save " + folder_ + "/none/none"));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("train_gpt: rank 0: --save: NOT_FOUND: "),
                    HasSubstr("train_gpt: rank 1: --save: "),
                    HasSubstr("make the folder above it first")));
}

}  // namespace
}  // namespace resume_test
