// SPDX-License-Identifier: Apache-2.0

#include "core/comm/direct/deadlock.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/direct/call.h"

namespace shard::direct {

namespace {

constexpr size_t kNone = SIZE_MAX;

// The words of a HostWait.
struct HostWords {
  uint64_t number;
  uint64_t until;
  uint64_t given;
  uint64_t done;

  bool operator==(const HostWords&) const = default;

  bool in_collective() const { return number % 2 != 0 && until == 0; }
  bool waits_for_work() const { return number % 2 != 0 && done < until; }
};

// The words of one rank in one group.
struct RankWords {
  uint64_t arrived;
  uint64_t awaited;
  // In the group's own block, and in that of its work (BlockView).
  HostWords own;
  HostWords work;

  bool operator==(const RankWords&) const = default;

  // Returns whether the host is in a collective of the group, or waits for work
  // of the library, which may be in one.
  bool host_waits() const {
    return own.in_collective() || own.waits_for_work() || work.waits_for_work();
  }
  bool library_works() const {
    return own.given != own.done || work.given != work.done;
  }
};

struct GroupWords {
  uint64_t state;
  std::vector<RankWords> ranks;

  bool operator==(const GroupWords&) const = default;

  uint64_t completed() const { return State::Unpack(state).completed; }
  bool failed() const { return State::Unpack(state).failer >= 0; }
  // Returns whether the host of `rank` waits for a round that is not complete.
  bool HoldsHost(size_t rank) const {
    return ranks[rank].awaited > completed() && ranks[rank].host_waits();
  }
  // Returns whether only a call of the host can bring `rank` to `round`.
  bool NeedsHost(size_t rank, uint64_t round) const {
    return ranks[rank].arrived < round && !ranks[rank].library_works();
  }
};

using FamilyWords = std::vector<GroupWords>;

uint64_t Load(const std::atomic<uint64_t>& word) {
  return word.load(std::memory_order_acquire);
}

HostWords Read(const HostWait& wait) {
  return {Load(wait.number), Load(wait.until), Load(wait.given),
          Load(wait.done)};
}

FamilyWords Read(const std::vector<BlockView>& blocks) {
  FamilyWords family(blocks.size());
  for (size_t g = 0; g < blocks.size(); ++g) {
    const BlockView& view = blocks[g];
    family[g].state = view.block->state.load(std::memory_order_acquire);
    for (int r = 0; r < view.world_size; ++r) {
      const RankSlot& slot = view.slot(r);
      const RankSlot& work = view.work_slot(r);
      family[g].ranks.push_back({Load(slot.arrived), Load(slot.awaited),
                                 Read(slot.host_wait), Read(work.host_wait)});
    }
  }
  return family;
}

// A round of a group that is not complete.
struct OpenRound {
  size_t group;
  uint64_t round;

  bool operator==(const OpenRound&) const = default;
};

// The rounds for which the hosts wait.
struct Waits {
  std::vector<OpenRound> rounds;  // Each once.
  std::vector<size_t> places;     // By rank, an index in `rounds`, or kNone.
};

// `start` becomes the first round.
Waits WaitsOf(const FamilyWords& family, const OpenRound& start) {
  const size_t world_size = family[start.group].ranks.size();
  Waits waits = {{start}, std::vector<size_t>(world_size, kNone)};
  for (size_t r = 0; r < world_size; ++r) {
    for (size_t g = 0; g < family.size(); ++g) {
      if (!family[g].HoldsHost(r)) continue;
      const OpenRound round = {g, family[g].ranks[r].awaited};
      const auto at =
          std::find(waits.rounds.begin(), waits.rounds.end(), round);
      waits.places[r] = static_cast<size_t>(at - waits.rounds.begin());
      if (at == waits.rounds.end()) waits.rounds.push_back(round);
    }
  }
  return waits;
}

// Returns the groups of a cycle to which the first of the rounds leads, in any
// order; none when there is no cycle.
std::vector<size_t> FindCycle(const FamilyWords& family, const Waits& waits) {
  enum class Mark { kNew, kOnPath, kLeft };
  std::vector<Mark> marks(waits.rounds.size(), Mark::kNew);
  std::vector<size_t> path = {0};
  marks[0] = Mark::kOnPath;
  while (!path.empty()) {
    const OpenRound& at = waits.rounds[path.back()];
    size_t next = kNone;
    for (size_t r = 0; r < waits.places.size(); ++r) {
      const size_t place = waits.places[r];
      if (place == kNone || !family[at.group].NeedsHost(r, at.round)) continue;
      if (marks[place] == Mark::kOnPath) {
        std::vector<size_t> groups;
        for (auto i = std::find(path.begin(), path.end(), place);
             i != path.end(); ++i) {
          groups.push_back(waits.rounds[*i].group);
        }
        return groups;
      }
      if (marks[place] == Mark::kNew) next = place;
    }
    if (next != kNone) {
      marks[next] = Mark::kOnPath;
      path.push_back(next);
    } else {
      marks[path.back()] = Mark::kLeft;
      path.pop_back();
    }
  }
  return {};
}

// The ranks whose hosts wait in one call.
struct Waiters {
  size_t group;
  std::string call;
  std::vector<int64_t> ranks;
};

// Returns where the hosts of a cycle wait: first one call of each group, then
// the others. Hosts that wait in one group may have made different calls: the
// group compares them when all ranks have come. The text of a call may be torn
// where a wait has ended meanwhile, which the caller finds by reading again.
std::vector<Waiters> WaitersOf(const std::vector<BlockView>& blocks,
                               const FamilyWords& family, const Waits& waits,
                               const std::vector<size_t>& cycle) {
  std::vector<Waiters> all;
  std::ptrdiff_t groups = 0;  // Of which `all` has a call.
  for (size_t r = 0; r < waits.places.size(); ++r) {
    if (waits.places[r] == kNone) continue;
    const OpenRound& at = waits.rounds[waits.places[r]];
    const size_t g = at.group;
    if (std::find(cycle.begin(), cycle.end(), g) == cycle.end()) continue;
    const BlockView& view = blocks[g];
    const auto rank_number = static_cast<int>(r);
    const HostWait& wait = family[g].ranks[r].work.waits_for_work()
                               ? view.work_slot(rank_number).host_wait
                               : view.slot(rank_number).host_wait;
    const std::string call =
        StrCat(wait.Call(), " (",
               Format(LoadCall(view.cell(rank_number, at.round))), ")");
    const int64_t rank = rank_number;
    const auto same =
        std::find_if(all.begin(), all.end(), [&](const Waiters& waiters) {
          return waiters.group == g && waiters.call == call;
        });
    if (same != all.end()) {
      same->ranks.push_back(rank);
      continue;
    }
    const bool is_first_of_group = std::none_of(
        all.begin(), all.end(),
        [&](const Waiters& waiters) { return waiters.group == g; });
    all.insert(is_first_of_group ? all.begin() + groups++ : all.end(),
               Waiters{g, call, {rank}});
  }
  return all;
}

// Returns the ranks of a call, of which the first 16 are listed.
std::string RanksOf(const Waiters& waiters) {
  constexpr size_t kListed = 16;
  const std::span<const int64_t> ranks(waiters.ranks);
  if (ranks.size() == 1) return StrCat("rank ", ranks[0]);
  return StrCat("ranks ",
                FormatList(ranks.first(std::min(ranks.size(), kListed))),
                ranks.size() > kListed ? " and more" : "");
}

// Returns the error, with as many calls as a FailureRecord has room for. Two
// always fit: a call and its ranks take some 400 bytes at most. REQUIRES: at
// least two.
Status Describe(const std::vector<Waiters>& all) {
  constexpr std::string_view kEnd =
      "; none of these calls can end: every rank must make the same calls in "
      "the same order";
  constexpr size_t kRoom =
      kMessageBytes - kEnd.size() - std::string_view(", and 512 more").size();
  std::string text = "the ranks wait for each other in different calls: ";
  size_t named = 0;
  for (const Waiters& waiters : all) {
    const std::string ranks = RanksOf(waiters);
    std::string next = named > 0 ? StrCat(", ", ranks, " in ", waiters.call)
                       : waiters.ranks.size() == 1
                           ? StrCat(ranks, " waits in ", waiters.call)
                           : StrCat(ranks, " wait in ", waiters.call);
    // Calls of one text are in groups of their own.
    const auto before = all.begin() + static_cast<std::ptrdiff_t>(named);
    if (std::any_of(all.begin(), before, [&](const Waiters& other) {
          return other.call == waiters.call;
        })) {
      next += " of another engine or communicator";
    }
    if (named >= 2 && text.size() + next.size() > kRoom) break;
    text += next;
    ++named;
  }
  if (named < all.size()) {
    StrAppend(&text, ", and ", all.size() - named, " more");
  }
  return Desync(static_cast<int>(all[1].ranks.front()), text, kEnd);
}

}  // namespace

Status FindDeadlock(const std::vector<BlockView>& blocks,
                    const ControlBlock* start, uint64_t round,
                    const std::function<bool(int rank)>& is_dead) {
  const auto at = std::find_if(
      blocks.begin(), blocks.end(),
      [start](const BlockView& view) { return view.block == start; });
  if (at == blocks.end() || blocks.size() < 2) return Status();
  // Words of ranks on other hosts change together (mirror.h).
  const std::atomic<uint64_t>& writes = blocks[0].block->mirror_writes;
  const uint64_t written = Load(writes);
  if (written % 2 != 0) return Status();
  const FamilyWords family = Read(blocks);
  for (const GroupWords& group : family) {
    if (group.failed()) return Status();
  }
  const auto group = static_cast<size_t>(at - blocks.begin());
  if (family[group].completed() >= round) return Status();
  Waits waits = WaitsOf(family, {group, round});
  if (FindCycle(family, waits).empty()) return Status();
  for (size_t r = 0; r < waits.places.size(); ++r) {
    if (waits.places[r] != kNone && is_dead(static_cast<int>(r))) {
      waits.places[r] = kNone;
    }
  }
  const std::vector<size_t> cycle = FindCycle(family, waits);
  if (cycle.empty()) return Status();
  const std::vector<Waiters> waiters = WaitersOf(blocks, family, waits, cycle);
  // Words of a host with another code may name one call alone.
  if (waiters.size() < 2) return Status();
  return Read(blocks) == family && Load(writes) == written ? Describe(waiters)
                                                           : Status();
}

}  // namespace shard::direct
