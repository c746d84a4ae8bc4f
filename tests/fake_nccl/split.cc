// SPDX-License-Identifier: Apache-2.0
//
// The entry points of the fake that make communicators of parts of others. The
// parent is polled for the call, and the new communicator is told at its end.

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "tests/fake_nccl/entry.h"
#include "tests/fake_nccl/init.h"

namespace shard::testing::fake_nccl {

namespace {

// Makes a communicator with the device of the call's, whose name begins like
// its. Returns null, and fails the call, where the configuration is wrong.
std::shared_ptr<Comm> MakeChild(Entry* entry, const Config* config) {
  const Comm& parent = *entry->comm();
  bool is_blocking = parent.is_blocking;
  if (ReadConfig(entry, config, &is_blocking) != Result::kSuccess) {
    return nullptr;
  }
  const std::shared_ptr<Comm> child = MakeComm(entry->state());
  child->name = parent.name;
  child->world_rank = parent.world_rank;
  child->device = parent.device;
  child->context = parent.context;
  child->is_blocking = is_blocking;
  return child;
}

// Tells the caller of a new communicator once its ranks have met.
Result EndMeeting(const Job& meet, const std::shared_ptr<Comm>& child,
                  Comm** made) {
  const Result result = meet();
  if (result == Result::kSuccess) {
    Publish(TheState(), child);
    *made = child.get();
  }
  return result;
}

// Returns the keys and ranks of a color, in the order of the new ranks.
std::vector<std::tuple<int64_t, int>> RanksOfColor(
    const std::vector<Part>& parts, int64_t color) {
  std::vector<std::tuple<int64_t, int>> ranks;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].values[0] != color) continue;
    ranks.emplace_back(parts[i].values[1], static_cast<int>(i));
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// Meets all ranks of the parent, and then those of the new communicator.
Job SplitJob(const std::shared_ptr<Comm>& parent,
             const std::shared_ptr<Comm>& child, int color, int key,
             Comm** made) {
  struct Progress {
    bool begun = false;
    Job meet;
  };
  return [=, progress = std::make_shared<Progress>()]() {
    if (!progress->begun) {
      if (TheState()->IsDead(*parent)) return Result::kInProgress;
      progress->begun = true;
      parent->segment->Announce(++parent->rounds, parent->rank,
                                {RoundKind::kSplit, {color, key}});
      return Result::kInProgress;
    }
    if (progress->meet == nullptr) {
      const std::vector<Part> parts =
          AwaitRound(parent.get(), RoundKind::kSplit);
      if (parts.empty()) return Result::kInProgress;
      if (color == kNoColor) return Result::kSuccess;
      const auto ranks = RanksOfColor(parts, color);
      child->size = static_cast<int>(ranks.size());
      child->rank = static_cast<int>(
          std::find(ranks.begin(), ranks.end(),
                    std::tuple<int64_t, int>(key, parent->rank)) -
          ranks.begin());
      progress->meet = MeetJob(child);
    }
    return EndMeeting(progress->meet, child, made);
  };
}

}  // namespace

Result ncclCommSplit(Comm* comm, int color, int key, Comm** made,
                     Config* config) {
  SHARD_FAKE_NCCL_ENTER(ncclCommSplit, comm);
  SHARD_FAKE_NCCL_READY();
  if (made == nullptr || (color < 0 && color != kNoColor)) {
    return entry.Fail(Result::kInvalidArgument,
                      "ncclCommSplit : invalid color or newcomm");
  }
  *made = nullptr;
  const std::shared_ptr<Comm>& parent = entry.comm();
  entry.CheckContext(*parent);
  const std::shared_ptr<Comm> child = MakeChild(&entry, config);
  if (child == nullptr) return entry.result();
  child->name +=
      "." + std::to_string(++parent->splits) + "." + std::to_string(color);
  return entry.Begin(parent, entry.options().polls.split,
                     SplitJob(parent, child, color, key, made));
}

Result ncclCommShrink(Comm* comm, int* excluded, int num_excluded, Comm** made,
                      Config* config, int flags) {
  SHARD_FAKE_NCCL_ENTER_SINCE(ncclCommShrink, 22700, comm);
  const std::shared_ptr<Comm>& parent = entry.comm();
  if ((flags & kShrinkAbort) != 0) {
    Stop(parent.get());
    parent->is_revoked = true;
    parent->async_error = Result::kSuccess;
    parent->result = Result::kSuccess;
  }
  SHARD_FAKE_NCCL_READY();
  entry.CheckContext(*parent);
  std::vector<bool> is_excluded(static_cast<size_t>(parent->size));
  bool valid = made != nullptr && excluded != nullptr && num_excluded > 0;
  for (int i = 0; valid && i < num_excluded; ++i) {
    valid = excluded[i] >= 0 && excluded[i] < parent->size &&
            excluded[i] != parent->rank;
    if (valid) is_excluded[static_cast<size_t>(excluded[i])] = true;
  }
  if (!valid) {
    return entry.Fail(Result::kInvalidArgument,
                      "ncclCommShrink : invalid ranks to exclude");
  }
  *made = nullptr;
  const std::shared_ptr<Comm> child = MakeChild(&entry, config);
  if (child == nullptr) return entry.result();
  child->name += ".shrunk" + std::to_string(++parent->shrinks);
  // Ranks that exclude others do not meet.
  for (int rank = 0; rank < parent->size; ++rank) {
    const bool out = is_excluded[static_cast<size_t>(rank)];
    if (rank == parent->rank) child->rank = child->size;
    if (out) child->name += "." + std::to_string(rank);
    if (!out) ++child->size;
  }
  const Job meet = MeetJob(child);
  return entry.Begin(parent, entry.options().polls.split,
                     [=] { return EndMeeting(meet, child, made); });
}

}  // namespace shard::testing::fake_nccl
