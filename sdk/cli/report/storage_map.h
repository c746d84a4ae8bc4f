// SPDX-License-Identifier: Apache-2.0
//
// Counts the bytes that `shardctl report` draws: those of each kind of tensor
// in each file, and the places of the largest tensors. A file of a checkpoint
// is what one rank wrote.
//
// However large a checkpoint is, there are at most kMostRows rows, kMostTensors
// tensors and kMostStripes stripes of each: files and neighbouring slices are
// put together where there would be more. Pure functions of a CheckpointView,
// but for reading the places of slices.

#ifndef SHARD_SDK_CLI_REPORT_STORAGE_MAP_H_
#define SHARD_SDK_CLI_REPORT_STORAGE_MAP_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sdk/cli/checkpoint.h"

namespace shardctl {

inline constexpr size_t kMostRows = 64;
inline constexpr size_t kMostTensors = 40;
inline constexpr size_t kMostStripes = 64;

// Tensors of one role and element type. Aliases are not counted.
struct Kind {
  int32_t role = 0;
  std::string type;  // TensorView::type
  int64_t tensors = 0;
  int64_t numel = 0;
  uint64_t bytes = 0;
};

// Files first to last; one file unless there are more than kMostRows.
struct FileRow {
  size_t first = 0;
  size_t last = 0;
  std::vector<uint64_t> by_kind;  // Bytes in all files, as StorageMap::kinds.
  uint64_t tensor_bytes = 0;
  uint64_t file_bytes = 0;  // Bytes of all its files, padding included.
};

// Consecutive elements of a tensor that lie in files first to last; of
// SHARD_OPAQUE bytes.
struct Stripe {
  size_t first = 0;
  size_t last = 0;
  int64_t numel = 0;
};

struct Striped {
  size_t tensor = 0;  // In CheckpointView::tensors.
  std::vector<Stripe> stripes;
};

struct StorageMap {
  std::vector<Kind> kinds;  // By role and dtype.
  std::vector<FileRow> rows;
  size_t files_per_row = 1;
  std::vector<Striped> largest;  // By bytes, descending.
  uint64_t max_bytes = 0;        // The most tensor bytes in one file.
  double mean_bytes = 0;

  // Returns the largest file over the mean: 1 when all files hold as much, 0
  // when there is nothing.
  double imbalance() const {
    return mean_bytes > 0 ? static_cast<double>(max_bytes) / mean_bytes : 0;
  }
};

StorageMap BuildStorageMap(const CheckpointView& view);

// Puts neighbours together until there are at most kMostStripes.
std::vector<Stripe> Summarized(const std::vector<Stripe>& stripes);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_REPORT_STORAGE_MAP_H_
