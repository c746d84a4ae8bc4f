// SPDX-License-Identifier: Apache-2.0
//
// Opens what a host names: a checkpoint, a root of checkpoints, a safetensors
// file, the index of several, or a folder that holds one of these.

#ifndef SHARD_CORE_CHECKPOINT_OPEN_STORE_H_
#define SHARD_CORE_CHECKPOINT_OPEN_STORE_H_

#include <memory>
#include <string>

#include "core/base/file_env.h"
#include "core/base/status.h"
#include "core/checkpoint/data/file_store.h"

namespace shard {

struct OpenedStore {
  std::shared_ptr<const FileStore> store;
  // The store's name in the folder `path`: "step-000042", "model.safetensors".
  // Empty: `path` itself is the store.
  std::string name;
  // For the log: why this is not the checkpoint that LATEST names. Mostly
  // empty.
  std::string note;
};

// Opens the store that `path` names. A path that ends in ".safetensors" or
// ".json" is a file of that format, unless it is a folder. A folder is resolved
// by ResolveCheckpoint; if it has no checkpoint, its
// model.safetensors.index.json is opened, or its only safetensors file, unless
// the name of that file says that it is one of several. A checkpoint that is
// replaced meanwhile is resolved again. kNotFound lists the names that were
// looked for; other errors are those of ShardStore and SafetensorsStore.
StatusOr<OpenedStore> OpenTensorStore(FileEnv* env, const std::string& path);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_OPEN_STORE_H_
