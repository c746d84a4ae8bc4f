// SPDX-License-Identifier: Apache-2.0
//
// CollectiveRing: the last kEntries collectives of one rank, of all its
// communicators, exchanges and notices. Each of these is a sequence, whose
// collectives all ranks number alike, so that the rings of ranks that hang or
// disagree can be compared (`shardctl triage`).
//
// Memory is allocated once. A collective writes its entry when it begins, and
// one word of it when it ends: no lock is taken, and no thread waits. An entry
// is a seqlock: a reader gets it whole, or not at all while it is written.
//
// Threads: any.

#ifndef SHARD_CORE_OBSERVE_COLLECTIVE_RING_H_
#define SHARD_CORE_OBSERVE_COLLECTIVE_RING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/base/status.h"
#include "core/observe/event.h"

namespace shard {

class JsonWriter;

// A collective, as the ranks compare it. Values that are left out are not part
// of it.
struct CollectiveCall {
  EventId operation = EventId::kBarrier;
  std::string_view what = {};
  uint64_t bytes = 0;  // Of a block: what one rank sends to one other.
  // The set of ranks; 0 ranks: all. A first rank of -1 is not known.
  int32_t set_first = 0;
  int32_t set_stride = 0;
  int32_t set_ranks = 0;
  int32_t root = -1;
  int8_t dtype = -1;  // A DType.
  int8_t recv_dtype = -1;
};

// The collectives of one communicator, exchange or notices. All ranks number
// them alike, from 1. Threads: one at a time.
class CollectiveSequence {
 public:
  // Makes the sequence of the communicator that a host opens.
  CollectiveSequence() { SetName("world"); }

  // Makes the sequence of what the last collective of `parent` has made.
  CollectiveSequence(const CollectiveSequence& parent, std::string_view name)
      : group_(parent.LastId()) {
    SetName(name);
  }

  // Takes the number of the next collective.
  void Next() { ++number_; }

 private:
  friend class CollectiveRing;
  static constexpr size_t kNameBytes = 24;

  void SetName(std::string_view name);
  // Returns a hash of the group and number of the last collective, which is
  // the same on all ranks.
  uint64_t LastId() const;

  uint64_t group_ = 0;
  uint64_t number_ = 0;
  std::array<char, kNameBytes> name_ = {};  // Padded with zeros.
};

class CollectiveRing {
 public:
  static constexpr size_t kEntries = 1024;

  CollectiveRing();
  ~CollectiveRing();
  CollectiveRing(const CollectiveRing&) = delete;
  CollectiveRing& operator=(const CollectiveRing&) = delete;

  // Records that a collective begins, at time `now` (Observer::Now). Returns
  // its ticket.
  uint64_t Begin(const CollectiveSequence& sequence, const CollectiveCall& call,
                 int64_t now);

  // Record that the collective with that ticket was posted (the other ranks
  // were told of it, and this one does not wait for them), that this rank waits
  // for the others after all, or that the collective has ended. Nothing happens
  // where the entry is gone.
  void Post(uint64_t ticket);
  void Await(uint64_t ticket);
  void End(uint64_t ticket, int64_t now, StatusCode result);

  // Records the end of all posted collectives of the sequence whose numbers are
  // at most `number`.
  void EndPosted(const CollectiveSequence& sequence, uint64_t number,
                 int64_t now, StatusCode result);

  // Appends the number of collectives that were recorded, and an array of the
  // entries, the oldest first, as members of the object in progress. `to_unix`,
  // in nanoseconds, is added to times.
  void AppendTo(JsonWriter* json, int64_t to_unix) const;

 private:
  static constexpr size_t kWhatBytes = 56;

  // Without padding, because it is copied word by word.
  struct Record {
    uint64_t group;
    uint64_t number;
    uint64_t bytes;
    int64_t begin;
    int32_t set_first;
    int32_t set_stride;
    int32_t set_ranks;
    int32_t root;
    std::array<char, CollectiveSequence::kNameBytes> name;
    std::array<char, kWhatBytes> what;  // Padded with zeros.
    uint32_t operation;
    int8_t dtype;
    int8_t recv_dtype;
    int16_t unused;
  };
  static_assert(std::has_unique_object_representations_v<Record>);
  static_assert(sizeof(Record) % sizeof(uint64_t) == 0);
  static constexpr size_t kWords = sizeof(Record) / sizeof(uint64_t);

  struct Slot {
    // 2 * (ticket + 1), or one less while the record is written; 0: empty.
    std::atomic<uint64_t> version = 0;
    // Whether and how the collective has ended: see collective_ring.cc.
    std::atomic<uint64_t> progress = 0;
    std::array<std::atomic<uint64_t>, kWords> words = {};
  };

  struct Entry {
    uint64_t ticket;
    uint64_t progress;
    Record record;
  };

  Slot& SlotOf(uint64_t ticket) const { return slots_[ticket % kEntries]; }
  // Reads a slot; false where it is empty or written meanwhile.
  static bool Read(const Slot& slot, Entry* entry);
  std::vector<Entry> ReadAll() const;
  // Changes the progress from that of a ticket to `to`.
  void Change(uint64_t ticket, uint64_t to);
  static void AppendEntry(const Entry& entry, int64_t to_unix,
                          JsonWriter* json);

  const std::unique_ptr<Slot[]> slots_;
  std::atomic<uint64_t> next_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_OBSERVE_COLLECTIVE_RING_H_
