// SPDX-License-Identifier: Apache-2.0
//
// The contents of checkpoints and state dicts: the structs of
// shard/checkpoint.h, with shapes and ids for numbers.

#ifndef SHARD_CHECKPOINT_INFO_HPP_
#define SHARD_CHECKPOINT_INFO_HPP_

#include <cstdint>
#include <string_view>

#include "shard/checkpoint.h"
#include "shard/engine.hpp"
#include "shard/layout.hpp"
#include "shard/types.hpp"

namespace shard {

using LoadReport = shard_load_report;
using CheckpointInfo = shard_checkpoint_info;
using TensorSlice = shard_tensor_slice;

// Formats that checkpoints are read from: Format{info.format}.
enum class Format : shard_format {
  checkpoint = SHARD_FORMAT_CHECKPOINT,
  safetensors = SHARD_FORMAT_SAFETENSORS
};

enum class Role : shard_role {
  param = SHARD_ROLE_PARAM,
  buffer = SHARD_ROLE_BUFFER,
  state = SHARD_ROLE_STATE
};

// A tensor: shard_tensor_info.
struct TensorInfo {
  DType dtype;
  Role role;
  std::int64_t alias_of;
  std::int64_t numel;
  std::uint64_t bytes;
  bool trainable;
  GroupId group;
  std::int32_t num_slices;
  std::int64_t step;
  Shape shape;
};

// Names in these live as long as the checkpoint.
struct FileInfo {
  std::string_view name;
  std::uint64_t bytes;
};
struct Scalar {
  std::string_view name;
  double value;
};
struct BlobInfo {
  std::string_view name;
  BlobRule rule;
  std::int32_t rank;
};

namespace detail {

inline TensorInfo from_c(const shard_tensor_info& c) {
  return {
      .dtype = DType{c.dtype},
      .role = Role{c.role},
      .alias_of = c.alias_of,
      .numel = c.numel,
      .bytes = c.bytes,
      .trainable = c.trainable != 0,
      .group = GroupId{c.group},
      .num_slices = c.num_slices,
      .step = c.step,
      .shape = shape_of(c.shape, c.ndim),
  };
}

}  // namespace detail
}  // namespace shard

#endif  // SHARD_CHECKPOINT_INFO_HPP_
