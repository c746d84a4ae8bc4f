// SPDX-License-Identifier: Apache-2.0
//
// The header of a manifest file: 40 bytes before the FlatBuffer, the body. It
// makes every damaged byte and every wrong length visible before anything is
// read, and tells a newer version from damage: magic and version stay where
// they are in all versions, and the version has its complement beside it.
//
//    0   8  "LIBSHARD"
//    8   4  version
//   12   4  the complement of its bits
//   16   8  bytes of the body
//   24  16  XXH3-128 of the body: its lower 64 bits, then its upper

#ifndef SHARD_CORE_CHECKPOINT_MANIFEST_MANIFEST_HEADER_H_
#define SHARD_CORE_CHECKPOINT_MANIFEST_MANIFEST_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/status.h"
#include "core/checkpoint/manifest/manifest.h"

namespace shard {

// A multiple of 8: the body is as aligned as the file is in memory.
inline constexpr size_t kManifestHeaderBytes = 40;

// What stands before `body`. `header` has kManifestHeaderBytes.
void WriteManifestHeader(std::span<const std::byte> body, uint32_t version,
                         std::byte* header);

// Returns the version of a file of `file_bytes` bytes, which begins with
// `start`: kManifestHeaderBytes, or all there are. Errors as Manifest::Parse,
// where header and length alone are wrong.
StatusOr<uint32_t> ReadManifestVersion(std::span<const std::byte> start,
                                       uint64_t file_bytes);

struct ManifestHeader {
  uint32_t version;
  std::span<const std::byte> body;  // In the file.
};

// Errors as Manifest::Parse.
StatusOr<ManifestHeader> ReadManifestHeader(std::span<const std::byte> file);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_MANIFEST_MANIFEST_HEADER_H_
