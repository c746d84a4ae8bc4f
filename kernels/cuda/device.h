// SPDX-License-Identifier: Apache-2.0
//
// The differences between CUDA and the host's compiler. All kernels of this
// folder are compiled twice from one text: by nvcc for GPUs, and as C++ for the
// host, where tests compare their bits with kernels/cpu. This header is all
// that differs.
//
// A kernel is written in phases for warps of 32 lanes. On a GPU each lane is a
// thread, and a warp's values are in registers; on the host the lanes of a
// phase run one after the other. So kernels exchange values between lanes only
// through the methods of Warp, between phases.

#ifndef SHARD_KERNELS_CUDA_DEVICE_H_
#define SHARD_KERNELS_CUDA_DEVICE_H_

#include <cstdint>

#ifndef __CUDACC__
#include <bit>
#include <cmath>
#endif

#ifdef __CUDACC__
#define SHARD_DEVICE __device__ __forceinline__
// A table that is made at compile time.
#define SHARD_DEVICE_TABLE __device__ const
#define SHARD_UNROLL _Pragma("unroll")
#else
#define SHARD_DEVICE inline
#define SHARD_DEVICE_TABLE inline constexpr
#define SHARD_UNROLL
#endif

namespace shard::cuda {

inline constexpr int kLanes = 32;

// The threads of a launch.
struct Launch {
#ifndef __CUDACC__
  uint32_t blocks;
  uint32_t threads;  // Of a block; a multiple of kLanes.
#endif
};

// Runs body(i), i < count, each on one warp.
template <class Body>
SHARD_DEVICE void ForEachOnWarp([[maybe_unused]] const Launch& launch,
                                uint64_t count, const Body& body) {
#ifdef __CUDACC__
  const uint64_t threads = uint64_t{gridDim.x} * blockDim.x;
  const uint64_t thread = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (uint64_t i = thread / kLanes; i < count; i += threads / kLanes) body(i);
#else
  const uint64_t warps = uint64_t{launch.blocks} * launch.threads / kLanes;
  for (uint64_t warp = 0; warp < warps; ++warp) {
    for (uint64_t i = warp; i < count; i += warps) body(i);
  }
#endif
}

// The values of a warp's lanes.
template <class T>
class Warp {
 public:
  // Runs body(lane, value) for each lane.
  template <class Body>
  SHARD_DEVICE void Each(const Body& body) {
#ifdef __CUDACC__
    body(static_cast<int>(threadIdx.x % kLanes), value_);
#else
    for (int lane = 0; lane < kLanes; ++lane) body(lane, values_[lane]);
#endif
  }

  // Returns the largest of of(lane, value).
  template <class Of>
  SHARD_DEVICE uint32_t Max(const Of& of) {
#ifdef __CUDACC__
    return __reduce_max_sync(
        ~0u, of(static_cast<int>(threadIdx.x % kLanes), value_));
#else
    uint32_t most = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint32_t one = of(lane, values_[lane]);
      if (one > most) most = one;
    }
    return most;
#endif
  }

  // Runs take(lane, value, given) for each lane, with what the other lane of
  // its pair (2 i, 2 i + 1) has given as give(lane, value), 64 bits.
  template <class Give, class Take>
  SHARD_DEVICE void ExchangePairs(const Give& give, const Take& take) {
#ifdef __CUDACC__
    const int lane = static_cast<int>(threadIdx.x % kLanes);
    take(lane, value_,
         static_cast<uint64_t>(__shfl_xor_sync(
             ~0u, static_cast<unsigned long long>(give(lane, value_)), 1)));
#else
    for (int lane = 0; lane < kLanes; lane += 2) {
      const uint64_t even = give(lane, values_[lane]);
      const uint64_t odd = give(lane + 1, values_[lane + 1]);
      take(lane, values_[lane], odd);
      take(lane + 1, values_[lane + 1], even);
    }
#endif
  }

 private:
#ifdef __CUDACC__
  T value_;
#else
  T values_[kLanes];
#endif
};

SHARD_DEVICE uint32_t BitsOf(float x) {
#ifdef __CUDACC__
  return __float_as_uint(x);
#else
  return std::bit_cast<uint32_t>(x);
#endif
}

SHARD_DEVICE float FloatOf(uint32_t bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

// Returns x y + z, rounded once. (No compiler contracts a product and a sum by
// itself: see the flags of either.)
SHARD_DEVICE float MulAdd(float x, float y, float z) {
#ifdef __CUDACC__
  return __fmaf_rn(x, y, z);
#else
  return std::fma(x, y, z);
#endif
}

SHARD_DEVICE float Sqrt(float x) {
#ifdef __CUDACC__
  return __fsqrt_rn(x);
#else
  return std::sqrt(x);
#endif
}

SHARD_DEVICE float Div(float x, float y) {
#ifdef __CUDACC__
  return __fdiv_rn(x, y);
#else
  return x / y;
#endif
}

// Four words that are loaded or stored at once.
struct alignas(16) Words4 {
  uint32_t w[4];
};
struct alignas(8) Words2 {
  uint32_t w[2];
};

// Reads and writes memory of the device. REQUIRES: alignment to T.
template <class T>
SHARD_DEVICE T Load(const void* from) {
  return *static_cast<const T*>(from);
}
template <class T>
SHARD_DEVICE void Store(const T& value, void* to) {
  *static_cast<T*>(to) = value;
}

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_DEVICE_H_
