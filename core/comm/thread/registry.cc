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

// The time for which a meeting whose ranks disagree is remembered, for ranks
// that arrive late; otherwise they would wait for their deadline.
constexpr auto kLinger = std::chrono::seconds(1);

struct Meeting {
  int world_size = 0;
  std::vector<bool> present;  // By rank. In a quarrel: got its error.
  int count = 0;
  bool over = false;  // Complete, or failed with `error`.
  Status error;
  std::shared_ptr<SharedGroup> group;
  // Set when ranks disagree on the world size; other meetings leave the table
  // when over.
  Deadline::Clock::time_point forget_at = Deadline::Clock::time_point::max();

  // Fails the meeting. The error says why once there is memory for its text.
  void End() {
    over = true;
    error = OutOfMemoryStatus();
  }
};

StatusOr<std::shared_ptr<Meeting>> BeginMeeting(int world_size) {
  auto meeting = std::make_shared<Meeting>();
  meeting->world_size = world_size;
  meeting->present.resize(static_cast<size_t>(world_size));
  meeting->group = std::make_shared<SharedGroup>();
  SHARD_ASSIGN_OR_RETURN(
      meeting->group->control,
      Mapping::Anonymous(direct::ControlBlock::Bytes(world_size)));
  return meeting;
}

struct Table {
  std::mutex mutex;
  std::condition_variable changed;
  // By name. Groups without a name share the empty one, so theirs are kept
  // apart by their size, which is 0 here for the others.
  std::map<std::pair<std::string, int>, std::shared_ptr<Meeting>> meetings;
};

Table& TheTable() {
  // Never destroyed: threads may still meet while the host exits.
  static Table* const table = new Table;
  return *table;
}

Status MissingRanks(const Meeting& meeting, const std::string& name,
                    const Deadline& deadline) {
  std::vector<int64_t> missing;
  for (size_t r = 0; r < meeting.present.size(); ++r) {
    if (!meeting.present[r]) missing.push_back(static_cast<int64_t>(r));
  }
  const size_t world_size = meeting.present.size();
  return Status(
      StatusCode::kDeadlineExceeded,
      StrCat("threads:", world_size, name.empty() ? "" : "?name=", name, ": ",
             missing.size(), " of ", world_size, " ranks did not come within ",
             deadline.seconds(), " s: missing ", FormatList(missing)),
      static_cast<int>(missing[0]));
}

// REQUIRES: a rank is present.
Status DifferentSizes(const Meeting& meeting, int rank, int world_size) {
  const auto first =
      std::find(meeting.present.begin(), meeting.present.end(), true);
  std::pair<int, int> low(static_cast<int>(first - meeting.present.begin()),
                          meeting.world_size);
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

StatusOr<std::shared_ptr<SharedGroup>> Meet(const std::string& name, int rank,
                                            int world_size,
                                            const Deadline& deadline) {
  const auto index = static_cast<size_t>(rank);
  const auto key = std::make_pair(name, name.empty() ? world_size : 0);
  Table& table = TheTable();
  std::unique_lock<std::mutex> lock(table.mutex);
  const auto now = Deadline::Clock::now();
  std::erase_if(table.meetings, [now](const auto& entry) {
    return now >= entry.second->forget_at;
  });
  auto entry = table.meetings.find(key);
  if (entry != table.meetings.end() && entry->second->over) {  // A quarrel.
    Meeting& quarrel = *entry->second;
    if (index < quarrel.present.size() && !quarrel.present[index]) {
      quarrel.present[index] = true;
      return quarrel.error;
    }
    // This rank has got the error, and tries again.
    table.meetings.erase(entry);
    entry = table.meetings.end();
  }
  if (entry == table.meetings.end()) {
    SHARD_ASSIGN_OR_RETURN(auto begun, BeginMeeting(world_size));
    entry = table.meetings.emplace(key, std::move(begun)).first;
  }
  const std::shared_ptr<Meeting> meeting = entry->second;
  if (meeting->world_size != world_size) {
    meeting->End();
    meeting->forget_at = now + kLinger;
    table.changed.notify_all();
    meeting->error = DifferentSizes(*meeting, rank, world_size);
    meeting->present.resize(
        static_cast<size_t>(std::max(meeting->world_size, world_size)));
    meeting->present[index] = true;
    return meeting->error;
  }
  if (meeting->present[index]) {
    return Status(StatusCode::kAlreadyExists,
                  StrCat("rank ", rank, " of threads:", world_size,
                         name.empty() ? "" : "?name=", name,
                         " is already waiting for the others; give each group "
                         "a name of its own"),
                  rank);
  }
  meeting->present[index] = true;
  if (++meeting->count == world_size) {
    meeting->over = true;
    table.meetings.erase(key);
    table.changed.notify_all();
    return meeting->group;
  }
  const auto at = Deadline::Clock::now() + deadline.Remaining();
  table.changed.wait_until(lock, at, [&] { return meeting->over; });
  if (!meeting->over) {
    meeting->End();
    table.meetings.erase(key);
    table.changed.notify_all();
    meeting->error = MissingRanks(*meeting, name, deadline);
  }
  if (!meeting->error.ok()) return meeting->error;
  return meeting->group;
}

}  // namespace shard::threads
