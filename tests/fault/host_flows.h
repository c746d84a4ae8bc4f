// SPDX-License-Identifier: Apache-2.0
//
// Flows: sequences of calls that a host makes to libshard, with cuts where its
// memory may run out. A flow has a part that prepares, and a part that runs
// while allocations fail. A flow ends at the first error, and then frees its
// handles, as hosts do.
//
// The code of the host itself allocates nothing, so that every allocation is
// the library's.

#ifndef SHARD_TESTS_FAULT_HOST_FLOWS_H_
#define SHARD_TESTS_FAULT_HOST_FLOWS_H_

#include <cstdint>
#include <ostream>
#include <span>

#include "shard/shard.h"

namespace shard {

// A kind of group and engine.
struct World {
  const char* name;
  const char* url;
  int ranks;
  int stage;
  int overlap;
  const char* device;
  bool comm_only = false;  // Runs the flows of communicators alone.
  bool observed = false;   // Writes a trace and metrics.
};

// One rank of a host: its handles, and the end of its flow.
struct HostRank {
  const World* world = nullptr;
  int rank = 0;
  double open_timeout = 30;
  int32_t missing_grads = 0;
  // The folder of checkpoints; "saved" in it has one.
  const char* folder = nullptr;
  // Whether a call that changes nothing when it fails is repeated once. The
  // second call has to succeed.
  bool retries = false;

  shard_model* model = nullptr;
  shard_plan* plan = nullptr;
  shard_comm* comm = nullptr;
  shard_engine* engine = nullptr;
  shard_state_dict* state = nullptr;
  shard_state_dict* filled = nullptr;
  shard_save* save = nullptr;
  shard_checkpoint* checkpoint = nullptr;

  // The code of the first call that failed.
  shard_code code = SHARD_OK;
  char call[64] = {};
  char message[256] = {};
  uint64_t result = 0;  // A hash of the results of the flow.
  // Calls of a save's progress function after the save has returned an error.
  // Counted from the thread of a save in the background.
  bool save_failed = false;
  int late_calls = 0;
};

struct Flow {
  const char* name;
  void (*prepare)(HostRank* rank);
  void (*run)(HostRank* rank);
  // Called on rank 0 when no rank saw an error: checks the results of the flow.
  void (*check)(HostRank* rank);
  bool of_ranks = true;  // Whether the flow also runs with several ranks.
  // Whether the flow differs between kinds of communicators.
  bool of_comm = false;
};

inline std::ostream& operator<<(std::ostream& out, const World& world) {
  return out << world.name;
}
inline std::ostream& operator<<(std::ostream& out, const Flow& flow) {
  return out << flow.name;
}

std::span<const World> Worlds();
std::span<const Flow> Flows();

// Makes the model and plan of the flows. Sets rank->code.
void MakePlanForFlows(HostRank* rank);

// Saves the checkpoint that flows load. Sets rank->code.
void SaveForFlows(HostRank* rank);

// Frees every handle.
void FreeAll(HostRank* rank);

}  // namespace shard

#endif  // SHARD_TESTS_FAULT_HOST_FLOWS_H_
