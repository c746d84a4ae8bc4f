// SPDX-License-Identifier: Apache-2.0
//
// The frames by which helpers meet, over channels that are open.
//
//   member                               master
//   Hello ----------------------------->
//   Ranks (some times) ---------------->
//         <----------------------------- MasterRank (whenever it changes)
//         <----------------------------- Table, once all ranks have come
//   Meshed ---------------------------->   ... until all have sent it
//         <----------------------------- Verdict (OK: begin)
//
//   higher host                          lower host
//   MeshHello ------------------------->
//
// A member reports an error of its own by Failed. A Verdict that is not OK ends
// the rendezvous at any time; all members get the same one. A change to a frame
// needs a new Handshake::kProtocol.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_RENDEZVOUS_WIRE_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_RENDEZVOUS_WIRE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/base/status.h"
#include "core/comm/network/helper/roster.h"

namespace shard::network {

enum class Kind : uint32_t {
  kHello = 1,
  kRanks = 2,
  kMasterRank = 3,
  kTable = 4,
  kMeshed = 5,
  kFailed = 6,
  kVerdict = 7,
  kMeshHello = 8,
};

// The longest texts of a frame. Longer ones are cut.
inline constexpr size_t kMaxNameBytes = 255;
inline constexpr size_t kMaxMessageBytes = 4096;

// Writes the fields of a frame, little-endian, one after the other.
class FrameWriter {
 public:
  template <typename T>
  requires std::is_trivially_copyable_v<T> FrameWriter& Put(const T& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  FrameWriter& PutText(std::string_view text, size_t longest) {
    text = text.substr(0, longest);
    Put(static_cast<uint16_t>(text.size()));
    const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Reads them. After a field that is not there, all fields are zero, and ok() is
// false.
class FrameReader {
 public:
  explicit FrameReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T Get() {
    T value{};
    const auto bytes = Take(sizeof(T));
    if (ok_) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  // Control characters of the text, which ends in messages, become '?'.
  std::string GetText() {
    const auto bytes = Take(Get<uint16_t>());
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    std::replace_if(
        text.begin(), text.end(),
        [](char c) {
          return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
        },
        '?');
    return text;
  }
  size_t left() const { return bytes_.size(); }
  bool ok() const { return ok_; }
  // Returns true when all bytes were read, and no more.
  bool done() const { return ok_ && bytes_.empty(); }

 private:
  std::span<const std::byte> Take(size_t count) {
    if (count > bytes_.size()) {
      ok_ = false;
      bytes_ = {};
      return {};
    }
    const auto taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }

  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

struct MemberHello {
  int32_t world_size;
  // The time that this helper will still wait: the rendezvous lasts as long as
  // the shortest of these, so that all give up with the same error.
  int64_t remaining_nanos;
  bool on_master;  // The master is in the same process.
  SocketAddress address;
  std::string name;
};

FrameWriter Write(const MemberHello& hello);
std::optional<MemberHello> ReadHello(std::span<const std::byte> bytes);

// `index` is that of the host which gets the table.
FrameWriter WriteTable(const std::vector<HostEntry>& table, int index);
std::optional<std::vector<HostEntry>> ReadTable(
    std::span<const std::byte> bytes, int* index);

// A Failed or a Verdict.
FrameWriter Write(const Status& status);
std::optional<Status> ReadStatus(std::span<const std::byte> bytes);

FrameWriter WriteNumbers(std::span<const int32_t> numbers);
std::optional<std::vector<int32_t>> ReadNumbers(
    std::span<const std::byte> bytes);

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_RENDEZVOUS_WIRE_H_
