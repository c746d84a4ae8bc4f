// SPDX-License-Identifier: Apache-2.0
//
// The loading of libshard_cuda.so, which lies beside this program here.

#include "core/device/plugin/plugin.h"

#include <gtest/gtest.h>

#include <string>

#include "core/device/device.h"
#include "core/device/plugin/build_id.h"
#include "tests/core/base/expect_status.h"

namespace shard {
namespace {

Status ErrorOf(std::string_view file) { return LoadPlugin(file).status(); }

TEST(PluginTest, IsLoadedFromBesideTheLibrary) {
  const auto plugin = LoadPlugin("libshard_cuda.so");
  ASSERT_OK(plugin);
  EXPECT_EQ((*plugin)->open_device("none").status().code(),
            StatusCode::kInvalidArgument);
  // The same one each time.
  const auto again = LoadPlugin("libshard_cuda.so");
  ASSERT_OK(again);
  EXPECT_EQ(*again, *plugin);
}

TEST(PluginTest, IsOpenedByTheDevicesName) {
  const Status status = OpenDevice("cuda:none").status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("'none' names no CUDA device"),
            std::string::npos)
      << status.message();
}

TEST(PluginTest, TheSpecSaysWhichDevice) {
  for (const char* const spec : {"cuda", "cuda:", "cuda:0?color=red"}) {
    EXPECT_EQ(OpenDevice(spec).status().code(), StatusCode::kInvalidArgument)
        << spec;
  }
}

TEST(PluginTest, AMissingFileIsNamed) {
  const Status status = ErrorOf("libshard_none.so");
  EXPECT_EQ(status.code(), StatusCode::kBackendUnavailable);
  EXPECT_NE(status.message().find("libshard_none.so"), std::string::npos);
}

TEST(PluginTest, AFileThatIsNoPluginIsAnotherBuild) {
  for (const char* const file :
       {"libother_build.so", "old_driver/libcuda.so.1"}) {
    const Status status = ErrorOf(file);
    EXPECT_EQ(status.code(), StatusCode::kBackendUnavailable);
    EXPECT_NE(status.message().find("is of another build than libshard.so"),
              std::string::npos)
        << status.message();
  }
}

}  // namespace
}  // namespace shard
