// SPDX-License-Identifier: Apache-2.0
//
// The options in the name of a device.

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "core/device/device.h"
#include "tests/core/base/expect_status.h"

namespace shard::device_spec_test {
namespace {

TEST(OffloadSpecTest, NamesWhatIsOffloadedAndItsThreads) {
  const auto plain = ReadDeviceSpec("cuda:3");
  ASSERT_OK(plain);
  EXPECT_FALSE(plain->offload.has_value());
  const auto offloaded = ReadDeviceSpec("cuda:3?offload=states");
  ASSERT_OK(offloaded);
  EXPECT_EQ(offloaded->kind, DeviceId::Kind::kCuda);
  EXPECT_EQ(offloaded->offload->threads, 4);
  const auto threads =
      ReadDeviceSpec("cuda:3?offload=states&offload_threads=7");
  ASSERT_OK(threads);
  EXPECT_EQ(threads->offload->threads, 7);
}

TEST(OffloadSpecTest, RefusesOthers) {
  const auto expect = [](const char* spec,
                         std::initializer_list<std::string_view> words) {
    SCOPED_TRACE(spec);
    ExpectError(ReadDeviceSpec(spec), StatusCode::kInvalidArgument, words);
    ExpectError(OpenDevice(spec), StatusCode::kInvalidArgument, words);
  };
  expect("cuda:0?offload=all", {"offload='all'", "known: states"});
  expect("cuda:0?offload=", {"offload=''"});
  expect("cuda:0?offload_threads=4", {"offload_threads=4", "offload=states"});
  expect("cuda:0?offload=states&offload_threads=0", {"offload_threads=0"});
  expect("cuda:0?offload=states&offload_threads=-1", {"offload_threads=-1"});
  expect("cuda:0?offload=states&offload_threads=257",
         {"offload_threads=257", "1 to 256"});
  expect("cuda:0?offload=states&treads=4", {"treads", "offload_threads"});
  expect("cpu?offload=states", {"offload", "cpu"});
  // Its ranks share memory.
  expect("cpu-async?offload=states", {"offload", "max_delay"});
}

TEST(StepSpecTest, IsOneKernelOrParts) {
  for (const auto& [spec, is_one] :
       {std::pair("cuda:3", false), std::pair("cuda:3?step=parts", false),
        std::pair("cuda:3?collectives=nccl&step=one_kernel", true)}) {
    SCOPED_TRACE(spec);
    const auto choice = ReadDeviceSpec(spec);
    ASSERT_OK(choice);
    EXPECT_EQ(choice->one_kernel, is_one);
  }
  ExpectError(ReadDeviceSpec("cuda:0?step=one"), StatusCode::kInvalidArgument,
              {"step='one'", "known: one_kernel", "parts"});
  ExpectError(OpenDevice("cpu?step=one_kernel"), StatusCode::kInvalidArgument,
              {"step", "cpu"});
}

}  // namespace
}  // namespace shard::device_spec_test
