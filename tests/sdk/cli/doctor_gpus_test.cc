// SPDX-License-Identifier: Apache-2.0
//
// `shardctl doctor` and GPUs, with fakes of their driver and libraries in the
// search path.

#include <gtest/gtest.h>

#include <string>

#include "tests/sdk/cli/doctor_testing.h"

namespace shardctl_testing::doctor_gpus_test {
namespace {

constexpr char kOldCublas[] = "tests/fake_cuda/old";

class DoctorGpusTest : public DoctorTest {
 protected:
  DoctorGpusTest() : DoctorTest("gpus") {}

  void ExpectTheLibraries() const {
    EXPECT_EQ(Found("nccl"), "ok libnccl.so.2 2.28.9");
    EXPECT_EQ(Found("cublas"), "ok libcublasLt.so.13 13.8");
  }
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
  EXPECT_EQ(Found("nccl"),
            "info not looked for: there is no driver; collectives=nccl alone "
            "needs it");
  EXPECT_EQ(Found("cublas"),
            "info not looked for: there is no driver; the optimizer muon on "
            "GPUs alone needs it");
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

TEST_F(DoctorGpusTest, WithoutCublasItSaysWhatNeedsItAndWhereItIs) {
  const Folder folder;
  WriteNoLibrary(folder / "libcublasLt.so.12");
  WriteNoLibrary(folder / "libcublasLt.so.13");
  Examine({folder / "", kFakeDriver, kFakeNccl});
  for (const char* text :
       {"info no usable cuBLAS: ", "libcublasLt.so.13: ", "libcublasLt.so.12: ",
        "; install cuBLAS of CUDA 12 or 13 (it is in the CUDA toolkit",
        "LD_LIBRARY_PATH; muon with offload=states needs none; the optimizer "
        "muon on GPUs alone needs it"}) {
    EXPECT_TRUE(Has(Found("cublas"), text)) << Found("cublas");
  }
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

  // The fakes of cuBLAS and NCCL cannot be loaded beside another driver, and
  // the machine's own leave memory behind.
  const Folder folder;
  WriteNoLibrary(folder / "libnccl.so.2");
  WriteNoLibrary(folder / "libcublasLt.so.12");
  WriteNoLibrary(folder / "libcublasLt.so.13");
  Examine({"tests/core/device/cuda/old_driver", folder / ""});
  EXPECT_TRUE(Found("driver").starts_with("info for CUDA 11.4; "))
      << Found("driver");
  EXPECT_TRUE(Has(Found("driver"), "or later: update NVIDIA's driver"))
      << Found("driver");
  EXPECT_TRUE(Has(Found("nccl"), "info no usable NCCL: ")) << Found("nccl");
  EXPECT_TRUE(Has(Found("cublas"), "libcublasLt.so.12: ")) << Found("cublas");
}

}  // namespace
}  // namespace shardctl_testing::doctor_gpus_test
