// SPDX-License-Identifier: Apache-2.0
//
// How long a plan takes for 1,000,000 tensors and 16,384 ranks, fingerprint
// included: what a job of that size waits for before its first allocation.
// Building the model is the host's and not counted.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
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

constexpr int kRanks = 16384;
constexpr size_t kTensors = 1'000'000;
constexpr int kRepeats = 15;

// Transformer blocks, "layers.123.attn.q.weight" and so on, until there are
// kTensors; two widths, so that sizes are mixed.
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

double MedianMs(const std::shared_ptr<const Model>& model, Partition partition,
                const char* wrap = "") {
  std::vector<double> times;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    PlanOptions options;
    options.world_size = kRanks;
    options.partition = partition;
    options.wrap = WrapPolicy::Parse(wrap).value();
    options.groups = {
        {"adamw?lr=0.001",
         {{"exp_avg", DType::kF32}, {"exp_avg_sq", DType::kF32}}}};
    const double start = shard::bench::Seconds();
    const auto plan = Plan::Create(model, std::move(options));
    times.push_back((shard::bench::Seconds() - start) * 1e3);
    if (!plan.ok()) {
      std::fprintf(stderr, "%s\n", plan.status().ToString().c_str());
      std::exit(1);
    }
  }
  return shard::bench::Median(times);
}

}  // namespace

// `--peers` is accepted: no peer plans without allocating.
int main() {
  const auto model = MakeModel();
  shard::bench::Bench("plan_scale", "even_ms",
                      MedianMs(model, Partition::kEven), "ms");
  shard::bench::Bench("plan_scale", "greedy_ms",
                      MedianMs(model, Partition::kGreedy), "ms");
  shard::bench::Bench("plan_scale", "units_ms",
                      MedianMs(model, Partition::kEven, "class?names=Block"),
                      "ms");
  return 0;
}
