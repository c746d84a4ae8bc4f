// SPDX-License-Identifier: Apache-2.0
//
// Structs that carry their size across the ABI. Both sides may be older or
// newer than the other: an options struct shorter than ours is completed with
// zeros, a longer one is accepted when what we do not know in it is zero.

#ifndef SHARD_API_OPTIONS_H_
#define SHARD_API_OPTIONS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "core/base/status.h"

namespace shard::api {

// Far above any struct of ours: a larger size is garbage, and is not read.
inline constexpr size_t kLargestStruct = 4096;

// Fields are 8 bytes, or pairs of 4: a size that ends within one is garbage.
inline constexpr size_t kFieldBytes = 8;

inline Status CheckStructSize(std::string_view name, size_t size) {
  if (size >= sizeof(size_t) && size <= kLargestStruct &&
      size % kFieldBytes == 0) {
    return Status();
  }
  return InvalidArgument(name, ".struct_size is ", size,
                         ", not a size this library knows (a multiple of ",
                         kFieldBytes, " from ", sizeof(size_t), " to ",
                         kLargestStruct,
                         "); initialize the struct with its _INIT macro");
}

// Checks that a field without a meaning is 0, so that it can get one later.
inline Status CheckReserved(std::string_view name, int32_t reserved) {
  if (reserved == 0) return Status();
  return InvalidArgument(name, ".reserved is ", reserved, ", not 0");
}

inline StatusOr<bool> ReadFlag(std::string_view name, int32_t flag) {
  if (flag == 0 || flag == 1) return flag == 1;
  return InvalidArgument(name, " is ", flag, "; allowed: 0 or 1");
}

// Reads a number of threads that read or write files.
inline StatusOr<int> ReadThreads(int32_t threads) {
  constexpr int kDefault = 4;
  constexpr int kMost = 256;
  if (threads == 0) return kDefault;
  if (threads > 0 && threads <= kMost) return threads;
  return InvalidArgument("threads is ", threads, "; allowed: 1 to ", kMost,
                         ", or 0 for ", kDefault);
}

// Copies the caller's options into `out`. NULL gives all defaults.
template <typename Options>
Status ReadOptions(std::string_view name, const Options* in, Options* out) {
  std::memset(static_cast<void*>(out), 0, sizeof(Options));
  if (in == nullptr) return Status();
  const size_t size = in->struct_size;
  SHARD_RETURN_IF_ERROR(CheckStructSize(name, size));
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

// Zeroes what the caller knows of a result struct, before anything can fail.
template <typename Result>
Status ClearResult(std::string_view name, Result* out) {
  const size_t size = out->struct_size;
  SHARD_RETURN_IF_ERROR(CheckStructSize(name, size));
  std::memset(static_cast<void*>(out), 0, size);
  out->struct_size = size;
  return Status();
}

// Clears the result of a collective call whose handle is NULL: that error
// cannot be told to other ranks, so it is returned before the options are read,
// which clears the result elsewhere.
template <typename Result>
void ClearWithoutHandle(const void* handle, std::string_view name,
                        Result* out) {
  if (handle == nullptr && out != nullptr) (void)ClearResult(name, out).ok();
}

// Copies `value` to the caller's struct, as much of it as the caller knows.
// REQUIRES: ClearResult succeeded.
template <typename Result>
void WriteResult(Result value, Result* out) {
  const size_t size = out->struct_size;
  value.struct_size = size;
  std::memcpy(static_cast<void*>(out), &value, std::min(size, sizeof(Result)));
}

}  // namespace shard::api

#endif  // SHARD_API_OPTIONS_H_
