// SPDX-License-Identifier: Apache-2.0
//
// Opaque types: element types that libshard copies and does not read. A file
// names them as safetensors does: "C64". Some have a size that is known here;
// others, such as those of a later version of that format, have any size.
//
// Pure. The rules below are those of both file formats.

#ifndef SHARD_CORE_CHECKPOINT_STORE_OPAQUE_TYPE_H_
#define SHARD_CORE_CHECKPOINT_STORE_OPAQUE_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/status.h"

namespace shard {

inline constexpr size_t kMaxOpaqueType = 32;

// Returns whether a text may be the name of an opaque type: letters, digits and
// '_', at most kMaxOpaqueType, and not safetensors' name of a type in
// kElementTypes.
bool IsOpaqueType(std::string_view name);

// Returns the number of elements of a tensor of an opaque type.
// kInvalidArgument where elements of that type and shape cannot have so many
// bytes; a type of unknown size may have any number up to 2^63 - 1.
StatusOr<int64_t> CheckOpaqueTensor(std::string_view type,
                                    std::span<const int64_t> shape,
                                    uint64_t bytes);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_STORE_OPAQUE_TYPE_H_
