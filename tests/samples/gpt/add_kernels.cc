// SPDX-License-Identifier: Apache-2.0
//
// Gives the fake driver the kernels of samples/gpt, compiled for the host.

#include "samples/gpt/cuda/host_kernels.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace {

const bool kAdded = [] {
  for (const gpt_cuda::host_kernel& it : gpt_cuda::host_kernels()) {
    shard::testing::fake_cuda::AddKernel(it.name, it.arg_bytes, it.run);
  }
  return true;
}();

}  // namespace
