// SPDX-License-Identifier: Apache-2.0
//
// The part of a Mirror that sends the changes of this host's ranks.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "core/comm/direct/call.h"
#include "core/comm/network/helper/mirror.h"
#include "core/comm/network/helper/mirror_words.h"

namespace shard::network {

namespace {

using direct::RankSlot;
using direct::Shipment;
using direct::Shipments;
using direct::State;

template <typename T>
std::span<const std::byte> BytesOf(const T& message) {
  return std::as_bytes(std::span(&message, 1));
}

}  // namespace

bool Mirror::Scan() {
  bool any = ScanRounds();
  if (ScanFailures()) any = true;
  if (ScanPresence()) any = true;
  if (ScanWaits()) any = true;
  // They may wait for a failure of a rank of this host.
  if (!departures_.empty()) ApplyDepartures();
  EraseLeft();
  return any;
}

bool Mirror::ScanRounds() {
  bool any = false;
  for (int r = hosts_.begin(host_); r < hosts_.end(host_); ++r) {
    if (SendRounds(r, /*is_dead=*/false)) any = true;
  }
  return any;
}

Mirror::Block* Mirror::FindNext(int rank, bool is_dead) const {
  Block* next = nullptr;
  uint64_t order = 0;
  for (const auto& block : blocks_) {
    const uint64_t sent = block->sent[IndexOf(rank)];
    if (sent == block->view.slot(rank).arrived.load(std::memory_order_seq_cst))
      continue;
    const uint64_t mine = block->view.cell(rank, sent + 1).order;
    if (next == nullptr || mine < order) {
      next = block.get();
      order = mine;
    }
  }
  // A thread of the rank may have the number before this one.
  return is_dead || order == orders_[IndexOf(rank)] + 1 ? next : nullptr;
}

bool Mirror::SendRounds(int rank, bool is_dead) {
  bool any = false;
  while (Block* const block = FindNext(rank, is_dead)) {
    any = true;
    uint64_t& sent = block->sent[IndexOf(rank)];
    SendRound(block, rank, ++sent);
    ++orders_[IndexOf(rank)];
    block->view.slot(rank).mirrored.store(sent, std::memory_order_release);
    // The rank may wait for a free cell.
    block->view.block->Announce();
  }
  return any;
}

void Mirror::SendRound(Block* block, int rank, uint64_t round) {
  direct::Cell& cell = block->view.cell(rank, round);
  const RoundMessage head{MirrorKind::kRound, rank, block->id, round,
                          direct::LoadCall(cell)};
  const size_t bytes =
      std::min<size_t>(cell.payload_bytes, block->view.ring.payload_bytes);
  const std::span<const std::byte> payload(cell.payload(), bytes);
  if (!direct::CarriesShipments(head.call)) {
    SendToAll(BytesOf(head), payload);
    return;
  }
  Shipments all;
  std::memcpy(&all, payload.data(), std::min(bytes, sizeof(all)));
  const size_t count = std::min<size_t>(all.count, Shipments::kMost);
  for (int h = 0; h < hosts_.count(); ++h) {
    if (!IsReached(h)) continue;
    Shipments some;
    some.holds = all.holds;
    for (size_t i = 0; i < count; ++i) {
      const Shipment& shipment = all.list[i];
      if (shipment.first_host > h || h >= shipment.end_host ||
          !IsOfRank(shipment, *block, rank)) {
        continue;
      }
      if (!some.Add(shipment)) break;  // Never: these are some of `all`.
    }
    // Data after the message, so that the other host knows where it goes.
    links_->Send(h, BytesOf(head),
                 std::as_bytes(std::span(&some, 1)).first(some.bytes()));
    for (size_t i = 0; i < some.count; ++i) {
      links_->SendData(h, block->staging->data() + some.list[i].offset,
                       some.list[i].bytes, block->staging);
    }
  }
}

bool Mirror::ScanFailures() {
  // A rank fails the block in which an error arose, and then the origin:
  // whoever sees that the family has ended finds the error itself in its own
  // block.
  Block* const first = blocks_.front().get();
  const bool is_over = State::Unpack(Load(origin()->state)).failer >= 0;
  bool any = false;
  for (const auto& block : blocks_) {
    if (block.get() != first && ScanFailure(block.get())) any = true;
  }
  if (is_over && ScanFailure(first)) any = true;
  return any;
}

bool Mirror::ScanFailure(Block* block) {
  if (block->is_failure_sent) return false;
  const State state = State::Unpack(Load(block->view.block->state));
  if (state.failer < 0) return false;
  block->is_failure_sent = true;
  // Another host's failure came from that host, which tells everyone.
  if (hosts_.HostOf(state.failer) != host_) return false;
  const FailureMessage message{MirrorKind::kFailure, state.failer, block->id,
                               state.completed,
                               block->view.slot(state.failer).failure};
  SendToAll(BytesOf(message), {});
  return true;
}

bool Mirror::ScanPresence() {
  bool any = false;
  for (int r = hosts_.begin(host_); r < hosts_.end(host_); ++r) {
    uint32_t& sent = presence_[IndexOf(r)];
    const uint32_t presence =
        origin()->slots()[r].presence.load(std::memory_order_acquire);
    if (presence == sent) continue;
    any = true;
    sent = presence;
    // A rank that has left has entered its last round before.
    SendRounds(r, /*is_dead=*/true);
    ScanFailures();
    const State state = State::Unpack(Load(origin()->state));
    const PresenceMessage message{MirrorKind::kPresence, r, presence,
                                  state.failer};
    SendToAll(BytesOf(message), {});
  }
  return any;
}

bool Mirror::ScanWaits() {
  bool any = false;
  for (int r = hosts_.begin(host_); r < hosts_.end(host_); ++r) {
    const size_t index = IndexOf(r);
    // A wait is published once it has lasted, so most scans find none.
    const bool waits =
        std::any_of(blocks_.begin(), blocks_.end(), [r](const auto& block) {
          const RankSlot& slot = block->view.slot(r);
          return Load(slot.awaited) >
                 State::Unpack(Load(block->view.block->state)).completed;
        });
    if (!waits) continue;
    const auto read = [&] {
      std::vector<WaitMessage> words;
      for (const auto& block : blocks_) {
        words.push_back(ReadWait(block->view.slot(r), block->id));
      }
      return words;
    };
    // The words of one time, when the rank has entered no further round: what
    // changes meanwhile is read by a later scan.
    std::vector<WaitMessage> words = read();
    const bool all_sent =
        std::all_of(blocks_.begin(), blocks_.end(), [&](const auto& block) {
          return Load(block->view.slot(r).arrived) == block->sent[index];
        });
    if (!all_sent || read() != words || words == waits_[index]) continue;
    any = true;
    const WaitsMessage head{MirrorKind::kWaits, r};
    SendToAll(BytesOf(head), std::as_bytes(std::span(words)));
    waits_[index] = std::move(words);
  }
  return any;
}

}  // namespace shard::network
