// SPDX-License-Identifier: Apache-2.0
//
// StateReader: reads this rank's elements of a training state from a
// TensorStore. Ranks read only their own elements, and publish parameters
// afterwards.

#ifndef SHARD_CORE_ENGINE_STATE_LOAD_STATE_H_
#define SHARD_CORE_ENGINE_STATE_LOAD_STATE_H_

#include <cstddef>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/checkpoint/store/tensor_store.h"
#include "core/comm/communicator.h"
#include "core/device/host_access.h"
#include "core/device/stream.h"
#include "core/engine/memory/buffers.h"
#include "core/engine/state/work_deadline.h"
#include "core/flat/plan.h"
#include "core/optim/optimizer.h"
#include "core/state/match.h"
#include "core/state/memory_store.h"
#include "core/state/state_entries.h"

namespace shard {

class StateReader {
 public:
  // All arguments must outlive the reader. `optimizers`: by GroupId. `access`
  // is to the tensors in `memory`; `stream` runs kernels.
  StateReader(const Plan& plan, const EngineMemory& memory,
              const std::vector<Optimizer>& optimizers, Communicator* comm,
              HostAccess* access, Stream* stream, const WorkDeadline& deadline)
      : plan_(plan),
        memory_(memory),
        optimizers_(optimizers),
        comm_(comm),
        rank_(comm->rank()),
        access_(access),
        stream_(stream),
        deadline_(deadline) {}

  // Makes the staging memory through which Read or ReadFromRank0 copies
  // elements, which write none before. Local.
  Status Reserve(const TensorStore& store,
                 const std::vector<StateEntry>& entries,
                 const std::vector<EntryMatch>& matches, bool from_rank0) const;

  // Reads the entries as `matches`, by entry, says. Local. Master weights that
  // are not loaded are set from their parameters. After an error, some elements
  // may have been written. Memory: a few MiB per thread; for a state that is
  // encoded as q8, also this rank's elements of the state in fp32.
  Status Read(const TensorStore& store, const std::vector<StateEntry>& entries,
              const std::vector<EntryMatch>& matches,
              const ReadOptions& options);

  // Reads from the store of rank 0; the stores of other ranks have names and
  // shapes only. COLLECTIVE. Tensors are sent whole, one after the other:
  // memory for the largest one on all ranks.
  Status ReadFromRank0(const TensorStore& store,
                       const std::vector<StateEntry>& entries,
                       const std::vector<EntryMatch>& matches,
                       const ReadOptions& options);

 private:
  // An entry, and the place of this rank's elements of it.
  struct Target {
    const StateEntry* entry;
    EntryMatch match;
    OwnedElements owned;
    std::byte* data;
  };

  Status ReadEntries(const TensorStore& store,
                     std::span<const StateEntry> entries,
                     std::span<const EntryMatch> matches,
                     const ReadOptions& options);
  // Receives rank 0's tensor into `room`, and adds it with its bytes to
  // `whole`. COLLECTIVE.
  Status Receive(const TensorStore& store, size_t tensor,
                 const ReadOptions& options, std::vector<std::byte>* room,
                 MemoryStore* whole);
  Status EncodeTarget(const TensorStore& store, const Target& target,
                      const ReadOptions& options);
  Status FillMasters(const std::vector<StateEntry>& entries,
                     const std::vector<EntryMatch>& matches);

  const Plan& plan_;
  const EngineMemory& memory_;
  const std::vector<Optimizer>& optimizers_;
  Communicator* const comm_;
  const int rank_;
  HostAccess* const access_;
  Stream* const stream_;
  const WorkDeadline deadline_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_LOAD_STATE_H_
