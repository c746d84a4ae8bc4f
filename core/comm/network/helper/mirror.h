// SPDX-License-Identifier: Apache-2.0
//
// Mirror: keeps the ControlBlocks of ranks on several hosts alike.
//
// Each host has a block of all ranks for each communicator, exchange and
// notices of a family. A rank writes its own slot and cells only, so a mirror
// has one writer per word to follow: it reads the changes of this host's ranks,
// sends them to the mirrors of the other hosts, and writes what those send into
// the blocks here. To a rank, a peer on another host is then a peer whose words
// come later, and everything in core/comm/direct works over hosts: rounds,
// fingerprints, failures, notices, deadlocks.
//
// All that is sent of a rank arrives in the order in which it was written:
//
//   round      a cell, when the rank has entered the round, after the tensor
//              data that the cell's shipments list; the rounds of all blocks in
//              the order in which the rank entered them (Cell::order)
//   failure    the error with which a rank of this host ended a block; applied
//              after the rounds that were complete there, and the origin's
//              after those of the blocks in which errors arose
//   presence   a rank that has left, shut down, or died
//   waits      where the rank's host waits, once that lasts: all words of a
//              rank that were there at one time, for FindDeadlock
//
// A mirror that loses a host says of its ranks that they are unreachable.
//
// Data of other hosts is trusted to be of bounded size, and nothing more.
//
// Threads: one thread calls everything, but for the constructor. The ranks wake
// it by the Bell, after which it calls Scan.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_MIRROR_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_MIRROR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/mapping.h"
#include "core/base/status.h"
#include "core/comm/direct/control_block.h"
#include "core/comm/direct/hosts.h"
#include "core/comm/direct/shipments.h"
#include "core/comm/network/helper/mirror_wire.h"

namespace shard::network {

// The connections of a host to the others. Nothing blocks; a connection that
// ends is told by whoever has opened it (Mirror::LoseHost).
class HostLinks {
 public:
  virtual ~HostLinks() = default;

  // Sends a message, which comes in order. Copies it.
  virtual void Send(int host, std::span<const std::byte> head,
                    std::span<const std::byte> body) = 0;
  // Sends tensor data; the n-th call for a host is the data of its n-th
  // ReceiveData for this one. `data` stays as it is until the other host has
  // it, or is lost, and `owner` is to be held until then.
  virtual void SendData(int host, const std::byte* data, size_t bytes,
                        std::shared_ptr<const void> owner) = 0;
  // Receives tensor data, and then calls `done` on the mirror's thread, but not
  // once the mirror was told that the host is lost.
  virtual void ReceiveData(int host, std::byte* data, size_t bytes,
                           std::function<void()> done) = 0;
};

class Mirror {
 public:
  // `host`: this one. `origin`: the first block of the family, whose key is "".
  // `links` must outlive this.
  Mirror(const direct::Hosts& hosts, int host,
         std::shared_ptr<const Mapping> origin, HostLinks* links);

  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  // Adds a block. The key is the same on all hosts, and no rank writes into the
  // block before all hosts have added it. kInternal for a key of another block.
  Status AddBlock(std::string_view key, std::shared_ptr<const Mapping> memory,
                  const direct::CellRing& ring);
  // Adds the staging memory of a block's shipments.
  Status AddStaging(std::string_view key,
                    std::shared_ptr<const Mapping> memory);
  // Forgets a block that this host's ranks have left, once all that they wrote
  // is sent and the data on its way has come.
  void RemoveBlock(std::string_view key);

  // Sends what this host's ranks have written since. Returns whether there was
  // anything.
  bool Scan();

  // Writes what another host has sent. kInvalidArgument for a message that no
  // mirror sends.
  Status Receive(int host, std::span<const std::byte> message);

  // Returns whether data that `host` has announced is still on its way.
  bool WaitsForData(int host) const;

  // Tells all ranks that a rank of this host is gone, if it did not say so
  // itself: kLeft or kDied. What it wrote before is sent first.
  void Bury(int rank, direct::Presence how);
  // Tells this host's ranks that those of `host` cannot be reached.
  void LoseHost(int host);

 private:
  struct Block {
    std::string key;
    uint64_t id;
    std::shared_ptr<const Mapping> memory;
    std::shared_ptr<const Mapping> staging;
    direct::BlockView view;
    std::vector<uint64_t> sent;      // By rank of this host: the last round.
    std::vector<uint64_t> received;  // By rank of the world, likewise.
    bool is_failure_sent = false;
    bool is_left = false;  // By this host's ranks.
    size_t arrivals = 0;   // That wait for data.
  };
  // Something that a rank of another host wrote, which waits for its data, or
  // for what the rank wrote before.
  struct Arrival {
    Block* block = nullptr;  // Of a round.
    size_t missing = 0;      // Pieces of data.
    std::function<void()> apply;
    bool is_wait = false;
  };

  direct::ControlBlock* origin() const { return blocks_.front()->view.block; }
  Block* Find(uint64_t id) const;
  size_t IndexOf(int rank) const {
    return static_cast<size_t>(rank - hosts_.begin(host_));
  }
  bool IsReached(int host) const { return reached_[static_cast<size_t>(host)]; }
  void SendToAll(std::span<const std::byte> head,
                 std::span<const std::byte> body);

  // Returns the block in which a rank of this host has entered the next round
  // that is to be sent; null when it has entered none, or is about to.
  // `is_dead`: the rank is not about to do anything.
  Block* FindNext(int rank, bool is_dead) const;
  bool ScanRounds();
  bool SendRounds(int rank, bool is_dead);
  void SendRound(Block* block, int rank, uint64_t round);
  bool ScanFailures();
  bool ScanFailure(Block* block);
  bool ScanPresence();
  bool ScanWaits();

  Status ReceiveRound(int host, std::span<const std::byte> message);
  Status ReceiveFailure(int host, std::span<const std::byte> message);
  Status ReceivePresence(int host, std::span<const std::byte> message);
  Status ReceiveWaits(int host, std::span<const std::byte> message);
  // Receives the data of a round in a block that this host's ranks have left.
  Status Discard(int host, const direct::Shipments& shipments);
  // Calls `apply` when all that a rank wrote before is applied. `is_wait`: not
  // where the rank's host is lost first.
  void ApplyInOrder(int rank, std::function<void()> apply,
                    bool is_wait = false);
  // Forgets the blocks that were left, and of which all is sent and applied.
  void EraseLeft();
  // Applies what has come of a rank, up to what waits for its data.
  void Apply(int rank);
  static void ApplyRound(const Block& block, const RoundMessage& head,
                         std::span<const std::byte> payload);
  // Returns whether a shipment lies in the region of `rank`, in the staging
  // memory: a host says nothing of the memory of another one's ranks.
  static bool IsOfRank(const direct::Shipment& shipment, const Block& block,
                       int rank);
  // Returns the rounds that all ranks have entered but those of lost hosts, of
  // which no more come.
  uint64_t RoundsToCome(const Block& block) const;
  // Returns the rounds that all ranks have entered.
  static uint64_t RoundsOf(const Block& block);
  // Applies the failures whose rounds have all come, and then the departures
  // that waited for them.
  void ApplyFailures();
  void ApplyDepartures();
  void ApplyFailure(Block* block, const FailureMessage& failure);
  void ApplyWaits(int rank, std::span<const WaitMessage> waits);
  void AnnounceAll();

  const direct::Hosts hosts_;
  const int host_;
  HostLinks* const links_;
  std::vector<std::unique_ptr<Block>> blocks_;  // The origin first.
  std::vector<bool> reached_;                   // By host.
  // By rank of this host: the number of rounds that were sent, and the presence
  // and waits as they were sent.
  std::vector<uint64_t> orders_;
  std::vector<uint32_t> presence_;
  std::vector<std::vector<WaitMessage>> waits_;
  std::vector<std::deque<Arrival>> arrivals_;  // By rank of the world.
  // Failures after rounds that have not all come from other hosts.
  std::vector<FailureMessage> failures_;
  std::vector<size_t> failures_to_come_;  // By host: those in `arrivals_`.
  // How ranks have left, or were lost, where a failure comes before it: a rank
  // that leaves because the group has failed is not why it failed.
  std::vector<PresenceMessage> departures_;
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_MIRROR_H_
