// SPDX-License-Identifier: Apache-2.0
//
// Compiles a formula header for several instruction sets at once.
//
// Highway compiles a source file once per SIMD target and includes it again
// each time, with another HWY_NAMESPACE; a formula's Rule must be compiled each
// time, between SHARD_FORMULA_BEGIN and SHARD_FORMULA_END. Without Highway
// (tests in double, CUDA) the header is included once and its rules are in
// shard::formula.
//
// Include this header after hwy/highway.h where that is used.

#ifndef SHARD_KERNELS_FORMULA_TARGET_H_
#define SHARD_KERNELS_FORMULA_TARGET_H_

#ifdef HWY_BEFORE_NAMESPACE
#define SHARD_FORMULA_BEGIN \
  HWY_BEFORE_NAMESPACE();   \
  namespace shard {         \
  namespace HWY_NAMESPACE {
#define SHARD_FORMULA_END \
  }                       \
  }                       \
  HWY_AFTER_NAMESPACE();
#define SHARD_FORMULA_INLINE HWY_INLINE
#else
#define SHARD_FORMULA_BEGIN \
  namespace shard {         \
  namespace formula {
#define SHARD_FORMULA_END \
  }                       \
  }
#ifdef __CUDACC__
// For kernels only: a host's arithmetic is compiled by the host's compiler.
#define SHARD_FORMULA_INLINE __device__ __forceinline__
#else
#define SHARD_FORMULA_INLINE inline
#endif
#endif

#endif  // SHARD_KERNELS_FORMULA_TARGET_H_
