// SPDX-License-Identifier: Apache-2.0
//
// How cuBLASLt is found: fakes of it, good ones and such that cannot be used,
// which a test loads as a host would have. Those that the loader finds by
// itself are files that it refuses, whatever the machine has.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "core/base/strings.h"
#include "core/device/cuda/context.h"
#include "core/device/cuda/cublas.h"
#include "core/device/cuda/cuda_device.h"
#include "tests/core/base/expect_status.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda {
namespace {

using testing::FakeCudaTest;
using testing::fake_cuda::Count;
using testing::fake_cuda::FailCall;

constexpr char kNew[] = "libcublasLt.so.13";
constexpr char kOld[] = "old/libcublasLt.so.12";

// A library of the process while it lives.
class Loaded {
 public:
  explicit Loaded(const char* file) {
    const auto path = std::filesystem::absolute("tests/fake_cuda") / file;
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(handle_, nullptr) << dlerror();
  }
  ~Loaded() { dlclose(handle_); }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;

 private:
  void* handle_;
};

bool IsLoaded(const char* name) {
  void* const handle = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

// The names in the order of the tests: a library that has begun to work stays
// in the process, so those come last.
class CublasOpenTest : public FakeCudaTest {
 protected:
  static StatusOr<std::shared_ptr<const Cublas>> Open() {
    const auto context = Context::Open(0);
    EXPECT_OK(context);
    return Cublas::Open(*context);
  }

  static void ExpectNone(std::initializer_list<std::string_view> reasons) {
    ExpectError(OpenCublas(), StatusCode::kBackendUnavailable, reasons);
    // An error is not kept: each call looks again.
    for (int i = 0; i < 2; ++i) {
      const Status status = Open().status();
      ExpectError(status, StatusCode::kBackendUnavailable, reasons);
      ExpectError(status, StatusCode::kBackendUnavailable,
                  {"no usable cuBLAS: ", "; install cuBLAS of CUDA 12 or 13",
                   "nvidia-cublas", "LD_LIBRARY_PATH"});
    }
    const auto device = OpenDevice("0");
    ASSERT_OK(device);
    ExpectError((*device)->LoadBlas(), StatusCode::kBackendUnavailable,
                reasons);
  }
};

TEST_F(CublasOpenTest, AMissingLibraryIsAnErrorWithBothNames) {
  ExpectNone({"libcublasLt.so.13: ", "; ", "libcublasLt.so.12: "});
  EXPECT_FALSE(IsLoaded("libcublasLt.so.13"));
}

// A file of another name than its version would be called in the wrong way.
TEST_F(CublasOpenTest, ALibraryOfAnotherMajorIsNotUsed) {
  {
    const Loaded wrong("wrong_major/libcublasLt.so.13");
    ExpectNone({"libcublasLt.so.13 is of version 12.8", "libcublasLt.so.12: "});
  }
  EXPECT_FALSE(IsLoaded("libcublasLt.so.13"));
}

TEST_F(CublasOpenTest, ALibraryThatLacksASymbolIsNotUsed) {
  {
    const Loaded partial("partial/libcublasLt.so.13");
    ExpectNone({"libcublasLt.so.13 lacks cublasLtMatmul", "libcublasLt.so.12"});
  }
  EXPECT_FALSE(IsLoaded("libcublasLt.so.13"));
}

// To look for the library is not to keep it.
TEST_F(CublasOpenTest, ALibraryThatIsOnlyExaminedIsClosed) {
  {
    const Loaded library(kOld);
    const auto opened = OpenCublas();
    ASSERT_OK(opened);
    EXPECT_EQ(opened->library.name(), "libcublasLt.so.12");
    EXPECT_EQ(opened->version, "12.8");
    EXPECT_EQ(Count().Calls(), 0u);
  }
  EXPECT_FALSE(IsLoaded("libcublasLt.so.12"));
}

// The old one of the process is better than a new one that is not there, or
// that cannot be used.
TEST_F(CublasOpenTest, TheNextNameIsTriedWhereOneCannotBeUsed) {
  const Loaded wrong("wrong_major/libcublasLt.so.13");
  const Loaded old(kOld);
  const auto cublas = Open();
  ASSERT_OK(cublas);
  EXPECT_EQ((*cublas)->name(), "libcublasLt.so.12 12.8");
}

TEST_F(CublasOpenTest, TheNewestOfTheProcessIsUsed) {
  const Loaded old(kOld);
  const Loaded newest(kNew);
  const auto cublas = Open();
  ASSERT_OK(cublas);
  EXPECT_EQ((*cublas)->name(), "libcublasLt.so.13 13.8");
}

// A library may be too new for the driver, and says so when it is started.
TEST_F(CublasOpenTest, TheNextNameIsTriedWhereOneDoesNotStart) {
  const Loaded old(kOld);
  const Loaded newest(kNew);
  FailCall("cublasLtCreate", 1, CuResult::kNotSupported);
  const auto cublas = Open();
  ASSERT_OK(cublas);
  EXPECT_EQ((*cublas)->name(), "libcublasLt.so.12 12.8");
}

TEST_F(CublasOpenTest, AllThatDoNotStartAreNamed) {
  const Loaded old(kOld);
  const Loaded newest(kNew);
  for (const uint64_t call : {1, 2}) {
    FailCall("cublasLtCreate", call, CuResult::kNotSupported);
  }
  ExpectError(Open(), StatusCode::kBackendUnavailable,
              {"no usable cuBLAS: libcublasLt.so.13 13.8: cublasLtCreate: "
               "CUBLAS_STATUS_NOT_SUPPORTED (15); ",
               "libcublasLt.so.12 12.8: cublasLtCreate", "install cuBLAS"});
  EXPECT_OK(Open());
}

// Another library would not help.
TEST_F(CublasOpenTest, ALackOfMemoryIsSaid) {
  const Loaded old(kOld);
  const Loaded newest(kNew);
  for (const uint64_t call : {1, 2}) {
    FailCall("cublasLtCreate", call, CuResult::kOutOfMemory);
  }
  const auto cublas = Open();
  ExpectError(cublas, StatusCode::kResourceExhausted,
              {"cublasLtCreate: CUBLAS_STATUS_ALLOC_FAILED (3)"});
  EXPECT_EQ(cublas.status().message().find("install"), std::string::npos);
}

}  // namespace
}  // namespace shard::cuda
