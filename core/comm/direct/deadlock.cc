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

// The words of one rank in one group.
struct RankWords {
  uint64_t arrived;
  uint64_t number;
  uint64_t until;
  uint64_t given;
  uint64_t done;

  bool operator==(const RankWords&) const = default;
};

struct GroupWords {
  uint64_t state;
  std::vector<RankWords> ranks;

  bool operator==(const GroupWords&) const = default;

  uint64_t completed() const { return State::Unpack(state).completed; }
  bool failed() const { return State::Unpack(state).failer >= 0; }
  bool HasArrived(size_t rank) const {
    return ranks[rank].arrived > completed();
  }
  // Returns whether the host of `rank` waits for the round in progress.
  bool HoldsHost(size_t rank) const {
    const RankWords& words = ranks[rank];
    return words.number % 2 != 0 && HasArrived(rank) &&
           (words.until == 0 || words.done < words.until);
  }
  // Returns whether only a call of the host can bring `rank` to the round.
  bool NeedsHost(size_t rank) const {
    return !HasArrived(rank) && ranks[rank].given == ranks[rank].done;
  }
};

using FamilyWords = std::vector<GroupWords>;

FamilyWords Read(const std::vector<ControlBlock*>& blocks, int world_size) {
  FamilyWords family(blocks.size());
  for (size_t g = 0; g < blocks.size(); ++g) {
    family[g].state = blocks[g]->state.load(std::memory_order_acquire);
    for (int r = 0; r < world_size; ++r) {
      const RankSlot& slot = blocks[g]->slots()[r];
      const auto load = [](const std::atomic<uint64_t>& word) {
        return word.load(std::memory_order_acquire);
      };
      family[g].ranks.push_back(
          {load(slot.arrived), load(slot.host_wait.number),
           load(slot.host_wait.until), load(slot.host_wait.given),
           load(slot.host_wait.done)});
    }
  }
  return family;
}

// Returns the group in which the host of each rank waits, or kNone.
std::vector<size_t> PlacesOfHosts(const FamilyWords& family, int world_size) {
  std::vector<size_t> places(static_cast<size_t>(world_size), kNone);
  for (size_t r = 0; r < places.size(); ++r) {
    for (size_t g = 0; g < family.size(); ++g) {
      if (family[g].HoldsHost(r)) places[r] = g;
    }
  }
  return places;
}

// Returns the groups of a cycle to which `start` leads, in any order; none
// when there is no cycle. REQUIRES: a round of `start` is in progress.
std::vector<size_t> FindCycle(const FamilyWords& family,
                              const std::vector<size_t>& places, size_t start) {
  enum class Mark { kNew, kOnPath, kLeft };
  std::vector<Mark> marks(family.size(), Mark::kNew);
  std::vector<size_t> path = {start};
  marks[start] = Mark::kOnPath;
  while (!path.empty()) {
    const size_t at = path.back();
    size_t next = kNone;
    for (size_t r = 0; r < places.size(); ++r) {
      const size_t place = places[r];
      if (place == kNone || !family[at].NeedsHost(r)) continue;
      if (marks[place] == Mark::kOnPath) {
        return {std::find(path.begin(), path.end(), place), path.end()};
      }
      if (marks[place] == Mark::kNew) next = place;
    }
    if (next != kNone) {
      marks[next] = Mark::kOnPath;
      path.push_back(next);
    } else {
      marks[at] = Mark::kLeft;
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
std::vector<Waiters> WaitersOf(const std::vector<ControlBlock*>& blocks,
                               const FamilyWords& family,
                               const std::vector<size_t>& places,
                               const std::vector<size_t>& cycle) {
  std::vector<Waiters> all;
  std::ptrdiff_t groups = 0;  // Of which `all` has a call.
  for (size_t r = 0; r < places.size(); ++r) {
    const size_t g = places[r];
    if (std::find(cycle.begin(), cycle.end(), g) == cycle.end()) continue;
    RankSlot& slot = blocks[g]->slots()[r];
    const uint64_t round = family[g].ranks[r].arrived;
    const std::string call =
        StrCat(slot.host_wait.Call(), " (",
               Format(LoadCall(slot.cells[round & 1])), ")");
    const auto rank = static_cast<int64_t>(r);
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
    const std::string next =
        named > 0                   ? StrCat(", ", ranks, " in ", waiters.call)
        : waiters.ranks.size() == 1 ? StrCat(ranks, " waits in ", waiters.call)
                                    : StrCat(ranks, " wait in ", waiters.call);
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

Status FindDeadlock(const std::vector<ControlBlock*>& blocks,
                    const ControlBlock* start, int world_size,
                    const std::function<bool(int rank)>& is_dead) {
  const auto at = std::find(blocks.begin(), blocks.end(), start);
  if (at == blocks.end() || blocks.size() < 2) return Status();
  const FamilyWords family = Read(blocks, world_size);
  for (const GroupWords& group : family) {
    if (group.failed()) return Status();
  }
  std::vector<size_t> places = PlacesOfHosts(family, world_size);
  const auto begin = static_cast<size_t>(at - blocks.begin());
  if (FindCycle(family, places, begin).empty()) return Status();
  for (size_t r = 0; r < places.size(); ++r) {
    if (places[r] != kNone && is_dead(static_cast<int>(r))) places[r] = kNone;
  }
  const std::vector<size_t> cycle = FindCycle(family, places, begin);
  if (cycle.empty()) return Status();
  const std::vector<Waiters> waiters = WaitersOf(blocks, family, places, cycle);
  return Read(blocks, world_size) == family ? Describe(waiters) : Status();
}

}  // namespace shard::direct
