// SPDX-License-Identifier: Apache-2.0
//
// Writes a plan as JSON, for programs.

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "core/base/element_type.h"
#include "core/base/json_writer.h"
#include "core/base/strings.h"
#include "core/flat/plan.h"
#include "core/flat/report.h"

namespace shard {

namespace {

void WriteOptions(const PlanOptions& options, JsonWriter* json) {
  json->BeginObject();
  json->Field("stage", options.stage);
  json->Field("world_size", options.world_size);
  json->Field("partition", PartitionName(options.partition));
  json->Field("bucket_bytes", options.bucket_bytes);
  json->Field("shard_buckets", options.shard_buckets);
  json->Field("wrap", options.wrap.text());
  json->Field("param_dtype", DTypeName(options.param_dtype));
  json->Field("f32_classes", options.f32_classes);
  json->Field("buffer_bytes", options.buffer_bytes);
  json->Field("shard_group_size", options.shard_group_size);
  json->Field("prefetch", options.prefetch);
  json->Field("whole_grads", options.whole_grads);
  json->Field("keep_after_forward", options.keep_after_forward);
  json->Field("deterministic", options.deterministic);
  json->Field("alignment_bytes", options.alignment_bytes);
  json->Field("f32_grads", options.f32_grads);
  json->Field("masters", MastersName(options.masters));
  json->Field("seed", options.seed);
  json->Key("groups");
  json->BeginArray();
  for (const GroupOptions& group : options.groups) {
    json->BeginObject();
    json->Field("optimizer", group.optimizer);
    json->EndObject();
  }
  json->EndArray();
  json->EndObject();
}

void WriteUnits(const Plan& plan, JsonWriter* json) {
  json->BeginArray();
  for (const UnitPlan& unit : plan.units()) {
    const auto module = static_cast<size_t>(unit.module);
    json->BeginObject();
    json->Field("module", plan.model().ModuleFqn(unit.module));
    json->Field("class", plan.model().modules()[module].class_name);
    json->Field("parent", unit.parent);
    json->Field("depth", unit.depth);
    json->Field("buffers", unit.buffers);
    json->EndObject();
  }
  json->EndArray();
}

// Writes slots by unit depth; null where nothing is sharded.
void WriteSlots(bool sharded, const std::vector<SlotPlan>& slots,
                JsonWriter* json) {
  if (!sharded) return json->Null();
  json->BeginArray();
  for (const SlotPlan& slot : slots) {
    json->BeginObject();
    json->Field("count", slot.count);
    json->Field("bytes", slot.bytes);
    json->EndObject();
  }
  json->EndArray();
}

void WriteBuffer(const FlatBufferPlan& buffer, JsonWriter* json) {
  const FlatLayout& layout = buffer.layout;
  json->BeginObject();
  json->Field("unit", buffer.unit);
  json->Field("dtype", DTypeName(buffer.dtype));
  json->Field("trainable", buffer.trainable);
  if (buffer.trainable) {
    json->Field("group", buffer.group);
    json->Field("grad_dtype", DTypeName(buffer.grad_dtype));
    json->Field("sum_dtype", DTypeName(buffer.sum_dtype));
  } else {
    json->NullField("group");
    json->NullField("grad_dtype");
    json->NullField("sum_dtype");
  }
  json->Field("params", layout.slots().size());
  json->Field("numel", layout.numel());
  json->Field("shard_numel", layout.shard_numel());
  json->Field("padded_numel", layout.padded_numel());
  json->Key("states");
  json->BeginArray();
  for (size_t s = 0; s < buffer.states.size(); ++s) {
    const StateTensor& state = buffer.states[s].tensor;
    json->BeginObject();
    json->Field("name", state.name);
    json->Field("dtype", DTypeName(state.dtype));
    json->Field("shard_numel", buffer.StateLayout(s).shard_numel());
    json->EndObject();
  }
  json->EndArray();
  json->EndObject();
}

// Writes parameters by ParamId, without ignored ones. first_rank and last_rank
// own a parameter's first and last element.
void WriteParams(const Plan& plan, JsonWriter* json) {
  const Model& model = plan.model();
  const std::vector<std::string> fqns = model.ParamFqns();
  std::vector<std::vector<std::string>> aliases(fqns.size());
  for (const int32_t reference : model.Walk()) {
    const auto param = static_cast<size_t>(
        model.references()[static_cast<size_t>(reference)].param);
    std::string fqn = model.ReferenceFqn(reference);
    if (fqn != fqns[param]) aliases[param].push_back(std::move(fqn));
  }
  json->BeginArray();
  for (size_t i = 0; i < fqns.size(); ++i) {
    const ParamPlace& place = plan.places()[i];
    if (place.buffer < 0) continue;
    const Model::Param& info = model.params()[i];
    json->BeginObject();
    json->Field("id", i);
    json->Field("name", fqns[i]);
    json->Field("shape", info.shape);
    json->Field("dtype", DTypeName(info.dtype));
    json->Field("trainable", info.trainable);
    json->Field("numel", info.numel);
    json->Field("buffer", place.buffer);
    json->Field("offset", place.offset);
    if (info.numel > 0) {
      const int64_t last = place.offset + info.numel - 1;
      json->Field("first_rank", plan.OwnerOf(place.buffer, place.offset));
      json->Field("last_rank", plan.OwnerOf(place.buffer, last));
    } else {  // Nobody owns nothing.
      json->NullField("first_rank");
      json->NullField("last_rank");
    }
    if (!aliases[i].empty()) json->Field("aliases", aliases[i]);
    json->EndObject();
  }
  json->EndArray();
}

// Writes host tensors by id, without ignored ones. The key "buffers" stands for
// flat buffers.
void WriteHostTensors(const Plan& plan, JsonWriter* json) {
  const Model& model = plan.model();
  json->BeginArray();
  for (size_t i = 0; i < model.host_tensors().size(); ++i) {
    if (plan.host_tensors().offsets[i] < 0) continue;
    const Model::HostTensor& tensor = model.host_tensors()[i];
    json->BeginObject();
    json->Field("id", i);
    json->Field("name", model.HostTensorFqn(static_cast<HostTensorId>(i)));
    json->Field("shape", tensor.shape);
    json->Field("dtype", ElementTypeName(tensor.type));
    json->Field("persistent", tensor.persistent);
    json->EndObject();
  }
  json->EndArray();
}

void WriteFirstRanks(const Plan& plan, JsonWriter* json) {
  json->BeginArray();
  const int listed = std::min(plan.options().world_size, kListedRanks);
  for (int rank = 0; rank < listed; ++rank) {
    const RankShare share = ShareOf(plan, rank);
    json->BeginObject();
    json->Field("rank", rank);
    json->Field("numel", share.elements);
    json->Field("padding", share.padding);
    json->EndObject();
  }
  json->EndArray();
}

void WriteMemory(const MemoryReport& memory, const char* param_key,
                 JsonWriter* json) {
  json->BeginObject();
  json->Field(param_key, memory.param_bytes);
  json->Field("grad_bytes_per_rank", memory.grad_bytes);
  json->Field("state_bytes_per_rank", memory.state_bytes);
  json->Field("workspace_bytes_per_rank", memory.workspace_bytes);
  json->Field("transient_bytes_per_rank", memory.transient_bytes);
  json->Field("model_buffer_bytes_per_rank", memory.host_tensor_bytes);
  json->EndObject();
}

}  // namespace

std::string Plan::ToJson(bool per_param) const {
  const PlanTotals totals = TotalsOf(*this);
  JsonWriter json(2);
  json.BeginObject();
  json.Field("fingerprint", FormatHex(fingerprint_));
  json.Key("options");
  WriteOptions(options_, &json);
  json.Field("params_total", totals.params);
  json.Field("numel_total", totals.elements);
  json.Key("units");
  WriteUnits(*this, &json);
  json.Key("buffers");
  json.BeginArray();
  for (const FlatBufferPlan& buffer : buffers_) WriteBuffer(buffer, &json);
  json.EndArray();
  json.Key("first_ranks");
  WriteFirstRanks(*this, &json);
  json.Key("param_slots");
  WriteSlots(shards_params_, param_slots_, &json);
  json.Key("grad_slots");
  WriteSlots(shards_grads_, grad_slots_, &json);
  json.Key("memory");
  WriteMemory(Memory(true), "param_bytes_per_host", &json);
  json.Key("memory_unshared");
  WriteMemory(Memory(false), "param_bytes_per_rank", &json);
  json.Field("warnings", Warnings());
  if (per_param) {
    json.Key("params");
    WriteParams(*this, &json);
    json.Key("model_buffers");
    WriteHostTensors(*this, &json);
  }
  json.EndObject();
  return json.text();
}

}  // namespace shard
