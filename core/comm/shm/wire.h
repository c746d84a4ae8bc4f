// SPDX-License-Identifier: Apache-2.0
//
// The messages of the ranks of a "shm:" group while they meet, and later when
// they share memory. Messages are plain structs: both ends are on one host.
//
//   rank r                              rank 0
//   connect  ------------------------>  accept
//            <------------------------  Greeting
//   Hello (+ pidfd of r) ------------>  ... until all have said hello
//            <------------------------  Verdict (+ memfd of the ControlBlock)
//            <------------------------  Peers (+ pidfds), some times
//   Verdict (mapped, or why not) ---->  ... until all have answered
//            <------------------------  Verdict (begin)
//
// A Verdict that is not OK ends the rendezvous; rank 0 sends the same one to
// all. Every packet begins with a Header. A change to any packet, to the
// ControlBlock, or to the collectives of OpenCommunicator needs a new kVersion;
// the Header and the first fields of Hello never change.

#ifndef SHARD_CORE_COMM_SHM_WIRE_H_
#define SHARD_CORE_COMM_SHM_WIRE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "core/base/status.h"

namespace shard::shm {

inline constexpr uint64_t kMagic = 0x3164726168736c2fu;  // "/lshard1"
inline constexpr uint32_t kVersion = 6;

enum class Kind : uint32_t {
  kGreeting = 1,
  kHello = 2,
  kVerdict = 3,
  kPeers = 4,
  kRegion = 5,
  kConnection = 6,
};

struct Header {
  uint64_t magic;
  uint32_t version;
  Kind kind;

  static Header Of(Kind kind) { return {kMagic, kVersion, kind}; }
};

struct Greeting {
  Header header;
};

struct Hello {
  Header header;
  int32_t rank;
  int32_t world_size;
  // The time that this rank will still wait: the rendezvous lasts as long as
  // the shortest of these, so that all ranks give up with the same error.
  int64_t remaining_nanos;
};

struct Verdict {
  Header header;
  int32_t code;  // StatusCode
  int32_t rank;
  // Whether Peers follow; without pidfds, closed connections show which ranks
  // have died.
  uint32_t has_pidfds;
  uint32_t message_bytes;
  char message[1024];
};

// The processes of ranks first, first + 1, ...; a pidfd each.
struct Peers {
  static constexpr uint32_t kMost = 64;
  Header header;
  uint32_t first;
  uint32_t count;
  int32_t pids[kMost];
};

// Memory that rank 0 allocated, as a memfd.
struct Region {
  Header header;
  uint64_t bytes;
};

// A connection beside the one that it comes over, as its descriptor.
struct Connection {
  Header header;
};

inline Verdict MakeVerdict(const Status& status) {
  Verdict verdict{};
  verdict.header = Header::Of(Kind::kVerdict);
  verdict.code = static_cast<int32_t>(status.code());
  verdict.rank = status.rank();
  verdict.message_bytes = static_cast<uint32_t>(
      std::min(status.message().size(), sizeof(verdict.message)));
  std::memcpy(verdict.message, status.message().data(), verdict.message_bytes);
  return verdict;
}

inline Status StatusOf(const Verdict& verdict) {
  if (verdict.code == 0) return Status();
  const size_t size =
      std::min<size_t>(verdict.message_bytes, sizeof(verdict.message));
  return Status(static_cast<StatusCode>(verdict.code),
                std::string(verdict.message, size), verdict.rank);
}

// Returns the packet as a T; nullopt when it is something else. In a packet of
// another version only `header` is valid.
template <typename T>
std::optional<T> Parse(const std::string& bytes, Kind kind) {
  T value{};
  if (bytes.size() != sizeof(T)) return std::nullopt;
  std::memcpy(&value, bytes.data(), sizeof(T));
  if (value.header.magic != kMagic || value.header.kind != kind) {
    return std::nullopt;
  }
  return value;
}

}  // namespace shard::shm

#endif  // SHARD_CORE_COMM_SHM_WIRE_H_
