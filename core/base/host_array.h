// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_BASE_HOST_ARRAY_H_
#define SHARD_CORE_BASE_HOST_ARRAY_H_

#include <cstddef>
#include <span>
#include <string_view>

#include "core/base/status.h"

namespace shard {

// Checks the length of an array that the host passes, before an element is read
// or memory is allocated for a copy. `name` is the array's name in shard.h;
// `most` is the number of `things` that exist, so a greater count is garbage.
template <typename T>
Status CheckHostArray(std::string_view name, std::span<const T> array,
                      size_t most, std::string_view things) {
  if (array.size() > most) {
    return InvalidArgument("the count of ", name, " is ", array.size(),
                           ", but there are ", most, " ", things);
  }
  if (array.data() == nullptr && !array.empty()) {
    return InvalidArgument(name, " is NULL, but its count is ", array.size());
  }
  return Status();
}

}  // namespace shard

#endif  // SHARD_CORE_BASE_HOST_ARRAY_H_
