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
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
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

// Runs body(i), i < count, each on one warp, beginning with the warp that comes
// after `before` others in turn. An Index of 32 bits takes fewer registers.
// REQUIRES: `count`, and so many more as the launch has warps, is an Index.
template <class Index, class Body>
SHARD_DEVICE void ForEachOnWarp([[maybe_unused]] const Launch& launch,
                                Index before, Index count, const Body& body) {
#ifdef __CUDACC__
  const Index warps = Index{gridDim.x} * blockDim.x / kLanes;
  const Index warp = (Index{blockIdx.x} * blockDim.x + threadIdx.x) / kLanes;
  const Index first = (warp + warps - before % warps) % warps;
  for (Index i = first; i < count; i += warps) body(i);
#else
  const Index warps = Index{launch.blocks} * launch.threads / kLanes;
  for (Index warp = 0; warp < warps; ++warp) {
    const Index first = (warp + warps - before % warps) % warps;
    for (Index i = first; i < count; i += warps) body(i);
  }
#endif
}
template <class Body>
SHARD_DEVICE void ForEachOnWarp(const Launch& launch, uint64_t count,
                                const Body& body) {
  ForEachOnWarp(launch, uint64_t{0}, count, body);
}

// Read and write words that other GPUs, or the host, write and read.
template <class T>
SHARD_DEVICE T LoadShared(const T* from) {
#ifdef __CUDACC__
  const T value = *static_cast<const volatile T*>(from);
  __threadfence_system();
  return value;
#else
  return std::atomic_ref(*const_cast<T*>(from)).load();
#endif
}
// All that this thread has written or seen is seen before.
template <class T>
SHARD_DEVICE void StoreShared(T value, T* to) {
#ifdef __CUDACC__
  __threadfence_system();
  *static_cast<volatile T*>(to) = value;
  __threadfence_system();
#else
  std::atomic_ref(*to).store(value);
#endif
}

// Runs body(lane) for each lane of a warp.
template <class Body>
SHARD_DEVICE void ForEachLane(const Body& body) {
#ifdef __CUDACC__
  body(static_cast<int>(threadIdx.x % kLanes));
#else
  for (int lane = 0; lane < kLanes; ++lane) body(lane);
#endif
}

// Adds to memory of the device, or takes the maximum of it and a value, with no
// order between different addresses.
SHARD_DEVICE void AtomicAdd(uint64_t value, uint64_t* to) {
#ifdef __CUDACC__
  atomicAdd(reinterpret_cast<unsigned long long*>(to),
            static_cast<unsigned long long>(value));
#else
  std::atomic_ref(*to).fetch_add(value, std::memory_order_relaxed);
#endif
}
SHARD_DEVICE void AtomicMax(uint64_t value, uint64_t* to) {
#ifdef __CUDACC__
  atomicMax(reinterpret_cast<unsigned long long*>(to),
            static_cast<unsigned long long>(value));
#else
  const std::atomic_ref<uint64_t> all(*to);
  uint64_t before = all.load(std::memory_order_relaxed);
  while (before < value &&
         !all.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
#endif
}
// Returns what memory of the device has, and sets it to 0.
SHARD_DEVICE uint64_t AtomicTake(uint64_t* from) {
#ifdef __CUDACC__
  return atomicExch(reinterpret_cast<unsigned long long*>(from), 0ull);
#else
  return std::atomic_ref(*from).exchange(0, std::memory_order_relaxed);
#endif
}

// Runs body(warp, warps) on each warp of the launch, and then last() on one
// thread, which sees what all warps have written. `finished` counts blocks in
// memory of the device; it is 0 before the launch and after it. REQUIRES: all
// threads of a block call this.
template <class Body, class Last>
SHARD_DEVICE void OnEachWarpThenOnce([[maybe_unused]] const Launch& launch,
                                     uint32_t* finished, const Body& body,
                                     const Last& last) {
#ifdef __CUDACC__
  const uint64_t threads = uint64_t{gridDim.x} * blockDim.x;
  const uint64_t thread = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  body(thread / kLanes, threads / kLanes);
  // The block's writes are seen before its count is.
  __threadfence();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomicAdd(finished, 1u) + 1 != gridDim.x) return;
  __threadfence();
  *finished = 0;
  last();
#else
  const uint64_t warps = uint64_t{launch.blocks} * launch.threads / kLanes;
  for (uint64_t block = 0; block < launch.blocks; ++block) {
    const uint64_t in_block = launch.threads / kLanes;
    for (uint64_t w = 0; w < in_block; ++w) body(block * in_block + w, warps);
    const std::atomic_ref<uint32_t> count(*finished);
    if (count.fetch_add(1, std::memory_order_acq_rel) + 1 == launch.blocks) {
      count.store(0, std::memory_order_relaxed);
      last();
    }
  }
#endif
}

// Returns the block's copy of memory of the device, until the next call for a
// T. The copy has a place that the compiler knows, and takes no registers; nor
// does it change where tensors are stored. REQUIRES: all threads of a block
// call this; T is trivially copyable.
template <class T>
SHARD_DEVICE const T& BlockCopy(const T* from) {
  static_assert(sizeof(T) % sizeof(uint64_t) == 0 &&
                alignof(T) <= alignof(uint64_t));
#ifdef __CUDACC__
  __shared__ uint64_t copy[sizeof(T) / sizeof(uint64_t)];
  const auto* const words = reinterpret_cast<const uint64_t*>(from);
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < sizeof(T) / sizeof(uint64_t);
       i += blockDim.x) {
    copy[i] = words[i];
  }
  __syncthreads();
  return *reinterpret_cast<const T*>(copy);
#else
  return *from;
#endif
}

// Runs body() on one thread of the launch.
template <class Body>
SHARD_DEVICE void Once(const Body& body) {
#ifdef __CUDACC__
  if (blockIdx.x == 0 && threadIdx.x == 0) body();
#else
  body();
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

  // Returns the sum of of(lane, value). REQUIRES: no value is above 2^51, or
  // below -2^51.
  template <class Of>
  SHARD_DEVICE int64_t Sum(const Of& of) {
#ifdef __CUDACC__
    // Two sums of 32 bits: the lower 26 bits, and the others.
    constexpr int kLowBits = 26;
    const int64_t one = of(static_cast<int>(threadIdx.x % kLanes), value_);
    const uint32_t low = __reduce_add_sync(
        ~0u, static_cast<uint32_t>(one) & ((1u << kLowBits) - 1));
    const int32_t high =
        __reduce_add_sync(~0u, static_cast<int32_t>(one >> kLowBits));
    return int64_t{high} * (int64_t{1} << kLowBits) + int64_t{low};
#else
    int64_t sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += of(lane, values_[lane]);
    return sum;
#endif
  }

  // Returns the sum of the doubles of(lane, value), in the order of SumOfLanes
  // (kernels/cpu/ordered_sum.h).
  template <class Of>
  SHARD_DEVICE double SumInOrder(const Of& of) {
#ifdef __CUDACC__
    // Both lanes of a pair add the same two, and have the same bits.
    double sum = of(static_cast<int>(threadIdx.x % kLanes), value_);
    SHARD_UNROLL
    for (int half = kLanes / 2; half > 0; half /= 2) {
      sum += __shfl_xor_sync(~0u, sum, half);
    }
    return sum;
#else
    double lanes[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = of(lane, values_[lane]);
    }
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
#endif
  }

  // Returns the sum of four doubles of each lane, of(lane, value, k) being the
  // one at 4 lane + k: the upper half is added to the lower until one is left.
  template <class Of>
  SHARD_DEVICE double SumFoursInOrder(const Of& of) {
#ifdef __CUDACC__
    // Two lanes that have the same four numbers to add each add half of them,
    // and give each other the rest, until a lane has one.
    const int lane = static_cast<int>(threadIdx.x % kLanes);
    const double four[] = {of(lane, value_, 0), of(lane, value_, 1),
                           of(lane, value_, 2), of(lane, value_, 3)};
    const bool upper = (lane & 16) != 0;
    const double low = (upper ? four[2] : four[0]) +
                       __shfl_xor_sync(~0u, upper ? four[0] : four[2], 16);
    const double high = (upper ? four[3] : four[1]) +
                        __shfl_xor_sync(~0u, upper ? four[1] : four[3], 16);
    const bool odd = (lane & 8) != 0;
    double sum = (odd ? high : low) + __shfl_xor_sync(~0u, odd ? low : high, 8);
    SHARD_UNROLL
    for (int half = 4; half > 0; half /= 2) {
      sum += __shfl_xor_sync(~0u, sum, half);
    }
    // Now each lane has the sum of all 32 for its k.
    sum += __shfl_xor_sync(~0u, sum, 16);
    return sum + __shfl_xor_sync(~0u, sum, 8);
#else
    double all[4 * kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int k = 0; k < 4; ++k)
        all[4 * lane + k] = of(lane, values_[lane], k);
    }
    for (int half = 2 * kLanes; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) all[i] += all[i + half];
    }
    return all[0];
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

SHARD_DEVICE double MulAdd(double x, double y, double z) {
#ifdef __CUDACC__
  return __fma_rn(x, y, z);
#else
  return std::fma(x, y, z);
#endif
}

SHARD_DEVICE uint64_t BitsOf(double x) {
#ifdef __CUDACC__
  return static_cast<uint64_t>(__double_as_longlong(x));
#else
  return std::bit_cast<uint64_t>(x);
#endif
}

SHARD_DEVICE double DoubleOf(uint64_t bits) {
#ifdef __CUDACC__
  return __longlong_as_double(static_cast<long long>(bits));
#else
  return std::bit_cast<double>(bits);
#endif
}

SHARD_DEVICE double Sqrt(double x) {
#ifdef __CUDACC__
  return __dsqrt_rn(x);
#else
  return std::sqrt(x);
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

// A GPU faults where an address is not aligned, and so does the host's form:
// its processor would not, and sanitizers see no accesses of structs. nvcc sees
// by itself that memory is the device's only where the address is an argument.
template <class T>
SHARD_DEVICE void CheckIsTensor([[maybe_unused]] const void* address) {
#ifdef __CUDACC__
  __builtin_assume(__isGlobal(address));
#else
  if (reinterpret_cast<uintptr_t>(address) % alignof(T) != 0) std::abort();
#endif
}

// Whether other kernels soon need what one reads or writes. A GPU's L2 cache
// drops what is needed once before what is needed again. Words4 and Words2 have
// this hint, and other types need none.
enum class Use { kAgain, kOnce };

// Reads and writes memory of the device. REQUIRES: alignment to T.
template <class T, Use kUse = Use::kAgain>
SHARD_DEVICE T Load(const void* from) {
  CheckIsTensor<T>(from);
#ifdef __CUDACC__
  if constexpr (kUse == Use::kOnce && sizeof(T) == sizeof(uint4)) {
    const uint4 v = __ldcs(static_cast<const uint4*>(from));
    return {{v.x, v.y, v.z, v.w}};
  } else if constexpr (kUse == Use::kOnce && sizeof(T) == sizeof(uint2)) {
    const uint2 v = __ldcs(static_cast<const uint2*>(from));
    return {{v.x, v.y}};
  }
#endif
  return *static_cast<const T*>(from);
}
template <Use kUse = Use::kAgain, class T>
SHARD_DEVICE void Store(const T& value, void* to) {
  CheckIsTensor<T>(to);
#ifdef __CUDACC__
  if constexpr (kUse == Use::kOnce && sizeof(T) == sizeof(uint4)) {
    return __stcs(static_cast<uint4*>(to),
                  make_uint4(value.w[0], value.w[1], value.w[2], value.w[3]));
  } else if constexpr (kUse == Use::kOnce && sizeof(T) == sizeof(uint2)) {
    return __stcs(static_cast<uint2*>(to), make_uint2(value.w[0], value.w[1]));
  }
#endif
  *static_cast<T*>(to) = value;
}

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_DEVICE_H_
