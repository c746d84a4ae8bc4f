// SPDX-License-Identifier: Apache-2.0
//
// TrainingState: saves and loads the complete state of a training (parameters,
// optimizer states, numbers), as a checkpoint or as a state dict. The ranks
// agree on the options; then each writes or reads the elements that it owns.
//
// Threads: one at a time, as the engine.

#ifndef SHARD_CORE_ENGINE_STATE_TRAINING_STATE_H_
#define SHARD_CORE_ENGINE_STATE_TRAINING_STATE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/device/host_access.h"
#include "core/engine/params/initial_params.h"
#include "core/engine/state/checkpoints.h"
#include "core/engine/state/engine_numbers.h"
#include "core/engine/state/work_deadline.h"
#include "core/engine/step/counters.h"
#include "core/engine/step/engine_runtime.h"
#include "core/engine/step/hypers.h"
#include "core/state/match.h"
#include "core/state/memory_store.h"
#include "core/state/state_entries.h"

namespace shard {

class TrainingState {
 public:
  struct Dependencies {
    EngineRuntime* runtime;
    Communicator* comm;
    Device* device;
    Hypers* hypers;
    Counters* counters;
    InitialParams* initial;
    Checkpoints* checkpoints;
  };

  // All of `deps` must outlive this.
  explicit TrainingState(const Dependencies& deps)
      : deps_(deps),
        plan_(*deps.runtime->plan()),
        numbers_(plan_, deps.counters, deps.hypers, deps.comm) {}

  // In all functions below, `known` is an error of the call on this rank alone.
  // Options may be such an error, too. Both become an error on all ranks.

  // Saves a checkpoint: see Checkpoints::Save. COLLECTIVE.
  StatusOr<std::shared_ptr<AsyncSave>> Save(
      const std::string& root, const StatusOr<SaveOptions>& options,
      const Status& known, const WorkDeadline& deadline);

  // Adds the elements that this rank owns, and the numbers, to `store`. Local.
  // The store's parts are the engine's memory, which may be that of a device:
  // see MemoryStore. `deadline` limits the wait for the engine's stream.
  Status AddLocal(const StateOptions& options, const Deadline& deadline,
                  MemoryStore* store);

  // Gathers whole tensors on one rank or on all (kAllRanks): see
  // gather_state.h. COLLECTIVE.
  using EntrySink =
      std::function<Status(const StateEntry& entry, const std::byte* data)>;
  Status Gather(const StatusOr<StateOptions>& options, int rank,
                const Status& known, const WorkDeadline& deadline,
                const EntrySink& sink);

  // Loads a checkpoint, or the tensors of a safetensors file. COLLECTIVE.
  // Parameters may have no values before: see InitialParams. After an error
  // while tensors were read, they have none.
  Status LoadCheckpoint(const std::string& path,
                        const StatusOr<LoadOptions>& options,
                        const Status& known, const WorkDeadline& deadline,
                        LoadReport* report);
  // Loads a state dict. COLLECTIVE. `store` may be null on ranks other than 0
  // with from_rank0, and where options are an error; otherwise all ranks have
  // the same tensors.
  Status LoadStateDict(const MemoryStore* store,
                       const StatusOr<LoadOptions>& options,
                       const Status& known, const WorkDeadline& deadline,
                       LoadReport* report);

 private:
  const EngineMemory& memory() const { return deps_.runtime->memory(); }
  // Opens the access to the tensors in a collective operation, whose group an
  // error ends.
  StatusOr<std::unique_ptr<HostAccess>> OpenAccessOrAbort(
      const WorkDeadline& deadline) const;
  // Enters a load: returns once the ranks agree on it and its options.
  // COLLECTIVE.
  Status EnterLoad(const StatusOr<LoadOptions>& options, const Status& known,
                   const WorkDeadline& deadline);
  // Returns OK where parameters have values already, or all of them are loaded.
  Status CheckGivesParams(const StateOptions& options) const;
  // Loads tensors. COLLECTIVE. Returns, by entry, the match that each was
  // loaded from.
  StatusOr<std::vector<EntryMatch>> LoadTensors(
      const TensorStore& store, const std::vector<StateEntry>& entries,
      const LoadOptions& options, const WorkDeadline& deadline,
      MatchReport* report);
  // Returns OK where this rank can read all matched tensors. Local.
  Status CheckElements(const TensorStore& store,
                       const std::vector<StateEntry>& entries,
                       const std::vector<EntryMatch>& matches,
                       const LoadOptions& options) const;
  // Resets optimizer states and step counts to those of a new engine.
  void Reset(const Deadline& deadline);

  const Dependencies deps_;
  const Plan& plan_;
  EngineNumbers numbers_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_TRAINING_STATE_H_
