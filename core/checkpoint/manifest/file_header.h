// SPDX-License-Identifier: Apache-2.0
//
// The header of the files that libshard writes: 40 bytes before a FlatBuffer,
// the body. The header reveals every damaged byte and every wrong length before
// the body is read, and distinguishes a newer version from damage: magic and
// version stay where they are in all versions, and the version has its
// complement beside it.
//
//    0   8  magic: which format it is
//    8   4  version
//   12   4  the complement of its bits
//   16   8  bytes of the body
//   24  16  XXH3-128 of the body: its lower 64 bits, then its upper

#ifndef SHARD_CORE_CHECKPOINT_MANIFEST_FILE_HEADER_H_
#define SHARD_CORE_CHECKPOINT_MANIFEST_FILE_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/status.h"
#include "core/checkpoint/manifest/checksum.h"

namespace shard {

// A multiple of 8: the body has the alignment, up to 8 bytes, that the file has
// in memory.
inline constexpr size_t kFileHeaderBytes = 40;

struct FileFormat {
  std::string_view noun;   // "manifest", for messages.
  std::string_view magic;  // 8 characters.
  // The newest version that this library reads.
  uint32_t version;
  // Returns the most bytes of a file, with its header. REQUIRES: a version from
  // 1 on that this library reads.
  uint64_t (*max_bytes)(uint32_t version);
};

// Writes the header of `body`. `header` has kFileHeaderBytes.
void WriteFileHeader(const FileFormat& format, std::span<const std::byte> body,
                     uint32_t version, std::byte* header);

// Returns the version of a file of `file_bytes` bytes, which begins with
// `start`: kFileHeaderBytes, or the whole file if it is shorter. kCorrupt says
// what is wrong with header or length; kUnimplemented for a version that is
// newer.
StatusOr<uint32_t> ReadFileVersion(const FileFormat& format,
                                   std::span<const std::byte> start,
                                   uint64_t file_bytes);

struct FileHeader {
  uint32_t version;
  Checksum checksum;                // The checksum of the body.
  std::span<const std::byte> body;  // In the file.
};

// Returns the header of a file, after comparing the checksum of its body.
// Errors as ReadFileVersion. Any alignment.
StatusOr<FileHeader> ReadFileHeader(const FileFormat& format,
                                    std::span<const std::byte> file);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_MANIFEST_FILE_HEADER_H_
