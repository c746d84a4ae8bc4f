// SPDX-License-Identifier: Apache-2.0
//
// FakeCudaTest: a fixture that begins each test with fresh fake devices, and
// fails it where work had no order, that of kernels included, or where
// something is alive at its end.

#ifndef SHARD_TESTS_FAKE_CUDA_FAKE_CUDA_FIXTURE_H_
#define SHARD_TESTS_FAKE_CUDA_FAKE_CUDA_FIXTURE_H_

#include <gtest/gtest.h>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/kernel_accesses.h"

namespace shard::testing {

// Begins with fresh fake devices that know what libshard's kernels access.
inline void ResetWithKernels(const fake_cuda::Options& options = {}) {
  fake_cuda::Reset(options);
  DescribeKernels();
}

// The same for a part of a test.
class FakeCuda {
 public:
  explicit FakeCuda(const fake_cuda::Options& options = {}) {
    ResetWithKernels(options);
  }
  ~FakeCuda() { Check(); }
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  // Fails the test where something is wrong so far, or is alive. What is on
  // devices that are lost ends with them.
  static void Check() {
    EXPECT_EQ(fake_cuda::ViolationText(), "");
    if (fake_cuda::IsLost()) {
      EXPECT_EQ(fake_cuda::CountAlive().current_contexts, 0u);
    } else {
      EXPECT_EQ(fake_cuda::AliveText(), "");
    }
  }
};

class FakeCudaTest : public ::testing::Test {
 protected:
  void SetUp() override { ResetWithKernels(); }
  void TearDown() override { FakeCuda::Check(); }
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_FAKE_CUDA_FAKE_CUDA_FIXTURE_H_
