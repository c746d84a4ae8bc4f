// SPDX-License-Identifier: Apache-2.0
//
// Explains why the memory of a device or of a host is too small for a plan: how
// much is missing, and which options make the plan fit. An option is named only
// after it was tried (option_search.h).
//
// Pure functions, but for the clock of a deadline: no communicator, no device.

#ifndef SHARD_CORE_ENGINE_STEP_EXPLAIN_MISFIT_H_
#define SHARD_CORE_ENGINE_STEP_EXPLAIN_MISFIT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/deadline.h"
#include "core/base/offload.h"
#include "core/base/transport.h"
#include "core/collectives/collectives.h"
#include "core/flat/plan.h"

namespace shard {

// Where the ranks of an engine have their memory.
struct RankPlacement {
  bool shares_tensors = false;  // SharesTensors (supported.h).
  // Whether the ranks of a host have one copy of parameters that are not
  // sharded.
  bool shares_host = false;
  int first_on_host = 0;       // Its first rank.
  std::string device = "cpu";  // Device::name().
  // Whether tensors lie in memory of the device's own, not in the host's.
  bool has_device_memory = false;
  // Whether collectives have memory of their own, for tensors that the host
  // does not reach.
  bool has_staging = false;
  Transport transport = Transport::kStaged;
  bool one_kernel = false;           // Steps may be of one kernel.
  const Offload* offload = nullptr;  // Device::offload().
  bool allow_missing = false;        // Ranks may lack gradients.
  int ranks_on_host = 1;

  // As MayShareSlots.
  bool SharesSlots(const Plan& plan) const {
    return !shares_tensors && shares_host && plan.shards_params() &&
           plan.AreInOneShardGroup(first_on_host, ranks_on_host);
  }
  int ranks_on_device = 1;  // Those that share the memory of one device.

  // Returns the device's name without its options.
  std::string PlainDevice() const { return device.substr(0, device.find('?')); }
};

struct DeviceRoom {
  uint64_t free = 0;
  uint64_t total = 0;
};

// The memory that a plan needs, at most UINT64_MAX.
struct MemoryNeed {
  uint64_t device = 0;  // For one rank, in memory of the device's own.
  uint64_t host = 0;    // For all ranks on the host.
};

inline uint64_t SaturatedSum(uint64_t a, uint64_t b) {
  return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}
inline MemoryNeed operator+(const MemoryNeed& a, const MemoryNeed& b) {
  return {SaturatedSum(a.device, b.device), SaturatedSum(a.host, b.host)};
}

// The memory that is left for a plan.
struct Rooms {
  // For all ranks on the device; nothing: not known, or no memory of its own.
  std::optional<DeviceRoom> device;
  uint64_t host = 0;  // For all ranks on the host.
  // The most that a plan may need for all ranks to have room for it, where
  // others are known to have less.
  std::optional<MemoryNeed> least;
};

// The plan of an engine that gets another one.
struct ReplacedPlan {
  const Plan* plan;
  // The memory of the engine's collectives, which may be of an earlier plan.
  ReduceMemory reduce;
};

// Returns the memory that engines of `plan` allocate. `before` is null, or the
// plan that `plan` replaces, whose memory stays allocated meanwhile, and whose
// host tensors and, where they serve (ServesReductions), collectives stay.
MemoryNeed NeedOf(const Plan& plan, const RankPlacement& placement,
                  const ReplacedPlan* before);

// Returns "" where `plan` fits into the rooms; else an error's text: what is
// needed, what is there, how much is missing, and the options that make the
// plan fit. More ranks are taken to be as many on each host and device as now.
// `before` as for NeedOf: options are then tried in both plans. Makes some tens
// of plans, fewer of a model with very many parameters or modules. None is
// begun after `deadline`.
std::string ExplainMisfit(const Plan& plan, const RankPlacement& placement,
                          const Rooms& rooms, const Deadline& deadline,
                          const ReplacedPlan* before = nullptr);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_EXPLAIN_MISFIT_H_
