// SPDX-License-Identifier: Apache-2.0

#include "core/engine/params/gather_params.h"

#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"
#include "core/collectives/collectives.h"
#include "core/engine/transfer/ok_or_abort.h"
#include "core/engine/transfer/transfers.h"

namespace shard {

Status GatherParams(const EngineRuntime& runtime,
                    const std::vector<bool>& units, Communicator* comm,
                    const ParamSink& sink, const Deadline& deadline) {
  const CollectiveDeadline scope(&runtime.collectives(), deadline);
  const Plan& plan = *runtime.plan();
  std::vector<GatheredParam> params;  // The parameters of one unit.
  for (size_t u = 0; u < units.size(); ++u) {
    const UnitPlan& planned = plan.units()[u];
    if (!units[u] || planned.buffers.empty()) continue;
    const auto unit = static_cast<int32_t>(u);
    unsigned char* gathered = nullptr;
    if (runtime.units().gathers()) {
      gathered = runtime.memory().ParamSlot(planned.depth, 0);
      Stream& moving = runtime.moving();
      Status moved = runtime.transfers().Gather(unit, gathered, &moving);
      if (moved.ok()) moved = moving.Synchronize(deadline);
      SHARD_RETURN_IF_ERROR(OkOrAbort(comm, moved));
    }
    if (!sink) continue;
    params.clear();
    for (const SlotPart& part : SlotParts(plan, unit, false)) {
      const EngineBuffer& buffer = runtime.memory().buffers()[part.buffer];
      for (const Slot& slot : buffer.plan->layout.slots()) {
        if (slot.numel == 0) continue;
        params.push_back(
            {&buffer, &slot,
             gathered == nullptr
                 ? static_cast<const unsigned char*>(
                       buffer.ParamAt(slot.offset))
                 : gathered + part.offset +
                       DTypeBytes(buffer.plan->dtype, slot.offset)});
      }
    }
    SHARD_RETURN_IF_ERROR(OkOrAbort(comm, sink(params)));
  }
  return Status();
}

}  // namespace shard
