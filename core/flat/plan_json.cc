// SPDX-License-Identifier: Apache-2.0
//
// A plan for programs.

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/flat/plan.h"
#include "core/flat/report.h"

namespace shard {

namespace {

using Json = nlohmann::ordered_json;

Json OptionsJson(const PlanOptions& options) {
  Json groups = Json::array();
  for (const GroupOptions& group : options.groups) {
    groups.push_back({{"optimizer", group.optimizer}});
  }
  return {{"stage", options.stage},
          {"world_size", options.world_size},
          {"partition", PartitionName(options.partition)},
          {"bucket_bytes", options.bucket_bytes},
          {"shard_buckets", options.shard_buckets},
          {"wrap", options.wrap.text()},
          {"param_dtype", DTypeName(options.param_dtype)},
          {"f32_classes", options.f32_classes},
          {"buffer_bytes", options.buffer_bytes},
          {"shard_group_size", options.shard_group_size},
          {"prefetch", options.prefetch},
          {"whole_grads", options.whole_grads},
          {"keep_after_forward", options.keep_after_forward},
          {"deterministic", options.deterministic},
          {"alignment_bytes", options.alignment_bytes},
          {"f32_grads", options.f32_grads},
          {"masters", MastersName(options.masters)},
          {"seed", options.seed},
          {"groups", std::move(groups)}};
}

Json UnitsJson(const Plan& plan) {
  Json units = Json::array();
  for (const UnitPlan& unit : plan.units()) {
    const auto module = static_cast<size_t>(unit.module);
    units.push_back({{"module", unit.fqn},
                     {"class", plan.model().modules()[module].class_name},
                     {"parent", unit.parent},
                     {"depth", unit.depth},
                     {"buffers", unit.buffers}});
  }
  return units;
}

// By unit depth; null where nothing is sharded.
Json SlotsJson(bool sharded, const std::vector<SlotPlan>& slots) {
  if (!sharded) return nullptr;
  Json json = Json::array();
  for (const SlotPlan& slot : slots) {
    json.push_back({{"count", slot.count}, {"bytes", slot.bytes}});
  }
  return json;
}

Json BuffersJson(const Plan& plan) {
  Json buffers = Json::array();
  for (const FlatBufferPlan& buffer : plan.buffers()) {
    const FlatLayout& layout = buffer.layout;
    Json json = {{"unit", buffer.unit},
                 {"dtype", DTypeName(buffer.dtype)},
                 {"trainable", buffer.trainable},
                 {"group", nullptr},
                 {"grad_dtype", nullptr},
                 {"sum_dtype", nullptr},
                 {"params", layout.slots().size()},
                 {"numel", layout.numel()},
                 {"shard_numel", layout.shard_numel()},
                 {"padded_numel", layout.padded_numel()},
                 {"states", Json::array()}};
    if (buffer.trainable) {
      json["group"] = buffer.group;
      json["grad_dtype"] = DTypeName(buffer.grad_dtype);
      json["sum_dtype"] = DTypeName(buffer.sum_dtype);
    }
    for (size_t s = 0; s < buffer.states.size(); ++s) {
      const StateTensor& state = buffer.states[s].tensor;
      json["states"].push_back(
          {{"name", state.name},
           {"dtype", DTypeName(state.dtype)},
           {"shard_numel", buffer.StateLayout(s).shard_numel()}});
    }
    buffers.push_back(std::move(json));
  }
  return buffers;
}

// By ParamId, what is ignored left out. first_rank and last_rank own a
// parameter's first and last element.
Json ParamsJson(const Plan& plan) {
  const Model& model = plan.model();
  const std::vector<std::string> fqns = model.ParamFqns();
  std::vector<std::vector<std::string>> aliases(fqns.size());
  for (const int32_t reference : model.Walk()) {
    const auto param = static_cast<size_t>(
        model.references()[static_cast<size_t>(reference)].param);
    std::string fqn = model.ReferenceFqn(reference);
    if (fqn != fqns[param]) aliases[param].push_back(std::move(fqn));
  }
  Json params = Json::array();
  for (size_t i = 0; i < fqns.size(); ++i) {
    const ParamPlace& place = plan.places()[i];
    if (place.buffer < 0) continue;
    const Model::Param& info = model.params()[i];
    Json param = {{"id", i},
                  {"name", fqns[i]},
                  {"shape", info.shape},
                  {"dtype", DTypeName(info.dtype)},
                  {"trainable", info.trainable},
                  {"numel", info.numel},
                  {"buffer", place.buffer},
                  {"offset", place.offset},
                  {"first_rank", nullptr},
                  {"last_rank", nullptr}};
    if (info.numel > 0) {  // Nobody owns nothing.
      const int64_t last = place.offset + info.numel - 1;
      param["first_rank"] = plan.OwnerOf(place.buffer, place.offset);
      param["last_rank"] = plan.OwnerOf(place.buffer, last);
    }
    if (!aliases[i].empty()) param["aliases"] = std::move(aliases[i]);
    params.push_back(std::move(param));
  }
  return params;
}

Json FirstRanksJson(const Plan& plan) {
  Json ranks = Json::array();
  const int listed = std::min(plan.options().world_size, kListedRanks);
  for (int rank = 0; rank < listed; ++rank) {
    const RankShare share = ShareOf(plan, rank);
    ranks.push_back({{"rank", rank},
                     {"numel", share.elements},
                     {"padding", share.padding}});
  }
  return ranks;
}

Json MemoryJson(const MemoryReport& memory, const char* param_key) {
  return {{param_key, memory.param_bytes},
          {"grad_bytes_per_rank", memory.grad_bytes},
          {"state_bytes_per_rank", memory.state_bytes},
          {"workspace_bytes_per_rank", memory.workspace_bytes},
          {"transient_bytes_per_rank", memory.transient_bytes}};
}

}  // namespace

std::string Plan::ToJson(bool per_param) const {
  const PlanTotals totals = TotalsOf(*this);
  Json json = {
      {"fingerprint", FormatHex(fingerprint_)},
      {"options", OptionsJson(options_)},
      {"params_total", totals.params},
      {"numel_total", totals.elements},
      {"units", UnitsJson(*this)},
      {"buffers", BuffersJson(*this)},
      {"first_ranks", FirstRanksJson(*this)},
      {"param_slots", SlotsJson(shards_params_, param_slots_)},
      {"grad_slots", SlotsJson(shards_grads_, grad_slots_)},
      {"memory", MemoryJson(Memory(true), "param_bytes_per_host")},
      {"memory_unshared", MemoryJson(Memory(false), "param_bytes_per_rank")},
      {"warnings", Warnings()}};
  if (per_param) json["params"] = ParamsJson(*this);
  // Class names are the host's and may hold anything.
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace shard
