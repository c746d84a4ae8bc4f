// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/manifest/file_header.h"

#include <algorithm>
#include <cstring>

namespace shard {

namespace {

constexpr size_t kMagicBytes = 8;
constexpr size_t kVersionEnd = 16;

template <typename T>
T Load(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

template <typename T>
void Store(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof(value));
}

}  // namespace

void WriteFileHeader(const FileFormat& format, std::span<const std::byte> body,
                     uint32_t version, std::byte* header) {
  const Checksum checksum = ChecksumOf(body.data(), body.size());
  std::memcpy(header, format.magic.data(), kMagicBytes);
  Store<uint32_t>(version, header + 8);
  Store<uint32_t>(~version, header + 12);
  Store<uint64_t>(body.size(), header + 16);
  Store<uint64_t>(checksum.low, header + 24);
  Store<uint64_t>(checksum.high, header + 32);
}

StatusOr<uint32_t> ReadFileVersion(const FileFormat& format,
                                   std::span<const std::byte> start,
                                   uint64_t file_bytes) {
  const auto too_short = [&] {
    return Corrupt("the ", format.noun, " has ", file_bytes,
                   " bytes, which is less than its header");
  };
  if (start.size() < kVersionEnd) return too_short();
  if (std::memcmp(start.data(), format.magic.data(), kMagicBytes) != 0) {
    return Corrupt("this is not a ", format.noun, ": it does not begin with ",
                   format.magic);
  }
  const auto version = Load<uint32_t>(start, 8);
  if (version != ~Load<uint32_t>(start, 12) || version == 0) {
    return Corrupt("the ", format.noun, "'s version is damaged");
  }
  // Nothing else is known of a newer version.
  if (version > format.version) {
    return Unimplemented("the ", format.noun, " has version ", version,
                         " of the format; this library reads up to ",
                         format.version, ": use a newer one");
  }
  if (const uint64_t most = format.max_bytes(version); file_bytes > most) {
    return Corrupt("the ", format.noun, " has ", file_bytes, " bytes; at most ",
                   most, " are allowed in version ", version);
  }
  if (start.size() < kFileHeaderBytes) return too_short();
  const auto bytes = Load<uint64_t>(start, 16);
  if (const uint64_t body = file_bytes - kFileHeaderBytes; bytes != body) {
    return Corrupt("the ", format.noun, " says that ", bytes,
                   " bytes follow its header, and there are ", body);
  }
  return version;
}

StatusOr<FileHeader> ReadFileHeader(const FileFormat& format,
                                    std::span<const std::byte> file) {
  SHARD_ASSIGN_OR_RETURN(
      const uint32_t version,
      ReadFileVersion(format,
                      file.first(std::min(file.size(), kFileHeaderBytes)),
                      file.size()));
  const std::span<const std::byte> body = file.subspan(kFileHeaderBytes);
  const Checksum stored = {Load<uint64_t>(file, 24), Load<uint64_t>(file, 32)};
  if (ChecksumOf(body.data(), body.size()) != stored) {
    return Corrupt("the ", format.noun, "'s bytes do not match its checksum");
  }
  return FileHeader{version, stored, body};
}

}  // namespace shard
