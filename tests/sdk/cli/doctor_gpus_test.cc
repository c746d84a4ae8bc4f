// SPDX-License-Identifier: Apache-2.0
//
// `shardctl doctor` and GPUs, with fakes of their driver and libraries in the
// search path.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/sdk/cli/checkpoint_testing.h"

namespace shardctl_testing::doctor_gpus_test {
namespace {

using Json = nlohmann::json;

// The fake of cuBLAS lies beside that of the driver, which it uses.
constexpr char kFakeDriver[] = "tests/fake_cuda";
constexpr char kOldCublas[] = "tests/fake_cuda/old";
constexpr char kFakeNccl[] = "tests/sdk/cli/fake_libraries";

// Writes a file that the loader finds before libraries of its name, and
// refuses.
void WriteNoLibrary(const std::string& path) {
  WriteFile(path, std::string(4096, 'x'));
}

class DoctorGpusTest : public ::testing::Test {
 protected:
  // Runs doctor with these folders in the search path, while calls of the
  // driver fail as SHARD_FAKE_CUDA_FAIL has it.
  void Examine(const std::vector<std::string>& folders,
               const std::string& failures = "") {
    // There libshard_cuda.so lies beside libshard.so.
    std::string path = std::filesystem::absolute("api");
    for (const std::string& folder : folders) {
      path += ":" + std::filesystem::absolute(folder).string();
    }
    ASSERT_EQ(::setenv("LD_LIBRARY_PATH", path.c_str(), 1), 0);
    ASSERT_EQ(::setenv("SHARD_FAKE_CUDA_FAIL", failures.c_str(), 1), 0);
    ASSERT_EQ(::setenv("SHARD_FAKE_CUDA_STRICT", "1", 1), 0);
    const Result result = RunShardctl({"doctor", "--json"});
    EXPECT_EQ(result.code, 0) << result.error;
    EXPECT_EQ(result.error, "");
    json_ = ParseJson(result);
  }

  // Returns "LEVEL FOUND" of the finding, or "" where there is none.
  std::string Found(const std::string& name) const {
    for (const Json& finding : json_["findings"]) {
      if (finding["section"] == "gpus" && finding["name"] == name) {
        return finding["level"].get<std::string>() + " " +
               finding["found"].get<std::string>();
      }
    }
    return "";
  }

  void ExpectTheLibraries() const {
    EXPECT_EQ(Found("nccl"), "ok libnccl.so.2 2.27.3");
    EXPECT_EQ(Found("cublas"), "ok libcublasLt.so.13 13.8");
  }

 private:
  Json json_;
};

TEST_F(DoctorGpusTest, ListsGpusAndSaysWhyOneCannotBeUsed) {
  // The first retain is that of cuda:0.
  Examine({kFakeDriver, kFakeNccl}, "cuDevicePrimaryCtxRetain:2:46");
  EXPECT_EQ(Found("driver"), "ok for CUDA 13.0");
  EXPECT_EQ(Found("cuda:0"),
            "ok Fake GPU, compute capability 9.0, 1.00 GiB free of 1.00 GiB, "
            "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe00");
  const std::string unusable = Found("cuda:1");
  EXPECT_TRUE(unusable.starts_with("warn ")) << unusable;
  EXPECT_TRUE(Has(unusable, "cuDevicePrimaryCtxRetain: ")) << unusable;
  EXPECT_TRUE(Has(unusable, "another process has the device")) << unusable;
  EXPECT_EQ(Found("cuda:2"), "");
  EXPECT_EQ(Found("devices"), "");
  ExpectTheLibraries();
}

TEST_F(DoctorGpusTest, LibrariesAreNotOpenedWithoutADriver) {
  const Folder folder;
  WriteNoLibrary(folder / "libcuda.so.1");
  Examine({folder / "", kFakeNccl});
  EXPECT_TRUE(Found("driver").starts_with("info no CUDA driver: "))
      << Found("driver");
  EXPECT_EQ(Found("devices"), "");
  EXPECT_EQ(Found("nccl"), "info not looked for: there is no driver");
  EXPECT_EQ(Found("cublas"), "info not looked for: there is no driver");
}

TEST_F(DoctorGpusTest, ALibraryThatDoesNotLoadIsNamed) {
  const Folder folder;
  WriteNoLibrary(folder / "libnccl.so.2");
  WriteNoLibrary(folder / "libcublasLt.so.13");
  Examine({folder / "", kFakeDriver, kOldCublas});
  EXPECT_TRUE(Found("nccl").starts_with("info ")) << Found("nccl");
  EXPECT_TRUE(Has(Found("nccl"), "libnccl.so.2: ")) << Found("nccl");
  EXPECT_EQ(Found("cublas"), "ok libcublasLt.so.12 12.8");
  EXPECT_TRUE(Found("cuda:1").starts_with("ok ")) << Found("cuda:1");
}

TEST_F(DoctorGpusTest, AnErrorOfTheCountIsNotNone) {
  Examine({kFakeDriver, kFakeNccl}, "cuDeviceGetCount:1:999");
  const std::string driver = Found("driver");
  EXPECT_TRUE(
      driver.starts_with("info for CUDA 13.0; cuDeviceGetCount: "
                         "CUDA_ERROR_UNKNOWN"))
      << driver;
  EXPECT_EQ(Found("devices"), "");
  ExpectTheLibraries();
}

TEST_F(DoctorGpusTest, AnErrorOfTheDriverHasItsVersion) {
  // CUDA_ERROR_NO_DEVICE.
  Examine({kFakeDriver, kFakeNccl}, "cuInit:1:100");
  EXPECT_TRUE(Found("driver").starts_with("info for CUDA 13.0; "))
      << Found("driver");
  EXPECT_TRUE(Has(Found("driver"), "cuInit: CUDA_ERROR_NO_DEVICE"))
      << Found("driver");
  ExpectTheLibraries();

  // The fake of cuBLAS cannot be loaded beside another driver, and the
  // machine's own leaves memory behind.
  const Folder folder;
  WriteNoLibrary(folder / "libcublasLt.so.12");
  WriteNoLibrary(folder / "libcublasLt.so.13");
  Examine({"tests/core/device/cuda/old_driver", kFakeNccl, folder / ""});
  EXPECT_TRUE(Found("driver").starts_with("info for CUDA 11.4; "))
      << Found("driver");
  EXPECT_TRUE(Has(Found("driver"), "or later: update NVIDIA's driver"))
      << Found("driver");
  EXPECT_EQ(Found("nccl"), "ok libnccl.so.2 2.27.3");
  EXPECT_TRUE(Has(Found("cublas"), "libcublasLt.so.12: ")) << Found("cublas");
}

}  // namespace
}  // namespace shardctl_testing::doctor_gpus_test
