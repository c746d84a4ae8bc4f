// SPDX-License-Identifier: Apache-2.0
//
// A GPU as one thread uses it: a stream, memory, kernels, and matrix products
// by cuBLAS. All work is enqueued on the stream, in the order of the calls.
//
// The first error is kept as a text, and every later call does nothing: a pass
// of a model checks once, at its end.

#ifndef SHARD_SAMPLES_GPT_CUDA_GPU_H_
#define SHARD_SAMPLES_GPT_CUDA_GPU_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "samples/gpt/cuda/api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpu {
  char error[1024];  // "" while there is none.
  gpu_driver driver;
  gpu_blas blas;
  gpu_device device;
  gpu_context context;
  gpu_stream stream;
  gpu_module module;
  blas_handle handle;
  void* workspace;  // Memory of the GPU, for products of cuBLAS.
  size_t workspace_bytes;
} gpu;

// Returns how many GPUs this process may use: 0 without a driver.
int gpu_count(void);

// Opens GPU `ordinal`, in the order of CUDA. Its primary context, which
// libshard uses too, stays current in the calling thread until gpu_close, and
// all calls are made in that thread. The stream does not wait for the default
// stream. Returns false after an error; gpu_close is to be called then, too.
bool gpu_open(gpu* g, int ordinal);

// Waits for all that was enqueued, and frees everything but the memory of
// gpu_allocate and gpu_allocate_pinned, and graphs.
void gpu_close(gpu* g);

// Keeps the text, unless there is an error already. Returns false.
bool gpu_fail(gpu* g, const char* text);

// Returns memory of the GPU, or NULL.
void* gpu_allocate(gpu* g, size_t bytes);
// Returns memory of the host that the GPU copies from and to without a wait, or
// NULL.
void* gpu_allocate_pinned(gpu* g, size_t bytes);
// Wait for the stream, then free the memory, which may be NULL.
void gpu_free(gpu* g, void* memory);
void gpu_free_pinned(gpu* g, void* memory);

// Copies between memory of the GPU and pinned memory. The latter must stay as
// it is until the copy is done.
void gpu_copy(gpu* g, void* to, const void* from, size_t bytes);

// Waits for all that was enqueued. Returns false after an error.
bool gpu_wait(gpu* g);

// ---- Graphs ----

// Begins a capture: until gpu_capture_end the work that is enqueued becomes
// part of a graph, and does not run. Memory must not be allocated or freed
// meanwhile, and gpu_wait is an error. Other threads may do either.
bool gpu_capture_begin(gpu* g);
// Ends a capture that has begun, after an error too. Returns the graph, or NULL
// after an error.
gpu_graph_exec gpu_capture_end(gpu* g);
// Enqueues the work of a graph. Pointers are those of the capture, and the
// memory behind them is read when the work runs.
void gpu_launch_graph(gpu* g, gpu_graph_exec graph);
// Waits for the stream, then frees a graph, which may be NULL.
void gpu_free_graph(gpu* g, gpu_graph_exec graph);

// ---- Kernels and matrix products ----

// Finds a kernel of cuda/kernels.h by its name.
gpu_function gpu_kernel(gpu* g, const char* name);

// Launches a kernel with at least `threads` threads, or as many as are worth
// it: kernels loop over what is left. 0 threads are none. `args` is copied.
void gpu_launch(gpu* g, gpu_function kernel, const void* args,
                uint64_t threads);

// A batch of row-major matrices.
typedef struct gpu_matrices {
  float* data;
  int stride;      // Elements from a row to the next.
  long long next;  // Elements from a matrix to the next.
} gpu_matrices;

typedef struct gpu_product {
  bool transpose_a;
  bool transpose_b;
  int rows;  // The result's; op(A) and op(B) as cblas_sgemm has them.
  int columns;
  int inner;
  float alpha;
  float beta;  // 0: what the result has is not read.
  int count;   // The number of matrices.
} gpu_product;

// Computes c = alpha op(a) op(b) + beta c, in fp32.
void gpu_multiply(gpu* g, const gpu_product* product, gpu_matrices a,
                  gpu_matrices b, gpu_matrices c);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHARD_SAMPLES_GPT_CUDA_GPU_H_
