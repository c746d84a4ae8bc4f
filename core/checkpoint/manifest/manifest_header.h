// SPDX-License-Identifier: Apache-2.0
//
// The header of a manifest file: the header of file_header.h, with LIBSHARD as
// its magic.

#ifndef SHARD_CORE_CHECKPOINT_MANIFEST_MANIFEST_HEADER_H_
#define SHARD_CORE_CHECKPOINT_MANIFEST_MANIFEST_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/status.h"
#include "core/checkpoint/manifest/file_header.h"
#include "core/checkpoint/manifest/manifest.h"

namespace shard {

inline constexpr FileFormat kManifestFormat = {
    "manifest", "LIBSHARD", kManifestVersion,
    [](uint32_t version) { return LimitsOf(version).bytes; }};

inline constexpr size_t kManifestHeaderBytes = kFileHeaderBytes;

// Writes the header of `body`. `header` has kManifestHeaderBytes.
inline void WriteManifestHeader(std::span<const std::byte> body,
                                uint32_t version, std::byte* header) {
  WriteFileHeader(kManifestFormat, body, version, header);
}

// Returns the version of a file of `file_bytes` bytes, which begins with
// `start`: kManifestHeaderBytes, or the whole file if it is shorter. Errors as
// Manifest::Parse, for a wrong header or length only.
inline StatusOr<uint32_t> ReadManifestVersion(std::span<const std::byte> start,
                                              uint64_t file_bytes) {
  return ReadFileVersion(kManifestFormat, start, file_bytes);
}

// Returns the header of a manifest file. Errors as Manifest::Parse.
inline StatusOr<FileHeader> ReadManifestHeader(
    std::span<const std::byte> file) {
  return ReadFileHeader(kManifestFormat, file);
}

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_MANIFEST_MANIFEST_HEADER_H_
