// SPDX-License-Identifier: Apache-2.0
//
// Helpers that a plan's text, its JSON and its warnings share.

#ifndef SHARD_CORE_FLAT_REPORT_H_
#define SHARD_CORE_FLAT_REPORT_H_

#include <cstdint>
#include <string>

#include "core/flat/plan.h"

namespace shard {

// The number of ranks that reports list; the rest is a count.
inline constexpr int kListedRanks = 8;

const char* PartitionName(Partition partition);
const char* MastersName(Masters masters);

// Returns "1,234,567". REQUIRES: value >= 0.
std::string Grouped(int64_t value);

// Returns the FQN of the unit's module; "(root)" for the root.
std::string UnitName(const Plan& plan, const UnitPlan& unit);

struct PlanTotals {
  int64_t params = 0;
  int64_t elements = 0;
  int64_t frozen = 0;  // Elements.
};
PlanTotals TotalsOf(const Plan& plan);

// Elements and padding of one rank, over all buffers.
struct RankShare {
  int64_t elements = 0;
  int64_t padding = 0;
};
RankShare ShareOf(const Plan& plan, int rank);

}  // namespace shard

#endif  // SHARD_CORE_FLAT_REPORT_H_
