// SPDX-License-Identifier: Apache-2.0
//
// Kernels of libraries that wait for more than streams, and the questions that
// fakes of libraries ask.

#include <memory>
#include <mutex>
#include <vector>

#include "tests/fake_cuda/call.h"

namespace shard::testing::fake_cuda {

namespace {

// Gives a kernel its place in its streams.
void Place(Fake* fake, const WaitingKernel& kernel,
           const std::vector<Stream*>& streams) {
  Scheduler& scheduler = fake->scheduler;
  Stream* const first = streams[0];
  for (size_t i = 1; i < streams.size(); ++i) {
    const auto before = scheduler.Enqueue(streams[i], kernel.name, nullptr);
    scheduler.Enqueue(first, "a wait of " + kernel.name, nullptr, before);
  }
  const auto operation = scheduler.Enqueue(first, kernel.name, nullptr);
  ++fake->counters.launches[kernel.name];
  if (CheckAccesses(fake, *operation, kernel.accesses)) {
    operation->attempt = kernel.begin();
  }
  for (size_t i = 1; i < streams.size(); ++i) {
    scheduler.Enqueue(streams[i], "a wait for " + kernel.name, nullptr,
                      operation);
  }
}

}  // namespace

CuResult LaunchWaiting(const WaitingKernel& kernel) {
  // The driver's own call for it.
  SHARD_FAKE_CUDA_ENTER(cuLaunchKernel);
  std::vector<Stream*> streams;
  for (const cuda::CuStream handle : kernel.streams) {
    Stream* stream = nullptr;
    const CuResult found =
        call.FindStreamOf(HandleOf(kernel.context), handle, &stream);
    if (found != CuResult::kSuccess) return found;
    streams.push_back(stream);
  }
  if (streams.empty()) return CuResult::kInvalidValue;
  const bool captured = fake->IsCaptured(kernel.streams[0]);
  for (const cuda::CuStream handle : kernel.streams) {
    if (fake->IsCaptured(handle) != captured) {
      return CuResult::kStreamCaptureIsolation;
    }
  }
  // A captured stream is alone; a graph is launched into another.
  fake->Give(kernel.streams[0], streams[0],
             [fake, kernel, streams](Stream* on) {
               std::vector<Stream*> all = streams;
               all[0] = on;
               Place(fake, kernel, all);
             });
  return CuResult::kSuccess;
}

bool FindMemory(const void* address, Memory* memory) {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  const auto value = reinterpret_cast<uintptr_t>(address);
  const Allocation* const found = fake->memory.Find(value);
  if (found == nullptr || found->is_freed || value >= found->end) return false;
  *memory = {reinterpret_cast<const void*>(found->begin),
             found->end - found->begin, found->device, IsPinned(found)};
  return true;
}

cuda::CuContext CurrentContext(int* device) {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  const auto& stack = *CurrentContexts(*fake);
  if (stack.empty()) return nullptr;
  const auto found = fake->contexts.find(stack.back());
  if (found == fake->contexts.end()) return nullptr;
  *device = found->second.device;
  return reinterpret_cast<cuda::CuContext>(stack.back());
}

}  // namespace shard::testing::fake_cuda
