// SPDX-License-Identifier: Apache-2.0
//
// The checksum of everything in a checkpoint: XXH3 with 128 bits. The checksum
// detects damage by disks, cables and interrupted writes; it does not protect
// against forgery.

#ifndef SHARD_CORE_CHECKPOINT_MANIFEST_CHECKSUM_H_
#define SHARD_CORE_CHECKPOINT_MANIFEST_CHECKSUM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace shard {

struct Checksum {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Checksum&) const = default;
};

Checksum ChecksumOf(const void* data, size_t bytes);

// Copies bytes and returns their checksum; each byte is read once. For
// destinations that are not read soon: large ones bypass the caches. REQUIRES:
// `to` and `from` do not overlap.
Checksum CopyWithChecksum(void* to, const void* from, size_t bytes);

// The checksum of bytes that come in pieces.
class ChecksumStream {
 public:
  ChecksumStream();
  ~ChecksumStream();
  void Add(const void* data, size_t bytes);
  // Returns the checksum of all added bytes.
  Checksum Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns 32 hexadecimal digits, the high half first, as xxhsum prints them.
std::string ChecksumText(const Checksum& checksum);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_MANIFEST_CHECKSUM_H_
