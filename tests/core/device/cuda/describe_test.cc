// SPDX-License-Identifier: Apache-2.0
//
// The description of a machine, over the fake of its driver.

#include "core/device/cuda/describe.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "core/device/cuda/cuda_device.h"
#include "tests/core/base/expect_status.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda {
namespace {

using Json = nlohmann::json;
using testing::fake_cuda::FailCall;
using testing::fake_cuda::Reset;

class DescribeTest : public testing::FakeCudaTest {
 protected:
  static Json Described() { return Json::parse(Describe()); }
};

TEST_F(DescribeTest, AUuidNamesItsDevice) {
  for (const char* const name : {"Fake GPU", "Fake GPU MIG 1g.5gb"}) {
    Reset({.device_name = name});
    const Json devices = Described()["devices"];
    ASSERT_EQ(devices.size(), 2u);
    EXPECT_EQ(devices[1]["name"], name);
    EXPECT_EQ(devices[1]["spec"], "cuda:1");
    EXPECT_EQ(devices[1]["error"], "");
    const std::string uuid = devices[1]["uuid"];
    EXPECT_EQ(uuid.starts_with("MIG-"), std::string(name) != "Fake GPU");
    const auto device = OpenDevice(uuid);
    ASSERT_OK(device);
    EXPECT_EQ((*device)->name(), "cuda:1");
  }
}

TEST_F(DescribeTest, AnErrorOfTheCountIsKept) {
  FailCall("cuDeviceGetCount", 1, CuResult::kUnknown);
  const Json json = Described();
  EXPECT_EQ(json["driver"], "13.0");
  EXPECT_EQ(json["devices"], Json::array());
  const std::string error = json["error"];
  EXPECT_TRUE(error.starts_with("cuDeviceGetCount: CUDA_ERROR_UNKNOWN"))
      << error;
  EXPECT_TRUE(json["nccl"].contains("library"));
  EXPECT_TRUE(json["cublas"].contains("library"));
}

}  // namespace
}  // namespace shard::cuda
