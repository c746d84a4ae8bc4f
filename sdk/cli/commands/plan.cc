// SPDX-License-Identifier: Apache-2.0
//
// `shardctl plan`: computes the memory, traffic and time of a rank, for each
// stage and world size, before anything runs.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sdk/cli/command.h"
#include "sdk/cli/commands/plan_costs.h"
#include "sdk/cli/commands/plan_fit.h"
#include "sdk/cli/dtypes.h"
#include "sdk/cli/handles.h"
#include "sdk/cli/model_description.h"
#include "sdk/cli/output_file.h"
#include "sdk/cli/plan_file.h"
#include "sdk/cli/text.h"
#include "shard/shard.h"

namespace shardctl {

namespace {

constexpr const char* kPlanHelp =
    R"(
MODEL is a description in JSON (docs/shardctl.md has its keys), a .safetensors
file, or a checkpoint, whose keys say which modules there are. Or it is a plan
that --output or shard_plan_encode wrote: then that plan is shown, whose ranks,
stage and options are its own.

Memory is what an engine allocates, to the byte: of a rank that shares no memory
with others, or with --shared of one that does; parameters are then there once
per host. With --device cuda it is that of a GPU, and of the host what each rank
pins for it; --memory is then the GPU's. A plan that does not fit there may fit
with optimizer states offloaded to the host, as with
--device 'cuda?offload=states', which shows that memory itself. --host-memory
limits what the --ranks-per-host ranks of a host need of it. Activations are the
program's own. Traffic is what a rank sends for a step, and receives as well.

With --bandwidth, --flops and --tokens it says how long a step takes: when all
communication hides behind the computation, and when none does. These are
bounds, not promises.

Exit code: 1 when --memory or --host-memory is given and nothing fits, not with
offload either.

Examples:
  shardctl plan gpt2.json --ranks 1,8,64 --stages 1,3 --wrap 'class?names=Block'
  shardctl plan model.safetensors --ranks 1024 --dtype bf16 --memory 80GB
  shardctl plan gpt2.json --ranks 8 --device cuda --memory 80GB \
    --host-memory 512GB --ranks-per-host 8
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
  std::string host_memory;
  int32_t ranks_per_host = 1;
  std::string bandwidth;
  std::string device;
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

RankResources ResourcesOf(const PlanArguments& arguments) {
  const auto bytes = [](const std::string& text) {
    return text.empty() ? 0 : ParseBytes(text);
  };
  return {.limits = {.memory = bytes(arguments.memory),
                     .host_memory = bytes(arguments.host_memory),
                     .ranks_per_host = arguments.ranks_per_host,
                     .shared = arguments.shared,
                     .device = arguments.device},
          .bandwidth = bytes(arguments.bandwidth),
          .flops = arguments.flops,
          .tokens = arguments.tokens,
          .micro_batches = arguments.micro_batches};
}

class PlanCommand {
 public:
  PlanCommand(const Command& command, const PlanArguments& arguments)
      : command_(command),
        arguments_(arguments),
        costs_(ResourcesOf(arguments)) {
    model_.path = arguments.model;
    model_.optimizer = arguments.optimizer;
    model_.partition = arguments.partition;
  }

  int Run() {
    if (arguments_.shared && !arguments_.device.empty()) {
      throw Failure("ranks share no memory on '" + Shown(arguments_.device) +
                    "'; leave out --shared or --device");
    }
    if (arguments_.device.empty() && !arguments_.host_memory.empty()) {
      throw Failure(
          "--host-memory is that of a GPU's host; give --device cuda, or "
          "--memory for ranks in the host's memory");
    }
    CheckOutput();
    if (IsPlanFile(arguments_.model)) {
      ShowFile();
    } else {
      model_.description = OpenModelDescription(arguments_.model);
      for (const int32_t ranks : arguments_.ranks) {
        for (const int32_t stage : arguments_.stages) {
          Add(Make(VariantOf(ranks, stage)).get());
        }
      }
    }
    const int code = costs_.AnyFits() ? kFine : kDifferent;
    if (IsStdout(arguments_.output)) return code;  // It has the plan itself.
    FitAdvice advice;
    if (code != kFine) advice = Advise();
    if (arguments_.json) {
      costs_.PrintJsonDocument(model_, code == kFine ? nullptr : &advice);
    } else {
      costs_.PrintTable(model_, code == kFine ? nullptr : &advice);
    }
    return code;
  }

 private:
  // Before anything is planned.
  void CheckOutput() const {
    const std::string& output = arguments_.output;
    if (output.empty()) return;
    if (IsStdout(output) && arguments_.json) {
      throw Failure("--json is printed on stdout, where '" + Shown(output) +
                    "' puts the plan; leave out one of them");
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
    model_.description = std::move(file.model);
    model_.optimizer = file.optimizer;
    model_.partition = file.partition;
    Add(file.plan.get());
  }

  PlanVariant VariantOf(int32_t ranks, int32_t stage) const {
    return {.ranks = ranks,
            .stage = stage,
            .optimizer = arguments_.optimizer,
            .wrap = arguments_.wrap,
            .masters = arguments_.masters,
            .deterministic = arguments_.deterministic,
            .f32_grads = arguments_.f32_grads,
            .whole = WholeOptions()};
  }

  std::string WholeOptions() const {
    std::string options;
    const auto add = [&](bool is_given, const char* option) {
      if (is_given)
        options += (options.empty() ? "" : " ") + std::string(option);
    };
    add(arguments_.whole_grads, "--whole-grads");
    add(arguments_.keep_after_forward, "--keep-after-forward");
    add(arguments_.group_size != 0, "--group-size");
    return options;
  }

  FitAdvice Advise() const {
    FitAdvice advice = costs_.Nearest();
    if (IsPlanFile(arguments_.model)) return advice;
    advice.is_searched = true;
    advice.nearest = VariantOf(advice.nearest.ranks, advice.nearest.stage);
    advice.options = FindFittingOptions(
        advice.nearest, ResourcesOf(arguments_).limits,
        [&](const PlanVariant& variant) { return Make(variant); });
    return advice;
  }

  Plan Make(const PlanVariant& variant) const {
    shard_plan_options options = SHARD_PLAN_OPTIONS_INIT;
    options.stage = variant.stage;
    options.world_size = variant.ranks;
    options.partition = NumberOf("partition", arguments_.partition,
                                 {"even", "greedy", "bucket"});
    options.masters =
        NumberOf("masters", variant.masters, {"f32", "none", "stochastic"});
    options.optimizer = variant.optimizer.c_str();
    options.wrap = variant.wrap.c_str();
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
    options.f32_grads = variant.f32_grads ? 1 : 0;
    options.deterministic = variant.deterministic ? 1 : 0;
    // Options that only some stages have are left 0 for the others.
    const bool keeps_whole = !variant.whole.empty();
    if (keeps_whole && variant.stage >= 2) {
      options.whole_grads = arguments_.whole_grads ? 1 : 0;
    }
    if (keeps_whole && variant.stage == 3) {
      options.shard_group_size = arguments_.group_size;
      options.keep_after_forward = arguments_.keep_after_forward ? 1 : 0;
    }
    shard_plan* plan = nullptr;
    Check(shard_plan_create(model_.description.model.get(), &options, &plan));
    return Plan(plan);
  }

  void Add(const shard_plan* plan) {
    costs_.Add(plan);
    if (!arguments_.output.empty()) WritePlanFile(arguments_.output, plan);
  }

  const Command command_;
  const PlanArguments& arguments_;
  PlannedModel model_;
  PlanCosts costs_;
};

}  // namespace

void AddPlan(CommandLine* line) {
  const auto plan = std::make_shared<PlanArguments>();
  Command command = line->AddCommand(
      "plan", "Memory, traffic and time per rank, for stages and world sizes",
      kPlanHelp);
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
  command.AddOption(
      "--device", &plan->device,
      "Where tensors lie, as in shard_engine_options, or \"cuda\" for any GPU; "
      "no GPU is needed (default: the host's memory)");
  command.AddOption("--memory", &plan->memory,
                    "Of a rank, such as 80GB: says what fits");
  command.AddOption("--host-memory", &plan->host_memory,
                    "Of a GPU's host, such as 512GB, for all its ranks");
  command
      .AddOption("--ranks-per-host", &plan->ranks_per_host,
                 "Ranks on GPUs that share --host-memory")
      .Between(1, 1 << 20)
      .ShowDefault();
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
  command.Runs([command, plan] {
    // The CPU has no memory but the host's.
    if (plan->device == "cpu") plan->device.clear();
    return PlanCommand(command, *plan).Run();
  });
}

}  // namespace shardctl
