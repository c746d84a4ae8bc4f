// SPDX-License-Identifier: Apache-2.0
//
// Writes the tensors of a store into a new checkpoint, without an engine: into
// another number of files, in other types, or from another format.
//
// A tensor is cut into as many even pieces as there are files; a small tensor
// goes whole into the file with the fewest bytes. Each slice is read, converted
// and written by one thread, so memory holds only the slices that threads are
// working on. Groups, numbers, step counts, aliases and blobs are carried over;
// tensors of types that libshard does not read are copied byte by byte.

#ifndef SHARD_CORE_CHECKPOINT_WRITE_CHECKPOINT_H_
#define SHARD_CORE_CHECKPOINT_WRITE_CHECKPOINT_H_

#include <cstdint>
#include <string>

#include "core/base/file_env.h"
#include "core/base/status.h"
#include "core/checkpoint/data/file_store.h"
#include "core/checkpoint/store/converting_store.h"
#include "core/checkpoint/store/progress.h"

namespace shard {

// The most data files: more would take a reader longer to open than to read.
inline constexpr int kMaxWrittenFiles = 4096;

struct WriteCheckpointOptions {
  ConversionOptions conversion;
  // Data files, 1 to kMaxWrittenFiles; 0: as many as the source has, at least
  // 1. The checkpoint gets this world size, unless there are blobs, which
  // belong to the ranks that saved them.
  int world_size = 0;
  bool overwrite = false;  // Replace a checkpoint of the same step.
  int threads = 4;
  Progress progress;  // In bytes of data files.
};

// Writes the checkpoint `root`/step-NNNNNN, of the step that `from` has, or 0.
// Follows the protocol of PendingCheckpoint, so an error or a crash leaves the
// previous checkpoint as it was. Memory: below 64 MiB and 16 MiB per thread,
// beside 600 bytes and three times its key for each tensor, and 256 bytes for
// each slice beyond 2^18 slices, which checkpoints from 16 TiB on have.
// Checkpoints beyond 1 TiB have larger slices, and use fewer threads. Errors:
// those of PendingCheckpoint, of reading and of writing; kInvalidArgument or
// kResourceExhausted for contents that a checkpoint cannot hold, and
// kUnimplemented for tensors of types that libshard does not read, before
// anything is written; kCancelled.
Status WriteCheckpoint(FileEnv* env, const FileStore& from,
                       const std::string& root,
                       const WriteCheckpointOptions& options);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_WRITE_CHECKPOINT_H_
