// SPDX-License-Identifier: Apache-2.0

#include "tests/gpu_check/gpu.h"

#include <array>
#include <stdexcept>
#include <thread>

#include "core/base/strings.h"

namespace shard::gpu_check {

using cuda::CuPointer;
using cuda::CuResult;

Gpu::Gpu(int ordinal) {
  const auto driver = cuda::Driver::Load();
  if (!driver.ok()) throw std::runtime_error(driver.status().ToString());
  driver_ = *driver;
  cuda::CuContext context = nullptr;
  Check(api().DeviceGet(&device_, ordinal), "cuDeviceGet");
  Check(api().DevicePrimaryCtxRetain(&context, device_),
        "cuDevicePrimaryCtxRetain");
  // As cudart leaves it.
  Check(api().CtxPushCurrent(context), "cuCtxPushCurrent");
  Check(api().StreamCreate(&stream_, cuda::kStreamNonBlocking),
        "cuStreamCreate");
  Check(api().EventCreate(&event_, cuda::kEventDisableTiming), "cuEventCreate");
}

Gpu::~Gpu() {
  if (graph_ != nullptr) graphs_.GraphExecDestroy(graph_);
  api().EventDestroy(event_);
  api().StreamDestroy(stream_);
  cuda::CuContext popped = nullptr;
  api().CtxPopCurrent(&popped);
  api().DevicePrimaryCtxRelease(device_);
}

std::string Gpu::Describe() const {
  std::array<char, 128> name = {};
  size_t bytes = 0;
  int major = 0;
  int minor = 0;
  int multiprocessors = 0;
  Check(api().DeviceGetName(name.data(), static_cast<int>(name.size() - 1),
                            device_),
        "cuDeviceGetName");
  Check(api().DeviceTotalMem(&bytes, device_), "cuDeviceTotalMem");
  const auto attribute = [&](cuda::CuDeviceAttribute which, int* value) {
    Check(api().DeviceGetAttribute(value, which, device_),
          "cuDeviceGetAttribute");
  };
  attribute(cuda::CuDeviceAttribute::kComputeCapabilityMajor, &major);
  attribute(cuda::CuDeviceAttribute::kComputeCapabilityMinor, &minor);
  attribute(cuda::CuDeviceAttribute::kMultiprocessorCount, &multiprocessors);
  return StrCat(name.data(), ", sm_", major, minor, ", ", multiprocessors,
                " multiprocessors, ", FormatBytes(bytes), ", driver for CUDA ",
                cuda::Driver::VersionText(driver_->version()));
}

void* Gpu::Allocate(size_t bytes) {
  CuPointer memory = 0;
  Check(api().MemAlloc(&memory, bytes), "cuMemAlloc");
  return reinterpret_cast<void*>(memory);
}

void Gpu::Free(void* memory) {
  Check(api().MemFree(reinterpret_cast<CuPointer>(memory)), "cuMemFree");
}

void* Gpu::AllocatePinned(size_t bytes) {
  void* memory = nullptr;
  Check(
      api().MemHostAlloc(&memory, bytes,
                         cuda::kHostAllocPortable | cuda::kHostAllocDeviceMap),
      "cuMemHostAlloc");
  return memory;
}

void Gpu::FreePinned(void* memory) {
  Check(api().MemFreeHost(memory), "cuMemFreeHost");
}

void Gpu::Copy(void* to, const void* from, size_t bytes) {
  Check(api().MemcpyAsync(reinterpret_cast<CuPointer>(to),
                          reinterpret_cast<CuPointer>(from), bytes, stream_),
        "cuMemcpyAsync");
}

void Gpu::FillZeros(void* to, size_t bytes) {
  Check(api().MemsetD8Async(reinterpret_cast<CuPointer>(to), 0, bytes, stream_),
        "cuMemsetD8Async");
}

void Gpu::Finish() {
  Check(api().EventRecord(event_, stream_), "cuEventRecord");
  CuResult result = CuResult::kNotReady;
  while ((result = api().EventQuery(event_)) == CuResult::kNotReady) {
    std::this_thread::yield();
  }
  Check(result, "cuEventQuery");
}

void Gpu::BeginCapture() {
  graphs_ = cuda::GraphApi::Load();
  Check(graphs_.StreamBeginCapture(stream_, cuda::CuCaptureMode::kThreadLocal),
        "cuStreamBeginCapture");
}

void Gpu::EndCapture() {
  if (graph_ != nullptr) graphs_.GraphExecDestroy(graph_);
  graph_ = nullptr;
  cuda::CuGraph graph = nullptr;
  Check(graphs_.StreamEndCapture(stream_, &graph), "cuStreamEndCapture");
  Check(graphs_.GraphInstantiate(&graph_, graph, 0), "cuGraphInstantiate");
  Check(graphs_.GraphDestroy(graph), "cuGraphDestroy");
}

void Gpu::Launch() {
  Check(graphs_.GraphLaunch(graph_, stream_), "cuGraphLaunch");
}

void Gpu::Check(CuResult result, const char* what) const {
  const Status status = driver_->ToStatus(result, what);
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

}  // namespace shard::gpu_check
