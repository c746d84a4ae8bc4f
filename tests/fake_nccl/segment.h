// SPDX-License-Identifier: Apache-2.0
//
// The memory by which the ranks of a communicator meet, threads or processes: a
// file of shared memory, found by its name. Nothing in it locks: each word has
// one writer, so a rank that dies leaves nothing locked. Who waits, polls.

#ifndef SHARD_TESTS_FAKE_NCCL_SEGMENT_H_
#define SHARD_TESTS_FAKE_NCCL_SEGMENT_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace shard::testing::fake_nccl {

// A pipe from one rank to another.
class Channel {
 public:
  static constexpr size_t kCapacity = size_t{32} << 10;

  size_t CanWrite() const {
    return kCapacity - static_cast<size_t>(written_ - read_);
  }
  size_t CanRead() const { return static_cast<size_t>(written_ - read_); }
  // REQUIRES: that much can be written.
  void Write(const void* from, size_t bytes);
  // REQUIRES: that much can be read.
  void Read(void* to, size_t bytes);
  // Returns all bytes that were ever written, or read.
  uint64_t written() const { return written_; }
  uint64_t read() const { return read_; }

 private:
  std::atomic<uint64_t> written_;
  std::atomic<uint64_t> read_;
  std::byte bytes_[kCapacity];
};

// The calls in which ranks meet on the host. Each call is one more round.
enum class RoundKind : uint64_t { kInit, kSplit, kFinalize, kWindow };

// A rank's part in a round.
struct Part {
  RoundKind kind = RoundKind::kInit;
  std::array<int64_t, 3> values = {};
};

class Segment {
 public:
  static constexpr int kMaxRanks = 32;

  // Opens or creates the segment of a name. Threads of a process share it.
  // Returns null where the system has no shared memory.
  static std::shared_ptr<Segment> Open(const std::string& name);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // Takes the name away: all ranks have opened the segment, or never will.
  void Unlink();
  // Returns whether all ranks that came so far told the same number of ranks.
  bool AgreeOnRanks(int nranks);
  // A rank comes to round `number`, the first of which is 1. REQUIRES: it has
  // seen all parts of the round before.
  void Announce(uint64_t number, int rank, const Part& part);
  // Returns the parts of all ranks, or none while one has not come.
  std::vector<Part> Round(uint64_t number, int nranks) const;

  // Groups of sends and receives do not mix with collectives.
  Channel* channel(bool collective, int from, int to) {
    return &layout_->channels[collective ? 1 : 0][from][to];
  }

 private:
  struct Slot {
    std::atomic<uint64_t> number;
    Part part;
  };
  // Begins with zeros. A rank is at most one round ahead of another.
  struct Layout {
    std::atomic<int> nranks;
    Slot slots[2][kMaxRanks];
    Channel channels[2][kMaxRanks][kMaxRanks];
  };

  Segment(std::string name, void* memory);

  const std::string name_;
  Layout* const layout_;
  std::atomic<bool> is_unlinked_ = false;
};

}  // namespace shard::testing::fake_nccl

#endif  // SHARD_TESTS_FAKE_NCCL_SEGMENT_H_
