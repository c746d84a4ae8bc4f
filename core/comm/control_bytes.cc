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
  const uint64_t block =
      RoundUp<uint64_t>(direct::ControlBlock::Bytes(ranks), kPage);
  if (shares_memory) return block;
  return block + RoundUp<uint64_t>(direct::kStagingBytes, kPage) *
                     static_cast<uint64_t>(ranks);
}

uint64_t NoticesBytes(int ranks, size_t bytes) {
  return RoundUp<uint64_t>(
      direct::ControlBlock::Bytes(ranks, direct::NoticeCells(bytes)), kPage);
}

}  // namespace shard
