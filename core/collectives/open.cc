// SPDX-License-Identifier: Apache-2.0

#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/collectives/collectives.h"
#include "core/collectives/cpu/cpu_collectives.h"
#include "core/collectives/staged/staged_collectives.h"
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

size_t StagingBytes(int world_size, const CollectivesOptions& options) {
  return staged::StagingBytes(options.staging_bytes, world_size);
}

StatusOr<std::shared_ptr<Collectives>> OpenCollectives(
    Communicator* control, Device* device, std::span<const RankSet> sets,
    const CollectivesOptions& options, const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(control, kWhat, CheckSets(sets, *control), deadline));
  const size_t staging_bytes =
      device->IsHostMemory() ? 0 : StagingBytes(control->world_size(), options);
  SHARD_RETURN_IF_ERROR(CheckAgreement(
      control, "the sets of ranks of collectives",
      [&](FactSink* sink) {
        sink->Add("", "number of sets", sets.size());
        for (size_t i = 0; i < sets.size(); ++i) {
          sink->Add(StrCat("set ", i), "ranks", sets[i].count);
          sink->Add(StrCat("set ", i), "stride", sets[i].stride);
        }
        sink->Add("", "bytes of staging memory", staging_bytes);
        sink->Add("", "bytes of blocks", options.reduce.blocks);
        sink->Add("", "bytes of zeros", options.reduce.zeros);
        sink->Add("", "order of sums",
                  options.order == SumOrder::kLibrary ? "library" : "ranks");
      },
      deadline));
  // One rank moves nothing, but is told where it cannot have what it asks for.
  if (options.transport == Transport::kNccl ||
      (options.transport == Transport::kAuto && control->world_size() > 1)) {
    SHARD_ASSIGN_OR_RETURN(
        auto own, device->OpenCollectives(control, sets, options, deadline));
    if (own != nullptr) return own;
  }
  DeviceMemory staging;
  if (staging_bytes > 0) {
    auto allocated =
        device->AllocateHost(staging_bytes, "staging memory of collectives");
    SHARD_RETURN_IF_ERROR(
        AgreeOnStatus(control, kWhat, allocated.status(), deadline));
    staging = *std::move(allocated);
  }
  SHARD_ASSIGN_OR_RETURN(auto exchange,
                         control->OpenExchange("tensors", deadline));
  std::vector<RankSet> own(sets.begin(), sets.end());
  std::shared_ptr<Collectives> collectives;
  if (staging_bytes > 0) {
    collectives = std::make_shared<staged::StagedCollectives>(
        std::move(exchange), std::move(own), options.timeout, control->rank(),
        std::move(staging));
  } else {
    collectives = std::make_shared<cpu::CpuCollectives>(
        std::move(exchange), std::move(own), options.timeout);
  }
  return collectives;
}

}  // namespace shard
