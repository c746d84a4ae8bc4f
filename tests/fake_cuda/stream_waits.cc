// SPDX-License-Identifier: Apache-2.0
//
// Entry points of the fake driver by which a host waits for a stream, and a
// stream for a value in memory. libshard waits for events alone (driver_api.h).

#include <atomic>
#include <cstdint>
#include <memory>

#include "tests/fake_cuda/call.h"

namespace shard::cuda {

// NOLINTBEGIN
using namespace shard::testing::fake_cuda;
// NOLINTEND

extern "C" __attribute__((visibility("default"))) CuResult cuStreamSynchronize(
    CuStream handle) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuStreamSynchronize);
  SHARD_FAKE_CUDA_FIND_STREAM(handle, stream);
  if (fake->IsCaptured(handle)) {
    fake->Invalidate(HandleOf(handle));
    return CuResult::kStreamCaptureUnsupported;
  }
  ++fake->counters.waits_of_host;
  const std::shared_ptr<Operation> last = stream->last;
  if (last != nullptr) fake->scheduler.Await(last, call.lock());
  return fake->lost;
}

// Only the flags 0 are known: until the value is at least `least`.
extern "C" __attribute__((visibility("default"))) CuResult
cuStreamWaitValue32_v2(CuStream handle, CuPointer address, uint32_t least,
                       unsigned flags) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuStreamWaitValue32);
  SHARD_FAKE_CUDA_FIND_STREAM(handle, stream);
  const Allocation* const found = fake->memory.Find(address);
  if (flags != 0 || found == nullptr || found->is_freed ||
      fake->IsCaptured(handle)) {
    return CuResult::kInvalidValue;
  }
  const auto operation =
      fake->scheduler.Enqueue(stream, "cuStreamWaitValue32", nullptr);
  operation->attempt = [address, least] {
    auto* const value = reinterpret_cast<uint32_t*>(address);
    return std::atomic_ref<uint32_t>(*value).load() >= least ? Progress::kDone
                                                             : Progress::kWaits;
  };
  return CuResult::kSuccess;
}

}  // namespace shard::cuda
