// SPDX-License-Identifier: Apache-2.0
//
// Writes a plan as text, for people.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/flat/plan.h"
#include "core/flat/report.h"

namespace shard {

namespace {

// The number of units, buffers and warnings that are listed; the rest is a
// count.
constexpr size_t kListedRows = 16;

// A table whose columns are as wide as their widest cell, two spaces apart. The
// first `left_columns` are aligned left, the others right. Widths count bytes.
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

std::string StatesText(std::span<const StatePlan> states) {
  std::string text;
  for (const StatePlan& state : states) {
    StrAppend(&text, text.empty() ? "" : ", ", state.tensor.name, " ",
              DTypeName(state.tensor.dtype));
  }
  return text.empty() ? "none" : text;
}

void AppendMore(size_t count, size_t listed, std::string* out) {
  if (count <= listed) return;
  StrAppend(out, "  and ", Grouped(static_cast<int64_t>(count - listed)),
            " more\n");
}

void AppendUnits(const Plan& plan, std::string* out) {
  *out += "\nunits\n";
  Table table(1);
  table.Add({"unit", "depth", "buffers", "parameters", "elements"});
  const size_t listed = std::min(plan.units().size(), kListedRows);
  for (size_t i = 0; i < listed; ++i) {
    const UnitPlan& unit = plan.units()[i];
    int64_t params = 0;
    int64_t elements = 0;
    for (const int32_t index : unit.buffers) {
      const FlatLayout& layout = plan.buffer(index).layout;
      params += static_cast<int64_t>(layout.slots().size());
      elements += layout.numel();
    }
    table.Add({UnitName(plan, unit), StrCat(unit.depth),
               Grouped(static_cast<int64_t>(unit.buffers.size())),
               Grouped(params), Grouped(elements)});
  }
  table.AppendTo(out);
  AppendMore(plan.units().size(), listed, out);
}

void AppendBuffers(const Plan& plan, std::string* out) {
  *out += "\nflat buffers\n";
  Table table(5);
  table.Add({"unit", "group", "dtype", "gradient", "states", "parameters",
             "elements", "per rank", "padding"});
  const size_t listed = std::min(plan.buffers().size(), kListedRows);
  for (size_t i = 0; i < listed; ++i) {
    const FlatBufferPlan& buffer = plan.buffers()[i];
    const FlatLayout& layout = buffer.layout;
    table.Add({UnitName(plan, plan.unit(buffer.unit)),
               buffer.trainable ? StrCat(buffer.group) : "-",
               DTypeName(buffer.dtype),
               buffer.trainable ? DTypeName(buffer.grad_dtype) : "frozen",
               StatesText(buffer.states),
               Grouped(static_cast<int64_t>(layout.slots().size())),
               Grouped(layout.numel()), Grouped(layout.shard_numel()),
               Grouped(layout.padded_numel() - layout.numel())});
  }
  table.AppendTo(out);
  AppendMore(plan.buffers().size(), listed, out);
}

void AppendRanks(const Plan& plan, std::string* out) {
  *out += "\nranks\n";
  Table table(0);
  table.Add({"rank", "elements", "padding"});
  const int world_size = plan.options().world_size;
  const int listed = std::min(world_size, kListedRanks);
  for (int rank = 0; rank < listed; ++rank) {
    const RankShare share = ShareOf(plan, rank);
    table.Add({StrCat(rank), Grouped(share.elements), Grouped(share.padding)});
  }
  table.AppendTo(out);
  AppendMore(static_cast<size_t>(world_size), static_cast<size_t>(listed), out);
}

// Appends the slots; nothing where all tensors are whole.
void AppendSlots(const Plan& plan, std::string* out) {
  Table table(1);
  const auto add = [&table](const char* what,
                            const std::vector<SlotPlan>& slots) {
    const size_t listed = std::min(slots.size(), kListedRows);
    for (size_t depth = 0; depth < listed; ++depth) {
      const SlotPlan& slot = slots[depth];
      if (slot.count == 0) continue;
      table.Add(
          {what, StrCat(depth), StrCat(slot.count), FormatBytes(slot.bytes)});
    }
  };
  if (!plan.shards_params() && !plan.shards_grads()) return;
  *out += "\nslots\n";
  table.Add({"for", "unit depth", "count", "each"});
  add("gathered parameters", plan.param_slots());
  add("unreduced gradients", plan.grad_slots());
  table.AppendTo(out);
}

void AppendMemory(const Plan& plan, std::string* out) {
  *out += "\nmemory\n";
  const MemoryReport shared = plan.Memory(true);
  const MemoryReport unshared = plan.Memory(false);
  Table table(1);
  const auto exact = [](uint64_t bytes) {
    return StrCat(Grouped(static_cast<int64_t>(bytes)), " B");
  };
  const auto add = [&](const char* what, uint64_t with, uint64_t without) {
    table.Add({what, FormatBytes(with), exact(with), FormatBytes(without),
               exact(without)});
  };
  table.Add({"per rank", "shared memory", "", "separate", ""});
  add("parameters (shared: per host)", shared.param_bytes,
      unshared.param_bytes);
  add("gradients", shared.grad_bytes, unshared.grad_bytes);
  add("optimizer states", shared.state_bytes, unshared.state_bytes);
  add("workspace", shared.workspace_bytes, unshared.workspace_bytes);
  const uint64_t on_gpu =
      plan.Memory(false, nullptr, Processor::kGpu).workspace_bytes;
  if (on_gpu != unshared.workspace_bytes) {
    add("workspace on a GPU", on_gpu, on_gpu);
  }
  add("slots", shared.transient_bytes, unshared.transient_bytes);
  if (shared.host_tensor_bytes > 0) {
    add("buffers of the model", shared.host_tensor_bytes,
        unshared.host_tensor_bytes);
  }
  table.AppendTo(out);
}

void AppendWarnings(const Plan& plan, std::string* out) {
  const std::vector<std::string> warnings = plan.Warnings();
  if (warnings.empty()) return;
  *out += "\nwarnings\n";
  const size_t listed = std::min(warnings.size(), kListedRows);
  for (size_t i = 0; i < listed; ++i) StrAppend(out, "  ", warnings[i], "\n");
  AppendMore(warnings.size(), listed, out);
}

}  // namespace

std::string Plan::Summary() const {
  const PlanTotals totals = TotalsOf(*this);
  std::string out =
      StrCat("stage ", options_.stage, ", world size ", options_.world_size,
             ", ", PartitionName(options_.partition), ", ", totals.params,
             totals.params == 1 ? " parameter" : " parameters", " of ",
             Grouped(totals.elements), " elements");
  if (units_.size() > 1) StrAppend(&out, " in ", units_.size(), " units");
  StrAppend(&out, ", fingerprint ", FormatHex(fingerprint_));
  return out;
}

std::string Plan::ToText() const {
  std::string out = StrCat("plan: ", Summary(), "\n");
  const PlanTotals totals = TotalsOf(*this);
  if (totals.frozen > 0) {
    StrAppend(&out, "frozen: ", Grouped(totals.frozen), " elements\n");
  }
  if (options_.stage == 3 && ShardGroupSize() != options_.world_size) {
    StrAppend(&out, "shard groups: ", options_.world_size / ShardGroupSize(),
              " of ", ShardGroupSize(), " ranks\n");
  }
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    const std::string& optimizer = options_.groups[g].optimizer;
    StrAppend(&out, "param group ", g, ": ",
              optimizer.empty() ? "none" : optimizer, "\n");
  }
  if (units_.size() > 1) AppendUnits(*this, &out);
  AppendBuffers(*this, &out);
  AppendRanks(*this, &out);
  AppendSlots(*this, &out);
  AppendMemory(*this, &out);
  AppendWarnings(*this, &out);
  return out;
}

}  // namespace shard
