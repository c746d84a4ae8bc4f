// SPDX-License-Identifier: Apache-2.0
//
// Stream::Fill. Thread-safe.

#ifndef SHARD_CORE_DEVICE_CPU_FILL_H_
#define SHARD_CORE_DEVICE_CPU_FILL_H_

#include <cstring>
#include <vector>

#include "core/device/stream.h"

namespace shard::cpu {

inline void Fill(const std::vector<MemoryFill>& parts) {
  for (const MemoryFill& part : parts) {
    if (part.bytes == 0) continue;
    if (part.from == nullptr) {
      std::memset(part.to, 0, part.bytes);
    } else {
      std::memcpy(part.to, part.from, part.bytes);
    }
  }
}

}  // namespace shard::cpu

#endif  // SHARD_CORE_DEVICE_CPU_FILL_H_
