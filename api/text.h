// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_API_TEXT_H_
#define SHARD_API_TEXT_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "api/error.h"
#include "core/base/status.h"

namespace shard::api {

// Copies a text that changes, or is made on request, to the host's buffer: see
// "Text" in base.h.
inline Status CopyText(std::string_view text, char* buffer, size_t capacity,
                       size_t* length) {
  SHARD_API_REQUIRE(length);
  if (capacity > 0) {
    SHARD_API_REQUIRE(buffer);
    const size_t copied = std::min(text.size(), capacity - 1);
    std::memcpy(buffer, text.data(), copied);
    buffer[copied] = '\0';
  }
  *length = text.size();
  return Status();
}

}  // namespace shard::api

#endif  // SHARD_API_TEXT_H_
