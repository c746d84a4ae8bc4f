// SPDX-License-Identifier: Apache-2.0
//
// CheckpointDraft: a checkpoint that is made from a store, before its files are
// written: the manifest without checksums, and the place of each piece.

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
  // A part of a file; parts are in the order of offsets.
  struct Piece {
    bool blob;
    size_t index;  // Number of the tensor or blob.
    size_t slice;  // Number in the tensor.
  };
  // A data file.
  struct Output {
    DataLayout layout;
    std::vector<Piece> pieces;
    uint64_t pieces_bytes = 0;        // Bytes up to the end of the pieces.
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

// Drafts a checkpoint of the tensors of `store`, which converts `from`, with
// `files` data files (0: as many as `from` has, at least 1). Errors:
// kInvalidArgument, kUnimplemented or kResourceExhausted for contents that a
// checkpoint cannot hold.
StatusOr<CheckpointDraft> DraftCheckpoint(const FileStore& from,
                                          const ConvertingStore& store,
                                          int files);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_CHECKPOINT_DRAFT_H_
