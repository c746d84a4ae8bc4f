// SPDX-License-Identifier: Apache-2.0
//
// Whether a plan fits into the memory of a rank and of its host: as it is, and
// on a GPU with optimizer states in the host's memory. Where no plan fits,
// finds options that make one fit, by planning with them.

#ifndef SHARD_SDK_CLI_COMMANDS_PLAN_FIT_H_
#define SHARD_SDK_CLI_COMMANDS_PLAN_FIT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/cli/handles.h"
#include "shard/shard.h"

namespace shardctl {

// The memory that there is, and where ranks are. 0: no limit.
struct MemoryLimits {
  uint64_t memory = 0;       // A rank's: its GPU's where there is a device.
  uint64_t host_memory = 0;  // A host's, beside its GPUs'.
  int32_t ranks_per_host = 1;
  bool shared = false;  // Whether ranks share memory.
  // As in shard_placement, or "cuda" for any GPU; "": the host's memory.
  std::string device;

  bool any() const { return memory > 0 || host_memory > 0; }
};

// Bytes of memory that a plan lacks.
struct Shortfall {
  uint64_t rank = 0;
  uint64_t host = 0;

  bool none() const { return rank == 0 && host == 0; }
  // Returns the sum of both, at most UINT64_MAX.
  uint64_t total() const {
    return rank > UINT64_MAX - host ? UINT64_MAX : rank + host;
  }
};

// Returns "1.50 GiB and 2.00 GiB of the host".
std::string ShortfallText(const Shortfall& missing);

struct PlanFit {
  uint64_t host_bytes = 0;  // A host's, for its ranks on devices.
  Shortfall missing;
  // Where the device is a GPU that is to hold optimizer states.
  bool tries_offload = false;
  // The device's options that are tried, literals, and what they come to.
  std::string_view offload;
  uint64_t offload_device_bytes = 0;
  uint64_t offload_host_bytes = 0;
  Shortfall offload_missing;

  bool fits() const { return missing.none(); }
  bool fits_with_offload() const {
    return tries_offload && offload_missing.none();
  }
  // Returns the lesser shortfall.
  const Shortfall& least() const {
    return tries_offload && offload_missing.total() < missing.total()
               ? offload_missing
               : missing;
  }
  // Returns "yes", "with offload, ..." or "no, ...".
  std::string Text() const;
};

// Returns the spec of a device for shard_placement: "cuda" is "cuda:0", for a
// plan needs no GPU.
std::string DeviceSpec(const std::string& device);

// Returns whether a device is a GPU on which optimizer states lie.
bool IsGpuWithStates(const std::string& device);

// Returns the memory of a rank whose tensors lie in the host's.
uint64_t TotalBytes(const shard_memory& memory);

// Compares a plan with the limits. Throws Failure.
PlanFit FitOf(const shard_plan* plan, const MemoryLimits& limits);

// The options in which plans of the same model differ.
struct PlanVariant {
  int32_t ranks = 1;
  int32_t stage = 0;
  std::string optimizer;
  std::string wrap;
  std::string masters;  // As of --masters.
  bool deterministic = false;
  bool f32_grads = false;
  // The options of shardctl that keep whole what a stage would shard, such as
  // "--whole-grads --group-size"; "": without them.
  std::string whole;
};

// Returns the options of shardctl that make a plan fit where `nearest` does
// not: those that keep the precision of optimizer states, else those that give
// up what the plan asks for, and more ranks, as an engine's error has them
// (option_search.h). The options that are to be left out follow "without".
// `make` returns a plan, or throws Failure.
std::vector<std::string> FindFittingOptions(
    const PlanVariant& nearest, const MemoryLimits& limits,
    const std::function<Plan(const PlanVariant&)>& make);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_PLAN_FIT_H_
