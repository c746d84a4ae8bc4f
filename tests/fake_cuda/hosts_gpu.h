// SPDX-License-Identifier: Apache-2.0
//
// HostsGpu: a host's stream of GPU 0, with pinned memory that it copies to the
// GPU, and graphs of the stream's work, by the driver's own calls; for tests of
// hosts that see libshard's interfaces alone.

#ifndef SHARD_TESTS_FAKE_CUDA_HOSTS_GPU_H_
#define SHARD_TESTS_FAKE_CUDA_HOSTS_GPU_H_

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>

#include "core/device/cuda/driver_api.h"
#include "tests/fake_cuda/graph_api.h"

namespace shard::testing {

class HostsGpu {
 public:
  // Has `bytes` bytes of pinned memory.
  explicit HostsGpu(size_t bytes) : bytes_(bytes) {
    Expect(driver_.Init(0));
    cuda::CuContext context = nullptr;
    Expect(driver_.DevicePrimaryCtxRetain(&context, 0));
    Expect(driver_.CtxPushCurrent(context));
    Expect(driver_.StreamCreate(&stream_, cuda::kStreamNonBlocking));
    Expect(driver_.MemHostAlloc(&pinned_, bytes_, 0));
  }
  ~HostsGpu() {
    Expect(driver_.MemFreeHost(pinned_));
    Expect(driver_.StreamDestroy(stream_));
    cuda::CuContext context = nullptr;
    Expect(driver_.CtxPopCurrent(&context));
    Expect(driver_.DevicePrimaryCtxRelease(0));
  }
  HostsGpu(const HostsGpu&) = delete;
  HostsGpu& operator=(const HostsGpu&) = delete;

  cuda::CuStream stream() const { return stream_; }
  void* pinned() const { return pinned_; }

  // Enqueues a copy of the pinned memory, which is read when the copy runs.
  void CopyTo(const void* memory) const {
    Expect(driver_.MemcpyAsync(reinterpret_cast<cuda::CuPointer>(memory),
                               reinterpret_cast<cuda::CuPointer>(pinned_),
                               bytes_, stream_));
  }

  // Returns a graph of the work that `enqueue` gives the stream, for Free.
  cuda::CuGraphExec Capture(const std::function<void()>& enqueue) const {
    cuda::CuGraph graph = nullptr;
    cuda::CuGraphExec exec = nullptr;
    Expect(
        graphs_.StreamBeginCapture(stream_, cuda::CuCaptureMode::kThreadLocal));
    enqueue();
    Expect(graphs_.StreamEndCapture(stream_, &graph));
    Expect(graphs_.GraphInstantiate(&exec, graph, 0));
    Expect(graphs_.GraphDestroy(graph));
    return exec;
  }
  void Launch(cuda::CuGraphExec exec) const {
    Expect(graphs_.GraphLaunch(exec, stream_));
  }
  void Free(cuda::CuGraphExec exec) const {
    Expect(graphs_.GraphExecDestroy(exec));
  }

 private:
  static void Expect(cuda::CuResult result) {
    EXPECT_EQ(result, cuda::CuResult::kSuccess);
  }

  static cuda::DriverApi LoadDriver() {
    cuda::DriverApi api;
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
#define SHARD_FIND(name, symbol, parameters) \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(library, #symbol));
    SHARD_CUDA_DRIVER(SHARD_FIND)
#undef SHARD_FIND
    return api;
  }

  const size_t bytes_;
  const cuda::DriverApi driver_ = LoadDriver();
  const cuda::GraphApi graphs_ = cuda::GraphApi::Load();
  cuda::CuStream stream_ = nullptr;
  void* pinned_ = nullptr;
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_FAKE_CUDA_HOSTS_GPU_H_
