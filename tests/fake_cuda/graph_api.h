// SPDX-License-Identifier: Apache-2.0
//
// The part of CUDA's driver API by which a host captures graphs and launches
// them, for tests that do: libshard does not. Declared as driver_api.h.

#ifndef SHARD_TESTS_FAKE_CUDA_GRAPH_API_H_
#define SHARD_TESTS_FAKE_CUDA_GRAPH_API_H_

#include <dlfcn.h>

#include "core/device/cuda/driver_api.h"

namespace shard::cuda {

using CuGraph = struct CUgraph_st*;
using CuGraphExec = struct CUgraphExec_st*;

// Each X(name, symbol, parameters); all return a CuResult.
#define SHARD_CUDA_GRAPHS(X)                                                  \
  X(StreamBeginCapture, cuStreamBeginCapture_v2,                              \
    (CuStream stream, CuCaptureMode mode))                                    \
  X(StreamEndCapture, cuStreamEndCapture, (CuStream stream, CuGraph * graph)) \
  X(GraphInstantiate, cuGraphInstantiateWithFlags,                            \
    (CuGraphExec * exec, CuGraph graph, unsigned long long flags))            \
  X(GraphDestroy, cuGraphDestroy, (CuGraph graph))                            \
  X(GraphLaunch, cuGraphLaunch, (CuGraphExec exec, CuStream stream))          \
  X(GraphExecDestroy, cuGraphExecDestroy, (CuGraphExec exec))

struct GraphApi {
#define SHARD_CUDA_GRAPH_FUNCTION(name, symbol, parameters) \
  CuResult(*name) parameters = nullptr;
  SHARD_CUDA_GRAPHS(SHARD_CUDA_GRAPH_FUNCTION)
#undef SHARD_CUDA_GRAPH_FUNCTION

  // Returns the functions of the driver that the process has, or null for those
  // that it has not.
  static GraphApi Load() {
    GraphApi api;
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver == nullptr) return api;
#define SHARD_CUDA_GRAPH_FIND(name, symbol, parameters) \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(driver, #symbol));
    SHARD_CUDA_GRAPHS(SHARD_CUDA_GRAPH_FIND)
#undef SHARD_CUDA_GRAPH_FIND
    return api;
  }
};

}  // namespace shard::cuda

#endif  // SHARD_TESTS_FAKE_CUDA_GRAPH_API_H_
