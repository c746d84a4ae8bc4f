// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/mirror.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/direct/call.h"
#include "xxhash.h"

namespace shard::network {

namespace {

using direct::CellRing;
using direct::ControlBlock;
using direct::FailureRecord;
using direct::RankSlot;
using direct::Shipment;
using direct::Shipments;
using direct::State;

uint64_t IdOf(std::string_view key) {
  return XXH3_64bits(key.data(), key.size());
}

template <typename T>
std::span<const std::byte> BytesOf(const T& message) {
  return std::as_bytes(std::span(&message, 1));
}

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

uint64_t Load(const std::atomic<uint64_t>& word) {
  return word.load(std::memory_order_acquire);
}

WaitMessage ReadWait(const RankSlot& slot, uint64_t block) {
  const HostWait& wait = slot.host_wait;
  WaitMessage words{.block = block,
                    .awaited = Load(slot.awaited),
                    .number = Load(wait.number),
                    .until = Load(wait.until),
                    .call = {},
                    .given = Load(wait.given),
                    .done = Load(wait.done)};
  for (size_t i = 0; i < HostWait::kCallWords; ++i) {
    words.call[i] = Load(wait.call[i]);
  }
  return words;
}

void WriteWait(const WaitMessage& words, RankSlot* slot) {
  const auto store = [](uint64_t value, std::atomic<uint64_t>* word) {
    word->store(value, std::memory_order_release);
  };
  HostWait& wait = slot->host_wait;
  for (size_t i = 0; i < HostWait::kCallWords; ++i) {
    store(words.call[i], &wait.call[i]);
  }
  store(words.given, &wait.given);
  store(words.done, &wait.done);
  store(words.until, &wait.until);
  store(words.number, &wait.number);
  store(words.awaited, &slot->awaited);
}

}  // namespace

Mirror::Mirror(const direct::Hosts& hosts, int host,
               std::shared_ptr<const Mapping> origin, HostLinks* links)
    : hosts_(hosts),
      host_(host),
      links_(links),
      reached_(static_cast<size_t>(hosts.count()), true),
      orders_(static_cast<size_t>(hosts.size(host))),
      presence_(static_cast<size_t>(hosts.size(host)), direct::kPresent),
      waits_(static_cast<size_t>(hosts.size(host))),
      arrivals_(static_cast<size_t>(hosts.world_size())),
      failures_to_come_(static_cast<size_t>(hosts.count())) {
  reached_[static_cast<size_t>(host)] = false;  // Nothing is sent to itself.
  (void)AddBlock("", std::move(origin), direct::kRoundCells);
}

Status Mirror::AddBlock(std::string_view key,
                        std::shared_ptr<const Mapping> memory,
                        const CellRing& ring) {
  if (const Block* other = Find(IdOf(key)); other != nullptr) {
    return Internal("block '", key, "' is there already, as '", other->key,
                    "'");
  }
  auto block = std::make_unique<Block>();
  block->key = key;
  block->id = IdOf(key);
  block->view = {reinterpret_cast<ControlBlock*>(memory->data()),
                 hosts_.world_size(), ring};
  block->memory = std::move(memory);
  block->sent.resize(static_cast<size_t>(hosts_.size(host_)));
  block->received.resize(static_cast<size_t>(hosts_.world_size()));
  blocks_.push_back(std::move(block));
  return Status();
}

Status Mirror::AddStaging(std::string_view key,
                          std::shared_ptr<const Mapping> memory) {
  Block* const block = Find(IdOf(key));
  if (block == nullptr) {
    return Internal("staging memory of a block '", key, "' that is not there");
  }
  block->staging = std::move(memory);
  return Status();
}

void Mirror::RemoveBlock(std::string_view key) {
  Block* const block = Find(IdOf(key));
  if (block == nullptr || block == blocks_.front().get()) return;
  block->is_left = true;
  Scan();
}

void Mirror::EraseLeft() {
  const size_t erased = std::erase_if(blocks_, [this](const auto& block) {
    if (!block->is_left || block->arrivals > 0) return false;
    for (int r = hosts_.begin(host_); r < hosts_.end(host_); ++r) {
      if (block->sent[IndexOf(r)] != Load(block->view.slot(r).arrived)) {
        return false;
      }
    }
    return true;
  });
  if (erased > 0) ApplyFailures();  // Those of a block that is left are none.
}

Mirror::Block* Mirror::Find(uint64_t id) const {
  for (const auto& block : blocks_) {
    if (block->id == id) return block.get();
  }
  return nullptr;
}

void Mirror::SendToAll(std::span<const std::byte> head,
                       std::span<const std::byte> body) {
  for (int h = 0; h < hosts_.count(); ++h) {
    if (IsReached(h)) links_->Send(h, head, body);
  }
}

// --- what this host's ranks write ---

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
    some.has_data = all.has_data;
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

bool Mirror::WaitsForData(int host) const {
  for (int r = hosts_.begin(host); r < hosts_.end(host); ++r) {
    if (!arrivals_[static_cast<size_t>(r)].empty()) return true;
  }
  return false;
}

void Mirror::Bury(int rank, direct::Presence how) {
  Scan();
  uint32_t expected = direct::kPresent;
  if (origin()->slots()[rank].presence.compare_exchange_strong(expected, how)) {
    AnnounceAll();
  }
  Scan();
}

void Mirror::LoseHost(int host) {
  if (!IsReached(host)) return;
  reached_[static_cast<size_t>(host)] = false;
  // Data that was on its way does not come any more.
  for (int r = hosts_.begin(host); r < hosts_.end(host); ++r) {
    std::deque<Arrival>& arrivals = arrivals_[static_cast<size_t>(r)];
    for (const Arrival& arrival : arrivals) {
      if (arrival.block != nullptr) {
        --arrival.block->arrivals;
      } else if (!arrival.is_wait) {
        arrival.apply();  // An error, or how the rank left.
      }
    }
    arrivals.clear();
  }
  for (int r = hosts_.begin(host); r < hosts_.end(host); ++r) {
    departures_.push_back(
        {MirrorKind::kPresence, r, direct::kUnreachable, /*failer=*/-1});
  }
  ApplyFailures();
  EraseLeft();
  AnnounceAll();
}

void Mirror::AnnounceAll() {
  for (const auto& block : blocks_) block->view.block->Announce();
}

// --- what other hosts' ranks write ---

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
