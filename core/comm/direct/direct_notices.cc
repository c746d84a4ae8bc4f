// SPDX-License-Identifier: Apache-2.0

#include "core/comm/direct/direct_notices.h"

#include <algorithm>
#include <cstring>

namespace shard::direct {

Status DirectNotices::Post(const void* notice, const Compare& compare,
                           const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(enter_(what_));
  SHARD_RETURN_IF_ERROR(group_->Post(call(), notice, bytes_, deadline));
  // All ranks have now posted the notice whose cell the next Post writes again:
  // it is compared here at the latest.
  CompareArrived(group_->round(), compare);
  return Status();
}

void DirectNotices::CompareArrived(uint64_t last, const Compare& compare) {
  const int rank = group_->rank();
  const size_t cells = group_->ring().count;
  for (int r = 0; r < group_->world_size(); ++r) {
    if (r == rank) continue;
    uint64_t& compared = compared_[static_cast<size_t>(r)];
    const uint64_t there = std::min(group_->arrived(r), last);
    while (compared < there) {
      ++compared;
      LoadWords(group_->payload(r, compared), bytes_, theirs_.data());
      // A rank that writes this cell again has seen this rank's next notice,
      // and compares the two in its own Post.
      if (compared < group_->round() &&
          group_->arrived(r) + 1 >= compared + cells) {
        continue;
      }
      compare(r, compared, theirs_.data(), group_->payload(rank, compared));
    }
  }
}

Status DirectNotices::Await(uint64_t number, const Compare& compare, void* recv,
                            const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(group_->Await(call(), number, deadline));
  CompareArrived(number, compare);
  CopyTo(number, recv);
  return Status();
}

Status DirectNotices::Meet(const void* notice, const Compare& compare,
                           void* recv, const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(enter_(what_));
  SHARD_RETURN_IF_ERROR(group_->Meet(call(), notice, bytes_, deadline));
  CopyTo(group_->round(), recv);
  CompareArrived(group_->round() - 1, compare);
  std::fill(compared_.begin(), compared_.end(), group_->round());
  return Status();
}

void DirectNotices::CopyTo(uint64_t number, void* recv) const {
  auto* to = static_cast<std::byte*>(recv);
  for (int r = 0; r < group_->world_size(); ++r) {
    std::memcpy(to + static_cast<size_t>(r) * bytes_,
                group_->payload(r, number), bytes_);
  }
}

}  // namespace shard::direct
