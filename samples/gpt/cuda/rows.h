// SPDX-License-Identifier: Apache-2.0
//
// Loops of the kernels. A warp of 32 threads works on a row, each thread on
// every 32nd column, so that neighbors read neighboring numbers.
//
// The same text is compiled twice: by nvcc for GPUs, and as C++ for the host,
// where tests run it. All that differs between the two is in this header. On
// the host the threads of a launch run one after the other, and sums have the
// order that they have on a GPU.

#ifndef SHARD_SAMPLES_GPT_CUDA_ROWS_H_
#define SHARD_SAMPLES_GPT_CUDA_ROWS_H_

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define GPT_DEVICE __device__ __forceinline__
#else
#define GPT_DEVICE inline
#endif

namespace gpt_cuda {

enum { kLanes = 32, kMaxThreads = 256 };

// The threads of a launch. A GPU knows them by itself.
struct launch {
#ifndef __CUDACC__
  uint32_t blocks;
  uint32_t threads;  // In a block.
#endif
};

// Runs body(i) for each i < count, each on one thread.
template <class Body>
GPT_DEVICE void each_element([[maybe_unused]] const launch& on, uint64_t count,
                             const Body& body) {
#ifdef __CUDACC__
  const uint64_t threads = uint64_t{gridDim.x} * blockDim.x;
  uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < count; i += threads) body(i);
#else
  const uint64_t threads = uint64_t{on.blocks} * on.threads;
  for (uint64_t thread = 0; thread < threads; thread++) {
    for (uint64_t i = thread; i < count; i += threads) body(i);
  }
#endif
}

// Runs body(row) for each row < rows, each on one warp.
template <class Body>
GPT_DEVICE void each_row([[maybe_unused]] const launch& on, uint64_t rows,
                         const Body& body) {
#ifdef __CUDACC__
  const uint64_t warps = uint64_t{gridDim.x} * blockDim.x / kLanes;
  uint64_t row = (uint64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kLanes;
  for (; row < rows; row += warps) body(row);
#else
  const uint64_t warps = uint64_t{on.blocks} * on.threads / kLanes;
  for (uint64_t warp = 0; warp < warps; warp++) {
    for (uint64_t row = warp; row < rows; row += warps) body(row);
  }
#endif
}

// Runs body(column) for each column < width, on the warp of a row. A column has
// the same thread in every loop over the row, so that a loop may read what an
// earlier one has written in the same column, and in no other.
template <class Body>
GPT_DEVICE void each_column(int width, const Body& body) {
#ifdef __CUDACC__
  for (int c = static_cast<int>(threadIdx.x % kLanes); c < width; c += kLanes) {
    body(c);
  }
#else
  for (int c = 0; c < width; c++) body(c);
#endif
}

// Returns the sum of value(column) over a row, in the same order each time.
// Every thread of the warp has the result.
template <class Value>
GPT_DEVICE float sum_columns(int width, const Value& value) {
#ifdef __CUDACC__
  float sum = 0;
  each_column(width, [&](int c) { sum += value(c); });
  // Both threads of a pair add the same two numbers, and have the same bits.
  for (int half = kLanes / 2; half > 0; half /= 2) {
    sum += __shfl_xor_sync(~0u, sum, half);
  }
  return sum;
#else
  float sums[kLanes] = {};
  for (int c = 0; c < width; c++) sums[c % kLanes] += value(c);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; lane++) sums[lane] += sums[lane + half];
  }
  return sums[0];
#endif
}

// Returns the largest value(column) of a row; every thread of the warp has it.
template <class Value>
GPT_DEVICE float max_columns(int width, const Value& value) {
  float most = -INFINITY;
  each_column(width, [&](int c) {
    const float one = value(c);
    most = one > most ? one : most;
  });
#ifdef __CUDACC__
  for (int half = kLanes / 2; half > 0; half /= 2) {
    const float other = __shfl_xor_sync(~0u, most, half);
    most = other > most ? other : most;
  }
#endif
  return most;
}

// Returns the square root, rounded as IEEE 754 says.
GPT_DEVICE float square_root(float x) {
#ifdef __CUDACC__
  return __fsqrt_rn(x);
#else
  return sqrtf(x);
#endif
}

}  // namespace gpt_cuda

// GPT_KERNEL(name) { body }: a kernel gpt_NAME whose only argument is a
// gpt_NAME_args. Its body sees the argument as `args` and the launch as `on`.
#ifdef __CUDACC__
#define GPT_KERNEL(name)                                                \
  static GPT_DEVICE void name##_body(const gpt_##name##_args& args,     \
                                     const ::gpt_cuda::launch& on);     \
  extern "C" __global__ void __launch_bounds__(::gpt_cuda::kMaxThreads) \
      gpt_##name(const __grid_constant__ gpt_##name##_args args) {      \
    name##_body(args, ::gpt_cuda::launch());                            \
  }                                                                     \
  static GPT_DEVICE void name##_body(const gpt_##name##_args& args,     \
                                     const ::gpt_cuda::launch& on)
#else
#define GPT_KERNEL(name)                                      \
  static void name##_body(const gpt_##name##_args& args,      \
                          const ::gpt_cuda::launch& on);      \
  static void gpt_##name(const void* args, uint32_t blocks,   \
                         uint32_t threads) {                  \
    name##_body(*static_cast<const gpt_##name##_args*>(args), \
                {blocks, threads});                           \
  }                                                           \
  static void name##_body(const gpt_##name##_args& args,      \
                          const ::gpt_cuda::launch& on)
#endif

#endif  // SHARD_SAMPLES_GPT_CUDA_ROWS_H_
