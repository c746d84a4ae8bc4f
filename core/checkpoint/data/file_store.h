// SPDX-License-Identifier: Apache-2.0
//
// FileStore: a TensorStore that also says in which files its tensors lie, for
// callers that list, copy or check files. Checkpoints and safetensors are its
// formats; a checkpoint has a manifest().

#ifndef SHARD_CORE_CHECKPOINT_DATA_FILE_STORE_H_
#define SHARD_CORE_CHECKPOINT_DATA_FILE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/checkpoint/manifest/manifest.h"
#include "core/checkpoint/store/tensor_store.h"

namespace shard {

// Receives a piece of a blob, `offset` bytes from its beginning. The piece is
// valid during the call only. An error ends the read.
using BlobSink =
    std::function<Status(uint64_t offset, std::span<const std::byte> piece)>;

class FileStore : public TensorStore {
 public:
  // Returns the path of the folder or file.
  virtual const std::string& path() const = 0;
  // Returns the manifest of a checkpoint; null: the store has none, and slices
  // have no checksums.
  virtual const Manifest* manifest() const = 0;

  // Describe the data files. REQUIRES, for both: file < num_files().
  virtual size_t num_files() const = 0;
  virtual std::string_view file_name(size_t file) const = 0;
  virtual uint64_t file_bytes(size_t file) const = 0;
  // Returns the bytes of the manifest or index, which is not a data file.
  virtual uint64_t index_bytes() const = 0;

  // Return the slices of a tensor by ascending first element; for an alias, the
  // slices of its target. A tensor without elements has none. REQUIRES, for
  // both: numbers that exist.
  virtual size_t num_slices(size_t tensor) const = 0;
  virtual Slice slice(size_t tensor, size_t index) const = 0;

  // Read the blobs of manifest(). Errors, for both: kOutOfRange for a number
  // that does not exist; errors of reading.
  //
  // Reads a blob in pieces of at most some MiB, one after the other, then
  // compares its checksum: after kCorrupt, the sink must discard its pieces.
  // `sink` may be null.
  virtual Status StreamBlob(size_t index, const BlobSink& sink) const = 0;
  // Returns a whole blob. kResourceExhausted when it does not fit into the
  // host's memory.
  StatusOr<std::vector<std::byte>> ReadBlob(size_t index) const;

  // Reads every byte of every file. `problems` gets one line for each error,
  // with tensor and file, in the order of files and offsets; the result is an
  // error only where reading was not possible.
  virtual Status Verify(const ReadOptions& options,
                        std::vector<std::string>* problems) const = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_DATA_FILE_STORE_H_
