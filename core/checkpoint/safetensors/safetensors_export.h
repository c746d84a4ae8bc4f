// SPDX-License-Identifier: Apache-2.0
//
// Writes tensors of a store, such as a checkpoint, as safetensors files.

#ifndef SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_EXPORT_H_
#define SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_EXPORT_H_

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/file_env.h"
#include "core/base/status.h"
#include "core/checkpoint/safetensors/safetensors_writer.h"
#include "core/checkpoint/store/progress.h"
#include "core/checkpoint/store/tensor_store.h"

namespace shard {

struct SafetensorsExportOptions {
  SafetensorsWriteOptions write;
  // What an alias has is written once, under the name of what it is an alias
  // of, for the format knows no aliases. True: under every name.
  bool expand_aliases = false;
  // The name in the file of what is `key` in the store; null: the same.
  std::function<std::string(std::string_view key)> rename;
  int threads = 4;
  Progress progress;
};

// Writes tensors of a store, by their indices, each at most once. Memory: at
// most 64 MiB and what the tensors' names and shapes take. Errors: those of
// Create, Read, Write and Finish; nothing is left behind.
Status ExportSafetensors(FileEnv* env, const TensorStore& from,
                         std::span<const size_t> tensors,
                         const std::string& path,
                         const SafetensorsExportOptions& options);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_EXPORT_H_
