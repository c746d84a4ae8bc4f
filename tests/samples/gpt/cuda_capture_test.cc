// SPDX-License-Identifier: Apache-2.0
//
// --capture: steps by a CUDA graph have the bits of plain steps, on the fake of
// NVIDIA's driver. Files and losses are compared whole, since nothing may
// differ.

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/base/sanitizers.h"
#include "tests/samples/gpt/cuda_fixture.h"

namespace cuda_capture_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CudaCaptureTest : public CudaTest {
 protected:
  // Everything that a run leaves behind.
  struct Result {
    std::vector<std::string> log;  // Losses, rates and norms.
    std::string sample;
    std::string exported;    // The parameters.
    std::string checkpoint;  // Those, and optimizer states, and numbers.
  };

  // Trains for `lines` lines of the log, and expects so many launches of
  // graphs.
  Result Train(const std::string& name, const std::string& arguments,
               size_t lines, int launches,
               const std::string& environment = "") const {
    const std::string folder = folder_ + "/" + name;
    const Outcome outcome =
        RunOnFake(Short("--device cuda:0 --save " + folder + " --export " +
                        folder + ".safetensors " + arguments),
                  environment);
    Result result;
    result.log = Log(outcome, lines);
    result.sample = SampleOf(outcome);
    result.exported = ReadFile(folder + ".safetensors");
    result.checkpoint = ReadFile(folder + "/step-000020/data-00000.bin");
    EXPECT_GT(result.exported.size(), 50000u);
    EXPECT_GT(result.checkpoint.size(), result.exported.size());
    EXPECT_EQ(CallsOf("cuGraphLaunch"), launches) << arguments;
    EXPECT_EQ(CallsOf("cuGraphInstantiateWithFlags"), launches > 0 ? 1 : 0);
    return result;
  }

  // Returns the numbers of the last launch before the capture of a brief run,
  // and of the last in it. Launches are numbered over the whole run, and those
  // of a validation come at its end.
  std::pair<int, int> LaunchesOfTheCapture() const {
    const auto launches = [&](const std::string& arguments) {
      const std::string run = Brief("--device cuda:0 --capture " + arguments);
      EXPECT_EQ(RunOnFake(run).exit_code, 0);
      return CallsOf("cuLaunchKernel");
    };
    const int one = launches("--steps 1");
    const int two = launches("--steps 2");
    const int validation = launches("--steps 2 --val-every 1") - two;
    return {one - validation, two - validation};
  }

  // A run ends with a capture that fails, which is in its second step, and says
  // how it goes on; a replay that fails is another matter.
  static void ExpectAdvice(const Outcome& outcome, bool has_captured) {
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_EQ(
        outcome.err.find("no step was captured, and the run ends; without "
                         "--capture it makes plain steps") == std::string::npos,
        has_captured)
        << outcome.err;
  }

  static void ExpectSame(const Result& result, const Result& expected) {
    EXPECT_EQ(result.log, expected.log);
    EXPECT_EQ(result.sample, expected.sample);
    EXPECT_TRUE(result.exported == expected.exported);
    EXPECT_TRUE(result.checkpoint == expected.checkpoint);
  }
};

// The first of 20 steps is plain. The rate rises for ten steps and then falls,
// and a validation is between the tenth and the eleventh.
class SameBitsTest : public CudaCaptureTest,
                     public ::testing::WithParamInterface<const char*> {};

TEST_P(SameBitsTest, AsPlainSteps) {
  const std::string arguments = GetParam();
  const Result plain = Train("plain", arguments, 22, 0);
  const Result captured = Train("captured", arguments + " --capture", 22, 19);
  ExpectSame(captured, plain);
  const std::vector<double> losses = Losses(captured.log);
  EXPECT_LT(losses[20], losses[0]);
}

std::vector<const char*> Runs() {
  // Most steps are clipped. Moments have 8 bits, which each step rounds by
  // other random bits.
  std::vector<const char*> runs = {
      "--clip 0.3 --states q8 --stage 3 --wrap always"};
  // Under a sanitizer, the other tests run what these run.
  if (shard::kSanitized) return runs;
  // Without a norm; with one that clips nothing.
  runs.insert(runs.end(), {"--clip 0 --seed 2",
                           "--clip 1e9 --states bf16 --stage 0 --wrap none",
                           "--optimizer muon --clip 0.3 --overlap"});
  return runs;
}

INSTANTIATE_TEST_SUITE_P(Runs, SameBitsTest, ::testing::ValuesIn(Runs()));

// Saves are written during the capture and while replays go on, and a run of
// either kind goes on from a checkpoint of either.
TEST_F(CudaCaptureTest, GoesOnFromACheckpoint) {
  if (shard::kSanitized) {
    GTEST_SKIP() << "AsPlainSteps captures and saves the same, CudaTest loads";
  }
  const Result plain = Train("plain", "--save-every 1", 22, 0);
  const Result captured = Train("captured", "--save-every 1 --capture", 22, 19);
  ExpectSame(captured, plain);
  // Each goes on from a checkpoint of the other.
  for (const bool captures : {false, true}) {
    const std::string from = captures ? "plain" : "captured";
    // A validation, the steps 11 to 20, and a validation.
    const Result rest =
        Train("rest",
              "--resume " + folder_ + "/" + from + "/step-000010" +
                  (captures ? " --capture" : ""),
              12, captures ? 9 : 0);
    EXPECT_EQ(rest.log,
              std::vector<std::string>(plain.log.end() - 12, plain.log.end()));
    EXPECT_EQ(rest.sample, plain.sample);
    EXPECT_TRUE(rest.exported == plain.exported);
    EXPECT_TRUE(rest.checkpoint == plain.checkpoint);
    std::filesystem::remove_all(folder_ + "/rest");
  }
}

// With the guard the program faults where the host uses the GPU's memory.
TEST_F(CudaCaptureTest, LeavesTheGpusMemoryToIt) {
  const std::string run = Brief("--device cuda:0 --sample 5");
  const auto plain = BriefLog(RunOnFake(run));
  EXPECT_EQ(BriefLog(RunOnFake(run + " --capture", "SHARD_FAKE_CUDA_GUARD=1")),
            plain);
  EXPECT_EQ(CallsOf("cuGraphLaunch"), 3);
}

// The host enqueues a replay by one call, whatever the size of the model.
TEST_F(CudaCaptureTest, AReplayLaunchesNoKernels) {
  std::vector<int> kernels;
  for (const std::string steps : {"3", "20"}) {
    const Outcome outcome =
        RunOnFake(Brief("--device cuda:0 --capture --steps " + steps));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(CallsOf("cuGraphLaunch"), std::stoi(steps) - 1);
    kernels.push_back(CallsOf("cuLaunchKernel"));
  }
  EXPECT_EQ(kernels[0], kernels[1]);
}

// One step has no second one to capture.
TEST_F(CudaCaptureTest, ARunOfOneStepCapturesNothing) {
  const std::string run = Brief("--steps 1 --device cuda:0 ");
  const auto plain = Log(RunOnFake(run), 2);
  EXPECT_EQ(Log(RunOnFake(run + "--capture"), 2), plain);
  EXPECT_EQ(CallsOf("cuStreamBeginCapture"), 0);
}

// ---- Errors -----------------------------------------------------------------

TEST_F(CudaCaptureTest, SaysWhereThereAreNoGraphs) {
  const struct {
    std::string arguments;
    int exit_code;
    std::vector<std::string> texts;
  } cases[] = {
      {"", 2, {"--capture: \"cpu\" has no CUDA graphs", "--device cuda"}},
      {"--device cpu-async", 2, {"--capture: \"cpu-async\" has no CUDA"}},
      {"--device cuda --rank-threads 2",
       2,
       {"--capture: runs on one rank, not on 2", "leave --rank-threads"}},
      {"--device cuda --check", 2, {"--capture: --check makes no steps"}},
      // libshard's own errors.
      {"--device 'cuda?offload=states'",
       1,
       {"rank 0: --capture: UNIMPLEMENTED: capture_begin", "offload"}},
      {"--device cuda --no-shared-memory --rank-threads 1",
       1,
       {"rank 0: --capture: UNIMPLEMENTED: capture_begin", "direct=0"}},
  };
  for (const auto& it : cases) {
    const Outcome outcome = RunOnFake(Brief("--capture " + it.arguments));
    EXPECT_EQ(outcome.exit_code, it.exit_code) << it.arguments;
    for (const std::string& text : it.texts) {
      EXPECT_THAT(outcome.err, HasSubstr(text)) << it.arguments;
    }
  }
}

TEST_F(CudaCaptureTest, SaysThatProcessesAreTwoRanks) {
  const Outcome outcome = RunCommand(
      "env LD_LIBRARY_PATH=\"$PWD/api:$PWD/tests/samples/gpt/fake_cuda:"
      "$PWD/tests/fake_cuda\" tests/samples/gpt/run_ranks 2 "
      "samples/gpt/train_gpt " +
      Brief("--capture --device cuda"));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("--capture: runs on one rank, not on 2"));
}

// Each call fails once; the program names it, and frees what it has.
TEST_F(CudaCaptureTest, SaysWhichCallOfACaptureFailed) {
  const std::string run = Brief("--device cuda:0 --capture");
  for (const std::string call :
       {"cuStreamBeginCapture", "cuStreamEndCapture",
        "cuGraphInstantiateWithFlags", "cuGraphLaunch"}) {
    const Outcome outcome =
        RunOnFake(run, "SHARD_FAKE_CUDA_FAIL=" + call + ":1:999");
    SCOPED_TRACE(call);
    ExpectAdvice(outcome, call == "cuGraphLaunch");
    EXPECT_THAT(outcome.err, HasSubstr("rank 0: --capture: " +
                                       call.substr(0, call.find("With"))));
    EXPECT_THAT(outcome.err, HasSubstr("CUDA_ERROR_UNKNOWN (999)"));
  }
}

TEST_F(CudaCaptureTest, SaysWhyAPassOrAStepWasNotCaptured) {
  const std::string call = "cuLaunchKernel";
  const auto [before, after] = LaunchesOfTheCapture();
  ASSERT_GT(after - before, 100);
  // The first two are the model's, the last is libshard's.
  for (const int failing : {before + 1, before + 2, after}) {
    const Outcome outcome = RunOnFake(Brief("--device cuda:0 --capture"),
                                      "SHARD_FAKE_CUDA_FAIL=" + call + ":" +
                                          std::to_string(failing) + ":999");
    ExpectAdvice(outcome, false);
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr("train_gpt: rank 0: --capture: "),
                      HasSubstr(call), HasSubstr("CUDA_ERROR_UNKNOWN (999)"),
                      Not(HasSubstr("cuStreamEndCapture"))));
    EXPECT_EQ(outcome.err.find("UNAVAILABLE") != std::string::npos,
              failing == after)
        << outcome.err;
  }
}

// The driver forbids a call of the captured step, as one that allocates memory,
// or another call has made the capture invalid. The run ends with that error,
// and frees what it has.
TEST_F(CudaCaptureTest, SaysWhichCallACaptureForbids) {
  const std::string run = Brief("--device cuda:0 --capture ");
  const auto [before, after] = LaunchesOfTheCapture();
  const struct {
    int failing;
    std::string error;
    bool is_libshards;
  } cases[] = {
      {before + 2, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900)", false},
      {before + 2, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (901)", false},
      {after, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (901)", true},
  };
  for (const auto& it : cases) {
    const std::string code = it.error.substr(it.error.size() - 4, 3);
    const Outcome outcome =
        RunOnFake(run, "SHARD_FAKE_CUDA_FAIL=cuLaunchKernel:" +
                           std::to_string(it.failing) + ":" + code);
    ExpectAdvice(outcome, false);
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr("train_gpt: rank 0: --capture: "),
                      HasSubstr("cuLaunchKernel"), HasSubstr(it.error),
                      Not(HasSubstr("cuStreamEndCapture"))));
    EXPECT_EQ(outcome.err.find("FAILED_PRECONDITION") != std::string::npos,
              it.is_libshards)
        << outcome.err;
    EXPECT_EQ(CallsOf("cuStreamEndCapture"), 1);
    EXPECT_EQ(CallsOf("cuGraphInstantiateWithFlags"), 0);
  }
}

TEST_F(CudaCaptureTest, SaysThatThereIsNoWorkspace) {
  const Outcome outcome = RunOnFake(Brief("--device cuda:0 --capture"),
                                    "SHARD_FAKE_CUDA_FAIL=cuMemAlloc:1:2");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("--device: cuda:0: cuMemAlloc: "));
}

}  // namespace
}  // namespace cuda_capture_test
