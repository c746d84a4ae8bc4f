// SPDX-License-Identifier: Apache-2.0
//
// The part of a Mirror that writes the changes of other hosts' ranks.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/direct/call.h"
#include "core/comm/network/helper/mirror.h"
#include "core/comm/network/helper/mirror_words.h"

namespace shard::network {

namespace {

using direct::FailureRecord;
using direct::Shipment;
using direct::Shipments;
using direct::State;

template <typename T>
bool Read(std::span<const std::byte> bytes, T* message) {
  if (bytes.size() < sizeof(T)) return false;
  std::memcpy(message, bytes.data(), sizeof(T));
  return true;
}

Status BadMessage(int host, std::string_view why) {
  return InvalidArgument("host ", host, " sent ", why,
                         ", which no host of this version sends");
}

}  // namespace

Status Mirror::Receive(int host, std::span<const std::byte> message) {
  MirrorKind kind{};
  if (!Read(message, &kind)) return BadMessage(host, "an empty message");
  switch (kind) {
    case MirrorKind::kRound:
      return ReceiveRound(host, message);
    case MirrorKind::kFailure:
      return ReceiveFailure(host, message);
    case MirrorKind::kPresence:
      return ReceivePresence(host, message);
    case MirrorKind::kWaits:
      return ReceiveWaits(host, message);
  }
  return BadMessage(host,
                    StrCat("a message of kind ", static_cast<uint32_t>(kind)));
}

Status Mirror::ReceiveRound(int host, std::span<const std::byte> message) {
  RoundMessage head{};
  if (!Read(message, &head) || head.rank < hosts_.begin(host) ||
      head.rank >= hosts_.end(host)) {
    return BadMessage(host, "a round of a rank that is not its own");
  }
  const std::span<const std::byte> payload = message.subspan(sizeof(head));
  Block* const block = Find(head.block);
  if (block != nullptr && payload.size() > block->view.ring.payload_bytes) {
    return BadMessage(host, StrCat("a payload of ", payload.size(), " bytes"));
  }
  Shipments shipments;
  if (direct::CarriesShipments(head.call)) {
    std::memcpy(&shipments, payload.data(),
                std::min(payload.size(), sizeof(shipments)));
    if (payload.size() < offsetof(Shipments, list) ||
        shipments.count > Shipments::kMost ||
        payload.size() != shipments.bytes()) {
      return BadMessage(host, "a list of shipments that is cut");
    }
    if (block == nullptr) return Discard(host, shipments);
    for (size_t i = 0; i < shipments.count; ++i) {
      const Shipment& shipment = shipments.list[i];
      if (!IsOfRank(shipment, *block, head.rank)) {
        return BadMessage(host,
                          StrCat("a shipment of ", shipment.bytes, " bytes at ",
                                 shipment.offset, ", of rank ", head.rank));
      }
    }
  }
  // This host's ranks have left the block.
  if (block == nullptr) return Status();
  // Cells that this host's ranks read are not written before they have gone on,
  // whatever a host sends.
  const uint64_t next = block->received[static_cast<size_t>(head.rank)] + 1;
  if (head.round != next) {
    return BadMessage(host, StrCat("round ", head.round, " of rank ", head.rank,
                                   " in place of ", next));
  }
  block->received[static_cast<size_t>(head.rank)] = next;
  ++block->arrivals;
  std::deque<Arrival>& arrivals = arrivals_[static_cast<size_t>(head.rank)];
  arrivals.push_back({.block = block,
                      .missing = shipments.count,
                      .apply = [block, head,
                                bytes = std::vector<std::byte>(payload.begin(),
                                                               payload.end())] {
                        ApplyRound(*block, head, bytes);
                      }});
  Arrival* const last = &arrivals.back();  // Stays where it is in a deque.
  for (size_t i = 0; i < shipments.count; ++i) {
    const Shipment& shipment = shipments.list[i];
    links_->ReceiveData(host, block->staging->data() + shipment.offset,
                        shipment.bytes, [this, last, rank = head.rank] {
                          --last->missing;
                          Apply(rank);
                        });
  }
  Apply(head.rank);
  return Status();
}

// The data was sent, and comes before that of other blocks.
Status Mirror::Discard(int host, const Shipments& shipments) {
  constexpr size_t kMostBytes = size_t{64} << 20;
  for (size_t i = 0; i < shipments.count; ++i) {
    const size_t bytes = shipments.list[i].bytes;
    if (bytes > kMostBytes) {
      return BadMessage(host, StrCat("a shipment of ", bytes, " bytes"));
    }
    auto scratch = std::make_shared<std::vector<std::byte>>(bytes);
    std::byte* const data = scratch->data();
    links_->ReceiveData(host, data, bytes, [scratch] {});
  }
  return Status();
}

void Mirror::ApplyInOrder(int rank, std::function<void()> apply, bool is_wait) {
  arrivals_[static_cast<size_t>(rank)].push_back(
      {.apply = std::move(apply), .is_wait = is_wait});
  Apply(rank);
}

void Mirror::Apply(int rank) {
  std::deque<Arrival>& arrivals = arrivals_[static_cast<size_t>(rank)];
  while (!arrivals.empty() && arrivals.front().missing == 0) {
    arrivals.front().apply();
    if (arrivals.front().block != nullptr) --arrivals.front().block->arrivals;
    arrivals.pop_front();
  }
  ApplyFailures();
  EraseLeft();
}

void Mirror::ApplyRound(const Block& block, const RoundMessage& head,
                        std::span<const std::byte> payload) {
  const direct::BlockView& view = block.view;
  direct::Cell& cell = view.cell(head.rank, head.round);
  direct::StoreCall(head.call, &cell);
  cell.payload_bytes = payload.size();
  direct::StoreWords(payload.data(), payload.size(), cell.payload());
  view.slot(head.rank).arrived.store(head.round, std::memory_order_seq_cst);
  view.block->Announce();
}

Status Mirror::ReceiveFailure(int host, std::span<const std::byte> message) {
  FailureMessage failure{};
  if (!Read(message, &failure) || failure.rank < hosts_.begin(host) ||
      failure.rank >= hosts_.end(host)) {
    return BadMessage(host, "a failure of a rank that is not its own");
  }
  ++failures_to_come_[static_cast<size_t>(host)];
  ApplyInOrder(failure.rank, [this, host, failure] {
    --failures_to_come_[static_cast<size_t>(host)];
    failures_.push_back(failure);
    ApplyFailures();
  });
  return Status();
}

void Mirror::ApplyFailures() {
  // One that waits for its rounds keeps the later ones of its host waiting.
  std::vector<bool> waits(static_cast<size_t>(hosts_.count()));
  std::erase_if(failures_, [&](const FailureMessage& failure) {
    const auto host = static_cast<size_t>(hosts_.HostOf(failure.rank));
    Block* const block = Find(failure.block);
    if (block == nullptr) return true;
    if (waits[host] || RoundsToCome(*block) < failure.completed) {
      waits[host] = true;
      return false;
    }
    ApplyFailure(block, failure);
    return true;
  });
  ApplyDepartures();
}

bool Mirror::IsOfRank(const Shipment& shipment, const Block& block, int rank) {
  if (block.staging == nullptr) return false;
  const uint64_t region =
      block.staging->size() / static_cast<uint64_t>(block.view.world_size);
  const uint64_t begin = region * static_cast<uint64_t>(rank);
  return shipment.offset >= begin && shipment.offset - begin <= region &&
         shipment.bytes <= region - (shipment.offset - begin);
}

uint64_t Mirror::RoundsToCome(const Block& block) const {
  uint64_t rounds = UINT64_MAX;
  for (int h = 0; h < hosts_.count(); ++h) {
    if (h != host_ && !IsReached(h)) continue;
    for (int r = hosts_.begin(h); r < hosts_.end(h); ++r) {
      rounds = std::min(rounds, Load(block.view.slot(r).arrived));
    }
  }
  return rounds;
}

uint64_t Mirror::RoundsOf(const Block& block) {
  uint64_t rounds = UINT64_MAX;
  for (int r = 0; r < block.view.world_size; ++r) {
    rounds = std::min(
        rounds, block.view.slot(r).arrived.load(std::memory_order_seq_cst));
  }
  return rounds;
}

void Mirror::ApplyFailure(Block* block, const FailureMessage& failure) {
  std::atomic<uint64_t>& word = block->view.block->state;
  uint64_t packed = Load(word);
  State state = State::Unpack(packed);
  if (state.failer >= 0) return;
  // The record is read by those only who see its rank as the failer.
  FailureRecord& record = block->view.slot(failure.rank).failure;
  record = failure.record;
  if (record.code == 0) {
    record.code = static_cast<int32_t>(StatusCode::kInternal);
  }
  while (state.failer < 0) {
    // A round that all ranks have entered is complete, though none of this
    // host's has seen it yet.
    const uint64_t completed = std::max(state.completed, RoundsOf(*block));
    if (word.compare_exchange_strong(packed,
                                     State{completed, failure.rank}.Pack())) {
      break;
    }
    state = State::Unpack(packed);
  }
  block->view.block->Announce();
}

Status Mirror::ReceivePresence(int host, std::span<const std::byte> message) {
  PresenceMessage presence{};
  if (!Read(message, &presence) || presence.rank < hosts_.begin(host) ||
      presence.rank >= hosts_.end(host) || presence.failer < -1 ||
      presence.failer >= hosts_.world_size()) {
    return BadMessage(host, "the presence of a rank that is not its own");
  }
  ApplyInOrder(presence.rank, [this, presence] {
    departures_.push_back(presence);
    ApplyDepartures();
  });
  return Status();
}

void Mirror::ApplyDepartures() {
  std::erase_if(departures_, [&](const PresenceMessage& departure) {
    const int host = hosts_.HostOf(departure.rank);
    if (failures_to_come_[static_cast<size_t>(host)] > 0 ||
        std::any_of(failures_.begin(), failures_.end(),
                    [&](const FailureMessage& failure) {
                      return hosts_.HostOf(failure.rank) == host;
                    })) {
      return false;
    }
    // The failure of a third host may come later than the departure that it
    // caused.
    if (departure.failer >= 0 && IsReached(hosts_.HostOf(departure.failer)) &&
        State::Unpack(Load(origin()->state)).failer < 0) {
      return false;
    }
    std::atomic<uint32_t>& presence =
        origin()->slots()[departure.rank].presence;
    if (departure.presence == direct::kUnreachable) {
      uint32_t expected = direct::kPresent;
      presence.compare_exchange_strong(expected, departure.presence);
    } else {
      presence.store(departure.presence, std::memory_order_seq_cst);
    }
    AnnounceAll();
    return true;
  });
}

Status Mirror::ReceiveWaits(int host, std::span<const std::byte> message) {
  WaitsMessage head{};
  if (!Read(message, &head) || head.rank < hosts_.begin(host) ||
      head.rank >= hosts_.end(host) ||
      (message.size() - sizeof(head)) % sizeof(WaitMessage) != 0) {
    return BadMessage(host, "the waits of a rank that is not its own");
  }
  const std::span<const std::byte> body = message.subspan(sizeof(head));
  std::vector<WaitMessage> waits(body.size() / sizeof(WaitMessage));
  if (!body.empty()) std::memcpy(waits.data(), body.data(), body.size());
  ApplyInOrder(
      head.rank,
      [this, rank = head.rank, waits = std::move(waits)] {
        ApplyWaits(rank, waits);
      },
      /*is_wait=*/true);
  return Status();
}

void Mirror::ApplyWaits(int rank, std::span<const WaitMessage> waits) {
  std::atomic<uint64_t>& writes = origin()->mirror_writes;
  writes.fetch_add(1, std::memory_order_seq_cst);
  for (const WaitMessage& words : waits) {
    const Block* const block = Find(words.block);
    if (block != nullptr) WriteWait(words, &block->view.slot(rank));
  }
  writes.fetch_add(1, std::memory_order_seq_cst);
}

}  // namespace shard::network
