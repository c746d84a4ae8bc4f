// SPDX-License-Identifier: Apache-2.0

#include "core/comm/control_bytes.h"

#include <cstdint>

#include "core/base/rounding.h"
#include "core/comm/direct/control_block.h"
#include "core/comm/direct/direct_exchange.h"

namespace shard {

uint64_t ControlBytes(int ranks, bool shares_memory) {
  constexpr uint64_t kPage = 4096;
  const uint64_t block =
      RoundUp<uint64_t>(direct::ControlBlock::Bytes(ranks), kPage);
  if (shares_memory) return block;
  return block + RoundUp<uint64_t>(direct::kStagingBytes, kPage) *
                     static_cast<uint64_t>(ranks);
}

}  // namespace shard
