// SPDX-License-Identifier: Apache-2.0
//
// GPT-2's parameters as a model whose blocks are units, and the order in which
// a host visits units.

#ifndef SHARD_TESTS_BENCH_BLOCKS_H_
#define SHARD_TESTS_BENCH_BLOCKS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/engine/engine.h"
#include "core/flat/plan.h"
#include "core/model/model.h"
#include "tests/bench/gpt2_shapes.h"
#include "tests/bench/ranks.h"

namespace shard::bench {

// Returns a plan for fp32 and AdamW. Its units are the root, which holds the
// embeddings and the last norm, and every block. Overwrites groups and wrap of
// `options`.
inline std::shared_ptr<const Plan> BlockPlan(const Gpt2Size& size,
                                             PlanOptions options) {
  auto model = std::make_shared<Model>("GPT2");
  std::string last;
  ModuleId module = kRootModule;
  for (const NamedShape& p : Gpt2Shapes(size)) {
    // "h3_fc_bias" is the parameter "fc_bias" of the block "h3".
    const bool in_block = p.name[0] == 'h';
    const std::string block =
        in_block ? p.name.substr(0, p.name.find('_')) : "";
    if (block != last) {
      last = block;
      module = in_block ? Require(model->AddModule(kRootModule, block, "Block"))
                        : kRootModule;
    }
    Require(model->AddParam(module,
                            in_block ? p.name.substr(block.size() + 1) : p.name,
                            DType::kF32, p.shape));
  }
  options.wrap = Require(WrapPolicy::Parse("class?names=Block"));
  return AdamWPlan(std::move(model), std::move(options));
}

// Acquires a unit, visits the units nested in it (in a backward pass from the
// last one), calls `act(unit)` and releases the unit, which is in use while the
// units in it are.
template <typename Act>
void VisitUnits(Engine* engine, Pass pass, Act act, int32_t unit = 0) {
  Require(engine->UnitAcquire(unit, pass, 0));
  const std::vector<UnitPlan>& units = engine->plan().units();
  const auto count = static_cast<int32_t>(units.size());
  for (int32_t i = 0; i < count; ++i) {
    const int32_t inner = pass == Pass::kForward ? i : count - 1 - i;
    if (units[static_cast<size_t>(inner)].parent != unit) continue;
    VisitUnits(engine, pass, act, inner);
  }
  act(unit);
  Require(engine->UnitRelease(unit));
}

// Calls `act(ParamId)` for the parameters of a unit, in the order of memory.
template <typename Act>
void ForEachParam(const Plan& plan, int32_t unit, Act act) {
  for (const int32_t b : plan.units()[static_cast<size_t>(unit)].buffers) {
    const FlatBufferPlan& buffer = plan.buffers()[static_cast<size_t>(b)];
    for (const Slot& slot : buffer.layout.slots()) act(slot.param);
  }
}

}  // namespace shard::bench

#endif  // SHARD_TESTS_BENCH_BLOCKS_H_
