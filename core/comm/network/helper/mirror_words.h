// SPDX-License-Identifier: Apache-2.0
//
// The words of a ControlBlock as a mirror reads and writes them.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_MIRROR_WORDS_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_MIRROR_WORDS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/comm/direct/control_block.h"
#include "core/comm/host_waits.h"
#include "core/comm/network/helper/mirror_wire.h"

namespace shard::network {

inline uint64_t Load(const std::atomic<uint64_t>& word) {
  return word.load(std::memory_order_acquire);
}

inline WaitMessage ReadWait(const direct::RankSlot& slot, uint64_t block) {
  const HostWait& wait = slot.host_wait;
  WaitMessage words{.block = block,
                    .awaited = Load(slot.awaited),
                    .number = Load(wait.number),
                    .until = Load(wait.until),
                    .call = {},
                    .given = Load(wait.given),
                    .done = Load(wait.done)};
  for (size_t i = 0; i < HostWait::kCallWords; ++i) {
    words.call[i] = Load(wait.call[i]);
  }
  return words;
}

inline void WriteWait(const WaitMessage& words, direct::RankSlot* slot) {
  const auto store = [](uint64_t value, std::atomic<uint64_t>* word) {
    word->store(value, std::memory_order_release);
  };
  HostWait& wait = slot->host_wait;
  for (size_t i = 0; i < HostWait::kCallWords; ++i) {
    store(words.call[i], &wait.call[i]);
  }
  store(words.given, &wait.given);
  store(words.done, &wait.done);
  store(words.until, &wait.until);
  store(words.number, &wait.number);
  store(words.awaited, &slot->awaited);
}

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_MIRROR_WORDS_H_
