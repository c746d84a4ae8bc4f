// SPDX-License-Identifier: Apache-2.0
//
// Checks that bytes are a FlatBuffer of schema/manifest.fbs that can be read
// without further checks: every object inside of it and aligned, and no byte
// part of two objects (flatbuffer_walk.h). And what one reads from its tables.

#ifndef SHARD_CORE_CHECKPOINT_MANIFEST_MANIFEST_STRUCTURE_H_
#define SHARD_CORE_CHECKPOINT_MANIFEST_MANIFEST_STRUCTURE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/status.h"
#include "core/checkpoint/schema/manifest_generated.h"

namespace shard {

// Returns the manifest in `body`. REQUIRES: `body` is aligned to 8 bytes and
// has less than 2 GiB.
StatusOr<const schema::Manifest*> ReadManifestBody(
    std::span<const std::byte> body);

// Return the number of elements of a vector, and the characters of a string; of
// one that is absent, none.
template <typename T>
uint32_t CountOf(const flatbuffers::Vector<T>* vector) {
  return vector == nullptr ? 0 : vector->size();
}
inline std::string_view TextOf(const flatbuffers::String* text) {
  return text == nullptr ? std::string_view()
                         : std::string_view(text->c_str(), text->size());
}

// Returns the dimensions of a tensor of such a manifest.
std::span<const int64_t> ShapeOf(const schema::Tensor& tensor);

// Returns the product of the dimensions, and the number of stored elements
// (tensor_info.h). REQUIRES, for both: shape, type and bytes were checked, and
// the tensor is no alias of an opaque one for StoredNumel.
int64_t NumelOf(const schema::Tensor& tensor);
int64_t StoredNumel(const schema::Tensor& tensor);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_MANIFEST_MANIFEST_STRUCTURE_H_
