// SPDX-License-Identifier: Apache-2.0
//
// Prints the extern __shared__ arrays of the kernels, and the most bytes that a
// launch gives to each: for the record of cuda_fatbin_test.

#include <cstdio>

#include "kernels/cuda/random.h"

int main() {
  std::printf("shard_aes_table %u\n", shard::cuda::AesTable::kSharedBytes);
}
