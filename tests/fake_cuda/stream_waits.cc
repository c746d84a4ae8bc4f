// SPDX-License-Identifier: Apache-2.0
//
// The entry point of the fake driver by which a host waits for a stream.
// libshard waits for events alone (driver_api.h).

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

}  // namespace shard::cuda
