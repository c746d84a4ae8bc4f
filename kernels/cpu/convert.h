// SPDX-License-Identifier: Apache-2.0
//
// Casts between fp32 and the narrower formats, for optimizers that look at
// whole parameters and work on an fp32 copy.
//
// Widening is exact. To nearest, ties to even, as IEEE 754 has it: a magnitude
// too large becomes an infinity, infinities and NaN stay what they are. The
// same bits from every instruction set; subnormal numbers are kept.
//
// Thread-safe; disjoint ranges may run at once. Pointers need no alignment
// beyond their type's.

#ifndef SHARD_KERNELS_CPU_CONVERT_H_
#define SHARD_KERNELS_CPU_CONVERT_H_

#include <cstddef>

#include "core/base/dtype.h"
#include "kernels/cpu/random.h"

namespace shard {

// to[i] = from[i] for i < count. Bytes per element: that of `dtype` and 4.
// REQUIRES: dtype is f32, bf16 or f16.
void Widen(DType dtype, const void* from, float* to, size_t count);

// The way back: to nearest when `random` is NULL. Else stochastically, with the
// bits of random->first_element + i of kParamTensor: up or down, so that the
// expected value is from[i]. Values that bf16 has stay; a finite value never
// becomes an infinity (from bf16's largest up it is rounded toward 0).
// REQUIRES: dtype is f32, bf16 or f16; bf16 when `random` is not NULL.
void Narrow(DType dtype, const float* from, void* to, size_t count,
            const RandomStream* random);

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_CONVERT_H_
