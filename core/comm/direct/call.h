// SPDX-License-Identifier: Apache-2.0
//
// Call: a collective as its caller names it, and its Fingerprint in a Cell, by
// which the ranks compare their calls.
//
// Data read from shared memory is trusted to be of bounded size, and nothing
// more: a peer may run other code than this.

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

// Returns whether two ranks made the same call; the first ranks of their sets
// may differ.
bool SameCall(const Fingerprint& a, const Fingerprint& b);

// Returns why the call is none that `rank` can make, as "which is not its set
// of the 4 ranks"; empty for a call that it can make.
std::string WhyWrong(const Fingerprint& call, int rank, int world_size);

// Returns the call as text: "all-gather 'sizes' of 16 bytes".
std::string Format(const Fingerprint& call);

// Returns whether the payload of the call's rounds is a list of Shipments.
bool CarriesShipments(const Fingerprint& call);

// Store and load a call. A rank that gives up reads the last call of a peer
// that may enter the next round meanwhile. The text may then be torn, but the
// round was decided and the text is not used.
void StoreCall(const Fingerprint& from, Cell* to);
Fingerprint LoadCall(const Cell& from);

// Copies as much text as fits, never half a UTF-8 character; returns the bytes
// copied.
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

// Returns the text of `size` bytes. Sizes in shared memory are checked: a peer
// may run other code than this.
template <size_t N>
std::string_view TextOf(const char (&text)[N], uint32_t size) {
  return std::string_view(text, std::min<size_t>(size, N));
}

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_CALL_H_
