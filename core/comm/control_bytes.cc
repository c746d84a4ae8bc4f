// SPDX-License-Identifier: Apache-2.0

#include "core/comm/control_bytes.h"

#include <cstdint>

#include "core/base/rounding.h"
#include "core/comm/direct/control_block.h"
#include "core/comm/direct/direct_exchange.h"
#include "core/comm/direct/direct_notices.h"

namespace shard {

namespace {
constexpr uint64_t kPage = 4096;
}  // namespace

uint64_t ControlBytes(int ranks, bool shares_memory) {
  const auto block = [ranks](const direct::CellRing& ring) {
    return RoundUp<uint64_t>(direct::ControlBlock::Bytes(ranks, ring), kPage);
  };
  if (shares_memory) return block(direct::kRoundCells);
  return block(direct::kExchangeCells) +
         RoundUp<uint64_t>(direct::kStagingBytes, kPage) *
             static_cast<uint64_t>(ranks);
}

uint64_t NoticesBytes(int ranks, size_t bytes) {
  return RoundUp<uint64_t>(
      direct::ControlBlock::Bytes(ranks, direct::NoticeCells(bytes)), kPage);
}

}  // namespace shard
