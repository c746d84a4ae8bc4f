// SPDX-License-Identifier: Apache-2.0
//
// How an engine describes itself.

#include <algorithm>
#include <string>

#include "core/base/dtype.h"
#include "core/base/json_writer.h"
#include "core/collectives/collectives.h"
#include "core/engine/engine.h"
#include "core/engine/transfer/plan_sets.h"

namespace shard {

namespace {

const char* NameOf(SumOrder order) {
  return order == SumOrder::kLibrary ? "library" : "ranks";
}

// Calls `visit` with each dtype of the plan's gradients.
template <typename Visit>
void ForEachGradType(const Plan& plan, const Visit& visit) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto& buffers = plan.buffers();
    const bool has = std::any_of(
        buffers.begin(), buffers.end(), [&](const FlatBufferPlan& buffer) {
          return buffer.trainable && buffer.grad_dtype == dtype;
        });
    if (has) visit(dtype);
  }
}

// Writes the sets of ranks over which gradients are reduced, one after the
// other, with the order of sums of each dtype.
void WriteSums(const Plan& plan, int rank, const Collectives& collectives,
               JsonWriter* json) {
  json->Key("sums");
  json->BeginArray();
  for (const PlanSets::Level& level : PlanSets(plan, rank).Levels(plan)) {
    if (level.set.count == 1) continue;
    json->BeginObject();
    json->Field("ranks", level.set.count);
    const int hosts = collectives.CountHosts(level.set);
    if (hosts > 1) json->Field("hosts", hosts);
    ForEachGradType(plan, [&](DType dtype) {
      json->Field(DTypeName(dtype), NameOf(collectives.order(dtype)));
    });
    json->EndObject();
  }
  json->EndArray();
}

}  // namespace

std::string Engine::ToJson() const {
  const Collectives& collectives = runtime_->collectives();
  const Plan& plan = *runtime_->plan();
  SumOrder order = SumOrder::kRankOrder;
  ForEachGradType(plan, [&](DType dtype) {
    if (comm_->world_size() == 1) return;
    if (collectives.order(dtype) == SumOrder::kLibrary) {
      order = SumOrder::kLibrary;
    }
  });
  JsonWriter json;
  json.BeginObject();
  json.Field("device", device_->name());
  json.Field("transport", comm_->world_size() == 1 ? "none"
                          : SharesTensors()        ? "direct"
                                                   : collectives.transport());
  json.Field("sum_order", NameOf(order));
  if (const auto registered = collectives.registered()) {
    WriteSums(plan, comm_->rank(), collectives, &json);
    json.Field("registered_bytes", registered->bytes);
    if (!registered->why_not.empty()) {
      json.Field("not_registered", registered->why_not);
    }
    if (registered->shared_bytes > 0) {
      json.Field("window_bytes", registered->shared_bytes);
    } else if (!registered->why_not_shared.empty()) {
      json.Field("no_windows", registered->why_not_shared);
    }
  }
  if (const PeerStep* const peers = runtime_->peers(); peers != nullptr) {
    json.Field("one_kernel", peers->why_not().empty());
    if (!peers->why_not().empty()) {
      json.Field("not_one_kernel", peers->why_not());
    }
  }
  json.EndObject();
  return json.text();
}

}  // namespace shard
