// SPDX-License-Identifier: Apache-2.0
//
// Drivers that cannot be used. Each program of this file is linked with another
// libcuda.so.1, which dlopen then finds by its SONAME; one is linked with none.

#include "core/device/cuda/driver.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "core/device/cuda/cuda_device.h"
#include "tests/core/base/expect_status.h"

namespace shard::cuda {
namespace {

TEST(DriverTest, SaysWhatIsWrongWithTheDriver) {
  const std::string expected = SHARD_EXPECTED_MESSAGE;
  if (expected.starts_with("no CUDA driver") &&
      dlopen("libcuda.so.1", RTLD_LAZY) != nullptr) {
    GTEST_SKIP() << "this machine has a CUDA driver";
  }
  // An error is not kept: each call looks again.
  for (int i = 0; i < 2; ++i) {
    const Status status = Driver::Load().status();
    EXPECT_EQ(status.code(), StatusCode::kBackendUnavailable);
    EXPECT_NE(status.message().find(expected), std::string::npos)
        << status.message();
  }
  for (const char* const id :
       {"0", "GPU-00000000-0000-0000-0000-000000000000"}) {
    EXPECT_EQ(OpenDevice(id).status().code(), StatusCode::kBackendUnavailable);
  }
}

TEST(DriverTest, ANameThatNamesNothingNeedsNoDriver) {
  for (const char* const id : {"-1", "first", "GPU-12", "99999999", "0x0"}) {
    EXPECT_EQ(OpenDevice(id).status().code(), StatusCode::kInvalidArgument)
        << id;
  }
}

}  // namespace
}  // namespace shard::cuda
