// SPDX-License-Identifier: Apache-2.0
//
// Casts between fp32 and the narrower formats, for optimizers that step whole
// parameters and work on an fp32 copy.
//
// Widening is exact. Narrowing rounds to nearest, ties to even, as in IEEE 754:
// a magnitude too large becomes an infinity; infinities and NaN stay. Every
// instruction set gives the same bits; subnormal numbers are kept.
//
// Thread-safe; disjoint ranges may run at once. Pointers need no alignment
// beyond their type's.

#ifndef SHARD_KERNELS_CPU_CONVERT_H_
#define SHARD_KERNELS_CPU_CONVERT_H_

#include <cstddef>

#include "core/base/dtype.h"
#include "kernels/cpu/random.h"

namespace shard {

// Sets to[i] = from[i] for i < count. Bytes per element: those of `dtype` and
// 4. REQUIRES: dtype is f32, bf16 or f16.
void Widen(DType dtype, const void* from, float* to, size_t count);

// Converts back: to nearest when `random` is NULL, else stochastically, with
// the bits of random->first_element + i of kParamTensor: up or down, so that
// the expected value is from[i]. Values that bf16 can represent stay; a finite
// value never becomes an infinity (from bf16's largest up it is rounded toward
// 0). REQUIRES: dtype is f32, bf16 or f16; bf16 when `random` is not NULL.
void Narrow(DType dtype, const float* from, void* to, size_t count,
            const RandomStream* random);

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_CONVERT_H_
