// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/checkpoint.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "sdk/cli/dtypes.h"

namespace shardctl {

namespace {

std::vector<TensorView> TensorsOf(const shard_checkpoint* handle,
                                  int64_t count) {
  std::vector<TensorView> tensors(static_cast<size_t>(count));
  for (int64_t t = 0; t < count; ++t) {
    TensorView& tensor = tensors[static_cast<size_t>(t)];
    tensor.index = t;
    Check(shard_checkpoint_tensor(handle, t, &tensor.info));
    tensor.key = TextOf(shard_checkpoint_tensor_key, handle, t);
    tensor.type = DTypeText(tensor.info.dtype);
    if (tensor.info.dtype != SHARD_OPAQUE) continue;
    tensor.type = TextOf(shard_checkpoint_tensor_type, handle, t);
    if (IsDTypeName(tensor.type)) tensor.type = "opaque " + tensor.type;
  }
  return tensors;
}

std::vector<BlobView> BlobsOf(const shard_checkpoint* handle, int32_t count) {
  std::vector<BlobView> blobs(static_cast<size_t>(count));
  for (int32_t b = 0; b < count; ++b) {
    BlobView& blob = blobs[static_cast<size_t>(b)];
    const char* name = nullptr;
    Check(shard_checkpoint_blob_info(handle, b, &name, &blob.rule, &blob.rank));
    blob.name = name;
    size_t bytes = 0;
    Check(shard_checkpoint_blob(handle, b, nullptr, 0, &bytes));
    blob.bytes = bytes;
  }
  return blobs;
}

}  // namespace

void AddNumel(const TensorView& tensor, int64_t* sum) {
  if (__builtin_add_overflow(*sum, tensor.info.numel, sum)) *sum = INT64_MAX;
}

Checkpoint OpenCheckpoint(const std::string& path) {
  shard_checkpoint* handle = nullptr;
  Check(shard_checkpoint_open(path.c_str(), &handle));
  return Checkpoint(handle);
}

CheckpointView ReadCheckpoint(const std::string& path) {
  CheckpointView view;
  view.handle = OpenCheckpoint(path);
  const shard_checkpoint* const handle = view.handle.get();
  view.path = TextOf(shard_checkpoint_path, handle);
  Check(shard_checkpoint_get_info(handle, &view.info));
  view.tensors = TensorsOf(handle, view.info.num_tensors);
  for (int32_t f = 0; f < view.info.num_files; ++f) {
    FileView file;
    const char* name = nullptr;
    Check(shard_checkpoint_file(handle, f, &name, &file.bytes));
    file.name = name;
    view.files.push_back(std::move(file));
  }
  for (int32_t g = 0; g < view.info.num_groups; ++g) {
    view.groups.push_back(TextOf(shard_checkpoint_group, handle, g));
  }
  for (int32_t s = 0; s < view.info.num_scalars; ++s) {
    ScalarView scalar;
    const char* name = nullptr;
    Check(shard_checkpoint_scalar(handle, s, &name, &scalar.value));
    scalar.name = name;
    view.scalars.push_back(std::move(scalar));
  }
  view.blobs = BlobsOf(handle, view.info.num_blobs);
  return view;
}

std::string RoleText(int32_t role) {
  switch (role) {
    case SHARD_ROLE_PARAM:
      return "param";
    case SHARD_ROLE_BUFFER:
      return "buffer";
    case SHARD_ROLE_STATE:
      return "state";
  }
  return "role " + std::to_string(role);
}

std::string BlobRuleText(int32_t rule) {
  switch (rule) {
    case SHARD_BLOB_PER_RANK:
      return "per_rank";
    case SHARD_BLOB_REPLICATED:
      return "replicated";
    case SHARD_BLOB_SUMMED:
      return "summed";
  }
  return "rule " + std::to_string(rule);
}

std::string FormatText(int32_t format) {
  return format == SHARD_FORMAT_CHECKPOINT ? "checkpoint" : "safetensors";
}

std::string IdText(const shard_checkpoint_info& info) {
  if (info.id_low == 0 && info.id_high == 0) return "";
  char text[40];
  std::snprintf(text, sizeof(text), "%016llx%016llx",
                static_cast<unsigned long long>(info.id_high),
                static_cast<unsigned long long>(info.id_low));
  return text;
}

int32_t ParseContent(const std::string& name) {
  if (name == "all") return SHARD_CONTENT_ALL;
  if (name == "model") return SHARD_CONTENT_MODEL;
  if (name == "optimizer") return SHARD_CONTENT_OPTIMIZER;
  throw Failure("unknown content '" + name + "'; give all, model or optimizer");
}

shard_tensor_slice SliceOf(const shard_checkpoint* checkpoint, int64_t tensor,
                           int32_t index) {
  shard_tensor_slice slice = SHARD_TENSOR_SLICE_INIT;
  Check(shard_checkpoint_slice(checkpoint, tensor, index, &slice));
  return slice;
}

std::vector<Piece> PiecesOf(const shard_checkpoint* checkpoint,
                            const TensorView& tensor) {
  std::vector<Piece> pieces;
  const size_t size = tensor.stored_size();
  if (size == 0) {
    throw Failure("tensor '" + tensor.key + "' has elements of " + tensor.type +
                  ", which this shardctl cannot read; a newer one may");
  }
  for (int32_t s = 0; s < tensor.info.num_slices; ++s) {
    const shard_tensor_slice slice = SliceOf(checkpoint, tensor.index, s);
    const int64_t most = slice.has_checksum != 0
                             ? slice.numel
                             : static_cast<int64_t>(kPieceBytes / size);
    const int64_t end = slice.begin + slice.numel;
    for (int64_t at = slice.begin; at < end;) {
      const int64_t numel = std::min(most, end - at);
      pieces.push_back({at, numel});
      at += numel;
    }
  }
  return pieces;
}

void ReadPiece(const shard_checkpoint* checkpoint, const TensorView& tensor,
               const Piece& piece, std::vector<std::byte>* bytes) {
  bytes->resize(static_cast<size_t>(piece.numel) * tensor.stored_size());
  Check(shard_checkpoint_read(checkpoint, tensor.index, piece.begin,
                              piece.numel, bytes->data(), bytes->size()));
}

Json SummaryJson(const CheckpointView& view) {
  const shard_checkpoint_info& info = view.info;
  const std::string id = IdText(info);
  return {{"path", view.path},
          {"format", FormatText(info.format)},
          {"version", info.version > 0 ? Json(info.version) : Json()},
          {"id", id.empty() ? Json() : Json(id)},
          {"step", info.step >= 0 ? Json(info.step) : Json()},
          {"world_size", info.world_size > 0 ? Json(info.world_size) : Json()},
          {"tensor_bytes", info.tensor_bytes},
          {"file_bytes", info.file_bytes}};
}

Json ShapeJson(const shard_tensor_info& info) {
  return std::vector<int64_t>(info.shape, info.shape + info.ndim);
}

}  // namespace shardctl
