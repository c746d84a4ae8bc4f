// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/mirror.h"

#include <optional>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/network/helper/mirror_words.h"
#include "xxhash.h"

namespace shard::network {

namespace {

using direct::CellRing;
using direct::ControlBlock;

uint64_t IdOf(std::string_view key) {
  return XXH3_64bits(key.data(), key.size());
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

}  // namespace shard::network
