// SPDX-License-Identifier: Apache-2.0
//
// `shardctl doctor --nccl` where NCCL does not come to an end: in a call that
// never returns, or on the GPU. It ends in time, and says so.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <string>

#include "tests/sdk/cli/doctor_testing.h"

namespace shardctl_testing {
namespace {

// Seconds for all of doctor, beside those that it waits for NCCL.
constexpr double kSlack = 60;

class DoctorHangTest : public DoctorTest {
 protected:
  DoctorHangTest() : DoctorTest("nccl", {"--nccl", "--timeout", "5"}) {
    ::setenv("NCCL_CONF_FILE", "/dev/null", 1);
    ::unsetenv("NCCL_SOCKET_IFNAME");
  }
  ~DoctorHangTest() override {
    for (const char* const name :
         {"SHARD_FAKE_NCCL_HANG", "SHARD_FAKE_NCCL_STICK",
          "SHARD_FAKE_CUDA_DEVICES"}) {
      ::unsetenv(name);
    }
  }

  // Runs doctor on a machine with so many GPUs, and expects it to have ended
  // `seconds` after its deadline.
  void ExamineInTime(const char* gpus, double seconds) {
    ::setenv("SHARD_FAKE_CUDA_DEVICES", gpus, 1);
    const auto begin = Clock::now();
    Examine({kFakeDriver, kFakeNccl});
    const std::chrono::duration<double> took = Clock::now() - begin;
    EXPECT_GE(took.count(), 5 + seconds);
    EXPECT_LT(took.count(), 5 + seconds + kSlack);
  }

  void ExpectLate(const std::string& name, const std::string& text) {
    const std::string found = Found(name);
    EXPECT_TRUE(found.starts_with("warn ")) << found;
    EXPECT_TRUE(Has(found, text)) << found;
    EXPECT_TRUE(Has(Remedy(name), "NCCL_DEBUG=INFO")) << Remedy(name);
  }
};

// The thread of the call is left behind, and holds up nothing.
TEST_F(DoctorHangTest, ACallThatNeverReturnsIsLeftBehind) {
  ::setenv("SHARD_FAKE_NCCL_HANG", "ncclGetUniqueId", 1);
  LeaveObjects();
  ExamineInTime("1", 20);
  ExpectLate("cuda:0 alone",
             "a library did not return within 25 s, and its thread is left "
             "behind");
}

// The GPUs that come after it are still checked.
TEST_F(DoctorHangTest, ACollectiveThatNeverEndsIsNamed) {
  ::setenv("SHARD_FAKE_NCCL_STICK", "1", 1);
  ExamineInTime("2", 0);
  ExpectLate("cuda:0 alone", "ncclAllGather was not done within 5 s");
  for (const char* const name : {"cuda:1 alone", "all GPUs"}) {
    EXPECT_TRUE(Found(name).starts_with("ok ")) << Found(name);
  }
}

}  // namespace
}  // namespace shardctl_testing
