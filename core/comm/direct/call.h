// SPDX-License-Identifier: Apache-2.0
//
// Call: a collective as its caller named it, and as the ranks tell each other
// of it: a Fingerprint in a Cell, which all must have alike.
//
// What is read from shared memory is believed to be of bounded size and nothing
// more: a peer may run other code than ours.

#ifndef SHARD_CORE_COMM_DIRECT_CALL_H_
#define SHARD_CORE_COMM_DIRECT_CALL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "core/comm/direct/control_block.h"

namespace shard::direct {

struct Call {
  Operation operation;
  std::string_view what;
  uint64_t bytes = 0;
  bool direct = true;
  TensorCall tensor = {};
};

Fingerprint FingerprintOf(const Call& call, uint64_t number);

// Whether two ranks called the same; where their sets begin may differ.
bool SameCall(const Fingerprint& a, const Fingerprint& b);

// Whether it is a collective of sets.
bool HasSet(const Fingerprint& call);

// "all-gather 'sizes' of 16 bytes".
std::string Format(const Fingerprint& call);

// A rank that gives up reads the last call of a peer that may just be moving
// on. The text can then be torn, but the round was decided and it is not used;
// relaxed words keep that race a defined one.
void StoreCall(const Fingerprint& from, Cell* to);
Fingerprint LoadCall(Cell& from);

// Copies what fits, never half a UTF-8 character; returns the bytes copied.
template <size_t N>
uint32_t CopyText(std::string_view text, char (&to)[N]) {
  size_t size = std::min(text.size(), N);
  if (size < text.size()) {
    while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80)
      --size;
  }
  std::memcpy(to, text.data(), size);
  return static_cast<uint32_t>(size);
}

// Sizes in shared memory are checked: a peer may run other code than ours.
template <size_t N>
std::string_view TextOf(const char (&text)[N], uint32_t size) {
  return std::string_view(text, std::min<size_t>(size, N));
}

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_CALL_H_
