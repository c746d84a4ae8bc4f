// SPDX-License-Identifier: Apache-2.0
//
// The structs behind the opaque handles. Shared pointers keep parents alive, so
// that handles can be freed in any order.

#ifndef SHARD_API_HANDLES_H_
#define SHARD_API_HANDLES_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "api/opened_here.h"
#include "api/per_process.h"
#include "api/text_cache.h"
#include "core/checkpoint/data/file_store.h"
#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "core/engine/state/checkpoints.h"
#include "core/flat/plan.h"
#include "core/model/directory.h"
#include "core/model/model.h"
#include "core/state/memory_store.h"
#include "shard/shard.h"

struct shard_comm {
  std::shared_ptr<shard::Communicator> comm;
  std::string description;
  shard::api::OpenedHere opened_here = {};
};

struct shard_model {
  shard::Model model;
};

struct shard_plan {
  // Returns the names and modules by number, made at the first call: most hosts
  // never ask for them.
  const shard::ModelDirectory& directory() const {
    Names& made = names.Get();
    // std::call_once would load libgcc_s for an exception on its way through
    // libc, and end the process where memory is out.
    const std::lock_guard<std::mutex> lock(made.mutex);
    if (!made.directory) made.directory.emplace(plan->model());
    return *made.directory;
  }

  struct Names {
    std::mutex mutex;  // Guards `directory`.
    std::optional<shard::ModelDirectory> directory;
  };

  std::shared_ptr<const shard::Plan> plan;
  shard::api::PerProcess<Names> names = {};
  shard::api::TextCache texts = {};
};

struct shard_engine {
  std::unique_ptr<shard::Engine> engine;
  std::string last_load_report_json =
      shard::MatchReport().ToJson();  // The report of the last load.
  shard::api::OpenedHere opened_here = {};
};

struct shard_state_dict {
  shard::MemoryStore store;
  std::deque<std::vector<std::byte>> copies;  // Tensors of option `copy`.
  bool of_engine = false;
  // The places of the engine's parameters and optimizer states, where their
  // memory is that of the tensors; the host's memory otherwise.
  shard::DeviceId param_device;
  shard::DeviceId state_device;
};

struct shard_save {
  std::shared_ptr<shard::AsyncSave> save;
  shard::api::OpenedHere opened_here = {};
};

struct shard_checkpoint {
  std::shared_ptr<const shard::FileStore> store;
  shard::api::TextCache texts = {};
};

namespace shard::api {

// Return the communicator that a call is on; null for a NULL handle, and for
// one of another process, whose ranks must hear nothing of this call.
inline Communicator* CommOf(const shard_comm* comm) {
  return comm != nullptr && comm->opened_here.Is() ? comm->comm.get() : nullptr;
}
inline Communicator* CommOf(const shard_engine* engine) {
  return engine != nullptr && engine->opened_here.Is() ? engine->engine->comm()
                                                       : nullptr;
}

}  // namespace shard::api

#endif  // SHARD_API_HANDLES_H_
