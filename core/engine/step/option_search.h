// SPDX-License-Identifier: Apache-2.0
//
// Finds options that make a plan fit into the memory that there is. Each is
// tried: the plan is made again with it, and its memory compared with the room.
// Options that keep the precision of optimizer states come first: offload,
// stages and shard groups. Results may still differ as sums of gradients do
// (docs/numerics.md), and the text says where an option rounds sums to 16 bits
// that the plan does not round. After them come options that give up what the
// plan asks for, the least of it first, and more ranks; where neither fits,
// more ranks and what is asked of gradients.
//
// Pure functions, but for the clock of a deadline: no communicator, no device.

#ifndef SHARD_CORE_ENGINE_STEP_OPTION_SEARCH_H_
#define SHARD_CORE_ENGINE_STEP_OPTION_SEARCH_H_

#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/engine/step/explain_misfit.h"
#include "core/flat/plan.h"

namespace shard {

struct FittingOptions {
  // Larger worlds are not tried: whoever has so many ranks plans beforehand.
  static constexpr int kMostRanks = 4096;

  // Each makes the plan fit, and has the memory that it needs then.
  std::vector<std::string> texts;
  // False where the model is too large, or the time too short, for trying all.
  bool tried_all = true;
};

// REQUIRES: the plan does not fit into the rooms. Arguments are those of
// ExplainMisfit. Throws std::bad_alloc.
FittingOptions FindFittingOptions(const Plan& plan,
                                  const RankPlacement& placement,
                                  const Rooms& rooms, const Deadline& deadline,
                                  const ReplacedPlan* before);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_OPTION_SEARCH_H_
