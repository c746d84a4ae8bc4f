// SPDX-License-Identifier: Apache-2.0
//
// The entry points of the fake driver for graphs.

#include <utility>

#include "tests/fake_cuda/call.h"
#include "tests/fake_cuda/graph_api.h"

#define SHARD_FAKE_CUDA_DECLARE(name, symbol, parameters) \
  namespace shard::cuda {                                 \
  extern "C" __attribute__((visibility("default")))       \
  CuResult symbol parameters;                             \
  }
SHARD_CUDA_GRAPHS(SHARD_FAKE_CUDA_DECLARE)
#undef SHARD_FAKE_CUDA_DECLARE

namespace shard::cuda {

// NOLINTBEGIN
using namespace shard::testing::fake_cuda;
// NOLINTEND

CuResult cuStreamBeginCapture_v2(CuStream stream, CuCaptureMode mode) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuStreamBeginCapture_v2);
  if (FindIn(&fake->streams, HandleOf(stream)) == nullptr) {
    return CuResult::kInvalidHandle;
  }
  if (fake->IsCaptured(stream)) return CuResult::kInvalidValue;
  fake->BeginCapture(stream, mode);
  return CuResult::kSuccess;
}

CuResult cuStreamEndCapture(CuStream stream, CuGraph* graph) {
  // A call that fails ends the capture too.
  Call call("cuStreamEndCapture");
  if (!call.frees()) return call.result();
  Fake* const fake = call.fake();
  if (!fake->IsCaptured(stream)) return CuResult::kInvalidValue;
  const auto capture = fake->captures.find(HandleOf(stream));
  // The thread that begins a capture ends it, but for relaxed ones.
  if (capture->second.mode != CuCaptureMode::kRelaxed &&
      capture->second.thread != std::this_thread::get_id()) {
    return CuResult::kInvalidValue;
  }
  if (!call.ok() || capture->second.is_invalid) {
    fake->captures.erase(capture);
    *graph = nullptr;
    return call.ok() ? CuResult::kStreamCaptureInvalidated : call.result();
  }
  const Handle handle = fake->MakeHandle();
  fake->graphs[handle] = std::move(capture->second.graph);
  fake->captures.erase(capture);
  *graph = reinterpret_cast<CuGraph>(handle);
  return CuResult::kSuccess;
}

CuResult cuGraphInstantiateWithFlags(CuGraphExec* exec, CuGraph graph,
                                     unsigned long long flags) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuGraphInstantiateWithFlags);
  const auto* const found = FindIn(&fake->graphs, HandleOf(graph));
  if (found == nullptr || flags != 0) return CuResult::kInvalidValue;
  const Handle handle = fake->MakeHandle();
  fake->graphs[handle] = *found;
  *exec = reinterpret_cast<CuGraphExec>(handle);
  return CuResult::kSuccess;
}

CuResult cuGraphDestroy(CuGraph graph) {
  SHARD_FAKE_CUDA_ENTER(cuGraphDestroy);
  return fake->graphs.erase(HandleOf(graph)) == 0 ? CuResult::kInvalidValue
                                                  : CuResult::kSuccess;
}

CuResult cuGraphLaunch(CuGraphExec exec, CuStream handle) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuGraphLaunch);
  SHARD_FAKE_CUDA_FIND_STREAM(handle, stream);
  const auto* const found = FindIn(&fake->graphs, HandleOf(exec));
  if (found == nullptr || fake->IsCaptured(handle)) {
    return CuResult::kInvalidValue;
  }
  for (const auto& enqueue : *found) enqueue(stream);
  return CuResult::kSuccess;
}

CuResult cuGraphExecDestroy(CuGraphExec exec) {
  SHARD_FAKE_CUDA_ENTER(cuGraphExecDestroy);
  return fake->graphs.erase(HandleOf(exec)) == 0 ? CuResult::kInvalidValue
                                                 : CuResult::kSuccess;
}

}  // namespace shard::cuda
