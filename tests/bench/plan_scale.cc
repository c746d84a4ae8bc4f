// SPDX-License-Identifier: Apache-2.0
//
// Measures the time of a plan for 1,000,000 tensors and 16,384 ranks,
// fingerprint included: a job of that size waits for it before its first
// allocation. Building the model is the host's work and not counted. The
// `*_over_walk` are the CPU times divided by that of the simplest walk of the
// same model, in the same round.

#include <time.h>
#include <xxhash.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/flat/plan.h"
#include "core/model/model.h"
#include "tests/bench/bench.h"

namespace {

using shard::DType;
using shard::Model;
using shard::ModuleId;
using shard::Partition;
using shard::Plan;
using shard::PlanOptions;
using shard::WrapPolicy;
using shard::bench::Bench;
using shard::bench::Median;
using shard::bench::Seconds;

constexpr int kRanks = 16384;
constexpr size_t kTensors = 1'000'000;
constexpr int kRounds = 15;

// Returns transformer blocks, "layers.123.attn.q_weight" and so on, with
// kTensors in all. Blocks have two widths, so that sizes are mixed.
std::shared_ptr<const Model> MakeModel() {
  auto model = std::make_shared<Model>("Transformer");
  const auto param = [&](ModuleId module, const char* name,
                         const std::vector<int64_t>& shape) {
    if (model->params().size() == kTensors) return;
    model->AddParam(module, name, DType::kF32, shape).value();
  };
  const auto module = [&](ModuleId parent, const std::string& name,
                          const char* class_name) {
    return model->AddModule(parent, name, class_name).value();
  };
  param(module(shard::kRootModule, "tok_embeddings", "Embedding"), "weight",
        {128256, 4096});
  const ModuleId layers = module(shard::kRootModule, "layers", "ModuleList");
  for (int i = 0; model->params().size() < kTensors; ++i) {
    const int64_t width = i % 3 == 0 ? 4096 : 1024;
    const ModuleId layer = module(layers, std::to_string(i), "Block");
    const ModuleId attention = module(layer, "attn", "Attention");
    for (const char* name : {"q", "k", "v", "o"}) {
      param(attention, (std::string(name) + "_weight").c_str(), {width, width});
      param(attention, (std::string(name) + "_bias").c_str(), {width});
    }
    const ModuleId mlp = module(layer, "mlp", "MLP");
    param(mlp, "up_weight", {4 * width, width});
    param(mlp, "up_bias", {4 * width});
    param(mlp, "down_weight", {width, 4 * width});
    param(mlp, "down_bias", {width});
    for (const char* name : {"ln_1", "ln_2"}) {
      const ModuleId norm = module(layer, name, "LayerNorm");
      param(norm, "weight", {width});
      param(norm, "bias", {width});
    }
  }
  return model;
}

// Does the least work that depends on every tensor: hashes each name where it
// stands and adds up the elements, module by module.
void WalkOnce(const Model& model) {
  uint64_t hash = 0;
  int64_t offset = 0;
  std::vector<ModuleId> stack = {shard::kRootModule};
  while (!stack.empty()) {
    const Model::Module& module =
        model.modules()[static_cast<size_t>(stack.back())];
    stack.pop_back();
    hash = XXH3_64bits_withSeed(module.name.data(), module.name.size(), hash);
    for (const int32_t index : module.references) {
      const Model::Reference& reference =
          model.references()[static_cast<size_t>(index)];
      hash = XXH3_64bits_withSeed(reference.name.data(), reference.name.size(),
                                  hash + static_cast<uint64_t>(offset));
      offset += model.params()[static_cast<size_t>(reference.param)].numel;
    }
    stack.insert(stack.end(), module.children.rbegin(), module.children.rend());
  }
  asm volatile("" : : "r"(hash));  // The hash counts as used.
}

// Returns the CPU time of this thread, which other load on the machine
// lengthens less than the time of day.
double CpuSeconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_nsec) * 1e-9;
}

struct Times {
  double wall;
  double cpu;
};

template <typename Call>
Times TimesOf(const Call& call) {
  const double wall = Seconds();
  const double cpu = CpuSeconds();
  call();
  return {Seconds() - wall, CpuSeconds() - cpu};
}

Times PlanOnce(const std::shared_ptr<const Model>& model, Partition partition,
               const char* wrap) {
  PlanOptions options;
  options.world_size = kRanks;
  options.partition = partition;
  options.wrap = WrapPolicy::Parse(wrap).value();
  options.groups = {{"adamw?lr=0.001",
                     {{"exp_avg", DType::kF32}, {"exp_avg_sq", DType::kF32}}}};
  shard::StatusOr<std::shared_ptr<const Plan>> plan =
      shard::InvalidArgument("not planned");
  const Times times =
      TimesOf([&] { plan = Plan::Create(model, std::move(options)); });
  if (!plan.ok()) {
    std::fprintf(stderr, "%s\n", plan.status().ToString().c_str());
    std::exit(1);
  }
  return times;
}

}  // namespace

// Accepts `--peers`, and runs none: no peer plans without allocating.
int main() {
  constexpr struct {
    const char* name;
    Partition partition;
    const char* wrap;
  } kPlans[] = {{"even", Partition::kEven, ""},
                {"greedy", Partition::kGreedy, ""},
                {"units", Partition::kEven, "class?names=Block"}};
  const auto model = MakeModel();
  std::vector<double> walks;
  std::vector<double> times[std::size(kPlans)];
  std::vector<double> ratios[std::size(kPlans)];
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < std::size(kPlans); ++i) {
      // Each plan is measured beside a walk of its own, so that other load is
      // on both.
      const Times walk = TimesOf([&] { WalkOnce(*model); });
      const Times plan = PlanOnce(model, kPlans[i].partition, kPlans[i].wrap);
      walks.push_back(walk.wall);
      times[i].push_back(plan.wall);
      ratios[i].push_back(plan.cpu / walk.cpu);
    }
  }
  Bench("plan_scale", "walk_ms", Median(walks) * 1e3, "ms");
  for (size_t i = 0; i < std::size(kPlans); ++i) {
    const std::string name = kPlans[i].name;
    Bench("plan_scale", (name + "_ms").c_str(), Median(times[i]) * 1e3, "ms");
    Bench("plan_scale", (name + "_over_walk").c_str(), Median(ratios[i]), "");
  }
  return 0;
}
