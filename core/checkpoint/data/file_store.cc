// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/data/file_store.h"

#include <algorithm>

#include "core/base/host_memory.h"
#include "core/base/strings.h"

namespace shard {

StatusOr<std::vector<std::byte>> FileStore::ReadBlob(size_t index) const {
  std::vector<std::byte> content;
  const auto keep = [&](uint64_t offset, std::span<const std::byte> piece) {
    std::copy(piece.begin(), piece.end(), content.begin() + offset);
    return Status();
  };
  if (manifest() != nullptr && index < manifest()->num_blobs()) {
    const BlobInfo info = manifest()->blob(index);
    SHARD_RETURN_IF_ERROR(
        CheckHostMemory(info.extent.bytes)
            .WithContext(StrCat("reading blob '", info.name, "' of rank ",
                                info.rank, " in ", describe())));
    content.resize(info.extent.bytes);
  }
  SHARD_RETURN_IF_ERROR(StreamBlob(index, keep));
  return content;
}

}  // namespace shard
