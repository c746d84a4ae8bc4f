// SPDX-License-Identifier: Apache-2.0
//
// FakeNccl: for a part of a test, fresh fakes of NCCL and of the driver, which
// fail the test where something is wrong or alive at the end.

#ifndef SHARD_TESTS_FAKE_NCCL_FAKE_NCCL_FIXTURE_H_
#define SHARD_TESTS_FAKE_NCCL_FAKE_NCCL_FIXTURE_H_

#include <gtest/gtest.h>

#include "tests/fake_cuda/fake_cuda_fixture.h"
#include "tests/fake_nccl/fake_nccl.h"

namespace shard::testing {

// Begins with a fake driver that knows what libshard's kernels access, and with
// a fake NCCL.
inline void ResetWithNccl(const fake_cuda::Options& cuda = {},
                          const fake_nccl::Options& nccl = {}) {
  // First the driver, whose kernels use communicators.
  ResetWithKernels(cuda);
  fake_nccl::Reset(nccl);
}

class FakeNccl {
 public:
  explicit FakeNccl(const fake_cuda::Options& cuda = {},
                    const fake_nccl::Options& nccl = {}) {
    ResetWithNccl(cuda, nccl);
  }
  ~FakeNccl() { Check(); }
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  // Fails the test where something is wrong so far, or is alive. Communicators
  // are objects of libraries to FakeCuda, too.
  static void Check() {
    EXPECT_EQ(fake_nccl::ViolationText(), "");
    EXPECT_EQ(fake_nccl::AliveText(), "");
    FakeCuda::Check();
  }
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_FAKE_NCCL_FAKE_NCCL_FIXTURE_H_
