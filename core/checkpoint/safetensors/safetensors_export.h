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
  // False: the elements of an alias are written once, under the name of its
  // target, because the format has no aliases. True: under every name.
  bool expand_aliases = false;
  // Returns the name in the file for the store's `key`; null: the same name.
  std::function<std::string(std::string_view key)> rename;
  int threads = 4;
  Progress progress;
};

// Writes tensors of a store, by their indices, each at most once. Memory: at
// most 64 MiB and the tensors' names and shapes. Errors: those of Create, Read,
// Write and Finish; nothing is left behind.
Status ExportSafetensors(FileEnv* env, const TensorStore& from,
                         std::span<const size_t> tensors,
                         const std::string& path,
                         const SafetensorsExportOptions& options);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_EXPORT_H_
