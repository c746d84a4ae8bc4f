// SPDX-License-Identifier: Apache-2.0
//
// ConvertingStore: some of another store's tensors, in the same order, with
// elements of another type. Elements are converted when they are read.
//
// Where q8 is decoded, the tensors of its scales are left out. Elements that
// are not floats, and 8-bit floats, keep their type.
//
// Immutable; any number of threads may use it.

#ifndef SHARD_CORE_CHECKPOINT_STORE_CONVERTING_STORE_H_
#define SHARD_CORE_CHECKPOINT_STORE_CONVERTING_STORE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/checkpoint/store/tensor_store.h"

namespace shard {

struct ConversionOptions {
  bool model = true;   // Parameters and buffers.
  bool states = true;  // States of the optimizer.
  // The type to which floats, q8 too, are converted: kF32, kBF16, kF16 or kF64.
  // None: they keep their type.
  std::optional<DType> dtype;
  // Without a dtype, q8 becomes f32.
  bool decode_q8 = false;
};

class ConvertingStore final : public TensorStore {
 public:
  // `from` must outlive this. O(tensors).
  ConvertingStore(const TensorStore& from, const ConversionOptions& options);

  std::string_view describe() const override { return from_.describe(); }
  size_t num_tensors() const override { return tensors_.size(); }
  TensorInfo tensor(size_t index) const override;
  int64_t Find(std::string_view key) const override;
  Status Read(std::span<const ReadRequest> requests, const ReadOptions& options,
              const PieceSink& sink) const override;

  // Returns the number of a tensor in `from`. REQUIRES: index < num_tensors().
  size_t source(size_t index) const { return tensors_[index].source; }

 private:
  struct Tensor {
    size_t source;
    ElementType type;
    int64_t alias_of;  // In this store.
  };

  const TensorStore& from_;
  std::vector<Tensor> tensors_;
  std::vector<int64_t> index_of_;  // By tensor of `from`; -1: left out.
};

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_STORE_CONVERTING_STORE_H_
