// SPDX-License-Identifier: Apache-2.0
//
// Parses an index. One that is accepted is written again, with the same result.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/checkpoint/safetensors/safetensors_index.h"
#include "tests/fuzz/fuzz.h"

namespace shard {

namespace {

void CheckAccepted(const SafetensorsIndex& index) {
  std::vector<std::pair<std::string, std::string>> keys;
  for (const SafetensorsIndex::Entry& entry : index.entries()) {
    FUZZ_CHECK(entry.file < index.files().size());
    const std::string_view file = index.files()[entry.file];
    FUZZ_CHECK(!file.empty() && file != "." && file != "..");
    FUZZ_CHECK(file.find('/') == std::string_view::npos);
    keys.emplace_back(entry.key, file);
  }
  const auto again =
      SafetensorsIndex::Parse(EncodeSafetensorsIndex(keys.size(), keys));
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(again->entries().size() == keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    const SafetensorsIndex::Entry& entry = again->entries()[i];
    FUZZ_CHECK(entry.key == keys[i].first);
    FUZZ_CHECK(again->files()[entry.file] == keys[i].second);
  }
}

}  // namespace

}  // namespace shard

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto index = shard::WithinLimits(
      size, [&] { return shard::SafetensorsIndex::Parse(json); });
  if (index.ok()) {
    shard::CheckAccepted(*index);
  } else {
    FUZZ_CHECK(shard::IsValidUtf8(index.status().message()));
  }
  return 0;
}
