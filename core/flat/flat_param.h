// SPDX-License-Identifier: Apache-2.0
//
// FlatParam: the elements of several parameters as one, and the metadata to
// find each of them again, also when only a range of elements is at hand.
//
// Ranges of elements are inclusive pairs here, {first, last}, because that is
// the form FSDP's shard metadata has. A parameter without elements has
// last = first - 1.
//
// Threads: const members may run concurrently, others not.

#ifndef SHARD_CORE_FLAT_FLAT_PARAM_H_
#define SHARD_CORE_FLAT_FLAT_PARAM_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/status.h"

namespace shard {

struct ElementRange {
  int64_t first;
  int64_t last;  // Inclusive.

  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

// One of the parameters to be flattened.
struct FlatParamSource {
  std::string name;  // FQN.
  std::vector<int64_t> shape;
  DType dtype = DType::kF32;
  bool trainable = true;
  bool flattened = false;  // It is a flat parameter itself.
};

// Parallel lists, one entry per parameter.
struct FlatParamMetadata {
  std::vector<std::string> names;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<int64_t> numels;
  // FlatParam::Metadata: within the flat parameter. ShardMetadata: the part of
  // the parameter that is in the shard, counted from the parameter's first.
  std::vector<ElementRange> offsets;
};

// A parameter inside somebody's storage.
struct FlatParamView {
  void* data;
  const std::vector<int64_t>* shape;  // Lives as long as the FlatParam.
  int64_t numel;
};

class FlatParam {
 public:
  // Errors, naming the offender: no parameters, one that is flat already, two
  // of the same name, dtypes or trainability that differ, a negative
  // dimension, a total beyond int64.
  static StatusOr<FlatParam> Create(std::vector<FlatParamSource> sources);

  DType dtype() const { return sources_.front().dtype; }
  bool trainable() const { return sources_.front().trainable; }
  // Of all parameters together, without padding.
  int64_t full_numel() const { return full_numel_; }
  // In the shard.
  int64_t num_padded() const { return num_padded_; }

  // Makes [start, end] of the flat parameter this one's shard; its last
  // `num_padded` elements are padding. Before the first call the shard is the
  // whole. Errors, and the shard stays as it was: a negative or reversed range,
  // padding that is negative or larger than the shard.
  Status ShardByOffsets(int64_t start, int64_t end, int64_t num_padded);

  // The first and last parameter that has a part in the shard; none when the
  // shard is nothing but padding.
  std::optional<ElementRange> ParamsInShard() const { return in_shard_; }

  FlatParamMetadata Metadata() const;
  // Of the parameters in the shard.
  FlatParamMetadata ShardMetadata() const;

  // One view per parameter into `data`, which holds `numel` elements of
  // dtype(). An error that names both counts when numel is not full_numel().
  StatusOr<std::vector<FlatParamView>> Views(void* data, int64_t numel) const;

 private:
  FlatParam() = default;

  std::vector<FlatParamSource> sources_;
  std::vector<int64_t> numels_;
  std::vector<ElementRange> offsets_;
  int64_t full_numel_ = 0;
  int64_t num_padded_ = 0;
  std::optional<ElementRange> in_shard_;
  std::vector<ElementRange> shard_offsets_;
};

}  // namespace shard

#endif  // SHARD_CORE_FLAT_FLAT_PARAM_H_
