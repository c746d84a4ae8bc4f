// SPDX-License-Identifier: Apache-2.0
//
// StateReader: fills what this rank owns of a training state from a
// TensorStore. Local: ranks read only their own elements, and publish
// parameters afterwards.

#ifndef SHARD_CORE_ENGINE_LOAD_STATE_H_
#define SHARD_CORE_ENGINE_LOAD_STATE_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/checkpoint/tensor_store.h"
#include "core/device/stream.h"
#include "core/engine/buffers.h"
#include "core/flat/plan.h"
#include "core/optim/optimizer.h"
#include "core/state/match.h"
#include "core/state/state_entries.h"

namespace shard {

class StateReader {
 public:
  // All arguments outlive the reader. `optimizers`: by GroupId.
  StateReader(const Plan& plan, const EngineMemory& memory,
              const std::vector<Optimizer>& optimizers, int rank,
              Stream* stream, const Deadline& deadline)
      : plan_(plan),
        memory_(memory),
        optimizers_(optimizers),
        rank_(rank),
        stream_(stream),
        deadline_(deadline) {}

  // What `matches` says, by entry. Master weights that are not loaded follow
  // their parameters. On an error, some of it may have been written. Memory: a
  // few MiB per thread; for a state that is encoded as q8, also what this rank
  // owns of it in fp32.
  Status Read(const TensorStore& store, const std::vector<StateEntry>& entries,
              const std::vector<EntryMatch>& matches,
              const ReadOptions& options);

 private:
  // An entry, and where what this rank owns of it lies.
  struct Target {
    const StateEntry* entry;
    EntryMatch match;
    OwnedElements owned;
    std::byte* data;
  };

  Status Copy(std::byte* to, const std::byte* from, size_t bytes);
  Status EncodeTarget(const TensorStore& store, const Target& target,
                      const ReadOptions& options);
  Status FillMasters(const std::vector<StateEntry>& entries,
                     const std::vector<EntryMatch>& matches);

  const Plan& plan_;
  const EngineMemory& memory_;
  const std::vector<Optimizer>& optimizers_;
  const int rank_;
  std::mutex mutex_;  // Of the stream: pieces come from several threads.
  Stream* const stream_;
  const Deadline deadline_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_LOAD_STATE_H_
