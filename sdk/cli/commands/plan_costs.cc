// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/plan_costs.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "sdk/cli/handles.h"
#include "sdk/cli/table.h"

namespace shardctl {

namespace {

Json MemoryJson(const shard_memory& memory, const char* params) {
  return {{params, memory.param_bytes},
          {"grad_bytes", memory.grad_bytes},
          {"state_bytes", memory.state_bytes},
          {"workspace_bytes", memory.workspace_bytes},
          {"transient_bytes", memory.transient_bytes},
          {"model_buffer_bytes", memory.model_buffer_bytes},
          {"total_bytes", TotalBytes(memory)}};
}

Json DeviceJson(const std::string& device, const shard_memory& memory,
                uint64_t host_bytes) {
  return {{"device", device},
          {"device_bytes", memory.device_bytes},
          {"pinned_bytes", memory.pinned_bytes},
          {"host_bytes", host_bytes}};
}

Json OffloadJson(const PlanFit& fit) {
  return {{"device_bytes", fit.offload_device_bytes},
          {"host_bytes", fit.offload_host_bytes},
          {"missing_bytes", fit.offload_missing.rank},
          {"host_missing_bytes", fit.offload_missing.host}};
}

Json AdviceJson(const FitAdvice& advice) {
  return {{"ranks", advice.nearest.ranks},
          {"stage", advice.nearest.stage},
          {"offload", &advice.fit.least() == &advice.fit.offload_missing},
          {"missing_bytes", advice.fit.least().rank},
          {"host_missing_bytes", advice.fit.least().host},
          {"options", advice.options}};
}

// Returns the line below the table where no plan fits. `offloads`: offload was
// tried, too.
std::string AdviceText(const FitAdvice& advice, bool offloads) {
  const Shortfall& least = advice.fit.least();
  std::string text =
      "\nNothing fits. Stage " + std::to_string(advice.nearest.stage) + " on " +
      CountText(static_cast<uint64_t>(advice.nearest.ranks)) +
      (advice.nearest.ranks == 1 ? " rank" : " ranks") +
      " comes nearest: " + ShortfallText(least) + " missing" +
      (&least == &advice.fit.offload_missing ? " with offload" : "") + ".";
  if (!advice.is_searched) {
    return text +
           " A plan is not changed: plan the model with other options.\n";
  }
  if (advice.options.empty()) {
    return text + " No stage, narrower optimizer states" +
           (offloads ? ", offload" : "") +
           " or up to 4096 ranks that were tried make it fit.\n";
  }
  for (size_t i = 0; i < advice.options.size(); ++i) {
    const std::string& option = advice.options[i];
    const bool narrows = std::ranges::any_of(
        std::array{"--optimizer", "--masters", "--f32-grads"},
        [&](const char* less_precise) {
          return option.find(less_precise) != std::string::npos;
        });
    text += (i == 0 ? " It fits " : ", or ") +
            std::string(option.starts_with("without") ? "" : "with ") + option +
            (narrows ? " (less precise)" : "");
  }
  return text + ".\n";
}

// Returns the line or lines above the table.
std::string HeadText(const PlannedModel& model, const RankResources& rank) {
  const ModelDescription& description = model.description;
  std::string text = Shown(model.path) + ": " +
                     CountText(static_cast<uint64_t>(description.elements)) +
                     " elements in " +
                     CountText(static_cast<uint64_t>(description.params)) +
                     (description.params == 1 ? " parameter" : " parameters");
  if (description.frozen_elements > 0) {
    text += ", " +
            CountText(static_cast<uint64_t>(description.frozen_elements)) +
            " of them frozen";
  }
  if (description.left_out > 0) {
    text += "; " + CountText(static_cast<uint64_t>(description.left_out)) +
            " tensors are neither parameters nor buffers, and left out";
  }
  return text + "\n" + Shown(model.optimizer) + ", " + model.partition +
         (rank.limits.shared ? ", ranks share memory" : "") +
         (rank.limits.device.empty() ? ""
                                     : ", on " + Shown(rank.limits.device)) +
         "\n\n";
}

}  // namespace

void PlanCosts::Add(const shard_plan* plan) {
  shard_plan_info info = SHARD_PLAN_INFO_INIT;
  Check(shard_plan_get_info(plan, &info));
  Row row;
  row.ranks = info.world_size;
  row.stage = info.stage;
  row.fingerprint = info.fingerprint;
  row.units = info.num_units;
  row.buffers = info.num_buffers;
  Check(shard_plan_memory(plan, nullptr, &row.shared));
  shard_placement apart = SHARD_PLACEMENT_INIT;
  apart.separate_memory = 1;
  Check(shard_plan_memory(plan, &apart, &row.alone));
  if (on_device()) {
    shard_placement there = SHARD_PLACEMENT_INIT;
    there.ranks_per_host = 1;
    const std::string device = DeviceSpec(rank_.limits.device);
    there.device = device.c_str();
    Check(shard_plan_memory(plan, &there, &row.on_device));
  }
  row.fit = FitOf(plan, rank_.limits);
  row.traffic = TrafficOf(plan, rank_.micro_batches);
  row.warnings = TextOf(shard_plan_warnings, plan);
  rows_.push_back(std::move(row));
}

bool PlanCosts::AnyFits() const {
  return std::any_of(rows_.begin(), rows_.end(), [](const Row& row) {
    return row.fit.fits() || row.fit.fits_with_offload();
  });
}

FitAdvice PlanCosts::Nearest() const {
  const Row& row = *std::min_element(
      rows_.begin(), rows_.end(), [](const Row& a, const Row& b) {
        return a.fit.least().total() < b.fit.least().total();
      });
  FitAdvice advice;
  advice.nearest.ranks = row.ranks;
  advice.nearest.stage = row.stage;
  advice.fit = row.fit;
  return advice;
}

const shard_memory& PlanCosts::MemoryOf(const Row& row) const {
  if (on_device()) return row.on_device;
  return rank_.limits.shared ? row.shared : row.alone;
}

PlanCosts::Times PlanCosts::TimesOf(const Row& row, int64_t elements) const {
  Times times;
  if (rank_.bandwidth > 0) {
    times.communication =
        row.traffic.total() / static_cast<double>(rank_.bandwidth);
  }
  if (rank_.flops > 0 && rank_.tokens > 0) {
    times.computation = StepFlops(elements, rank_.tokens) / rank_.flops;
  }
  if (times.communication >= 0 && times.computation >= 0) {
    times.step_hidden = std::max(times.communication, times.computation);
    times.step_exposed = times.communication + times.computation;
  }
  return times;
}

Json PlanCosts::PlanJson(const Row& row, int64_t elements) const {
  const Times times = TimesOf(row, elements);
  const auto seconds = [](double value) {
    return value < 0 ? Json() : Json(value);
  };
  const auto limited = [&](Json value) {
    return rank_.limits.any() ? std::move(value) : Json();
  };
  char fingerprint[24];
  std::snprintf(fingerprint, sizeof(fingerprint), "%016llx",
                static_cast<unsigned long long>(row.fingerprint));
  return {
      {"ranks", row.ranks},
      {"stage", row.stage},
      {"fingerprint", fingerprint},
      {"units", row.units},
      {"buffers", row.buffers},
      {"memory", MemoryJson(row.alone, "param_bytes")},
      {"memory_shared", MemoryJson(row.shared, "param_bytes_per_host")},
      {"memory_device",
       on_device()
           ? DeviceJson(rank_.limits.device, row.on_device, row.fit.host_bytes)
           : Json()},
      {"memory_offload", row.fit.tries_offload ? OffloadJson(row.fit) : Json()},
      {"fits", limited(Json(row.fit.fits()))},
      {"fits_with_offload",
       row.fit.tries_offload ? Json(row.fit.fits_with_offload()) : Json()},
      {"missing_bytes", limited(Json(row.fit.missing.rank))},
      {"host_missing_bytes", limited(Json(row.fit.missing.host))},
      {"shards_grads", row.traffic.shards_grads},
      {"shards_params", row.traffic.shards_params},
      {"traffic",
       {{"reduce_bytes", static_cast<uint64_t>(row.traffic.reduce_bytes)},
        {"gather_bytes", static_cast<uint64_t>(row.traffic.gather_bytes)},
        {"total_bytes", static_cast<uint64_t>(row.traffic.total())}}},
      {"seconds",
       {{"communication", seconds(times.communication)},
        {"computation", seconds(times.computation)},
        {"step_hidden", seconds(times.step_hidden)},
        {"step_exposed", seconds(times.step_exposed)}}},
      {"warnings", row.warnings}};
}

void PlanCosts::PrintJsonDocument(const PlannedModel& model,
                                  const FitAdvice* advice) const {
  const ModelDescription& description = model.description;
  Json plans = Json::array();
  for (const Row& row : rows_) {
    plans.push_back(PlanJson(row, description.elements));
  }
  PrintJson({{"model",
              {{"path", model.path},
               {"class", description.class_name},
               {"params", description.params},
               {"elements", description.elements},
               {"frozen_elements", description.frozen_elements},
               {"left_out", description.left_out}}},
             {"optimizer", model.optimizer},
             {"partition", model.partition},
             {"micro_batches", rank_.micro_batches},
             {"ranks_per_host", rank_.limits.ranks_per_host},
             {"advice", advice == nullptr ? Json() : AdviceJson(*advice)},
             {"plans", std::move(plans)}});
}

std::string PlanCosts::TableText(int64_t elements) const {
  const bool timed = rank_.bandwidth > 0;
  const bool computed = rank_.flops > 0 && rank_.tokens > 0;
  std::vector<std::string> head = {
      ">ranks",
      ">stage",
      rank_.limits.shared ? ">params/host" : ">params",
      ">grads",
      ">states",
      ">slots",
      on_device() ? ">device" : ">total",
      ">sent/step"};
  const bool workspace = std::any_of(rows_.begin(), rows_.end(), [&](auto& r) {
    return MemoryOf(r).workspace_bytes > 0;
  });
  const bool buffers = std::any_of(rows_.begin(), rows_.end(), [&](auto& r) {
    return MemoryOf(r).model_buffer_bytes > 0;
  });
  if (buffers) head.insert(head.begin() + 6, ">model buffers");
  if (workspace) head.insert(head.begin() + 6, ">workspace");
  if (on_device()) head.push_back(">pinned");
  if (timed) head.push_back(">comm.");
  if (timed && computed) {
    head.push_back(">step, hidden");
    head.push_back(">exposed");
  }
  if (rank_.limits.any()) {
    head.push_back(rank_.limits.memory > 0
                       ? "fits " + BytesText(rank_.limits.memory)
                       : "fits");
  }
  Table table(head);
  for (const Row& row : rows_) {
    const shard_memory& memory = MemoryOf(row);
    std::vector<std::string> cells = {
        std::to_string(row.ranks),     std::to_string(row.stage),
        BytesText(memory.param_bytes), BytesText(memory.grad_bytes),
        BytesText(memory.state_bytes), BytesText(memory.transient_bytes)};
    if (workspace) cells.push_back(BytesText(memory.workspace_bytes));
    if (buffers) cells.push_back(BytesText(memory.model_buffer_bytes));
    cells.push_back(
        BytesText(on_device() ? memory.device_bytes : TotalBytes(memory)));
    cells.push_back(BytesText(static_cast<uint64_t>(row.traffic.total())));
    if (on_device()) cells.push_back(BytesText(memory.pinned_bytes));
    const Times times = TimesOf(row, elements);
    if (timed) cells.push_back(SecondsText(times.communication));
    if (timed && computed) {
      cells.push_back(SecondsText(times.step_hidden));
      cells.push_back(SecondsText(times.step_exposed));
    }
    if (rank_.limits.any()) cells.push_back(row.fit.Text());
    table.Add(std::move(cells));
  }
  return table.Text();
}

void PlanCosts::PrintTable(const PlannedModel& model,
                           const FitAdvice* advice) const {
  const int64_t elements = model.description.elements;
  std::string text = HeadText(model, rank_) + TableText(elements);
  if (rank_.flops > 0 && rank_.tokens > 0) {
    text += "\nThe computation takes " +
            SecondsText(TimesOf(rows_[0], elements).computation) + ": 6 x " +
            ShortCount(static_cast<double>(elements)) + " x " +
            ShortCount(rank_.tokens) + " tokens at " + ShortCount(rank_.flops) +
            " FLOP/s.\n";
  }
  // docs/gpu.md. An engine allocates it after it was made to fit.
  if (IsGpuWithStates(rank_.limits.device) &&
      model.optimizer.starts_with("muon")) {
    text +=
        "\nNot counted is the workspace of cuBLAS for muon's products: at most "
        "32 MiB for each rank.";
    if (std::ranges::any_of(rows_, [](const Row& row) {
          return !row.fit.fits() && row.fit.fits_with_offload();
        })) {
      text += " With offload the host makes these products.";
    }
    text += "\n";
  }
  if (advice != nullptr) {
    text += AdviceText(*advice, IsGpuWithStates(rank_.limits.device));
  }
  PrintText(text + WarningsText());
}

// Returns each warning once, though every plan of a stage has it.
std::string PlanCosts::WarningsText() const {
  std::vector<std::string> lines;
  for (const Row& row : rows_) {
    for (size_t begin = 0; begin < row.warnings.size();) {
      const size_t end =
          std::min(row.warnings.find('\n', begin), row.warnings.size());
      std::string line = row.warnings.substr(begin, end - begin);
      if (!line.empty() &&
          std::find(lines.begin(), lines.end(), line) == lines.end()) {
        lines.push_back(std::move(line));
      }
      begin = end + 1;
    }
  }
  constexpr size_t kMost = 10;
  std::string text;
  for (size_t i = 0; i < lines.size() && i < kMost; ++i) {
    text += "\nwarning: " + Shown(lines[i]) + "\n";
  }
  if (lines.size() > kMost) {
    text += "\n" + std::to_string(lines.size() - kMost) +
            " more warnings: see --json\n";
  }
  return text;
}

}  // namespace shardctl
