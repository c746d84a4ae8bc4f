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
  // What it is called in the folder that `path` is: "step-000042",
  // "model.safetensors". Empty: `path` is the thing itself.
  std::string name;
  // For the log: why it is not the one that LATEST names. Mostly empty.
  std::string note;
};

// A path that ends in ".safetensors" or ".json" is a file of that format,
// unless it is a folder. A folder is what ResolveCheckpoint makes of it; if it
// has no checkpoint, its model.safetensors.index.json, or its only safetensors
// file, unless that is one of several by its name. A checkpoint that is
// replaced meanwhile is resolved again. kNotFound says what was looked for;
// also those of ShardStore and SafetensorsStore.
StatusOr<OpenedStore> OpenTensorStore(FileEnv* env, const std::string& path);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_OPEN_STORE_H_
