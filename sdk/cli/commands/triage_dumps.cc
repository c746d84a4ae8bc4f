// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/triage_dumps.h"

#include <algorithm>
#include <map>
#include <utility>

#include "sdk/cli/handles.h"
#include "sdk/cli/text.h"

namespace shardctl {

namespace {

using Key = std::pair<std::string, uint64_t>;  // Group and number.
using ByRank = std::map<int64_t, const DumpedCollective*>;

// Returns whether a rank has come to a collective, though perhaps so long ago
// that its dump does not have the collective any more. `groups`: the last
// number of each group that the dump has.
bool HasCome(const Dump& dump, const std::map<std::string, uint64_t>& groups,
             const Key& key) {
  const bool has_all = dump.recorded == dump.collectives.size();
  const auto last = groups.find(key.first);
  // Entries are dropped in the order in which they were made.
  return !has_all && last != groups.end() && last->second > key.second;
}

// Returns whether an error says that ranks did not come together.
bool EndsGroup(const std::string& code) {
  return code == "DEADLINE_EXCEEDED" || code == "RANK_LOST" ||
         code == "DESYNC" || code == "POISONED" || code == "UNAVAILABLE";
}

Divergence Describe(const Key& key, const ByRank& entries) {
  Divergence finding;
  finding.group = key.first;
  finding.name = entries.begin()->second->name;
  finding.number = key.second;
  finding.begin = entries.begin()->second->begin;
  for (const auto& [rank, entry] : entries) {
    finding.begin = std::min(finding.begin, entry->begin);
    if (entry->is_running()) finding.running.push_back(rank);
    if (entry->is_posted()) finding.posted.push_back(rank);
    if (entry->has_failed()) finding.failed.push_back(rank);
    const auto same =
        std::find_if(finding.calls.begin(), finding.calls.end(),
                     [&call = entry->call](const CalledBy& called) {
                       return called.call == call;
                     });
    if (same != finding.calls.end()) {
      same->ranks.push_back(rank);
    } else {
      finding.calls.push_back({entry->call, {rank}});
    }
  }
  return finding;
}

class Comparison {
 public:
  explicit Comparison(const std::vector<Dump>& dumps) : dumps_(dumps) {
    for (const Dump& dump : dumps) {
      for (const DumpedCollective& entry : dump.collectives) {
        entries_[{entry.group, entry.number}][dump.rank] = &entry;
        uint64_t& last = last_[dump.rank][entry.group];
        last = std::max(last, entry.number);
      }
    }
  }

  // Finds the first collective that is wrong; `some_unknown`: there are ranks
  // of which no collectives are known.
  std::optional<Divergence> FindFirst(bool some_unknown) {
    std::optional<Divergence> first;
    for (const auto& [key, entries] : entries_) {
      std::optional<Divergence> found = Judge(key, entries, some_unknown);
      if (found && (!first || Precedes(*found, *first))) {
        first = std::move(found);
      }
    }
    return first;
  }

 private:
  static bool Precedes(const Divergence& a, const Divergence& b) {
    return a.kind != b.kind ? a.kind < b.kind : a.begin < b.begin;
  }

  std::optional<Divergence> Judge(const Key& key, const ByRank& entries,
                                  bool some_unknown) {
    Divergence finding = Describe(key, entries);
    if (finding.calls.size() > 1) {
      finding.kind = DivergenceKind::kDifferent;
    } else if (finding.running.empty() && finding.posted.empty() &&
               finding.failed.empty()) {
      return std::nullopt;
    }
    for (const Dump& dump : dumps_) {
      if (!dump.is_silent() && entries.count(dump.rank) == 0 &&
          !HasCome(dump, last_[dump.rank], key)) {
        finding.not_come.push_back(dump.rank);
      }
    }
    if (finding.kind == DivergenceKind::kDifferent) return finding;
    const bool ends_group =
        std::any_of(entries.begin(), entries.end(), [](const auto& entry) {
          return entry.second->is_running() || EndsGroup(entry.second->error);
        });
    if (!finding.not_come.empty() || (some_unknown && ends_group)) {
      finding.kind = DivergenceKind::kIncomplete;
      return finding;
    }
    // One that ranks have announced may be done: not all of them see its end.
    if (finding.running.empty() && finding.failed.empty()) return std::nullopt;
    return finding;
  }

  const std::vector<Dump>& dumps_;
  std::map<Key, ByRank> entries_;
  std::map<int64_t, std::map<std::string, uint64_t>> last_;
};

}  // namespace

Triage CompareDumps(const std::vector<Dump>& dumps) {
  Triage triage;
  triage.world_size = dumps.front().world_size;
  std::map<int64_t, const Dump*> by_rank;
  for (const Dump& dump : dumps) {
    if (dump.world_size != triage.world_size) {
      throw Failure("'" + Shown(dumps.front().path) + "' is of a world of " +
                    std::to_string(triage.world_size) + " ranks, '" +
                    Shown(dump.path) + "' of " +
                    std::to_string(dump.world_size) +
                    "; give dumps of one run");
    }
    const auto [other, is_new] = by_rank.emplace(dump.rank, &dump);
    if (!is_new) {
      throw Failure("'" + Shown(other->second->path) + "' and '" +
                    Shown(dump.path) + "' are both of rank " +
                    std::to_string(dump.rank) + "; give dumps of one run");
    }
    if (dump.is_silent()) triage.silent.push_back(dump.rank);
    if (dump.error) triage.is_fine = false;
  }
  std::sort(triage.silent.begin(), triage.silent.end());
  for (int64_t rank = 0; rank < triage.world_size; ++rank) {
    if (by_rank.count(rank) == 0) triage.missing.push_back(rank);
  }
  const bool some_unknown = !triage.missing.empty() || !triage.silent.empty();
  triage.first = Comparison(dumps).FindFirst(some_unknown);
  if (some_unknown || triage.first) triage.is_fine = false;
  return triage;
}

}  // namespace shardctl
