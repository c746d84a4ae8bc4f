// SPDX-License-Identifier: Apache-2.0
//
// CheckpointDraft: a checkpoint that is made from a store, before its files are
// written: all of the manifest but the checksums, and what lies where.

#ifndef SHARD_CORE_CHECKPOINT_CHECKPOINT_DRAFT_H_
#define SHARD_CORE_CHECKPOINT_CHECKPOINT_DRAFT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/checkpoint/data/data_layout.h"
#include "core/checkpoint/data/file_store.h"
#include "core/checkpoint/manifest/manifest.h"
#include "core/checkpoint/store/converting_store.h"

namespace shard {

struct CheckpointDraft {
  // What goes into a file, in the order of offsets.
  struct Piece {
    bool blob;
    size_t index;  // Of the tensor or blob.
    size_t slice;  // Of a tensor.
  };
  // A data file.
  struct Output {
    DataLayout layout;
    std::vector<Piece> pieces;
    uint64_t pieces_bytes = 0;  // Of the file, up to the end of the pieces.
    std::vector<size_t> large_blobs;  // Behind the pieces.
  };

  Extent& ExtentOf(const Piece& piece) {
    if (piece.blob) return contents.blobs[piece.index].extent;
    return contents.tensors[piece.index].slices[piece.slice].extent;
  }

  ManifestContents contents;
  uint64_t slice_bytes = 0;
  std::vector<Output> outputs;
};

// Drafts a checkpoint of what `store`, which converts `from`, has, with
// `files` data files (0: as many as `from` has, at least 1). Errors:
// kInvalidArgument, kUnimplemented or kResourceExhausted for what a checkpoint
// cannot hold.
StatusOr<CheckpointDraft> DraftCheckpoint(const FileStore& from,
                                          const ConvertingStore& store,
                                          int files);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_CHECKPOINT_DRAFT_H_
