// SPDX-License-Identifier: Apache-2.0
//
// A short training run that visits units as a host does, forward and backward,
// with threads as ranks. Gradients depend on the parameters that were read in
// the same pass, so that stale or missing parameters show in the result. Reads
// and writes of tensors are work of the host's stream.

#ifndef SHARD_TESTS_CORE_ENGINE_UNIT_TRAINING_H_
#define SHARD_TESTS_CORE_ENGINE_UNIT_TRAINING_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "core/flat/plan.h"
#include "core/model/model.h"
#include "core/optim/groups.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/training.h"

namespace shard {

// Returns a model of a root with an embedding, `blocks` blocks with a nested
// module each, and a tied head. Memory is counted in pages of 4096 bytes, so
// units have several pages: where sharding saves nothing, plans do not shard.
inline std::shared_ptr<Model> BlockModel(int blocks,
                                         DType dtype = DType::kF32) {
  auto model = std::make_shared<Model>("Root");
  const ParamId embedding =
      *model->AddParam(kRootModule, "embedding", dtype, {37, 60});
  for (int b = 0; b < blocks; ++b) {
    const ModuleId block =
        *model->AddModule(kRootModule, StrCat("block", b), "Block");
    EXPECT_TRUE(model->AddParam(block, "norm", dtype, {60}).ok());
    const ModuleId mlp = *model->AddModule(block, "mlp", "Mlp");
    EXPECT_TRUE(model->AddParam(mlp, "weight", dtype, {60, 80 + b}).ok());
    EXPECT_TRUE(model->AddParam(mlp, "bias", dtype, {80 + b}).ok());
  }
  const ModuleId head = *model->AddModule(kRootModule, "head", "Head");
  EXPECT_TRUE(model->Tie(head, "weight", embedding).ok());
  EXPECT_TRUE(model->AddParam(head, "bias", dtype, {37}).ok());
  return model;
}

struct UnitTraining {
  std::shared_ptr<Model> model;
  std::string optimizer = "adamw";
  std::string wrap = "class?names=Block,Mlp";
  PlanOptions plan;  // Its groups and wrap policy are made from the above.
  EngineOptions engine;
  StepOptions step;
  int steps = 4;
  int passes = 1;  // Backward passes per step, all but the last accumulate.
  bool per_param = false;
  bool overwrite = false;      // Pass::kBackwardOverwrite.
  bool begin_step = false;     // With `step`, before the passes.
  std::string link;            // Part of the communicator's URL: "direct=0".
  bool on_processors = false;  // CreateReferenceEngine makes the engine.
};

// The part of a rank in a UnitTraining; a test may also call the methods one by
// one.
class UnitTrainer {
 public:
  UnitTrainer(const UnitTraining& training, Engine* engine)
      : training_(training), engine_(*engine) {}

  const Plan& plan() const { return engine_.plan(); }

  void Fill() {
    const auto& params = plan().model().params();
    for (size_t p = 0; p < params.size(); ++p) {
      if (plan().places()[p].buffer < 0) continue;
      std::vector<float> values(static_cast<size_t>(params[p].numel));
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = InitialValue(static_cast<int>(p), static_cast<int64_t>(i));
      }
      std::vector<unsigned char> bytes(
          DTypeBytes(params[p].dtype, params[p].numel));
      Store(params[p].dtype, values, bytes.data());
      const Status set =
          engine_.SetParam(static_cast<ParamId>(p), bytes.data(), bytes.size());
      ASSERT_TRUE(set.ok()) << set.ToString();
    }
    const Status broadcast = engine_.BroadcastParams(0);
    ASSERT_TRUE(broadcast.ok()) << broadcast.ToString();
  }

  // Visits units in pre-order. A unit is in use while the units nested in it
  // are.
  void Forward() {
    Visit(0, Pass::kForward, [](int32_t) {});
  }

  // Makes a backward pass with the gradients of batch number `batch`.
  void Backward(int batch, bool last) {
    ASSERT_TRUE(engine_.SetAccumulate(!last).ok());
    Visit(0, training_.overwrite ? Pass::kBackwardOverwrite : Pass::kBackward,
          [&](int32_t unit) { WriteGrads(unit, batch); });
  }

  Status Step(StepReport* report) {
    return engine_.Step(training_.step, report);
  }

  // Returns the parameters by ParamId, in fp32; empty for those not stored.
  std::vector<std::vector<float>> Read() {
    std::vector<std::vector<float>> values(plan().model().params().size());
    for (size_t u = 0; u < plan().units().size(); ++u) {
      const auto unit = static_cast<int32_t>(u);
      EXPECT_TRUE(engine_.UnitAcquire(unit, Pass::kForward, 0).ok());
      ForEachParam(unit, [&](ParamId param) {
        const auto tensor = engine_.Param(param);
        EXPECT_TRUE(tensor.ok()) << tensor.status().ToString();
        if (!tensor.ok()) return;
        engine_.host_stream().Call("read a parameter",
                                   [from = *tensor, dtype = DTypeOf(param),
                                    to = &values[static_cast<size_t>(param)]] {
                                     *to = Load(dtype, from.data, from.numel);
                                     return Status();
                                   });
      });
      EXPECT_TRUE(engine_.UnitRelease(unit).ok());
    }
    EXPECT_TRUE(engine_.host_stream().Synchronize(Deadline::After(60)).ok());
    return values;
  }

 private:
  template <typename Do>
  void Visit(int32_t unit, Pass pass, Do&& act) {
    const Status acquired = engine_.UnitAcquire(unit, pass, 0);
    ASSERT_TRUE(acquired.ok()) << acquired.ToString();
    std::vector<int32_t> nested;
    for (size_t u = 0; u < plan().units().size(); ++u) {
      if (plan().units()[u].parent == unit) {
        nested.push_back(static_cast<int32_t>(u));
      }
    }
    if (pass != Pass::kForward) std::reverse(nested.begin(), nested.end());
    for (const int32_t inner : nested) Visit(inner, pass, act);
    act(unit);
    const Status released = engine_.UnitRelease(unit);
    ASSERT_TRUE(released.ok()) << released.ToString();
  }

  template <typename Do>
  void ForEachParam(int32_t unit, Do act) {
    for (const int32_t b : plan().units()[static_cast<size_t>(unit)].buffers) {
      for (const Slot& slot :
           plan().buffers()[static_cast<size_t>(b)].layout.slots()) {
        act(slot.param);
      }
    }
  }

  DType DTypeOf(ParamId param) const {
    return plan().model().params()[static_cast<size_t>(param)].dtype;
  }

  void WriteGrads(int32_t unit, int batch) {
    const int rank = engine_.comm()->rank();
    ForEachParam(unit, [&](ParamId param) {
      const auto index = static_cast<size_t>(param);
      if (!plan().model().params()[index].trainable) return;
      const auto grad = engine_.Grad(param);
      const auto values = engine_.Param(param);
      ASSERT_TRUE(grad.ok()) << grad.status().ToString();
      ASSERT_TRUE(values.ok()) << values.status().ToString();
      const DType grad_dtype =
          plan()
              .buffers()[static_cast<size_t>(plan().places()[index].buffer)]
              .grad_dtype;
      engine_.host_stream().Call(
          "write a gradient",
          [from = *values, dtype = DTypeOf(param), to = *grad, grad_dtype,
           overwrite = training_.overwrite, batch,
           number = static_cast<int>(param) + 3 * rank] {
            const std::vector<float> params =
                Load(dtype, from.data, from.numel);
            std::vector<float> grads(params.size());
            if (!overwrite) grads = Load(grad_dtype, to.data, to.numel);
            for (size_t i = 0; i < grads.size(); ++i) {
              grads[i] += 0.125f * params[i] +
                          GradientValue(batch, number, static_cast<int64_t>(i));
            }
            Store(grad_dtype, grads, to.data);
            return Status();
          });
      if (training_.per_param) {
        const Status ready = engine_.MarkParamGradReady(param);
        ASSERT_TRUE(ready.ok()) << ready.ToString();
      }
    });
    if (training_.per_param) return;
    const Status ready = engine_.MarkUnitGradsReady(unit);
    ASSERT_TRUE(ready.ok()) << ready.ToString();
  }

  const UnitTraining& training_;
  Engine& engine_;
};

inline StatusOr<std::shared_ptr<const Plan>> PlanOf(
    const UnitTraining& training) {
  PlanOptions options = training.plan;
  SHARD_ASSIGN_OR_RETURN(options.groups,
                         PlanGroups(*training.model, training.optimizer));
  SHARD_ASSIGN_OR_RETURN(options.wrap, WrapPolicy::Parse(training.wrap));
  return Plan::Create(training.model, options);
}

// Returns the parameters after the last step, as rank 0 reads them.
inline std::vector<std::vector<float>> TrainUnits(const UnitTraining& training,
                                                  StepReport* last = nullptr) {
  std::vector<std::vector<float>> result;
  const auto plan = PlanOf(training);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  if (!plan.ok()) return result;
  RunThreadRanks(
      training.plan.world_size,
      [&](const auto& comm) {
        auto made = training.on_processors
                        ? CreateReferenceEngine(*plan, comm, training.engine)
                        : CreateEngine(*plan, comm, training.engine);
        ASSERT_TRUE(made.ok()) << made.status().ToString();
        const bool shares = (*made)->SharesTensors();
        EXPECT_EQ((*made)->Memory().HostTotal(1, shares),
                  (*plan)
                      ->Memory(shares, (*made)->offload(),
                               ProcessorOf((*made)->device().kind))
                      .HostTotal(1, shares));
        UnitTrainer trainer(training, made->get());
        trainer.Fill();
        for (int step = 1; step <= training.steps; ++step) {
          if (training.begin_step) {
            const Status begun = (*made)->BeginStep(training.step);
            ASSERT_TRUE(begun.ok()) << begun.ToString();
          }
          for (int pass = 1; pass <= training.passes; ++pass) {
            trainer.Forward();
            trainer.Backward(step * 10 + pass, pass == training.passes);
          }
          StepReport report;
          const Status stepped = trainer.Step(&report);
          ASSERT_TRUE(stepped.ok()) << stepped.ToString();
          ASSERT_TRUE((*made)->ZeroGrad().ok());
          if (last != nullptr && comm->rank() == 0) *last = report;
        }
        auto read = trainer.Read();
        if (comm->rank() == 0) result = std::move(read);
      },
      30, training.link);
  return result;
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_UNIT_TRAINING_H_
