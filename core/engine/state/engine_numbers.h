// SPDX-License-Identifier: Apache-2.0
//
// EngineNumbers: writes the numbers of a training (steps, loss scale,
// hyperparameters) to checkpoints and state dicts, and restores them.
//
// A checkpoint has the numbers in its manifest. A state dict has them by key
// (MemoryStore::numbers()), so that hosts can read and write them beside
// torch's.
//
// Local. Thread-compatible.

#ifndef SHARD_CORE_ENGINE_STATE_ENGINE_NUMBERS_H_
#define SHARD_CORE_ENGINE_STATE_ENGINE_NUMBERS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/checkpoint/manifest/manifest.h"
#include "core/comm/communicator.h"
#include "core/engine/state/local_state.h"
#include "core/engine/step/counters.h"
#include "core/engine/step/hypers.h"
#include "core/flat/plan.h"
#include "core/optim/loss_scaler.h"
#include "core/state/match.h"
#include "core/state/memory_store.h"
#include "core/state/state_entries.h"

namespace shard {

// Rejects a manifest with more steps than an engine can count, as a hostile one
// may have.
Status CheckSteps(const Manifest& manifest);

class EngineNumbers {
 public:
  // All arguments must outlive this. `comm` is for the log, in which rank 0
  // warns of numbers that the engine cannot take.
  EngineNumbers(const Plan& plan, Counters* counters, Hypers* hypers,
                Communicator* comm)
      : plan_(plan), counters_(counters), hypers_(hypers), comm_(comm) {}

  // Returns the current numbers of the engine.
  TrainingNumbers Now() const;

  // Restores the numbers of a manifest that belong to the loaded tensors: all
  // of them, or those of some submodules. REQUIRES: CheckSteps.
  void Restore(const StateOptions& options,
               const std::vector<StateEntry>& entries,
               const std::vector<EntryMatch>& matches,
               const Manifest& manifest);

  // Returns the numbers of the entries' parameters by key; for the `whole`
  // engine also the loss scale.
  std::map<std::string, double> ByKey(const std::vector<StateEntry>& entries,
                                      bool whole) const;

  // The numbers that a state dict has for the parameters of entries.
  struct Keyed {
    struct Hyper {
      GroupId group;
      std::string key;
      double value;
    };
    size_t stepped = 0;  // Parameters that can have a step.
    std::map<ParamId, int64_t> steps;
    std::vector<Hyper> hypers;
    LossScaler::State loss_scale;
  };
  // Reads the numbers of a state dict; RestoreByKey then sets them.
  // kInvalidArgument for steps that are no count.
  StatusOr<Keyed> ReadByKey(const std::vector<StateEntry>& entries,
                            const MemoryStore& store,
                            const StateOptions& options,
                            const LoadRules& rules) const;
  void RestoreByKey(const Keyed& numbers, bool whole);

 private:
  // Restores the step of each parameter, and the hyperparameters of the groups.
  void RestoreParams(const std::vector<StateEntry>& entries,
                     const std::vector<EntryMatch>& matches,
                     const Manifest& manifest);
  // Restores the state of the loss scaler. Warns, and changes nothing, for a
  // state that the engine's scaler cannot have.
  void RestoreLossScale(const LossScaler::State& scale);

  const Plan& plan_;
  Counters* const counters_;
  Hypers* const hypers_;
  Communicator* const comm_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_ENGINE_NUMBERS_H_
