// SPDX-License-Identifier: Apache-2.0
//
// --device cuda where something is missing, or fails: the program says what and
// what to do, on every rank, ends with the exit code of errors, and frees what
// it has. What it saved before is there, and a run goes on from it.

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/samples/gpt/cuda_fixture.h"

namespace cuda_errors_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CudaErrorsTest : public CudaTest {
 protected:
  // Makes the loader find a fake of cuBLAS that cannot be used.
  void Replace(const std::string& fake) const {
    const std::filesystem::path from = "tests/fake_cuda/" + fake;
    std::filesystem::copy(from, folder_ / from.filename());
  }
};

TEST_F(CudaErrorsTest, SaysThatThereIsNoDriver) {
  Hide("libcuda.so.1");
  for (const char* device : {"cuda", "cuda:0"}) {
    const Outcome outcome = RunOnFake(Brief("--device " + std::string(device)));
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr("train_gpt: rank 0: engine: "),
                      HasSubstr("no CUDA driver: "), HasSubstr("libcuda.so.1"),
                      HasSubstr("install NVIDIA's driver")));
  }
}

// The first 127 bytes are a device, with one thread.
TEST_F(CudaErrorsTest, RefusesASpecThatHasNoRoom) {
  const std::string spec = "cuda?offload=states&offload_threads=";
  const std::string long_spec = spec + std::string(88, '0') + "16";
  const Outcome outcome =
      RunOnFake(Brief("--device '" + long_spec + "' --rank-threads 2"));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 0: --device: \"" + long_spec),
                                 HasSubstr("rank 1: --device: \"" + long_spec),
                                 HasSubstr("\" is longer than 127 bytes")));
}

TEST_F(CudaErrorsTest, SaysThatThereIsNoCublas) {
  Hide("libcublas.so.13");
  Hide("libcublas.so.12");
  const Outcome outcome = RunOnFake(Brief("--device cuda --rank-threads 2"));
  EXPECT_EQ(outcome.exit_code, 1);
  // Each rank had taken a GPU of its own.
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("rank 0: --device: cuda:0: no cuBLAS: "),
                    HasSubstr("rank 1: --device: cuda:1: no cuBLAS: "),
                    HasSubstr("libcublas.so.13"), HasSubstr("libcublas.so.12"),
                    HasSubstr("LD_LIBRARY_PATH")));
}

TEST_F(CudaErrorsTest, SaysHowMuchMemoryTheGpuLacked) {
  // The third allocation is that of the activations.
  const Outcome outcome = RunOnFake(Brief("--device cuda:0"),
                                    "SHARD_FAKE_CUDA_FAIL=cuMemAlloc:3:2");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("activations: out of memory: "),
                    HasSubstr(" bytes for 4 sequences: cuMemAlloc: ")));
}

TEST_F(CudaErrorsTest, AnErrorOfThePassEndsAllRanks) {
  const Outcome outcome =
      RunOnFake(Brief("--device cuda:0 --rank-threads 2"),
                "SHARD_FAKE_CUDA_FAIL=cuStreamSynchronize:5:719");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("forward: cuStreamSynchronize: "));
  EXPECT_THAT(outcome.err, HasSubstr("(719)"));
}

// ---- cuBLAS -----------------------------------------------------------------

TEST_F(CudaErrorsTest, SaysThatCublasIsOfAnotherMajor) {
  Replace("wrong_major/libcublas.so.13");
  Hide("libcublas.so.12");
  const Outcome outcome = RunOnFake(Brief("--device cuda"));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("rank 0: --device: cuda:0: no cuBLAS: "
                              "libcublas.so.13 is cuBLAS 12, and not 13; "),
                    HasSubstr("libcublas.so.12: "),
                    HasSubstr("; install cuBLAS of CUDA 12 or 13"),
                    HasSubstr("LD_LIBRARY_PATH")));
}

TEST_F(CudaErrorsTest, SaysWhatCublasLacks) {
  Replace("partial/libcublas.so.13");
  Hide("libcublas.so.12");
  const Outcome outcome = RunOnFake(Brief("--device cuda"));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("no cuBLAS: libcublas.so.13 lacks "
                                     "cublasSetWorkspace_v2; "));
}

TEST_F(CudaErrorsTest, TriesTheNextCublasWhereOneCannotBeUsed) {
  const auto expected = BriefLog(RunOnFake(Brief("--device cuda")));
  Replace("wrong_major/libcublas.so.13");
  Replace("old/libcublas.so.12");
  EXPECT_EQ(BriefLog(RunOnFake(Brief("--device cuda"))), expected);
}

TEST_F(CudaErrorsTest, SaysThatCublasRefusesTheWorkspace) {
  const Outcome outcome = RunOnFake(
      Brief("--device cuda"), "SHARD_FAKE_CUDA_FAIL=cublasSetWorkspace:1:801");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(
      outcome.err,
      HasSubstr("rank 0: --device: cuda:0: cublasSetWorkspace: "
                "CUBLAS_STATUS_NOT_SUPPORTED (15), with a workspace of "
                "33554432 bytes; free memory of the GPU, or try another "
                "cuBLAS of CUDA 12 or 13 (LD_LIBRARY_PATH)"));
}

// cuBLAS says so at the first product that needs more.
TEST_F(CudaErrorsTest, SaysThatTheWorkspaceIsTooSmall) {
  const std::string needed = "SHARD_FAKE_CUDA_PRODUCT_WORKSPACES=";
  const std::string too_much = std::to_string((32 << 20) + 1);
  const Outcome outcome =
      RunOnFake(Brief("--device cuda --rank-threads 2"), needed + too_much);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(
      outcome.err,
      HasSubstr(": forward: cublasSgemmStridedBatched: "
                "CUBLAS_STATUS_ALLOC_FAILED (3), with a workspace of "
                "33554432 bytes; free memory of the GPU, or try another "
                "cuBLAS of CUDA 12 or 13 (LD_LIBRARY_PATH)"));
  // With an algorithm that needs less, training goes on.
  EXPECT_EQ(BriefLog(RunOnFake(Brief("--device cuda"),
                               needed + too_much + ",33554432")),
            BriefLog(RunOnFake(Brief("--device cuda"))));
}

// ---- Pinned memory ----------------------------------------------------------

// Returns the environment in which calls for pinned memory fail from one on.
std::string OutOfPinnedMemory(int call, int count) {
  std::string failures;
  for (int i = call; i < call + count; i++) {
    failures += (i > call ? "," : "SHARD_FAKE_CUDA_FAIL=") +
                ("cuMemHostAlloc:" + std::to_string(i)) + ":2";
  }
  return failures;
}

// libshard tries each call twice, and the program once.
constexpr int kTries = 2;

TEST_F(CudaErrorsTest, SaysThatPinnedMemoryRunsOutAndLosesNothing) {
  const std::string saved = folder_ + "/saved";
  const std::string run = Brief("--device 'cuda?offload=states' ");
  const auto whole =
      BriefLog(RunOnFake(run + "--save-every 2 --save " + saved));
  const std::string rest = run + "--resume " + saved + "/step-000002";
  const auto expected = Log(RunOnFake(rest), 4);
  const int calls = CallsOf("cuMemHostAlloc");
  ASSERT_GE(calls, 5);
  int of_program = 0;
  for (int call = 1; call <= calls; call++) {
    const Outcome outcome = RunOnFake(rest, OutOfPinnedMemory(call, kTries));
    EXPECT_EQ(outcome.exit_code, 1) << call;
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr("train_gpt: rank 0: "), HasSubstr(" bytes"),
                      HasSubstr("of the host's memory that stays in place "
                                "(pinned)"),
                      HasSubstr("cuda:0"),
                      HasSubstr("free memory, or raise the limit")));
    of_program += outcome.err.find("--device: ") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(of_program, 1);
  // Memory that is there at the second try will do. A validation, the steps 3
  // and 4, and a validation.
  EXPECT_EQ(Log(RunOnFake(rest, OutOfPinnedMemory(1, 1)), 4), expected);
  EXPECT_EQ(Losses(expected)[3], Losses(whole)[4]);
}

TEST_F(CudaErrorsTest, PinnedMemoryThatRunsOutEndsAllRanks) {
  const std::string run = Brief("--device cuda --rank-threads 2 --stage 2");
  EXPECT_EQ(RunOnFake(run).exit_code, 0);
  const int calls = CallsOf("cuMemHostAlloc");
  for (int call = 1; call <= calls; call++) {
    const Outcome outcome = RunOnFake(run, OutOfPinnedMemory(call, 20));
    EXPECT_EQ(outcome.exit_code, 1) << call;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 0: "), HasSubstr("rank 1: "),
                                   HasSubstr("(pinned)")))
        << call;
  }
}

}  // namespace
}  // namespace cuda_errors_test
