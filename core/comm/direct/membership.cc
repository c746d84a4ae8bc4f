// SPDX-License-Identifier: Apache-2.0

#include "core/comm/direct/membership.h"

#include <unistd.h>

#include <utility>

namespace shard::direct {

Membership::Membership(ControlBlock* block, int rank)
    : block_(block), rank_(rank), owner_(::getpid()) {}

Membership::Membership(Membership&& other) noexcept
    : block_(std::exchange(other.block_, nullptr)),
      rank_(other.rank_),
      owner_(other.owner_) {}

Membership& Membership::operator=(Membership&& other) noexcept {
  std::swap(block_, other.block_);
  std::swap(rank_, other.rank_);
  std::swap(owner_, other.owner_);
  return *this;
}

Membership::~Membership() {
  if (::getpid() == owner_) Leave(kLeft);
}

void Membership::Leave(Presence how) {
  ControlBlock* const block = std::exchange(block_, nullptr);
  if (block == nullptr) return;
  block->slots()[rank_].presence.store(how, std::memory_order_seq_cst);
  block->Announce();
}

}  // namespace shard::direct
