// SPDX-License-Identifier: Apache-2.0

#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/collectives/collectives.h"
#include "core/collectives/cpu/cpu_collectives.h"
#include "core/comm/check_agreement.h"

namespace shard {

namespace {

constexpr std::string_view kWhat = "open collectives";

Status CheckSets(std::span<const RankSet> sets, const Communicator& control) {
  for (const RankSet& set : sets) {
    if (set.Divides(control.world_size()) && set.IndexOf(control.rank()) >= 0) {
      continue;
    }
    return InvalidArgument(
        set.count, " ranks from ", set.first, " in steps of ", set.stride,
        " are not a set with rank ", control.rank(), " of the ",
        control.world_size(),
        " ranks; every rank must be in one set, all of one stride and count");
  }
  return Status();
}

}  // namespace

StatusOr<std::unique_ptr<Collectives>> OpenCollectives(
    Communicator* control, std::span<const RankSet> sets,
    const CollectivesOptions& options, const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(control, kWhat, CheckSets(sets, *control), deadline));
  SHARD_RETURN_IF_ERROR(CheckAgreement(
      control, "the sets of ranks of collectives",
      [&](FactSink* sink) {
        sink->Add("", "number of sets", sets.size());
        for (size_t i = 0; i < sets.size(); ++i) {
          sink->Add(StrCat("set ", i), "ranks", sets[i].count);
          sink->Add(StrCat("set ", i), "stride", sets[i].stride);
        }
      },
      deadline));
  SHARD_ASSIGN_OR_RETURN(auto exchange,
                         control->OpenExchange("tensors", deadline));
  return std::unique_ptr<Collectives>(std::make_unique<cpu::CpuCollectives>(
      std::move(exchange), std::vector<RankSet>(sets.begin(), sets.end()),
      options.timeout));
}

}  // namespace shard
