// SPDX-License-Identifier: Apache-2.0
//
// Structs that carry their size across the ABI. Both sides may be older or
// newer than the other: an options struct shorter than ours is completed with
// zeros, a longer one is accepted when what we do not know in it is zero.

#ifndef SHARD_API_OPTIONS_H_
#define SHARD_API_OPTIONS_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "core/base/status.h"

namespace shard::api {

// Far above any struct of ours: a larger size is garbage, and is not read.
inline constexpr size_t kLargestStruct = 4096;

inline Status CheckStructSize(std::string_view name, size_t size,
                              size_t smallest) {
  if (size >= smallest && size <= kLargestStruct) return Status();
  return InvalidArgument(name, ".struct_size is ", size,
                         ", not a size this library knows (", smallest, " to ",
                         kLargestStruct,
                         "); initialize the struct with its _INIT macro");
}

// Copies the caller's options into `out`. NULL gives all defaults.
template <typename Options>
Status ReadOptions(std::string_view name, const Options* in, Options* out) {
  std::memset(static_cast<void*>(out), 0, sizeof(Options));
  if (in == nullptr) return Status();
  const size_t size = in->struct_size;
  SHARD_RETURN_IF_ERROR(CheckStructSize(name, size, sizeof(size_t)));
  const auto* bytes = reinterpret_cast<const unsigned char*>(in);
  for (size_t i = sizeof(Options); i < size; ++i) {
    if (bytes[i] != 0) {
      return InvalidArgument(name, " (struct_size ", size,
                             ") sets a field at byte ", i,
                             " that this library (", sizeof(Options),
                             " bytes) does not know; use a newer libshard");
    }
  }
  std::memcpy(static_cast<void*>(out), in, std::min(size, sizeof(Options)));
  return Status();
}

// Copies `value` to the caller's struct, as much of it as the caller knows;
// what a newer caller knows beyond that is zeroed.
template <typename Result>
Status WriteResult(std::string_view name, Result value, Result* out) {
  const size_t size = out->struct_size;
  SHARD_RETURN_IF_ERROR(CheckStructSize(name, size, sizeof(size_t)));
  std::memset(static_cast<void*>(out), 0, size);
  value.struct_size = size;
  std::memcpy(static_cast<void*>(out), &value, std::min(size, sizeof(Result)));
  return Status();
}

}  // namespace shard::api

#endif  // SHARD_API_OPTIONS_H_
