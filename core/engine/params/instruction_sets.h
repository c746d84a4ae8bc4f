// SPDX-License-Identifier: Apache-2.0
//
// Ranks on processors of different kinds. Sums of gradients have the same bits
// on all of them, but an update rounds once or twice where a rule has a
// multiply-add. Each parameter is updated by one rank, which sends it to all:
// so all ranks hold the same parameters, in the bits of no kind alone.

#ifndef SHARD_CORE_ENGINE_PARAMS_INSTRUCTION_SETS_H_
#define SHARD_CORE_ENGINE_PARAMS_INSTRUCTION_SETS_H_

#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"

namespace shard {

// The instruction set on which the kernels of a rank run
// (kernels/cpu/target.h).
struct InstructionSet {
  std::string name;
  bool fuses = false;
};

// Logs a warning on rank 0 where the bits of updates differ between the ranks'
// instruction sets. COLLECTIVE where the ranks are on several hosts.
Status CompareInstructionSets(Communicator* comm, const Deadline& deadline);

// Returns the warning, or "" where bits do not differ. `sets`: by rank.
std::string WarningOfSets(const std::vector<InstructionSet>& sets);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_PARAMS_INSTRUCTION_SETS_H_
