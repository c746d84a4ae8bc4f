// SPDX-License-Identifier: Apache-2.0
//
// Kernels whose registers and shared memory tests/tools/cuda/fixture.txt
// records.

#include <cstdint>

#include "tests/tools/cuda/fixture_type.h"

// Adds a x to y; rounds twice, as --fmad=false says.
extern "C" __global__ void shard_fixture_axpy(int64_t n, Element a,
                                              const Element* x, Element* y) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

// Reverses each block of 64 roots.
extern "C" __global__ void shard_fixture_reverse(Element* x) {
  __shared__ Element block[64];
  block[threadIdx.x] = sqrtf(x[threadIdx.x]) / 3;
  __syncthreads();
  x[threadIdx.x] = block[63 - threadIdx.x];
}
