// SPDX-License-Identifier: Apache-2.0
//
// The errors of a Group's rounds that some ranks have not entered: which ranks
// these are, why they do not come, and what they did last.

#include <algorithm>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/direct/call.h"
#include "core/comm/direct/deadlock.h"
#include "core/comm/direct/group.h"

namespace shard::direct {

Status Group::FindLost(const Call& call, uint64_t round) const {
  bool any_shut_down = false;
  for (int r = 0; r < world_size_; ++r) {
    const auto absent = [&] {
      return slot(r).arrived.load(std::memory_order_acquire) < round;
    };
    if (!absent()) continue;
    const bool dead = liveness_ != nullptr && liveness_->IsDead(r);
    // Read after the death: the rank may have shut down and then died.
    const uint32_t presence =
        origin().slot(r).presence.load(std::memory_order_acquire);
    // The rank may have arrived and then died: check again.
    if ((presence == kPresent && !dead && !is_shut_down()) || !absent()) {
      continue;
    }
    if (presence == kShutDown || is_shut_down()) {
      // A rank that died tells more: the search goes on.
      any_shut_down = true;
      continue;
    }
    const std::string how =
        presence == kLeft          ? " left the group without Shutdown"
        : presence == kUnreachable ? " is on a host that cannot be reached"
        : presence == kPresent     ? liveness_->HowDead(r)
                                   : " died or was killed";
    const int named = liveness_ == nullptr       ? r
                      : presence == kUnreachable ? liveness_->FirstOfHost(r)
                      : presence == kPresent     ? liveness_->NamedForDead(r)
                                                 : r;
    return RankLost(named, NameOf(named), how, " before ",
                    named == r ? "it" : StrCat("rank ", r), " entered '",
                    call.what, "'; ", LastCallOf(r, round));
  }
  if (!any_shut_down) return Status();
  return FailedPrecondition(
      "'", call.what,
      "' on a duplicate: the communicator that it is of was shut down");
}

Status Group::CheckForDeadlock(uint64_t round) const {
  try {
    const std::lock_guard<std::mutex> lock(family_->mutex);
    return FindDeadlock(family_->blocks, block_.get(), round, [this](int rank) {
      if (liveness_ != nullptr && liveness_->IsDead(rank)) return true;
      const uint32_t presence =
          origin().slot(rank).presence.load(std::memory_order_acquire);
      return presence == kDied || presence == kUnreachable;
    });
  } catch (const std::bad_alloc&) {
    return Status();  // The next interval may have memory for it.
  }
}

Status Group::DescribeLate(const Call& call, uint64_t round,
                           const Deadline& deadline) const {
  std::vector<int64_t> late;
  for (int r = 0; r < world_size_; ++r) {
    if (slot(r).arrived.load(std::memory_order_acquire) < round) {
      late.push_back(r);
    }
  }
  if (late.empty()) {
    return DeadlineExceeded("'", call.what, "' took longer than ",
                            deadline.seconds(),
                            " s, though all ranks have entered it");
  }
  constexpr size_t kMost = 32;
  const size_t count = late.size();
  if (count > kMost) late.resize(kMost);
  return Status(
      StatusCode::kDeadlineExceeded,
      StrCat("'", call.what, "': ", count, " of ", world_size_,
             " ranks did not enter it within ", deadline.seconds(), " s: rank ",
             FormatList(late), count > kMost ? " and more; " : "; ",
             LastCallOf(static_cast<int>(late[0]), round),
             "; look where it is now, or give a longer timeout"),
      static_cast<int>(late[0]));
}

std::string Group::NameOf(int rank) const {
  return liveness_ != nullptr ? liveness_->Name(rank) : StrCat("rank ", rank);
}

// Returns the last call of a rank that has not arrived at `round`. The cell of
// that call stays as it is until `round` is decided.
std::string Group::LastCallOf(int rank, uint64_t round) const {
  const uint64_t last =
      std::min(slot(rank).arrived.load(std::memory_order_acquire), round - 1);
  if (last == 0) return "it has entered no collective yet";
  return StrCat("the last it entered was ",
                Format(LoadCall(view_.cell(rank, last))));
}

}  // namespace shard::direct
