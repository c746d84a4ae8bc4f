// SPDX-License-Identifier: Apache-2.0
//
// The parts of CUDA's driver API and of cuBLAS that the sample uses, declared
// here so that it is built where no CUDA toolkit is, and runs where no GPU is:
// both libraries are loaded at run time (gpu.c). A program of your own includes
// cuda.h and cublas_v2.h instead, and links -lcuda -lcublas. Types, values and
// names are those of the headers, the same in CUDA 12 and 13;
// tests/samples/gpt/cuda_api_test.cc compares them.

#ifndef SHARD_SAMPLES_GPT_CUDA_API_H_
#define SHARD_SAMPLES_GPT_CUDA_API_H_

#include <stddef.h>

// Results: 0 is success, in both libraries.
typedef int gpu_result;
typedef int gpu_device;
typedef unsigned long long gpu_pointer;  // To memory of the GPU.
typedef struct CUctx_st* gpu_context;
typedef struct CUmod_st* gpu_module;
typedef struct CUfunc_st* gpu_function;
typedef struct CUstream_st* gpu_stream;
typedef struct CUgraph_st* gpu_graph;           // What was captured.
typedef struct CUgraphExec_st* gpu_graph_exec;  // The same, to be launched.
typedef struct cublasContext* blas_handle;

enum { kStreamNonBlocking = 1 };   // CU_STREAM_NON_BLOCKING
enum { kHostMemoryPortable = 1 };  // CU_MEMHOSTALLOC_PORTABLE
enum { kCaptureOfThread = 1 };     // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
enum { kComputeCapabilityMajor = 75 };
enum { kMajorVersion = 0 };  // MAJOR_VERSION of libraryPropertyType
enum { kBlasNone = 0, kBlasTranspose = 1 };  // CUBLAS_OP_N, CUBLAS_OP_T

// Each X(name, symbol, parameters): a function of libcuda.so.1. All return a
// gpu_result.
#define GPU_DRIVER(X)                                                          \
  X(init, cuInit, (unsigned flags))                                            \
  X(error_name, cuGetErrorName, (gpu_result error, const char** text))         \
  X(error_string, cuGetErrorString, (gpu_result error, const char** text))     \
  X(device_count, cuDeviceGetCount, (int* count))                              \
  X(device_get, cuDeviceGet, (gpu_device * device, int ordinal))               \
  X(device_attribute, cuDeviceGetAttribute,                                    \
    (int* value, int attribute, gpu_device device))                            \
  X(context_retain, cuDevicePrimaryCtxRetain,                                  \
    (gpu_context * context, gpu_device device))                                \
  X(context_release, cuDevicePrimaryCtxRelease_v2, (gpu_device device))        \
  X(context_push, cuCtxPushCurrent_v2, (gpu_context context))                  \
  X(context_pop, cuCtxPopCurrent_v2, (gpu_context * context))                  \
  X(stream_create, cuStreamCreate, (gpu_stream * stream, unsigned flags))      \
  X(stream_destroy, cuStreamDestroy_v2, (gpu_stream stream))                   \
  X(stream_synchronize, cuStreamSynchronize, (gpu_stream stream))              \
  X(capture_begin, cuStreamBeginCapture_v2, (gpu_stream stream, int mode))     \
  X(capture_end, cuStreamEndCapture, (gpu_stream stream, gpu_graph * graph))   \
  X(graph_instantiate, cuGraphInstantiateWithFlags,                            \
    (gpu_graph_exec * exec, gpu_graph graph, unsigned long long flags))        \
  X(graph_destroy, cuGraphDestroy, (gpu_graph graph))                          \
  X(graph_launch, cuGraphLaunch, (gpu_graph_exec exec, gpu_stream stream))     \
  X(graph_exec_destroy, cuGraphExecDestroy, (gpu_graph_exec exec))             \
  X(memory_alloc, cuMemAlloc_v2, (gpu_pointer * memory, size_t bytes))         \
  X(memory_free, cuMemFree_v2, (gpu_pointer memory))                           \
  X(host_alloc, cuMemHostAlloc, (void** memory, size_t bytes, unsigned flags)) \
  X(host_free, cuMemFreeHost, (void* memory))                                  \
  X(copy_async, cuMemcpyAsync,                                                 \
    (gpu_pointer to, gpu_pointer from, size_t bytes, gpu_stream stream))       \
  X(module_load, cuModuleLoadData, (gpu_module * module, const void* image))   \
  X(module_unload, cuModuleUnload, (gpu_module module))                        \
  X(module_function, cuModuleGetFunction,                                      \
    (gpu_function * function, gpu_module module, const char* name))            \
  X(launch, cuLaunchKernel,                                                    \
    (gpu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, \
     unsigned block_x, unsigned block_y, unsigned block_z,                     \
     unsigned shared_bytes, gpu_stream stream, void** params, void** extra))

// The same of libcublas.so. Matrices are column-major.
#define GPU_BLAS(X)                                                          \
  X(property, cublasGetProperty, (int which, int* value))                    \
  X(create, cublasCreate_v2, (blas_handle * handle))                         \
  X(destroy, cublasDestroy_v2, (blas_handle handle))                         \
  X(set_stream, cublasSetStream_v2, (blas_handle handle, gpu_stream stream)) \
  X(set_workspace, cublasSetWorkspace_v2,                                    \
    (blas_handle handle, void* workspace, size_t bytes))                     \
  X(multiply, cublasSgemmStridedBatched,                                     \
    (blas_handle handle, int transpose_a, int transpose_b, int rows,         \
     int columns, int inner, const float* alpha, const float* a, int a_ld,   \
     long long a_stride, const float* b, int b_ld, long long b_stride,       \
     const float* beta, float* c, int c_ld, long long c_stride, int count))

#define GPU_FUNCTION(name, symbol, parameters) gpu_result(*name) parameters;

typedef struct gpu_driver {
  GPU_DRIVER(GPU_FUNCTION)
} gpu_driver;

typedef struct gpu_blas {
  GPU_BLAS(GPU_FUNCTION)
  const char* (*status_name)(gpu_result status);  // cublasGetStatusName
} gpu_blas;

#undef GPU_FUNCTION

#endif  // SHARD_SAMPLES_GPT_CUDA_API_H_
