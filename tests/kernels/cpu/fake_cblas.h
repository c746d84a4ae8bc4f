// SPDX-License-Identifier: Apache-2.0
//
// FakeCblas: one of the fake libraries built from fake_cblas.c, with its
// counts. The counts belong to the process: tests that read them run one by
// one.
//
// CblasTest: a fixture for tests that run with each library, the real one
// included:
//
//   class StepTest : public CblasTest {};
//   TEST_P(StepTest, Something) { ... }
//   INSTANTIATE_TEST_SUITE_P(Libraries, StepTest,
//                            testing::ValuesIn(kCblasKinds), CblasKindOf);

#ifndef SHARD_TESTS_KERNELS_CPU_FAKE_CBLAS_H_
#define SHARD_TESTS_KERNELS_CPU_FAKE_CBLAS_H_

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "kernels/cpu/blas.h"

namespace shard {

// Returns the path of a fake library. `kind` as in BUILD.bazel: "plain",
// "batch", ...
inline std::string FakeCblasPath(const std::string& kind) {
  return "tests/kernels/cpu/libfake_cblas_" + kind + ".so";
}

// Sets SHARD_BLAS_LIBRARY during its lifetime. REQUIRES: the process has one
// thread.
class BlasLibrary {
 public:
  explicit BlasLibrary(const std::string& value) {
    setenv("SHARD_BLAS_LIBRARY", value.c_str(), 1);
  }
  ~BlasLibrary() { unsetenv("SHARD_BLAS_LIBRARY"); }
};

class FakeCblas {
 public:
  explicit FakeCblas(const std::string& kind)
      : blas_(Blas::LoadOneOf({FakeCblasPath(kind)})),
        library_(dlopen(FakeCblasPath(kind).c_str(), RTLD_NOW | RTLD_LOCAL)) {
    EXPECT_TRUE(blas_.ok()) << blas_.status().ToString();
    for (const char* counter :
         {"sgemm_calls", "ssyrk_calls", "batch_calls", "batch_matrices"}) {
      Counter(counter) = 0;
    }
    Flops() = 0;
  }

  const Blas& blas() const { return *blas_; }

  // Returns the counter of that name: "sgemm_calls", "ssyrk_calls",
  // "batch_calls", "batch_matrices" or "unaligned". It counts from the creation
  // of this object.
  int& Counter(const std::string& name) {
    return *static_cast<int*>(dlsym(library_, ("fake_" + name).c_str()));
  }
  // Returns the floating point operations of all calls since the creation of
  // this object.
  int64_t& Flops() {
    return *static_cast<int64_t*>(dlsym(library_, "fake_flops"));
  }

 private:
  StatusOr<Blas> blas_;
  void* library_;
};

inline constexpr const char* kCblasKinds[] = {"openblas", "plain", "batch"};

class CblasTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto loaded = kind() == "openblas"
                      ? Blas::Load()
                      : Blas::LoadOneOf({FakeCblasPath(kind())});
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    blas_ = *std::move(loaded);
  }
  std::string kind() const { return GetParam(); }
  const Blas& blas() const { return *blas_; }

 private:
  std::optional<Blas> blas_;
};

inline std::string CblasKindOf(
    const ::testing::TestParamInfo<const char*>& info) {
  return info.param;
}

}  // namespace shard

#endif  // SHARD_TESTS_KERNELS_CPU_FAKE_CBLAS_H_
