// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/explain_misfit.h"

#include <cstddef>
#include <string_view>

#include "core/base/out_of_memory.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "core/engine/step/option_search.h"
#include "core/engine/transfer/collectives_memory.h"

namespace shard {

namespace {

uint64_t Product(uint64_t a, uint64_t b) {
  return b != 0 && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

// Returns what is needed, what is there and how much is missing; "" where
// nothing is.
std::string DescribeMissing(const MemoryNeed& need,
                            const RankPlacement& placement,
                            const Rooms& rooms) {
  std::string text;
  const auto ranks = static_cast<uint64_t>(placement.ranks_on_device);
  if (rooms.device && need.device > rooms.device->free / ranks) {
    StrAppend(&text, "the plan needs ", FormatBytes(need.device), " (",
              need.device, " bytes) ",
              ranks == 1 ? "" : StrCat("for each of ", ranks, " ranks "), "on ",
              placement.PlainDevice(), ", which has ",
              FormatBytes(rooms.device->free), " free of ",
              FormatBytes(rooms.device->total), ": ",
              FormatBytes(Product(need.device, ranks) - rooms.device->free),
              " are missing");
  }
  if (need.host > rooms.host) {
    StrAppend(&text, text.empty() ? "" : "; and ", FormatBytes(need.host),
              " of memory are needed on this host, and ",
              FormatBytes(rooms.host),
              " are available: ", FormatBytes(need.host - rooms.host),
              " are missing");
  }
  return text;
}

}  // namespace

MemoryNeed NeedOf(const Plan& plan, const RankPlacement& placement,
                  const ReplacedPlan* before) {
  MemoryReport memory = plan.Memory(
      placement.shares_tensors, placement.offload,
      placement.has_device_memory ? Processor::kGpu : Processor::kCpu);
  if (placement.allow_missing && !placement.shares_tensors) {
    memory.transient_bytes += GroupSumBytes(plan);
  }
  CollectivesMemory collectives;
  if (placement.has_staging) {
    collectives = CollectivesMemoryOf(plan, placement.transport);
  }
  if (before != nullptr) {
    memory.host_tensor_bytes = 0;
    // The collectives of before stay, or live until there are new ones.
    if (ServesReductions(before->reduce, plan)) collectives = {};
  }
  if (placement.has_staging && placement.one_kernel) {
    collectives +=
        MeetingsMemory(plan.options().world_size, placement.transport);
  }
  memory.host_tensor_bytes += collectives.host_bytes;
  MemoryNeed need;
  if (placement.has_device_memory) {
    need.device = SaturatedSum(memory.DeviceTotal(), collectives.device_bytes);
    memory = {.host_tensor_bytes = memory.PinnedTotal()};
  }
  const bool shares_params = placement.shares_tensors ||
                             (placement.shares_host && !plan.shards_params());
  need.host = memory.HostTotal(placement.ranks_on_host, shares_params,
                               placement.SharesSlots(plan));
  return need;
}

std::string ExplainMisfit(const Plan& plan, const RankPlacement& placement,
                          const Rooms& rooms, const Deadline& deadline,
                          const ReplacedPlan* before) {
  std::string text =
      DescribeMissing(NeedOf(plan, placement, before), placement, rooms);
  if (text.empty()) return text;
  if (before != nullptr) {
    StrAppend(&text, " while the plan changes and the old one is there too");
  }
  FittingOptions found;
  const Status searched = CatchOutOfMemory([&] {
    found = FindFittingOptions(plan, placement, rooms, deadline, before);
    return Status();
  });
  if (!searched.ok()) return text;
  if (found.texts.empty() && !found.tried_all) {
    StrAppend(&text, "; try a higher stage, more ranks",
              placement.has_device_memory ? ", offload=states" : "",
              " or narrower optimizer states");
  } else if (found.texts.empty()) {
    StrAppend(&text, "; no stage, narrower optimizer states",
              placement.has_device_memory ? ", offload" : "", " or up to ",
              FittingOptions::kMostRanks,
              " ranks would make it fit; use a smaller model, or machines with "
              "more memory");
  }
  for (size_t i = 0; i < found.texts.size(); ++i) {
    StrAppend(&text, i == 0 ? "; it fits with " : ", or with ", found.texts[i]);
  }
  StrAppend(&text, "; see shardctl plan");
  return text;
}

}  // namespace shard
