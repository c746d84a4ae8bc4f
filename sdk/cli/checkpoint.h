// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint, or a safetensors file, as commands see it: the information that
// shard.h gives of it, read once into plain structs.
//
// Tensors are numbered as in shard.h. Keys, names and paths are as they are
// stored: code that prints them uses Shown (sdk/cli/text.h).

#ifndef SHARD_SDK_CLI_CHECKPOINT_H_
#define SHARD_SDK_CLI_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "sdk/cli/handles.h"
#include "sdk/cli/text.h"
#include "shard/shard.h"

namespace shardctl {

struct TensorView {
  int64_t index = 0;
  std::string key;
  shard_tensor_info info = SHARD_TENSOR_INFO_INIT;
  // "f32"; for SHARD_OPAQUE the file's name, "C64", or "opaque f32" where that
  // is the name of another type.
  std::string type;

  bool is_alias() const { return info.alias_of >= 0; }
  // Return the elements that slices and pieces count, and the bytes of one;
  // SHARD_OPAQUE counts bytes. 0 bytes: a type that this program does not know.
  int64_t stored_numel() const {
    return info.dtype == SHARD_OPAQUE ? static_cast<int64_t>(info.bytes)
                                      : info.numel;
  }
  size_t stored_size() const {
    return info.dtype == SHARD_OPAQUE ? 1 : shard_dtype_size(info.dtype);
  }
};

struct FileView {
  std::string name;
  uint64_t bytes = 0;
};

struct ScalarView {
  std::string name;
  double value = 0;
};

struct BlobView {
  std::string name;
  int32_t rule = 0;
  int32_t rank = 0;
  uint64_t bytes = 0;
};

struct CheckpointView {
  Checkpoint handle;
  std::string path;
  shard_checkpoint_info info = SHARD_CHECKPOINT_INFO_INIT;
  std::vector<TensorView> tensors;
  std::vector<FileView> files;
  std::vector<std::string> groups;
  std::vector<ScalarView> scalars;
  std::vector<BlobView> blobs;

  bool is_safetensors() const {
    return info.format == SHARD_FORMAT_SAFETENSORS;
  }
};

// Adds the number of a tensor's elements to `sum`, which stays at INT64_MAX
// when it gets there: a file may claim any shape for a type of unknown size.
void AddNumel(const TensorView& tensor, int64_t* sum);

// Opens a checkpoint or safetensors. Throws Failure.
Checkpoint OpenCheckpoint(const std::string& path);
CheckpointView ReadCheckpoint(const std::string& path);

// Returns the name of a role: "param", "buffer", "state".
std::string RoleText(int32_t role);
// Returns the name of a blob rule: "per_rank", "replicated", "summed".
std::string BlobRuleText(int32_t rule);
// Returns the name of a format: "checkpoint", "safetensors".
std::string FormatText(int32_t format);
// Returns the id of the manifest: 32 hexadecimal digits, or "" when there is
// none.
std::string IdText(const shard_checkpoint_info& info);

// Returns the SHARD_CONTENT_* of a --content: "all", "model" or "optimizer".
int32_t ParseContent(const std::string& name);

shard_tensor_slice SliceOf(const shard_checkpoint* checkpoint, int64_t tensor,
                           int32_t index);

// A piece of a tensor: at most kPieceBytes, or one slice that is larger. A
// slice of a checkpoint has one checksum, so it is always read whole.
struct Piece {
  int64_t begin = 0;
  int64_t numel = 0;
};
inline constexpr uint64_t kPieceBytes = uint64_t{16} << 20;
std::vector<Piece> PiecesOf(const shard_checkpoint* checkpoint,
                            const TensorView& tensor);

// Reads a piece into `bytes`, which is resized to it.
void ReadPiece(const shard_checkpoint* checkpoint, const TensorView& tensor,
               const Piece& piece, std::vector<std::byte>* bytes);

// Returns the keys that every JSON document of a checkpoint begins with: path,
// format, version, id, step, world_size, tensor_bytes, file_bytes.
Json SummaryJson(const CheckpointView& view);
Json ShapeJson(const shard_tensor_info& info);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_CHECKPOINT_H_
