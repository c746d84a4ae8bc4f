// SPDX-License-Identifier: Apache-2.0
//
// Stream::FillZeros of the parts of a tensor. Thread-safe.

#ifndef SHARD_CORE_DEVICE_CPU_FILL_ZEROS_H_
#define SHARD_CORE_DEVICE_CPU_FILL_ZEROS_H_

#include <cstring>
#include <vector>

#include "core/device/stream.h"

namespace shard::cpu {

inline void FillZeros(void* base, const std::vector<ByteRange>& parts) {
  for (const ByteRange& part : parts) {
    std::memset(static_cast<unsigned char*>(base) + part.begin, 0, part.bytes);
  }
}

}  // namespace shard::cpu

#endif  // SHARD_CORE_DEVICE_CPU_FILL_ZEROS_H_
