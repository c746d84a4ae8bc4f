// SPDX-License-Identifier: Apache-2.0

#include "core/comm/control_bytes.h"

#include <cstdint>

#include "core/comm/direct/control_block.h"
#include "core/comm/direct/exchange.h"

namespace shard {

namespace {

constexpr uint64_t PagesOf(uint64_t bytes) {
  constexpr uint64_t kPage = 4096;
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

uint64_t ControlBytes(int ranks, bool shares_memory) {
  const uint64_t block = PagesOf(direct::ControlBlock::Bytes(ranks));
  if (shares_memory) return block;
  return block + PagesOf(direct::kStagingBytes) * static_cast<uint64_t>(ranks);
}

}  // namespace shard
