// SPDX-License-Identifier: Apache-2.0
//
// Offload: an engine on a device whose optimizer states lie in the host's
// memory, where threads of the host step them. Gradients come down to them in
// windows, and parameters go up.

#ifndef SHARD_CORE_BASE_OFFLOAD_H_
#define SHARD_CORE_BASE_OFFLOAD_H_

#include <cstddef>
#include <cstdint>

namespace shard {

struct Offload {
  int threads = 4;  // For each rank.
  // The elements that a thread steps at a time: as many as a copy needs to run
  // at the bus's rate, few enough that copies hide behind steps. A multiple of
  // the block of 8-bit states.
  size_t window = size_t{1} << 18;
};

// The windows that a thread has at once: one is stepped while the next one's
// gradients come and the last one's parameters go.
inline constexpr size_t kOffloadSlots = 2;

// The memory through which windows pass. The first thread alone steps whole
// parameters (optimizers of tensors), so its windows may be larger.
struct OffloadStaging {
  struct Slot {
    uint64_t grad_bytes = 0;   // Whole pages.
    uint64_t param_bytes = 0;  // Whole pages.

    uint64_t bytes() const { return grad_bytes + param_bytes; }
  };

  size_t window = 0;
  size_t threads = 0;  // Those that have a window: at most Offload::threads.
  Slot first;
  Slot others;

  uint64_t bytes() const {
    if (threads == 0) return 0;
    return kOffloadSlots * (first.bytes() + (threads - 1) * others.bytes());
  }
};

}  // namespace shard

#endif  // SHARD_CORE_BASE_OFFLOAD_H_
