// SPDX-License-Identifier: Apache-2.0
//
// The one symbol that libshard_cuda.so exports.

#include "core/device/plugin/plugin.h"

#include "core/device/cuda/check.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/describe.h"
#include "core/device/plugin/build_id.h"

extern "C" __attribute__((visibility("default"))) const shard::Plugin*
shard_plugin(uint64_t build_id) {
  static constexpr shard::Plugin kPlugin = {shard::cuda::OpenDevice,
                                            shard::cuda::Describe,
                                            shard::cuda::CheckCollectives};
  return build_id == shard::kBuildId ? &kPlugin : nullptr;
}
