// SPDX-License-Identifier: Apache-2.0

#include "core/comm/thread/registry.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <utility>
#include <vector>

#include "core/base/out_of_memory.h"
#include "core/base/strings.h"

namespace shard::threads {

namespace {

// The time for which a rendezvous whose ranks disagree is remembered, for ranks
// that arrive late; otherwise they would wait for their deadline.
constexpr auto kLinger = std::chrono::seconds(1);

struct Rendezvous {
  int world_size = 0;
  std::vector<bool> present;  // By rank. In a quarrel: got its error.
  int count = 0;
  bool over = false;  // Complete, or failed with `error`.
  Status error;
  std::shared_ptr<SharedGroup> group;
  // Set when ranks disagree on the world size; other rendezvous leave the table
  // when over.
  Deadline::Clock::time_point forget_at = Deadline::Clock::time_point::max();

  // Fails the rendezvous. The error says why once there is memory for its text.
  void End() {
    over = true;
    error = OutOfMemoryStatus();
  }
};

StatusOr<std::shared_ptr<Rendezvous>> BeginRendezvous(int world_size) {
  auto rendezvous = std::make_shared<Rendezvous>();
  rendezvous->world_size = world_size;
  rendezvous->present.resize(static_cast<size_t>(world_size));
  rendezvous->group = std::make_shared<SharedGroup>();
  SHARD_ASSIGN_OR_RETURN(
      rendezvous->group->control,
      Mapping::Anonymous(direct::ControlBlock::Bytes(world_size)));
  return rendezvous;
}

struct Table {
  std::mutex mutex;
  std::condition_variable changed;
  // By name. Groups without a name share the empty one, so theirs are kept
  // apart by their size, which is 0 here for the others.
  std::map<std::pair<std::string, int>, std::shared_ptr<Rendezvous>> rendezvous;
};

Table& GlobalTable() {
  // Never destroyed: threads may still meet while the host exits.
  static Table* const table = new Table;
  return *table;
}

Status MissingRanks(const Rendezvous& rendezvous, const std::string& name,
                    const Deadline& deadline) {
  std::vector<int64_t> missing;
  for (size_t r = 0; r < rendezvous.present.size(); ++r) {
    if (!rendezvous.present[r]) missing.push_back(static_cast<int64_t>(r));
  }
  const size_t world_size = rendezvous.present.size();
  return Status(
      StatusCode::kDeadlineExceeded,
      StrCat("threads:", world_size, name.empty() ? "" : "?name=", name, ": ",
             missing.size(), " of ", world_size, " ranks did not come within ",
             deadline.seconds(), " s: missing ", FormatList(missing)),
      static_cast<int>(missing[0]));
}

// REQUIRES: a rank is present.
Status DifferentSizes(const Rendezvous& rendezvous, int rank, int world_size) {
  const auto first =
      std::find(rendezvous.present.begin(), rendezvous.present.end(), true);
  std::pair<int, int> low(static_cast<int>(first - rendezvous.present.begin()),
                          rendezvous.world_size);
  std::pair<int, int> high(rank, world_size);
  // The message is the same whichever rank came first.
  if (high < low) std::swap(low, high);
  return Status(StatusCode::kInvalidArgument,
                StrCat("rank ", high.first, " says world size ", high.second,
                       ", ", high.first == low.first ? "another " : "", "rank ",
                       low.first, " says ", low.second),
                high.first);
}

}  // namespace

StatusOr<std::shared_ptr<SharedGroup>> JoinGroup(const std::string& name,
                                                 int rank, int world_size,
                                                 const Deadline& deadline) {
  const auto index = static_cast<size_t>(rank);
  const auto key = std::make_pair(name, name.empty() ? world_size : 0);
  Table& table = GlobalTable();
  std::unique_lock<std::mutex> lock(table.mutex);
  const auto now = Deadline::Clock::now();
  std::erase_if(table.rendezvous, [now](const auto& entry) {
    return now >= entry.second->forget_at;
  });
  auto entry = table.rendezvous.find(key);
  if (entry != table.rendezvous.end() && entry->second->over) {  // A quarrel.
    Rendezvous& quarrel = *entry->second;
    if (index < quarrel.present.size() && !quarrel.present[index]) {
      quarrel.present[index] = true;
      return quarrel.error;
    }
    // This rank has got the error, and tries again.
    table.rendezvous.erase(entry);
    entry = table.rendezvous.end();
  }
  if (entry == table.rendezvous.end()) {
    SHARD_ASSIGN_OR_RETURN(auto begun, BeginRendezvous(world_size));
    entry = table.rendezvous.emplace(key, std::move(begun)).first;
  }
  const std::shared_ptr<Rendezvous> rendezvous = entry->second;
  if (rendezvous->world_size != world_size) {
    rendezvous->End();
    rendezvous->forget_at = now + kLinger;
    table.changed.notify_all();
    rendezvous->error = DifferentSizes(*rendezvous, rank, world_size);
    rendezvous->present.resize(
        static_cast<size_t>(std::max(rendezvous->world_size, world_size)));
    rendezvous->present[index] = true;
    return rendezvous->error;
  }
  if (rendezvous->present[index]) {
    return Status(StatusCode::kAlreadyExists,
                  StrCat("rank ", rank, " of threads:", world_size,
                         name.empty() ? "" : "?name=", name,
                         " is already waiting for the others; give each group "
                         "a name of its own"),
                  rank);
  }
  rendezvous->present[index] = true;
  if (++rendezvous->count == world_size) {
    rendezvous->over = true;
    table.rendezvous.erase(key);
    table.changed.notify_all();
    return rendezvous->group;
  }
  const auto at = Deadline::Clock::now() + deadline.Remaining();
  table.changed.wait_until(lock, at, [&] { return rendezvous->over; });
  if (!rendezvous->over) {
    rendezvous->End();
    table.rendezvous.erase(key);
    table.changed.notify_all();
    rendezvous->error = MissingRanks(*rendezvous, name, deadline);
  }
  if (!rendezvous->error.ok()) return rendezvous->error;
  return rendezvous->group;
}

}  // namespace shard::threads
