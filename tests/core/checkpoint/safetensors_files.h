// SPDX-License-Identifier: Apache-2.0
//
// Writes safetensors and reads them again, for the tests of the writer and of
// the export.

#ifndef SHARD_TESTS_CORE_CHECKPOINT_SAFETENSORS_FILES_H_
#define SHARD_TESTS_CORE_CHECKPOINT_SAFETENSORS_FILES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/file_env.h"
#include "core/checkpoint/safetensors/safetensors_store.h"
#include "core/checkpoint/safetensors/safetensors_writer.h"
#include "tests/core/base/expect_status.h"

namespace shard::testing {

inline std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

inline auto CreateWriter(const std::string& path,
                         std::vector<SafetensorsTensor> tensors,
                         const SafetensorsWriteOptions& options = {}) {
  return SafetensorsWriter::Create(FileEnv::Posix(), path, std::move(tensors),
                                   options);
}

inline std::unique_ptr<SafetensorsStore> OpenSafetensors(
    const std::string& path) {
  auto store = SafetensorsStore::Open(FileEnv::Posix(), path);
  EXPECT_OK(store);
  return store.ok() ? *std::move(store) : nullptr;
}

// Returns the bytes of a tensor, of an opaque type too, or "(none)".
inline std::string ReadTensor(const TensorStore& store, std::string_view key) {
  const int64_t index = store.Find(key);
  if (index < 0) return "(none)";
  const TensorInfo info = store.tensor(static_cast<size_t>(index));
  const size_t size = ElementSize(info.type);
  std::string result(TensorBytes(info), '?');
  const ReadRequest request = {static_cast<size_t>(index), 0,
                               StoredNumel(info)};
  const ReadOptions options = {.opaque_as_bytes = true};
  EXPECT_OK(store.Read(
      std::span(&request, 1), options,
      [&](size_t, int64_t begin, int64_t numel, const std::byte* data) {
        std::memcpy(result.data() + static_cast<size_t>(begin) * size, data,
                    static_cast<size_t>(numel) * size);
        return Status();
      }));
  return result;
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_CHECKPOINT_SAFETENSORS_FILES_H_
