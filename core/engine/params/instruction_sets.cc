// SPDX-License-Identifier: Apache-2.0

#include "core/engine/params/instruction_sets.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/strings.h"
#include "core/observe/observer.h"
#include "kernels/cpu/target.h"

namespace shard {

namespace {

// As it passes between hosts.
struct WireSet {
  std::array<char, 15> name;  // Ends with NULs.
  uint8_t fuses;
};
static_assert(sizeof(WireSet) == 16);

WireSet OwnSet() {
  WireSet set = {};
  const std::string_view name = KernelTargetName();
  std::copy_n(name.begin(), std::min(name.size(), set.name.size()),
              set.name.begin());
  set.fuses = KernelTargetFuses() ? 1 : 0;
  return set;
}

// Returns "ranks 0-3, 6" or "rank 2": those whose set has that name.
std::string RanksOf(const std::vector<InstructionSet>& sets,
                    std::string_view name) {
  std::string ranges;
  size_t count = 0;
  for (size_t r = 0; r < sets.size(); ++r) {
    if (sets[r].name != name) continue;
    const size_t first = r;
    while (r + 1 < sets.size() && sets[r + 1].name == name) ++r;
    StrAppend(&ranges, ranges.empty() ? "" : ", ", first);
    if (r > first) StrAppend(&ranges, "-", r);
    count += r - first + 1;
  }
  return StrCat(count == 1 ? "rank " : "ranks ", ranges);
}

}  // namespace

std::string WarningOfSets(const std::vector<InstructionSet>& sets) {
  const bool differ =
      std::any_of(sets.begin(), sets.end(), [&](const InstructionSet& set) {
        return set.fuses != sets.front().fuses;
      });
  if (!differ) return "";
  std::vector<std::string_view> named;
  std::string lists;
  for (const InstructionSet& set : sets) {
    if (std::find(named.begin(), named.end(), set.name) != named.end()) {
      continue;
    }
    named.push_back(set.name);
    StrAppend(&lists, lists.empty() ? "" : "; ", RanksOf(sets, set.name),
              named.size() > 1 ? ": " : " run on ", set.name,
              set.fuses ? "" : ", without fused multiply-add");
  }
  return StrCat(
      "the processors of the ranks differ: ", lists,
      ". Gradients are summed to the same bits, and all ranks hold the same "
      "parameters; but the last bits of an update depend on the rank that "
      "makes it, and so on the number of ranks and on how parameters are "
      "sharded. "
      "Hosts of one kind have the same bits in every run");
}

Status CompareInstructionSets(Communicator* comm, const Deadline& deadline) {
  // Ranks of one host have its processors.
  if (comm->local_world_size() == comm->world_size()) return Status();
  const WireSet mine = OwnSet();
  std::vector<WireSet> all(static_cast<size_t>(comm->world_size()));
  SHARD_RETURN_IF_ERROR(comm->AllGather("compare instruction sets", &mine,
                                        sizeof(mine), all.data(), deadline));
  if (comm->rank() != 0) return Status();
  std::vector<InstructionSet> sets;
  for (const WireSet& set : all) {
    const auto end = std::find(set.name.begin(), set.name.end(), '\0');
    sets.push_back({std::string(set.name.begin(), end), set.fuses != 0});
  }
  const std::string warning = WarningOfSets(sets);
  if (!warning.empty()) {
    comm->observer()->Log(EventId::kInstructionSets, warning);
  }
  return Status();
}

}  // namespace shard
