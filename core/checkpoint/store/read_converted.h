// SPDX-License-Identifier: Apache-2.0
//
// Reads tensors of a store as elements of other types, with the same conversion
// for loads into an engine and for writing other files.

#ifndef SHARD_CORE_CHECKPOINT_STORE_READ_CONVERTED_H_
#define SHARD_CORE_CHECKPOINT_STORE_READ_CONVERTED_H_

#include <cstdint>
#include <span>

#include "core/base/status.h"
#include "core/checkpoint/store/tensor_info.h"
#include "core/checkpoint/store/tensor_store.h"

namespace shard {

struct ConvertedRequest {
  ReadRequest elements;
  // The type to convert to: the stored type, or else f32, bf16, f16 or f64 from
  // one of these or from q8.
  ElementType type;
};

// Returns whether elements can be converted, given the scales of q8.
bool CanConvert(ElementType from, ElementType to);

// Reads like TensorStore::Read, but the sink gets elements of the requested
// type, rounded to nearest, and progress counts their bytes. q8 is decoded by
// its scales, which are read first. Memory beside the store's: 4 MiB per
// thread, and 4 MiB of scales. Errors also: kInvalidArgument for types that do
// not convert, kCorrupt for q8 without scales.
Status ReadConverted(const TensorStore& store,
                     std::span<const ConvertedRequest> requests,
                     const ReadOptions& options, const PieceSink& sink);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_STORE_READ_CONVERTED_H_
