// SPDX-License-Identifier: Apache-2.0
//
// The index of a model in several safetensors files,
// model.safetensors.index.json:
//
//   {"metadata": {"total_size": 24}, "weight_map": {"KEY": "FILE", ...}}
//
// The files lie beside the index: their names are plain. SafetensorsIndex holds
// the checked contents. Immutable; any number of threads may use it.

#ifndef SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_INDEX_H_
#define SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/checkpoint/safetensors/arena.h"

namespace shard {

inline constexpr uint64_t kMaxSafetensorsIndex = 100'000'000;

class SafetensorsIndex {
 public:
  struct Entry {
    std::string_view key;
    uint32_t file = 0;  // Index into the files.
  };

  // Parses an index. Memory: at most the size of `json` and 16 MiB. O(n log n)
  // in the keys. Errors: kCorrupt says what is wrong; kResourceExhausted for an
  // index that would take more memory than that. "total_size" is not checked:
  // programs disagree on its meaning.
  static StatusOr<SafetensorsIndex> Parse(std::string_view json);

  // Returns the entries by ascending key.
  const std::deque<Entry>& entries() const { return entries_; }
  // Returns each file once, in the order in which the index first names them.
  const std::deque<std::string_view>& files() const { return files_; }

 private:
  class Builder;

  explicit SafetensorsIndex(uint64_t limit) : arena_(limit) {}

  Arena arena_;
  std::deque<Entry> entries_;
  std::deque<std::string_view> files_;
};

// Returns the text of an index. `keys` are (key, file), each key once.
// REQUIRES: all text is UTF-8.
std::string EncodeSafetensorsIndex(
    uint64_t total_size, std::vector<std::pair<std::string, std::string>> keys);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_INDEX_H_
