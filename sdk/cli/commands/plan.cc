// SPDX-License-Identifier: Apache-2.0
//
// `shardctl plan`: computes the memory, traffic and time of a rank, for each
// stage and world size, before anything runs.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sdk/cli/command.h"
#include "sdk/cli/commands/traffic.h"
#include "sdk/cli/dtypes.h"
#include "sdk/cli/handles.h"
#include "sdk/cli/model_description.h"
#include "sdk/cli/output_file.h"
#include "sdk/cli/plan_file.h"
#include "sdk/cli/table.h"
#include "sdk/cli/text.h"
#include "shard/shard.h"

namespace shardctl {

namespace {

constexpr const char* kHelp =
    R"(
MODEL is a description in JSON (docs/shardctl.md has its keys), a .safetensors
file, or a checkpoint, whose keys say which modules there are. Or it is a plan
that --output or shard_plan_encode wrote: then that plan is shown, whose ranks,
stage and options are its own.

Memory is what an engine allocates, to the byte: of a rank that shares no memory
with others, or with --shared of one that does; parameters are then there once
per host. Activations are the program's own. Traffic is what a rank sends for a
step, and receives as well.

With --bandwidth, --flops and --tokens it says how long a step takes: when all
communication hides behind the computation, and when none does. These are
bounds, not promises.

Exit code: 1 when --memory is given and nothing fits.

Examples:
  shardctl plan gpt2.json --ranks 1,8,64 --stages 1,3 --wrap 'class?names=Block'
  shardctl plan model.safetensors --ranks 1024 --dtype bf16 --memory 80GB
  shardctl plan gpt2.json --ranks 64 --stages 3 -o gpt2.plan)";

struct PlanArguments {
  std::string model;
  std::vector<int32_t> ranks{1, 8, 64};
  std::vector<int32_t> stages{0, 1, 2, 3};
  std::string optimizer = "adamw";
  std::string partition = "even";
  std::string masters = "f32";
  std::string dtype;
  std::string wrap;
  std::string f32_classes;
  std::string buffer_bytes;
  std::string memory;
  std::string bandwidth;
  std::string output;
  double flops = 0;
  double tokens = 0;
  int32_t micro_batches = 1;
  int32_t prefetch = 1;
  int32_t group_size = 0;
  bool f32_grads = false;
  bool whole_grads = false;
  bool keep_after_forward = false;
  bool deterministic = false;
  bool shared = false;
  bool json = false;
};

// Options that decide what a plan is.
constexpr const char* kOptionsOfAPlan[] = {
    "--ranks",        "--stages",
    "--optimizer",    "--partition",
    "--masters",      "--dtype",
    "--wrap",         "--f32-classes",
    "--buffer-bytes", "--prefetch",
    "--group-size",   "--f32-grads",
    "--whole-grads",  "--keep-after-forward",
    "--deterministic"};

// Returns the place of `name` in `names`, counted from 1 as in shard.h's enums.
int32_t NumberOf(const char* what, const std::string& name,
                 const std::vector<std::string>& names) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) {
    return static_cast<int32_t>(found - names.begin()) + 1;
  }
  std::string known;
  for (const std::string& each : names) known += " " + each;
  throw Failure("unknown " + std::string(what) + " '" + name +
                "'; known:" + known);
}

struct Row {
  int32_t ranks = 0;
  int32_t stage = 0;
  uint64_t fingerprint = 0;
  int32_t units = 0;
  int32_t buffers = 0;
  shard_memory alone = SHARD_MEMORY_INIT;
  shard_memory shared = SHARD_MEMORY_INIT;
  Traffic traffic;
  std::string warnings;
};

uint64_t Total(const shard_memory& memory) {
  return memory.param_bytes + memory.grad_bytes + memory.state_bytes +
         memory.workspace_bytes + memory.transient_bytes;
}

// Seconds; negative: unknown.
struct Times {
  double communication = -1;
  double computation = -1;
  double step_hidden = -1;
  double step_exposed = -1;
};

class PlanCommand {
 public:
  PlanCommand(const Command& command, const PlanArguments& arguments)
      : command_(command),
        arguments_(arguments),
        optimizer_(arguments.optimizer),
        partition_(arguments.partition),
        limit_(arguments.memory.empty() ? 0 : ParseBytes(arguments.memory)),
        bandwidth_(
            arguments.bandwidth.empty() ? 0 : ParseBytes(arguments.bandwidth)) {
  }

  int Run() {
    CheckOutput();
    if (IsPlanFile(arguments_.model)) {
      ShowFile();
    } else {
      model_ = OpenModelDescription(arguments_.model);
      for (const int32_t ranks : arguments_.ranks) {
        for (const int32_t stage : arguments_.stages) Make(ranks, stage);
      }
    }
    if (arguments_.json) {
      PrintJson(ToJson());
    } else {
      PrintText(ToText());
    }
    const bool fits = std::any_of(rows_.begin(), rows_.end(),
                                  [&](const Row& row) { return Fits(row); });
    return fits ? kFine : kDifferent;
  }

 private:
  // Before anything is planned.
  void CheckOutput() const {
    const std::string& output = arguments_.output;
    if (output.empty()) return;
    if (IsStdout(output)) {
      throw Failure("the table is printed on stdout, where '" + Shown(output) +
                    "' puts the plan; give another --output");
    }
    if (IsPlanFile(arguments_.model)) return;
    if (arguments_.ranks.size() == 1 && arguments_.stages.size() == 1) return;
    throw Failure(
        "--output writes one plan; give one world size with --ranks, and one "
        "stage with --stages");
  }

  void ShowFile() {
    // A default may not be what the plan has, so giving one is wrong, too.
    for (const char* option : kOptionsOfAPlan) {
      if (!command_.WasGiven(option)) continue;
      throw Failure("'" + Shown(arguments_.model) +
                    "' is a plan, which is not changed; leave out " + option +
                    ", or give the model");
    }
    PlanFile file = ReadPlanFile(arguments_.model);
    model_ = std::move(file.model);
    optimizer_ = file.optimizer;
    partition_ = file.partition;
    AddRow(file.plan.get());
  }

  void Make(int32_t ranks, int32_t stage) {
    shard_plan_options options = SHARD_PLAN_OPTIONS_INIT;
    options.stage = stage;
    options.world_size = ranks;
    options.partition = NumberOf("partition", arguments_.partition,
                                 {"even", "greedy", "bucket"});
    options.masters =
        NumberOf("masters", arguments_.masters, {"f32", "none", "stochastic"});
    options.optimizer = arguments_.optimizer.c_str();
    options.wrap = arguments_.wrap.c_str();
    options.f32_classes = arguments_.f32_classes.c_str();
    if (!arguments_.dtype.empty()) {
      options.param_dtype = ParseParamDType(arguments_.dtype);
    }
    if (!arguments_.buffer_bytes.empty()) {
      options.buffer_bytes =
          static_cast<int64_t>(ParseBytes(arguments_.buffer_bytes));
    }
    // 0 is "none" for --prefetch, and the default in shard_plan_options.
    options.prefetch = arguments_.prefetch == 0 ? -1 : arguments_.prefetch;
    options.f32_grads = arguments_.f32_grads ? 1 : 0;
    options.deterministic = arguments_.deterministic ? 1 : 0;
    // Options that only some stages have are left 0 for the others.
    if (stage >= 2) options.whole_grads = arguments_.whole_grads ? 1 : 0;
    if (stage == 3) {
      options.shard_group_size = arguments_.group_size;
      options.keep_after_forward = arguments_.keep_after_forward ? 1 : 0;
    }
    shard_plan* plan = nullptr;
    Check(shard_plan_create(model_.model.get(), &options, &plan));
    const Plan owned(plan);
    AddRow(plan);
  }

  void AddRow(const shard_plan* plan) {
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
    row.traffic = TrafficOf(plan, arguments_.micro_batches);
    row.warnings = TextOf(shard_plan_warnings, plan);
    rows_.push_back(std::move(row));
    if (!arguments_.output.empty()) WritePlanFile(arguments_.output, plan);
  }

  const shard_memory& MemoryOf(const Row& row) const {
    return arguments_.shared ? row.shared : row.alone;
  }

  bool Fits(const Row& row) const {
    return limit_ == 0 || Total(MemoryOf(row)) <= limit_;
  }

  Times TimesOf(const Row& row) const {
    Times times;
    if (bandwidth_ > 0) {
      times.communication =
          row.traffic.total() / static_cast<double>(bandwidth_);
    }
    if (arguments_.flops > 0 && arguments_.tokens > 0) {
      times.computation =
          StepFlops(model_.elements, arguments_.tokens) / arguments_.flops;
    }
    if (times.communication >= 0 && times.computation >= 0) {
      times.step_hidden = std::max(times.communication, times.computation);
      times.step_exposed = times.communication + times.computation;
    }
    return times;
  }

  static Json MemoryJson(const shard_memory& memory, const char* params) {
    return {{params, memory.param_bytes},
            {"grad_bytes", memory.grad_bytes},
            {"state_bytes", memory.state_bytes},
            {"workspace_bytes", memory.workspace_bytes},
            {"transient_bytes", memory.transient_bytes},
            {"total_bytes", Total(memory)}};
  }

  Json ToJson() const {
    Json plans = Json::array();
    for (const Row& row : rows_) {
      const Times times = TimesOf(row);
      const auto seconds = [](double value) {
        return value < 0 ? Json() : Json(value);
      };
      char fingerprint[24];
      std::snprintf(fingerprint, sizeof(fingerprint), "%016llx",
                    static_cast<unsigned long long>(row.fingerprint));
      plans.push_back(
          {{"ranks", row.ranks},
           {"stage", row.stage},
           {"fingerprint", fingerprint},
           {"units", row.units},
           {"buffers", row.buffers},
           {"memory", MemoryJson(row.alone, "param_bytes")},
           {"memory_shared", MemoryJson(row.shared, "param_bytes_per_host")},
           {"fits", limit_ == 0 ? Json() : Json(Fits(row))},
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
           {"warnings", row.warnings}});
    }
    return {{"model",
             {{"path", arguments_.model},
              {"class", model_.class_name},
              {"params", model_.params},
              {"elements", model_.elements},
              {"frozen_elements", model_.frozen_elements},
              {"left_out", model_.left_out}}},
            {"optimizer", optimizer_},
            {"partition", partition_},
            {"micro_batches", arguments_.micro_batches},
            {"plans", std::move(plans)}};
  }

  std::string ToText() const {
    std::string text = Shown(arguments_.model) + ": " +
                       CountText(static_cast<uint64_t>(model_.elements)) +
                       " elements in " +
                       CountText(static_cast<uint64_t>(model_.params)) +
                       (model_.params == 1 ? " parameter" : " parameters");
    if (model_.frozen_elements > 0) {
      text += ", " + CountText(static_cast<uint64_t>(model_.frozen_elements)) +
              " of them frozen";
    }
    if (model_.left_out > 0) {
      text += "; " + CountText(static_cast<uint64_t>(model_.left_out)) +
              " tensors are no parameters and left out";
    }
    text += "\n" + Shown(optimizer_) + ", " + partition_ +
            (arguments_.shared ? ", ranks share memory\n\n" : "\n\n");

    const bool timed = bandwidth_ > 0;
    const bool computed = arguments_.flops > 0 && arguments_.tokens > 0;
    std::vector<std::string> head = {
        ">ranks", ">stage",    arguments_.shared ? ">params/host" : ">params",
        ">grads", ">states",   ">slots",
        ">total", ">sent/step"};
    const bool workspace =
        std::any_of(rows_.begin(), rows_.end(),
                    [&](auto& r) { return MemoryOf(r).workspace_bytes > 0; });
    if (workspace) head.insert(head.begin() + 6, ">workspace");
    if (timed) head.push_back(">comm.");
    if (timed && computed) {
      head.push_back(">step, hidden");
      head.push_back(">exposed");
    }
    if (limit_ > 0) head.push_back("fits " + BytesText(limit_));
    Table table(head);
    for (const Row& row : rows_) {
      const shard_memory& memory = MemoryOf(row);
      std::vector<std::string> cells = {
          std::to_string(row.ranks),     std::to_string(row.stage),
          BytesText(memory.param_bytes), BytesText(memory.grad_bytes),
          BytesText(memory.state_bytes), BytesText(memory.transient_bytes)};
      if (workspace) cells.push_back(BytesText(memory.workspace_bytes));
      cells.push_back(BytesText(Total(memory)));
      cells.push_back(BytesText(static_cast<uint64_t>(row.traffic.total())));
      const Times times = TimesOf(row);
      if (timed) cells.push_back(SecondsText(times.communication));
      if (timed && computed) {
        cells.push_back(SecondsText(times.step_hidden));
        cells.push_back(SecondsText(times.step_exposed));
      }
      if (limit_ > 0) cells.push_back(Fits(row) ? "yes" : "no");
      table.Add(std::move(cells));
    }
    text += table.Text();
    if (computed) {
      text += "\nThe computation takes " +
              SecondsText(TimesOf(rows_[0]).computation) + ": 6 x " +
              ShortCount(static_cast<double>(model_.elements)) + " x " +
              ShortCount(arguments_.tokens) + " tokens at " +
              ShortCount(arguments_.flops) + " FLOP/s.\n";
    }
    return text + WarningsText();
  }

  // Returns each warning once, though every plan of a stage has it.
  std::string WarningsText() const {
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

  const Command command_;
  const PlanArguments& arguments_;
  ModelDescription model_;
  std::string optimizer_;
  std::string partition_;
  const uint64_t limit_;
  const uint64_t bandwidth_;  // Bytes per second.
  std::vector<Row> rows_;
};

}  // namespace

void AddPlan(CommandLine* line) {
  const auto plan = std::make_shared<PlanArguments>();
  Command command = line->AddCommand(
      "plan", "Memory, traffic and time per rank, for stages and world sizes",
      kHelp);
  command.AddOption("model", &plan->model, "The model, or a plan")
      .Required()
      .ExistingPath();
  command.AddOption("-n,--ranks", &plan->ranks, "World sizes")
      .Between(1, 1 << 20)
      .ShowDefault();
  command.AddOption("--stages", &plan->stages, "ZeRO stages")
      .Between(0, 3)
      .ShowDefault();
  command
      .AddOption("--optimizer", &plan->optimizer,
                 "As in shard_plan_options: \"adamw?states=bf16\"")
      .ShowDefault();
  command.AddOption("--partition", &plan->partition, "even, greedy or bucket")
      .ShowDefault();
  command.AddOption("--wrap", &plan->wrap,
                    "Which modules are units: \"class?names=Block\" or "
                    "\"size?min_numel=1000000\" (default: the root only)");
  command.AddOption("--dtype", &plan->dtype,
                    "What f32 parameters are stored in: f32, bf16 or f16");
  command.AddOption("--f32-classes", &plan->f32_classes,
                    "Classes that stay f32, separated by commas");
  command
      .AddOption("--masters", &plan->masters,
                 "Of bf16 and f16: f32, none or stochastic")
      .ShowDefault();
  command.AddFlag("--f32-grads", &plan->f32_grads,
                  "Gradients of bf16 and f16 in f32");
  command.AddFlag("--whole-grads", &plan->whole_grads,
                  "Stages 2 and 3: gradients stay whole");
  command.AddFlag("--keep-after-forward", &plan->keep_after_forward,
                  "Stage 3: parameters are gathered once per step");
  command.AddFlag("--deterministic", &plan->deterministic,
                  "As in shard_plan_options");
  command
      .AddOption("--prefetch", &plan->prefetch,
                 "Units in flight beside the one in use")
      .Between(0, 64)
      .ShowDefault();
  command
      .AddOption("--group-size", &plan->group_size,
                 "Stage 3: ranks that shard the parameters (default: all)")
      .Between(1, 1 << 20);
  command.AddOption("--buffer-bytes", &plan->buffer_bytes,
                    "Of a flat buffer (default: 25MiB)");
  command.AddFlag("--shared", &plan->shared, "Ranks of one host");
  command.AddOption("--memory", &plan->memory,
                    "Of a rank, such as 80GB: says what fits");
  command
      .AddOption("--micro-batches", &plan->micro_batches,
                 "Backward passes per step")
      .Between(1, 1 << 20)
      .ShowDefault();
  command.AddOption("--bandwidth", &plan->bandwidth,
                    "Of a rank, one way, in bytes per second: 25GB");
  command
      .AddOption("--flops", &plan->flops,
                 "A rank's floating-point operations per second: 4e14")
      .Positive();
  command.AddOption("--tokens", &plan->tokens, "A rank's tokens per step")
      .Positive();
  command.AddOption(
      "-o,--output", &plan->output,
      "Where to write the plan: one, of one world size and stage");
  command.AddFlag("--json", &plan->json, "One JSON document");
  command.Runs([command, plan] { return PlanCommand(command, *plan).Run(); });
}

}  // namespace shardctl
