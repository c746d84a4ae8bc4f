// SPDX-License-Identifier: Apache-2.0
//
// Makes the UpdateList of an engine: once, with the engine, so that memory
// cannot run out between the collectives of a step.

#ifndef SHARD_CORE_ENGINE_STEP_MAKE_UPDATE_LIST_H_
#define SHARD_CORE_ENGINE_STEP_MAKE_UPDATE_LIST_H_

#include "core/base/status.h"
#include "core/device/update_list.h"
#include "core/engine/memory/buffers.h"
#include "core/flat/plan.h"

namespace shard {

// Lists the ranges of `rank` in all trainable buffers, in the plan's order.
// `workspace` has Plan::workspace_numel() elements, or gpu_workspace_numel()
// where a GPU steps, aligned to a page. The memory must outlive all updates.
// Errors: those of an optimizer's text.
StatusOr<UpdateList> MakeUpdateList(const Plan& plan,
                                    const EngineMemory& memory, int rank,
                                    float* workspace);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_MAKE_UPDATE_LIST_H_
