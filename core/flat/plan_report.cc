// SPDX-License-Identifier: Apache-2.0
//
// A plan as text and as JSON.

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/base/strings.h"
#include "core/flat/plan.h"

namespace shard {

namespace {

// How many ranks the reports list; the rest is a count.
constexpr int kListedRanks = 8;

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

// "1,234,567". REQUIRES: value >= 0.
std::string Grouped(int64_t value) {
  const std::string digits = StrCat(value);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out.push_back(',');
    out.push_back(digits[i]);
  }
  return out;
}

// Columns as wide as their widest cell, two spaces apart; the first
// `left_columns` are aligned left, the others right. Widths count bytes.
class Table {
 public:
  explicit Table(size_t left_columns) : left_columns_(left_columns) {}

  void Add(std::vector<std::string> row) {
    widths_.resize(std::max(widths_.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths_[i] = std::max(widths_[i], row[i].size());
    }
    rows_.push_back(std::move(row));
  }

  void AppendTo(std::string* out) const {
    for (const std::vector<std::string>& row : rows_) {
      std::string line;
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string blank(widths_[i] - row[i].size(), ' ');
        const bool left = i < left_columns_;
        StrAppend(&line, "  ", left ? "" : blank, row[i], left ? blank : "");
      }
      line.resize(line.find_last_not_of(' ') + 1);
      StrAppend(out, line, "\n");
    }
  }

 private:
  size_t left_columns_;
  std::vector<size_t> widths_;
  std::vector<std::vector<std::string>> rows_;
};

std::string UnitName(const Plan& plan, int32_t unit) {
  const ModuleId module = plan.units()[static_cast<size_t>(unit)].module;
  return module == kRootModule ? "(root)" : plan.model().ModuleFqn(module);
}

struct Totals {
  int64_t params = 0;
  int64_t elements = 0;
  int64_t frozen = 0;  // Elements.
};

Totals TotalsOf(const Plan& plan) {
  Totals totals;
  for (const FlatBufferPlan& buffer : plan.buffers()) {
    totals.params += static_cast<int64_t>(buffer.layout.slots().size());
    totals.elements += buffer.layout.numel();
    if (!buffer.trainable) totals.frozen += buffer.layout.numel();
  }
  return totals;
}

// Elements and padding of one rank, over all buffers.
struct RankShare {
  int64_t elements = 0;
  int64_t padding = 0;
};

RankShare ShareOf(const Plan& plan, int rank) {
  RankShare share;
  for (const FlatBufferPlan& buffer : plan.buffers()) {
    const int64_t padding = buffer.layout.PaddingOf(rank);
    share.elements += buffer.layout.shard_numel() - padding;
    share.padding += padding;
  }
  return share;
}

std::string StatesText(std::span<const StatePlan> states) {
  std::string text;
  for (const StatePlan& state : states) {
    StrAppend(&text, text.empty() ? "" : ", ", state.tensor.name, " ",
              DTypeName(state.tensor.dtype));
  }
  return text.empty() ? "none" : text;
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
          {"alignment_bytes", options.alignment_bytes},
          {"f32_grads", options.f32_grads},
          {"masters", MastersName(options.masters)},
          {"seed", options.seed},
          {"groups", std::move(groups)}};
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
                 {"params", layout.slots().size()},
                 {"numel", layout.numel()},
                 {"shard_numel", layout.shard_numel()},
                 {"padded_numel", layout.padded_numel()},
                 {"states", Json::array()}};
    if (buffer.trainable) {
      json["group"] = buffer.group;
      json["grad_dtype"] = DTypeName(buffer.grad_dtype);
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

// By ParamId, what is ignored left out.
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
      const int64_t shard = plan.buffers()[static_cast<size_t>(place.buffer)]
                                .layout.shard_numel();
      param["first_rank"] = place.offset / shard;
      param["last_rank"] = (place.offset + info.numel - 1) / shard;
    }
    if (!aliases[i].empty()) param["aliases"] = std::move(aliases[i]);
    params.push_back(std::move(param));
  }
  return params;
}

}  // namespace

std::string Plan::Summary() const {
  const Totals totals = TotalsOf(*this);
  return StrCat("stage ", options_.stage, ", world size ", options_.world_size,
                ", ", PartitionName(options_.partition), ", ", totals.params,
                totals.params == 1 ? " parameter" : " parameters", " of ",
                Grouped(totals.elements), " elements, fingerprint ",
                FormatHex(fingerprint_));
}

std::string Plan::ToText() const {
  std::string out = StrCat("plan: ", Summary(), "\n");
  const Totals totals = TotalsOf(*this);
  if (totals.frozen > 0) {
    StrAppend(&out, "frozen: ", Grouped(totals.frozen), " elements\n");
  }
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    const std::string& optimizer = options_.groups[g].optimizer;
    StrAppend(&out, "param group ", g, ": ",
              optimizer.empty() ? "none" : optimizer, "\n");
  }

  out += "\nflat buffers\n";
  Table buffers(5);
  buffers.Add({"unit", "group", "dtype", "gradient", "states", "parameters",
               "elements", "per rank", "padding"});
  for (const FlatBufferPlan& buffer : buffers_) {
    const FlatLayout& layout = buffer.layout;
    buffers.Add({UnitName(*this, buffer.unit),
                 buffer.trainable ? StrCat(buffer.group) : "-",
                 DTypeName(buffer.dtype),
                 buffer.trainable ? DTypeName(buffer.grad_dtype) : "frozen",
                 StatesText(buffer.states),
                 Grouped(static_cast<int64_t>(layout.slots().size())),
                 Grouped(layout.numel()), Grouped(layout.shard_numel()),
                 Grouped(layout.padded_numel() - layout.numel())});
  }
  buffers.AppendTo(&out);

  out += "\nranks\n";
  Table ranks(0);
  ranks.Add({"rank", "elements", "padding"});
  const int listed = std::min(options_.world_size, kListedRanks);
  for (int rank = 0; rank < listed; ++rank) {
    const RankShare share = ShareOf(*this, rank);
    ranks.Add({StrCat(rank), Grouped(share.elements), Grouped(share.padding)});
  }
  ranks.AppendTo(&out);
  if (options_.world_size > listed) {
    StrAppend(&out, "  and ", Grouped(options_.world_size - listed), " more\n");
  }

  out += "\nmemory\n";
  const MemoryReport memory = Memory(true);
  Table costs(1);
  const auto add = [&costs](const char* what, uint64_t bytes) {
    costs.Add({what, FormatBytes(bytes),
               StrCat(Grouped(static_cast<int64_t>(bytes)), " B")});
  };
  add("parameters, per host", memory.param_bytes);
  add("gradients, per rank", memory.grad_bytes);
  add("optimizer states, per rank", memory.state_bytes);
  add("workspace, per rank", memory.workspace_bytes);
  costs.AppendTo(&out);
  return out;
}

std::string Plan::ToJson(bool per_param) const {
  const MemoryReport memory = Memory(true);
  const Totals totals = TotalsOf(*this);
  Json units = Json::array();
  for (const UnitPlan& unit : units_) {
    const auto module = static_cast<size_t>(unit.module);
    units.push_back({{"module", model_->ModuleFqn(unit.module)},
                     {"class", model_->modules()[module].class_name},
                     {"buffers", unit.buffers}});
  }
  Json ranks = Json::array();
  for (int rank = 0; rank < std::min(options_.world_size, kListedRanks);
       ++rank) {
    const RankShare share = ShareOf(*this, rank);
    ranks.push_back({{"rank", rank},
                     {"numel", share.elements},
                     {"padding", share.padding}});
  }
  Json json = {{"fingerprint", FormatHex(fingerprint_)},
               {"options", OptionsJson(options_)},
               {"params_total", totals.params},
               {"numel_total", totals.elements},
               {"units", std::move(units)},
               {"buffers", BuffersJson(*this)},
               {"first_ranks", std::move(ranks)},
               {"memory",
                {{"param_bytes_per_host", memory.param_bytes},
                 {"grad_bytes_per_rank", memory.grad_bytes},
                 {"state_bytes_per_rank", memory.state_bytes},
                 {"workspace_bytes_per_rank", memory.workspace_bytes}}}};
  if (per_param) json["params"] = ParamsJson(*this);
  // Class names are the host's and may hold anything.
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace shard
