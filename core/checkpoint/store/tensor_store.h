// SPDX-License-Identifier: Apache-2.0
//
// TensorStore: named tensors in files, to read. A checkpoint is a store, and so
// is a safetensors file or a set of them; loading, comparing and converting use
// this interface only.
//
// A store keeps its files open from the beginning: a checkpoint that is
// replaced or deleted meanwhile can still be read as it was. With more files
// than may be open at once (core/base/pooled_file.h), some are opened again
// when they are read; reading one that was deleted meanwhile is then an error.
// Immutable; any number of threads may use it.

#ifndef SHARD_CORE_CHECKPOINT_STORE_TENSOR_STORE_H_
#define SHARD_CORE_CHECKPOINT_STORE_TENSOR_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "core/base/status.h"
#include "core/checkpoint/store/progress.h"
#include "core/checkpoint/store/tensor_info.h"

namespace shard {

// Elements [begin, begin + numel) of a tensor; see StoredNumel.
struct ReadRequest {
  size_t tensor;
  int64_t begin;
  int64_t numel;
};

// Receives a piece of request number `request`: `numel` elements from `begin`
// (counted from the tensor's first) at `data`, which is valid during the call
// only. Called from several threads at once, with different pieces. An error
// ends the read.
using PieceSink = std::function<Status(size_t request, int64_t begin,
                                       int64_t numel, const std::byte* data)>;

struct ReadOptions {
  int threads = 4;
  // Compare the bytes that are read with their checksums, where the format has
  // them. A checksum is over a whole slice, so up to two slices per request are
  // read beyond the requested elements.
  bool verify = true;
  // Read the bytes of tensors of ElementType::kOpaque. Without it, reading them
  // is kUnimplemented.
  bool opaque_as_bytes = false;
  Progress progress;
};

class TensorStore {
 public:
  virtual ~TensorStore() = default;

  // Returns a description for messages: "checkpoint 'ckpt/step-000042'".
  virtual std::string_view describe() const = 0;

  virtual size_t num_tensors() const = 0;
  // Describes a tensor. REQUIRES: index < num_tensors().
  virtual TensorInfo tensor(size_t index) const = 0;
  // Returns the index of the tensor with this key, or -1. O(1).
  virtual int64_t Find(std::string_view key) const = 0;

  // Returns whether elements [begin, begin + numel) of a tensor can be read
  // here. Files have all elements; a state dict in memory may have only those
  // of one rank.
  virtual bool Has(size_t /*tensor*/, int64_t /*begin*/,
                   int64_t /*numel*/) const {
    return true;
  }

  // Makes what a Read of a tensor needs for as long as the store lives, for
  // callers that must know before they read whether there is room.
  virtual Status ReserveRead(size_t /*tensor*/) const { return Status(); }

  // Reads elements. Every element of every request reaches the sink exactly
  // once, in no particular order. An alias reads as its target. Memory: a few
  // MiB per thread. Errors: those of CheckRequest; kCorrupt names tensor and
  // file; errors of the sink.
  virtual Status Read(std::span<const ReadRequest> requests,
                      const ReadOptions& options,
                      const PieceSink& sink) const = 0;
};

// Checks a request to read from files. Errors: kOutOfRange for a tensor or
// elements that the store does not have; kUnimplemented for kOpaque without
// opaque_as_bytes.
Status CheckRequest(const TensorStore& store, const ReadRequest& request,
                    const ReadOptions& options);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_STORE_TENSOR_STORE_H_
