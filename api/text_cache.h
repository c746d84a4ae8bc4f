// SPDX-License-Identifier: Apache-2.0
//
// TextCache: the texts that an immutable handle gives out as C strings. Each
// text is made at the first request, and lives as long as the handle.
//
// Thread-safe.

#ifndef SHARD_API_TEXT_CACHE_H_
#define SHARD_API_TEXT_CACHE_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace shard::api {

enum class TextKind {
  kWarnings,         // Of a plan.
  kParamName,        // By the number of the name.
  kModuleName,       // By ModuleId.
  kModelBufferName,  // By HostTensorId.
  kFileName,         // Of a checkpoint, here and below, by number.
  kGroup,
  kScalarName,
  kBlobName,
};

class TextCache {
 public:
  // Returns text `number` of a kind. At the first request `make` makes the
  // text: anything that constructs a std::string, without a NUL in it.
  template <typename Make>
  const char* Get(TextKind kind, int64_t number, const Make& make) const {
    const std::pair id(kind, number);
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = texts_.find(id);
    if (found == texts_.end()) {
      found = texts_.emplace(id, std::string(make())).first;
    }
    return found->second.c_str();  // Nodes of a map do not move.
  }

 private:
  mutable std::mutex mutex_;
  mutable std::map<std::pair<TextKind, int64_t>, std::string> texts_;
};

}  // namespace shard::api

#endif  // SHARD_API_TEXT_CACHE_H_
