// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/cuda/gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "samples/gpt/cuda/gpt_fatbin.h"

bool gpu_fail(gpu* g, const char* text) {
  if (!g->error[0]) snprintf(g->error, sizeof(g->error), "%s", text);
  return false;
}

// Returns whether a call of the driver has succeeded, and keeps its error,
// which `remedy` ends.
static bool ok_or(gpu* g, const char* call, gpu_result result,
                  const char* remedy) {
  if (result == 0) return true;
  const char* name = NULL;
  const char* text = NULL;
  // Neither knows the errors of newer drivers.
  if (g->driver.error_name(result, &name) != 0) name = "unknown error";
  if (g->driver.error_string(result, &text) != 0) text = "unknown";
  char why[512];
  snprintf(why, sizeof(why), "%s: %s (%d): %s%s", call, name, result, text,
           remedy);
  return gpu_fail(g, why);
}

static bool ok(gpu* g, const char* call, gpu_result result) {
  return ok_or(g, call, result, "");
}

// The same for cuBLAS.
static bool blas_ok_or(gpu* g, const char* call, gpu_result result,
                       const char* remedy) {
  if (result == 0) return true;
  char why[512];
  snprintf(why, sizeof(why), "%s: %s (%d)%s", call, g->blas.status_name(result),
           result, remedy);
  return gpu_fail(g, why);
}

// ---- Libraries --------------------------------------------------------------

// Copies a pointer that dlsym returns into a function pointer, which C does not
// convert. Returns false where the library has no such symbol.
static bool find(void* library, const char* symbol, void* function) {
  void* const found = dlsym(library, symbol);
  memcpy(function, &found, sizeof(found));
  return found != NULL;
}

// Loads the driver. libshard has loaded it already, where it has an engine on a
// GPU: this is the same copy, and neither is ever closed.
static bool load_driver(gpu* g) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* const reason = dlerror();
    return gpu_fail(g, reason ? reason : "libcuda.so.1 cannot be loaded");
  }
#define FIND(name, symbol, parameters)                                 \
  if (!find(library, #symbol, &g->driver.name)) {                      \
    return gpu_fail(g, "libcuda.so.1 lacks " #symbol                   \
                       ": update NVIDIA's driver to one for CUDA 12"); \
  }
  GPU_DRIVER(FIND)
#undef FIND
  return ok(g, "cuInit", g->driver.init(0));
}

// Takes the functions of a cuBLAS. Its major version is that of its name: the
// functions of another one may have other arguments. Returns false where the
// library cannot be used, with the reason.
static bool use_blas(gpu* g, void* library, int major, char* why, size_t size) {
#define FIND(name, symbol, parameters)                               \
  if (!find(library, #symbol, &g->blas.name)) {                      \
    snprintf(why, size, "libcublas.so.%d lacks %s", major, #symbol); \
    return false;                                                    \
  }
  GPU_BLAS(FIND)
  FIND(status_name, cublasGetStatusName, )
#undef FIND
  int found = 0;
  g->blas.property(kMajorVersion, &found);
  if (found == major) return true;
  snprintf(why, size, "libcublas.so.%d is cuBLAS %d, and not %d", major, found,
           major);
  return false;
}

// Loads the cuBLAS of a major version, and adds the reason to `reasons` where
// it cannot be used.
static bool try_blas(gpu* g, int major, int flags, char* reasons, size_t size) {
  char name[32];
  snprintf(name, sizeof(name), "libcublas.so.%d", major);
  void* const library = dlopen(name, flags);
  char why[300] = "";
  if (!library) {
    // A library that is not loaded yet is no error to RTLD_NOLOAD.
    const char* const reason = dlerror();
    snprintf(why, sizeof(why), "%s", reason ? reason : "not loaded");
  } else if (use_blas(g, library, major, why, sizeof(why))) {
    return true;
  } else {
    dlclose(library);
  }
  const size_t length = strlen(reasons);
  snprintf(reasons + length, size - length, "%s%s", length > 0 ? "; " : "",
           why);
  return false;
}

// Loads the newest cuBLAS that can be used, or the one that the process has.
static bool load_blas(gpu* g) {
  static const int kMajors[] = {13, 12};
  char reasons[700] = "";
  for (int load = 0; load < 2; load++) {
    reasons[0] = '\0';
    const int flags = RTLD_NOW | RTLD_LOCAL | (load ? 0 : RTLD_NOLOAD);
    for (int i = 0; i < 2; i++) {
      if (try_blas(g, kMajors[i], flags, reasons, sizeof(reasons))) return true;
    }
  }
  char why[sizeof(g->error)];
  snprintf(why, sizeof(why),
           "no cuBLAS: %s; install cuBLAS of CUDA 12 or 13 (it is in the CUDA "
           "toolkit, and in Python's nvidia-cublas), and put its folder into "
           "LD_LIBRARY_PATH",
           reasons);
  return gpu_fail(g, why);
}

int gpu_count(void) {
  gpu g = {0};
  int count = 0;
  if (!load_driver(&g) || g.driver.device_count(&count) != 0) return 0;
  return count;
}

// ---- Opening and closing ----------------------------------------------------

static bool load_kernels(gpu* g) {
  const gpu_result result =
      g->driver.module_load(&g->module, shard_fatbin_gpt_fatbin);
  if (result == 0) return true;
  g->module = NULL;
  if (shard_fatbin_gpt_fatbin_size == 0) {
    return gpu_fail(g,
                    "train_gpt was built without a CUDA toolkit, and has no "
                    "code for GPUs: build it with one (CUDA_PATH)");
  }
  return ok(g, "cuModuleLoadData", result);
}

static const char kOtherBlas[] =
    "; free memory of the GPU, or try another cuBLAS of CUDA 12 or 13 "
    "(LD_LIBRARY_PATH)";

// Returns whether a call of cuBLAS has succeeded that needs the workspace.
static bool workspace_ok(gpu* g, const char* call, gpu_result result) {
  if (result == 0) return true;
  char remedy[200];
  snprintf(remedy, sizeof(remedy), ", with a workspace of %zu bytes%s",
           g->workspace_bytes, kOtherBlas);
  return blas_ok_or(g, call, result, remedy);
}

// Opens cuBLAS with a workspace of the program's own. Without one cuBLAS takes
// memory where it needs it, in a graph once more for each capture. The size
// decides between algorithms, so a graph has the bits of a plain step only
// because both have the same workspace.
static bool open_blas(gpu* g) {
  int major = 0;
  if (!load_blas(g) ||
      !ok(g, "cuDeviceGetAttribute",
          g->driver.device_attribute(&major, kComputeCapabilityMajor,
                                     g->device)) ||
      !blas_ok_or(g, "cublasCreate", g->blas.create(&g->handle), kOtherBlas)) {
    return false;
  }
  // The sizes that the documentation of cublasSetWorkspace recommends, for
  // Hopper and later, and for GPUs before it.
  g->workspace_bytes = (size_t)(major >= 9 ? 32 : 4) << 20;
  g->workspace = gpu_allocate(g, g->workspace_bytes);
  // In this order: cublasSetStream goes back to cuBLAS's own workspace.
  return g->workspace &&
         blas_ok_or(g, "cublasSetStream",
                    g->blas.set_stream(g->handle, g->stream), kOtherBlas) &&
         workspace_ok(g, "cublasSetWorkspace",
                      g->blas.set_workspace(g->handle, g->workspace,
                                            g->workspace_bytes));
}

bool gpu_open(gpu* g, int ordinal) {
  memset(g, 0, sizeof(*g));
  if (!load_driver(g)) return false;
  const gpu_driver* driver = &g->driver;
  if (!ok(g, "cuDeviceGet", driver->device_get(&g->device, ordinal)) ||
      !ok(g, "cuDevicePrimaryCtxRetain",
          driver->context_retain(&g->context, g->device))) {
    g->context = NULL;
    return false;
  }
  if (!ok(g, "cuCtxPushCurrent", driver->context_push(g->context))) {
    driver->context_release(g->device);
    g->context = NULL;
    return false;
  }
  return ok(g, "cuStreamCreate",
            driver->stream_create(&g->stream, kStreamNonBlocking)) &&
         load_kernels(g) && open_blas(g);
}

void gpu_close(gpu* g) {
  if (!g->context) return;
  if (g->handle) g->blas.destroy(g->handle);
  gpu_free(g, g->workspace);
  if (g->module) g->driver.module_unload(g->module);
  if (g->stream) g->driver.stream_destroy(g->stream);
  gpu_context popped;
  g->driver.context_pop(&popped);
  g->driver.context_release(g->device);
  g->context = NULL;
}

// ---- Memory -----------------------------------------------------------------

static gpu_pointer address(const void* memory) {
  return (gpu_pointer)(uintptr_t)memory;
}

// Returns whether an allocation has succeeded.
static bool allocated(gpu* g, const char* call, gpu_result result, size_t bytes,
                      const char* remedy) {
  if (result == 0) return true;
  char text[200];
  snprintf(text, sizeof(text), "; %zu bytes %s", bytes, remedy);
  return ok_or(g, call, result, text);
}

void* gpu_allocate(gpu* g, size_t bytes) {
  gpu_pointer memory = 0;
  if (g->error[0] ||
      !allocated(g, "cuMemAlloc", g->driver.memory_alloc(&memory, bytes), bytes,
                 "of the GPU's memory are needed: nvidia-smi lists who uses "
                 "it")) {
    return NULL;
  }
  return (void*)(uintptr_t)memory;
}

void* gpu_allocate_pinned(gpu* g, size_t bytes) {
  void* memory = NULL;
  if (g->error[0] ||
      !allocated(g, "cuMemHostAlloc",
                 g->driver.host_alloc(&memory, bytes, kHostMemoryPortable),
                 bytes,
                 "of the host's memory that stays in place (pinned) are "
                 "needed: free memory, or raise the limit of the container")) {
    return NULL;
  }
  return memory;
}

void gpu_free(gpu* g, void* memory) {
  if (!memory) return;
  // After an error, too, work may be left that uses the memory.
  g->driver.stream_synchronize(g->stream);
  g->driver.memory_free(address(memory));
}

void gpu_free_pinned(gpu* g, void* memory) {
  if (!memory) return;
  g->driver.stream_synchronize(g->stream);
  g->driver.host_free(memory);
}

void gpu_copy(gpu* g, void* to, const void* from, size_t bytes) {
  if (g->error[0] || bytes == 0) return;
  ok(g, "cuMemcpyAsync",
     g->driver.copy_async(address(to), address(from), bytes, g->stream));
}

bool gpu_wait(gpu* g) {
  return !g->error[0] &&
         ok(g, "cuStreamSynchronize", g->driver.stream_synchronize(g->stream));
}

// ---- Graphs -----------------------------------------------------------------

bool gpu_capture_begin(gpu* g) {
  // In this mode the calls of other threads, which know nothing of the capture,
  // cannot spoil it.
  return !g->error[0] &&
         ok(g, "cuStreamBeginCapture",
            g->driver.capture_begin(g->stream, kCaptureOfThread));
}

gpu_graph_exec gpu_capture_end(gpu* g) {
  gpu_graph graph = NULL;
  // The driver's error for a capture that a failed call has made invalid comes
  // after the error of that call, which is the one that is kept.
  ok(g, "cuStreamEndCapture", g->driver.capture_end(g->stream, &graph));
  gpu_graph_exec exec = NULL;
  if (!g->error[0] && !ok(g, "cuGraphInstantiate",
                          g->driver.graph_instantiate(&exec, graph, 0))) {
    exec = NULL;
  }
  if (graph) g->driver.graph_destroy(graph);
  return exec;
}

void gpu_launch_graph(gpu* g, gpu_graph_exec graph) {
  if (g->error[0]) return;
  ok(g, "cuGraphLaunch", g->driver.graph_launch(graph, g->stream));
}

void gpu_free_graph(gpu* g, gpu_graph_exec graph) {
  if (!graph) return;
  g->driver.stream_synchronize(g->stream);
  g->driver.graph_exec_destroy(graph);
}

// ---- Kernels ----------------------------------------------------------------

gpu_function gpu_kernel(gpu* g, const char* name) {
  gpu_function kernel = NULL;
  if (!g->error[0]) {
    ok(g, name, g->driver.module_function(&kernel, g->module, name));
  }
  return kernel;
}

void gpu_launch(gpu* g, gpu_function kernel, const void* args,
                uint64_t threads) {
  if (g->error[0] || threads == 0) return;
  // Several waves of blocks on the largest GPU; a row has a warp of its own up
  // to 131072 rows.
  enum { kThreads = 256, kMostBlocks = 16384 };
  uint64_t blocks = (threads + kThreads - 1) / kThreads;
  if (blocks > kMostBlocks) blocks = kMostBlocks;
  // The driver copies the argument, and writes to none.
  void* params[] = {(void*)(uintptr_t)args};
  ok(g, "cuLaunchKernel",
     g->driver.launch(kernel, (unsigned)blocks, 1, 1, kThreads, 1, 1, 0,
                      g->stream, params, NULL));
}

// ---- Matrix products --------------------------------------------------------

void gpu_multiply(gpu* g, const gpu_product* product, gpu_matrices a,
                  gpu_matrices b, gpu_matrices c) {
  if (g->error[0] || product->rows == 0 || product->columns == 0 ||
      product->count == 0) {
    return;
  }
  // A row-major matrix is the transpose of the column-major one that cuBLAS
  // sees. So cuBLAS computes C^T = op(B)^T op(A)^T.
  workspace_ok(
      g, "cublasSgemmStridedBatched",
      g->blas.multiply(
          g->handle, product->transpose_b ? kBlasTranspose : kBlasNone,
          product->transpose_a ? kBlasTranspose : kBlasNone, product->columns,
          product->rows, product->inner, &product->alpha, b.data, b.stride,
          b.next, a.data, a.stride, a.next, &product->beta, c.data, c.stride,
          c.next, product->count));
}
