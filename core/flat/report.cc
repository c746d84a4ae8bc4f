// SPDX-License-Identifier: Apache-2.0

#include "core/flat/report.h"

#include <cstddef>

#include "core/base/strings.h"

namespace shard {

const char* PartitionName(Partition partition) {
  switch (partition) {
    case Partition::kEven:
      return "even";
    case Partition::kGreedy:
      return "greedy";
    case Partition::kBucket:
      return "bucket";
    case Partition::kManual:
      return "manual";
  }
  return "unknown";
}

const char* MastersName(Masters masters) {
  switch (masters) {
    case Masters::kF32:
      return "f32";
    case Masters::kNoneNearest:
      return "none_nearest";
    case Masters::kNoneStochastic:
      return "none_stochastic";
  }
  return "unknown";
}

std::string Grouped(int64_t value) {
  const std::string digits = StrCat(value);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out.push_back(',');
    out.push_back(digits[i]);
  }
  return out;
}

std::string UnitName(const Plan& plan, const UnitPlan& unit) {
  return unit.module == kRootModule ? "(root)"
                                    : plan.model().ModuleFqn(unit.module);
}

PlanTotals TotalsOf(const Plan& plan) {
  PlanTotals totals;
  for (const FlatBufferPlan& buffer : plan.buffers()) {
    totals.params += static_cast<int64_t>(buffer.layout.slots().size());
    totals.elements += buffer.layout.numel();
    if (!buffer.trainable) totals.frozen += buffer.layout.numel();
  }
  return totals;
}

RankShare ShareOf(const Plan& plan, int rank) {
  RankShare share;
  for (const FlatBufferPlan& buffer : plan.buffers()) {
    const int64_t padding = buffer.layout.PaddingOf(plan.RangeOf(rank));
    share.elements += buffer.layout.shard_numel() - padding;
    share.padding += padding;
  }
  return share;
}

}  // namespace shard
