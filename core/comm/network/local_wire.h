// SPDX-License-Identifier: Apache-2.0
//
// The messages between a rank and the network helper of its host. Messages are
// plain structs: both ends are on one host, and of one package.
//
//   rank                                  helper
//   connect  -------------------------->  accept
//            <--------------------------  Greeting
//   Hello (+ pidfd of the rank) ------->  ... until all ranks of all hosts came
//            <--------------------------  Welcome (+ memfd of the ControlBlock)
//            <--------------------------  Hosts, some times
//            <--------------------------  Bell (+ eventfd)
//   RegionRequest --------------------->
//            <--------------------------  Region (+ memfd), or Verdict
//   Release --------------------------->
//   Goodbye --------------------------->  the rank leaves, and has not died
//
// In place of Welcome a Verdict, which is never OK, ends the meeting;
// kUnavailable there means that it is over, and that the rank begins another.
// Every packet begins with a Header. A change to any packet needs a new
// kVersion; the Header, the Greeting and the first fields of Hello never
// change.

#ifndef SHARD_CORE_COMM_NETWORK_LOCAL_WIRE_H_
#define SHARD_CORE_COMM_NETWORK_LOCAL_WIRE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace shard::network {

inline constexpr uint64_t kLocalMagic = 0x3174656e6873686cu;  // "lhshnet1"
inline constexpr uint32_t kLocalVersion = 2;

// The longest texts.
inline constexpr size_t kMaxOptionsBytes = 2048;
inline constexpr size_t kMaxRegionKeyBytes = 128;
inline constexpr size_t kMaxHostNameBytes = 63;
inline constexpr size_t kMaxVerdictBytes = 2048;

enum class LocalKind : uint32_t {
  kGreeting = 1,
  kHello = 2,
  kVerdict = 3,
  kWelcome = 4,
  kHosts = 5,
  kRegionRequest = 6,
  kRegion = 7,
  kRelease = 8,
  kGoodbye = 9,
  kBell = 10,
};

struct LocalHeader {
  uint64_t magic;
  uint32_t version;
  LocalKind kind;

  static LocalHeader Of(LocalKind kind) {
    return {kLocalMagic, kLocalVersion, kind};
  }
};

// A text of at most kMost bytes.
template <size_t kMost>
struct WireText {
  uint32_t bytes;
  char text[kMost];

  // Sets the text, cut to fit.
  void Set(std::string_view value) {
    bytes = static_cast<uint32_t>(std::min(value.size(), kMost));
    std::memcpy(text, value.data(), bytes);
  }
  // Returns the text, whatever `bytes` a peer has sent.
  std::string Get() const {
    return std::string(text, std::min<size_t>(bytes, kMost));
  }
};

struct Greeting {
  static constexpr LocalKind kKind = LocalKind::kGreeting;
  LocalHeader header;
  int32_t process;  // The helper's id in its own pid namespace.
};

struct Hello {
  static constexpr LocalKind kKind = LocalKind::kHello;
  LocalHeader header;
  int32_t rank;
  int32_t world_size;
  // The time that this rank will still wait for the others.
  int64_t remaining_nanos;
  // The time of its later waits, for which silence of a host has to be known
  // before; 0: it does not say.
  int64_t timeout_nanos;
  // The same on all ranks: how the helpers work.
  WireText<kMaxOptionsBytes> options;
};

// The number of a Verdict for a rank that has come to a meeting which is over,
// and is to begin another. Its code would not tell: a meeting may fail with
// any.
constexpr uint64_t kMeetingIsOver = ~uint64_t{0};

struct Verdict {
  static constexpr LocalKind kKind = LocalKind::kVerdict;
  LocalHeader header;
  // That of the WireRegionRequest; 0: the meeting; or kMeetingIsOver.
  uint64_t number;
  int32_t code;  // StatusCode
  int32_t rank;
  WireText<kMaxVerdictBytes> message;
};

struct Welcome {
  static constexpr LocalKind kKind = LocalKind::kWelcome;
  LocalHeader header;
  int32_t world_size;
  int32_t hosts;  // As many are in the WireHosts that follow.
  // The ranks of this host.
  int32_t first_rank;
  int32_t ranks;
};

// The hosts first, first + 1, ... in the order of their ranks.
struct WireHosts {
  static constexpr LocalKind kKind = LocalKind::kHosts;
  static constexpr uint32_t kMost = 32;
  struct Host {
    int32_t first_rank;
    int32_t ranks;
    WireText<kMaxHostNameBytes + 1> name;
  };
  LocalHeader header;
  uint32_t first;
  uint32_t count;
  Host hosts[kMost];
};

// The eventfd by which a rank wakes the helper: see direct::Bell.
struct WireBell {
  static constexpr LocalKind kKind = LocalKind::kBell;
  LocalHeader header;
};

// The contents of a region, from which the helpers know which bytes a rank has
// written.
enum class RegionKind : uint32_t {
  kBlock = 1,    // A ControlBlock of all ranks with `cells` cells per rank.
  kTensors = 2,  // Staged tensors.
  kOfHost = 3,   // Tensors of the host's ranks, which no helper reads.
};

struct WireLayout {
  RegionKind kind;
  uint64_t cells;
  uint64_t payload_bytes;  // Of a cell.
  // The key of the block whose rounds ship these tensors.
  WireText<kMaxRegionKeyBytes> block;
};

// Asks for memory that all ranks see which ask for the same key.
struct WireRegionRequest {
  static constexpr LocalKind kKind = LocalKind::kRegionRequest;
  LocalHeader header;
  uint64_t number;  // From 1, and comes back in the answer.
  uint64_t bytes;
  WireText<kMaxRegionKeyBytes> key;
  WireLayout layout;
};

struct Region {
  static constexpr LocalKind kKind = LocalKind::kRegion;
  LocalHeader header;
  uint64_t number;
  uint64_t bytes;
};

// Ends this rank's use of a region. Has no answer.
struct Release {
  static constexpr LocalKind kKind = LocalKind::kRelease;
  LocalHeader header;
  WireText<kMaxRegionKeyBytes> key;
};

struct Goodbye {
  static constexpr LocalKind kKind = LocalKind::kGoodbye;
  LocalHeader header;
};

// Returns a packet whose fields are zero but for the header.
template <typename T>
T MakePacket() {
  T packet{};
  packet.header = LocalHeader::Of(T::kKind);
  return packet;
}

// REQUIRES: !status.ok().
inline Verdict MakeVerdict(const Status& status, uint64_t number = 0) {
  Verdict verdict = MakePacket<Verdict>();
  verdict.number = number;
  verdict.code = static_cast<int32_t>(status.code());
  verdict.rank = status.rank();
  verdict.message.Set(status.message());
  return verdict;
}

// Returns the error. A Verdict that says OK is kInternal: none is ever sent.
inline Status StatusOf(const Verdict& verdict) {
  if (verdict.code == 0) return Internal("the network helper refused with OK");
  return Status(static_cast<StatusCode>(verdict.code), verdict.message.Get(),
                verdict.rank);
}

// Returns the packet as a T of any version; nullopt when it is something else.
template <typename T>
std::optional<T> ParseAnyVersion(const std::string& bytes) {
  T value{};
  if (bytes.size() != sizeof(T)) return std::nullopt;
  std::memcpy(&value, bytes.data(), sizeof(T));
  if (value.header.magic != kLocalMagic || value.header.kind != T::kKind) {
    return std::nullopt;
  }
  return value;
}

// Returns the packet as a T of this version; nullopt when it is something else.
template <typename T>
std::optional<T> Parse(const std::string& bytes) {
  auto value = ParseAnyVersion<T>(bytes);
  if (value && value->header.version != kLocalVersion) value.reset();
  return value;
}

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_LOCAL_WIRE_H_
