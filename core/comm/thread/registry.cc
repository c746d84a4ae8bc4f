// SPDX-License-Identifier: Apache-2.0

#include "core/comm/thread/registry.h"

#include <condition_variable>
#include <map>
#include <utility>
#include <vector>

#include "core/base/strings.h"

namespace shard::threads {

namespace {

struct Meeting {
  std::vector<bool> present;
  int count = 0;
  bool over = false;  // Complete, or failed with `error`.
  Status error;
  std::shared_ptr<SharedGroup> group;
};

struct Table {
  std::mutex mutex;
  std::condition_variable changed;
  // By name and world size.
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

}  // namespace

StatusOr<std::shared_ptr<SharedGroup>> Meet(const std::string& name, int rank,
                                            int world_size,
                                            const Deadline& deadline) {
  const auto index = static_cast<size_t>(rank);
  const auto key = std::make_pair(name, world_size);
  Table& table = TheTable();
  std::unique_lock<std::mutex> lock(table.mutex);
  std::shared_ptr<Meeting>& entry = table.meetings[key];
  if (entry == nullptr) {
    auto control = Mapping::Anonymous(direct::ControlBlock::Bytes(world_size));
    if (!control.ok()) {
      table.meetings.erase(key);
      return control.status();
    }
    entry = std::make_shared<Meeting>();
    entry->present.resize(static_cast<size_t>(world_size));
    entry->group = std::make_shared<SharedGroup>();
    entry->group->control = *std::move(control);
  }
  const std::shared_ptr<Meeting> meeting = entry;
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
    meeting->over = true;
    meeting->error = MissingRanks(*meeting, name, deadline);
    table.meetings.erase(key);
    table.changed.notify_all();
  }
  if (!meeting->error.ok()) return meeting->error;
  return meeting->group;
}

}  // namespace shard::threads
