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

#include "api/per_process.h"

namespace shard::api {

enum class TextKind {
  kWarnings,         // The warnings of a plan.
  kParamName,        // By the number of the name.
  kModuleName,       // By ModuleId.
  kModelBufferName,  // By HostTensorId.
  kFileName,         // By number in the checkpoint, here and below.
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
    Texts& texts = texts_.Get();
    const std::lock_guard<std::mutex> lock(texts.mutex);
    auto found = texts.by_id.find(id);
    if (found == texts.by_id.end()) {
      found = texts.by_id.emplace(id, std::string(make())).first;
    }
    return found->second.c_str();  // Nodes of a map do not move.
  }

 private:
  struct Texts {
    std::mutex mutex;  // Guards `by_id`.
    std::map<std::pair<TextKind, int64_t>, std::string> by_id;
  };

  PerProcess<Texts> texts_;
};

}  // namespace shard::api

#endif  // SHARD_API_TEXT_CACHE_H_
