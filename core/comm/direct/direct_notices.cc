// SPDX-License-Identifier: Apache-2.0

#include "core/comm/direct/direct_notices.h"

#include <cstring>

namespace shard::direct {

Status DirectNotices::Post(const void* notice, const Compare& compare,
                           const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(enter_(what_));
  SHARD_RETURN_IF_ERROR(group_->Post(call(), notice, bytes_, deadline));
  for (int r = 0; r < group_->world_size(); ++r) {
    if (r == group_->rank() || !group_->HasArrived(r)) continue;
    compare(r, group_->payload(r));
  }
  return Status();
}

Status DirectNotices::Await(void* recv, const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(group_->Await(call(), deadline));
  CopyTo(recv);
  return Status();
}

Status DirectNotices::Meet(const void* notice, void* recv,
                           const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(enter_(what_));
  SHARD_RETURN_IF_ERROR(group_->Meet(call(), notice, bytes_, deadline));
  CopyTo(recv);
  return Status();
}

void DirectNotices::CopyTo(void* recv) const {
  auto* to = static_cast<std::byte*>(recv);
  for (int r = 0; r < group_->world_size(); ++r) {
    std::memcpy(to + static_cast<size_t>(r) * bytes_, group_->payload(r),
                bytes_);
  }
}

}  // namespace shard::direct
