// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/safetensors/safetensors_export.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace shard {

Status ExportSafetensors(FileEnv* env, const TensorStore& from,
                         std::span<const size_t> tensors,
                         const std::string& path,
                         const SafetensorsExportOptions& options) {
  // The tensors whose elements are written already, where each is written once.
  // Tensors under their own names come first.
  std::vector<bool> written(from.num_tensors());
  std::vector<size_t> chosen;
  for (const bool aliases : {false, true}) {
    for (const size_t index : tensors) {
      if (index >= from.num_tensors()) {
        return OutOfRange(from.describe(), " has no tensor ", index,
                          "; it has ", from.num_tensors());
      }
      const int64_t alias_of = from.tensor(index).alias_of;
      if ((alias_of >= 0) != aliases) continue;
      const size_t target = aliases ? static_cast<size_t>(alias_of) : index;
      if (aliases && written[target] && !options.expand_aliases) continue;
      written[target] = true;
      chosen.push_back(index);
    }
  }
  std::sort(chosen.begin(), chosen.end());

  std::vector<SafetensorsTensor> to_write;
  std::vector<ReadRequest> requests;
  std::vector<uint64_t> element_sizes;
  for (const size_t index : chosen) {
    const TensorInfo info = from.tensor(index);
    to_write.push_back({.key = options.rename == nullptr
                                   ? std::string(info.key)
                                   : options.rename(info.key),
                        .type = info.type,
                        .shape = {info.shape.begin(), info.shape.end()},
                        .opaque_type = std::string(info.opaque_type),
                        .opaque_bytes = info.opaque_bytes});
    requests.push_back(
        {.tensor = index, .begin = 0, .numel = StoredNumel(info)});
    element_sizes.push_back(ElementSize(info.type));
  }
  SHARD_ASSIGN_OR_RETURN(
      const std::unique_ptr<SafetensorsWriter> writer,
      SafetensorsWriter::Create(env, path, std::move(to_write), options.write));
  ReadOptions read;
  read.threads = options.threads;
  read.opaque_as_bytes = true;
  read.progress = options.progress;
  SHARD_RETURN_IF_ERROR(from.Read(
      requests, read,
      [&](size_t request, int64_t begin, int64_t numel, const std::byte* data) {
        const uint64_t size = element_sizes[request];
        return writer->Write(
            request, static_cast<uint64_t>(begin) * size,
            std::span(data, static_cast<uint64_t>(numel) * size));
      }));
  return writer->Finish();
}

}  // namespace shard
