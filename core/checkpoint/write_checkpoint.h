// SPDX-License-Identifier: Apache-2.0
//
// Writes what a store has into a new checkpoint, without an engine: in another
// number of files, of other types, or from another format.
//
// A tensor is cut into as many even pieces as there are files, one after the
// other; one that is small goes whole into the file that has least. Slices are
// read, converted and written when it is their turn, each by one thread, so
// nothing is in memory but what the threads are at. Groups, numbers, step
// counts, aliases and blobs are carried over.

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

// More would take a reader longer to open than to read.
inline constexpr int kMaxWrittenFiles = 4096;

struct WriteCheckpointOptions {
  ConversionOptions conversion;
  // Data files, 1 to kMaxWrittenFiles; 0: as many as it has, at least 1. As
  // many ranks are said to have saved it, unless there are blobs: those belong
  // to the ranks that did.
  int world_size = 0;
  bool overwrite = false;  // Replace a checkpoint of the same step.
  int threads = 4;
  Progress progress;  // Of the bytes of data files.
};

// As `root`/step-NNNNNN, of the step that `from` has, or 0; by the protocol of
// PendingCheckpoint, so an error or a crash leaves what was there before.
// Memory: below 64 MiB and 16 MiB per thread, beside 600 bytes and three times
// its key for each tensor, and 256 bytes for each slice beyond 2^18 of them, so
// from 16 TiB on. More than 1 TiB has larger slices; then fewer threads are
// used. Errors: those of PendingCheckpoint, Read and writing;
// kInvalidArgument or kResourceExhausted for what a checkpoint cannot hold, and
// kUnimplemented for tensors of types that libshard does not read, before
// anything is written; kCancelled.
Status WriteCheckpoint(FileEnv* env, const FileStore& from,
                       const std::string& root,
                       const WriteCheckpointOptions& options);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_WRITE_CHECKPOINT_H_
