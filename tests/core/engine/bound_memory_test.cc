// SPDX-License-Identifier: Apache-2.0
//
// Memory that the host bound: holds every new value of a parameter, is the
// gradient of the step, and changes no bit of a run.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/exact_training.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/engine/whole_state.h"
#include "tests/core/engine/worlds.h"
#include "tests/core/flat/sharding.h"

namespace shard::bound_memory_test {
namespace {

constexpr int kWorldSize = 2;
// Bytes of memory that the engine has not written: NaN in every dtype.
constexpr std::byte kGarbage{0xff};

Status BindTo(Engine* engine, ParamId param, std::span<std::byte> values,
              std::span<std::byte> grad) {
  return engine->Bind(param, {values, grad});
}

// Tensors of a host's own, for the parameters of one rank. A rank binds, in
// turn: nothing, values, the gradient, both; each rank another way.
class HostMemory {
 public:
  void Bind(Engine* engine, bool all = false) {
    engine_ = engine;
    const Plan& plan = engine->plan();
    const int rank = engine->comm()->rank();
    tensors_.resize(plan.places().size());
    for (size_t p = 0; p < tensors_.size(); ++p) {
      const FlatBufferPlan& buffer = BufferOf(p);
      const int64_t numel = plan.model().params()[p].numel;
      const int way = all ? 3 : (static_cast<int>(p) + rank) % 4;
      Tensor& tensor = tensors_[p];
      if (way % 2 == 1) {
        tensor.values.assign(DTypeBytes(buffer.dtype, numel), kGarbage);
      }
      if (way >= 2 && buffer.trainable) {
        tensor.grad.assign(DTypeBytes(buffer.grad_dtype, numel), kGarbage);
      }
      ASSERT_OK(
          BindTo(engine, static_cast<ParamId>(p), tensor.values, tensor.grad));
      if (tensor.grad.empty()) continue;
      EXPECT_EQ(tensor.grad[0], kGarbage);  // Left as it was.
      if (plan.shards_grads()) continue;
      const auto grad = engine->Grad(static_cast<ParamId>(p));
      ASSERT_OK(grad);
      EXPECT_EQ(grad->data, tensor.grad.data());
    }
  }

  // Expects the bound values of the parameters in `unit` to be the engine's; -1
  // stands for all units.
  void ExpectValues(int32_t unit = -1) const {
    int compared = 0;
    for (size_t p = 0; p < tensors_.size(); ++p) {
      const auto& values = tensors_[p].values;
      if (values.empty() || (unit >= 0 && BufferOf(p).unit != unit)) continue;
      const auto param = engine_->Param(static_cast<ParamId>(p));
      ASSERT_OK(param);
      EXPECT_EQ(std::memcmp(values.data(), param->data, values.size()), 0)
          << "parameter " << p;
      ++compared;
    }
    EXPECT_TRUE(compared > 0 || unit >= 0);
  }

  // Expects every element of the bound gradients to be zero.
  void ExpectZeroGrads() const {
    int compared = 0;
    for (const Tensor& tensor : tensors_) {
      if (tensor.grad.empty()) continue;
      EXPECT_EQ(tensor.grad,
                std::vector<std::byte>(tensor.grad.size(), std::byte{0}));
      ++compared;
    }
    EXPECT_GT(compared, 0);
  }

  struct Tensor {
    std::vector<std::byte> values, grad;
    bool operator==(const Tensor&) const = default;
  };
  std::vector<Tensor>& tensors() { return tensors_; }

 private:
  const FlatBufferPlan& BufferOf(size_t p) const {
    const Plan& plan = engine_->plan();
    return plan.buffers()[static_cast<size_t>(plan.places()[p].buffer)];
  }

  Engine* engine_ = nullptr;
  std::vector<Tensor> tensors_;
};

struct Form {
  const char* name;
  int stage;
  const char* link = "";
  const char* device = "cpu";
  DType dtype = DType::kF32;
  bool f32_grads = false;
  bool units = true;  // Else the simple loop, without units.
  bool begin_step = false;
  bool overlap = false;
  int passes = 1;
  double max_grad_norm = 0;
  MissingGrads missing = MissingGrads::kError;
};

constexpr Form kForms[] = {
    {.name = "stage0", .stage = 0},
    {.name = "stage0_simple", .stage = 0, .units = false},
    {.name = "stage1", .stage = 1, .passes = 2},
    {.name = "stage1_async",
     .stage = 1,
     .device = "cpu-async?max_delay=0.0001&seed=1"},
    {.name = "stage1_simple_clipped",
     .stage = 1,
     .units = false,
     .max_grad_norm = 0.1},
    {.name = "stage1_begun", .stage = 1, .begin_step = true},
    {.name = "stage1_simple_begun",
     .stage = 1,
     .units = false,
     .begin_step = true},
    {.name = "stage1_bf16_f32_grads",
     .stage = 1,
     .dtype = DType::kBF16,
     .f32_grads = true},
    {.name = "stage1_missing", .stage = 1, .missing = MissingGrads::kSkip},
    {.name = "stage2", .stage = 2, .passes = 2, .max_grad_norm = 0.1},
    {.name = "stage2_begun", .stage = 2, .begin_step = true},
    {.name = "stage2_bf16_missing",
     .stage = 2,
     .dtype = DType::kBF16,
     .missing = MissingGrads::kZero},
    {.name = "apart_stage0", .stage = 0, .link = "direct=0"},
    {.name = "apart_stage1", .stage = 1, .link = "direct=0", .passes = 2},
    {.name = "apart_stage1_simple",
     .stage = 1,
     .link = "direct=0",
     .units = false},
    {.name = "apart_stage1_missing",
     .stage = 1,
     .link = "direct=0",
     .missing = MissingGrads::kZero},
    {.name = "apart_stage1_overlap",
     .stage = 1,
     .link = "direct=0",
     .device = "cpu-async?max_delay=0.0001&seed=2",
     .overlap = true},
    {.name = "apart_stage2",
     .stage = 2,
     .link = "direct=0",
     .overlap = true,
     .passes = 2},
};

UnitTraining TrainingOf(const Form& form) {
  UnitTraining training;
  training.model = AwkwardModel(form.dtype);
  training.wrap = "class?names=Block";
  training.plan.world_size = kWorldSize;
  training.plan.stage = form.stage;
  training.plan.prefetch = 0;
  training.plan.f32_grads = form.f32_grads;
  training.engine.device = form.device;
  training.engine.overlap = form.overlap;
  training.engine.missing_grads = form.missing;
  training.step.max_grad_norm = form.max_grad_norm;
  training.link = form.link;
  return training;
}

// Writes gradients that depend on the parameters, in the simple loop.
void WriteAllGrads(Engine* engine, int step) {
  const Plan& plan = engine->plan();
  for (const FlatBufferPlan& buffer : plan.buffers()) {
    if (!buffer.trainable) continue;
    for (const Slot& slot : buffer.layout.slots()) {
      const auto grad = engine->Grad(slot.param);
      const auto param = engine->Param(slot.param);
      ASSERT_OK(grad);
      ASSERT_OK(param);
      std::vector<float> values = Load(buffer.dtype, param->data, slot.numel);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = 0.125f * values[i] +
                    GradientValue(step, slot.param + engine->comm()->rank(),
                                  static_cast<int64_t>(i));
      }
      Store(buffer.grad_dtype, values, grad->data);
    }
  }
}

// Makes steps first to last; `host`, if any, is compared after each.
void MakeSteps(const Form& form, const UnitTraining& training, int first,
               int last, Engine* engine, UnitTrainer* trainer,
               HostMemory* host) {
  for (int step = first; step <= last; ++step) {
    if (form.begin_step) ASSERT_OK(engine->BeginStep(training.step));
    for (int pass = 1; pass <= form.passes; ++pass) {
      if (form.units) {
        trainer->Forward();
        trainer->Backward(10 * step + pass, pass == form.passes);
      } else {
        WriteAllGrads(engine, step);
      }
    }
    auto before = host == nullptr ? HostMemory() : *host;
    StepReport report;
    ASSERT_OK(engine->Step(training.step, &report));
    if (host != nullptr) {
      // A step changes no bound gradient.
      for (size_t p = 0; p < before.tensors().size(); ++p) {
        EXPECT_EQ(before.tensors()[p].grad, host->tensors()[p].grad);
      }
      if (form.overlap) {
        for (size_t u = 0; u < engine->plan().units().size(); ++u) {
          const auto unit = static_cast<int32_t>(u);
          ASSERT_OK(engine->UnitAcquire(unit, Pass::kForward, 0));
          host->ExpectValues(unit);
          ASSERT_OK(engine->UnitRelease(unit));
        }
      }
      host->ExpectValues();
    }
    ASSERT_OK(engine->ZeroGrad());
    if (host != nullptr && !engine->plan().shards_grads()) {
      host->ExpectZeroGrads();
    }
  }
}

// Runs `body` on all ranks of an engine of the form.
void RunForm(const Form& form,
             const std::function<void(const UnitTraining&, Engine*,
                                      UnitTrainer*)>& body) {
  const UnitTraining training = TrainingOf(form);
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  ASSERT_TRUE(ShardsAsItsStage(**plan));
  RunThreadRanks(
      kWorldSize,
      [&](const auto& comm) {
        auto engine = Engine::Create(*plan, comm, training.engine);
        ASSERT_OK(engine);
        UnitTrainer trainer(training, engine->get());
        body(training, engine->get(), &trainer);
      },
      30, form.link);
}

class BoundMemoryTest : public ::testing::TestWithParam<Form> {};

// One run binds before parameters have values, and is bound throughout; it
// loads, changes its plan and writes summoned parameters back. The other binds
// nothing.
TEST_P(BoundMemoryTest, NoBitDiffers) {
  const Form& form = GetParam();
  const testing::TempFolder folder;
  WholeState states[2];
  for (const bool bound : {false, true}) {
    RunForm(form, [&](const UnitTraining& training, Engine* engine,
                      UnitTrainer* trainer) {
      HostMemory tensors;
      HostMemory* const host = bound ? &tensors : nullptr;
      if (bound) tensors.Bind(engine);
      trainer->Fill();
      if (bound) tensors.ExpectValues();
      ASSERT_OK(engine->ZeroGrad());
      MakeSteps(form, training, 1, 3, engine, trainer, host);
      if (!bound) ASSERT_OK(engine->Save(folder.path(), SaveOptions()));

      // Load the state of the run without bindings, which is as this one's.
      LoadReport report;
      MakeSteps(form, training, 4, 4, engine, trainer, host);
      ASSERT_OK(engine->Load(folder.path(), LoadOptions(), &report));
      if (bound) tensors.ExpectValues();

      ASSERT_OK(engine->Summon(0, -1, 0));
      for (ParamId param = 0; param < 3; ++param) {
        const auto copy = engine->WritableParam(param);
        ASSERT_OK(copy);
        const DType dtype =
            training.model->params()[static_cast<size_t>(param)].dtype;
        Store(dtype,
              std::vector<float>(static_cast<size_t>(copy->numel), 0.25f),
              copy->data);
      }
      ASSERT_OK(engine->EndSummon(true, 0));
      if (bound) tensors.ExpectValues();
      MakeSteps(form, training, 4, 4, engine, trainer, host);

      // The parameter that is frozen in the model, and one that is not.
      const ParamId thawed[] = {4};
      const ParamId frozen[] = {2};
      ASSERT_OK(engine->SetTrainable(thawed, true, 0));
      if (bound) tensors.ExpectValues();
      ASSERT_OK(engine->SetTrainable(frozen, false, 0));
      ASSERT_OK(engine->ZeroGrad());
      MakeSteps(form, training, 5, 6, engine, trainer, host);
      states[bound ? 1 : 0].Add(*engine);
    });
  }
  EXPECT_FALSE(states[0].tensors().empty());
  EXPECT_EQ(states[1].Differences(states[0]), "");
}

INSTANTIATE_TEST_SUITE_P(Forms, BoundMemoryTest, ::testing::ValuesIn(kForms),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

// Gradients that ranks do not have do not count, whatever bound memory holds.
TEST(BoundMemoryTest, MissingGradients) {
  for (const Form& form :
       {Form{.name = "", .stage = 1}, Form{.name = "", .stage = 2},
        Form{.name = "", .stage = 1, .link = "direct=0"},
        Form{.name = "", .stage = 2, .link = "direct=0"}}) {
    for (const int passes : {1, 2}) {
      SCOPED_TRACE(
          StrCat("stage ", form.stage, ", ", form.link, ", passes ", passes));
      const auto plan = PlanOf(TrainingOf(form));
      ASSERT_OK(plan);
      ASSERT_TRUE(ShardsAsItsStage(**plan));
      ExactTraining training;
      training.plan = *plan;
      training.engine.missing_grads =
          passes == 1 ? MissingGrads::kSkip : MissingGrads::kZero;
      training.link = form.link;
      training.passes = passes;
      training.has_grad = [](int step, int pass, int rank, ParamId param) {
        return (step + pass + rank + param) % 3 != 0;
      };
      HostMemory hosts[kWorldSize];
      training.prepare = [&](Engine* engine) {
        hosts[engine->comm()->rank()].Bind(engine, true);
        // Accumulated gradients begin at zero.
        ASSERT_OK(engine->ZeroGrad());
      };
      EXPECT_EQ(TrainExactly(training), "");
    }
  }
}

// A gradient that does not count is zeroed where the host keeps it, as the
// engine's own is: later ones are added to nothing.
TEST(BoundMemoryTest, GradientsThatDoNotCountAreZeroed) {
  for (const char* link : {"", "direct=0"}) {
    RunForm(
        {.name = "",
         .stage = 1,
         .link = link,
         .units = false,
         .missing = MissingGrads::kZero},
        [](const UnitTraining& training, Engine* engine, UnitTrainer* trainer) {
          const ParamId weight = 2;
          const ParamId bias = 3;
          HostMemory host;
          host.Bind(engine, true);
          trainer->Fill();
          ASSERT_OK(engine->ZeroGrad());
          WriteAllGrads(engine, 1);
          ASSERT_OK(engine->MarkParamGradReady(bias));
          const auto before = host.tensors();
          StepReport report;
          ASSERT_OK(engine->Step(training.step, &report));
          const auto& after = host.tensors();
          EXPECT_EQ(after[bias].grad, before[bias].grad);
          EXPECT_EQ(after[weight].grad,
                    std::vector<std::byte>(before[weight].grad.size()));
        });
  }
}

// With overlap, a step leaves new values to the next acquisition of their unit;
// a change of the plan before that brings them.
TEST(BoundMemoryTest, AChangeOfThePlanAfterAnOverlappedStep) {
  const Form form{.name = "",
                  .stage = 1,
                  .link = "direct=0",
                  .device = "cpu-async?max_delay=0.0001&seed=3",
                  .overlap = true};
  RunForm(form, [](const UnitTraining&, Engine* engine, UnitTrainer* trainer) {
    HostMemory host;
    host.Bind(engine, true);
    trainer->Fill();
    ASSERT_OK(engine->ZeroGrad());
    for (const bool thaw : {true, false}) {
      trainer->Forward();
      trainer->Backward(1, true);
      StepReport report;
      ASSERT_OK(trainer->Step(&report));
      const ParamId changed[] = {4};
      ASSERT_OK(engine->SetTrainable(changed, thaw, 0));
      host.ExpectValues();
    }
  });
}

TEST(BoundMemoryTest, AStepCopiesNoFrozenParameters) {
  RunForm({.name = "", .stage = 1},
          [](const UnitTraining&, Engine* engine, UnitTrainer* trainer) {
            trainer->Fill();
            const ParamId frozen = 4;  // {5}
            std::vector<std::byte> values(5 * sizeof(float), kGarbage);
            int64_t bytes[2];
            for (const bool bound : {false, true}) {
              if (bound) {
                ASSERT_OK(BindTo(engine, frozen, values, {}));
                EXPECT_NE(values[0], kGarbage);
                values.assign(values.size(), kGarbage);
              }
              trainer->Forward();
              trainer->Backward(1, true);
              StepReport report;
              ASSERT_OK(trainer->Step(&report));
              bytes[bound ? 1 : 0] = static_cast<int64_t>(report.bytes_moved);
            }
            EXPECT_EQ(bytes[0], bytes[1]);
            EXPECT_EQ(values[0], kGarbage);
          });
}

// A rank that joins has gradients of zero, and receives the parameters.
TEST(BoundMemoryTest, Join) {
  for (const char* link : {"", "direct=0"}) {
    RunForm({.name = "", .stage = 1, .link = link},
            [](const UnitTraining&, Engine* engine, UnitTrainer* trainer) {
              HostMemory host;
              host.Bind(engine, true);
              trainer->Fill();
              ASSERT_OK(engine->ZeroGrad());
              if (engine->comm()->rank() == 0) {
                trainer->Forward();
                trainer->Backward(1, true);
                StepReport report;
                ASSERT_OK(trainer->Step(&report));
              }
              int64_t steps = 0;
              ASSERT_OK(engine->Join(0, &steps));
              EXPECT_EQ(steps, engine->comm()->rank());
              host.ExpectValues();
              if (engine->comm()->rank() == 1) host.ExpectZeroGrads();
            });
  }
}

// Memory that is bound no more is neither read nor written, nor is any once the
// engine is gone: the address sanitizer sees it.
TEST(BoundMemoryTest, Unbound) {
  const Form form{.name = "", .stage = 1};
  const auto plan = PlanOf(TrainingOf(form));
  ASSERT_OK(plan);
  RunThreadRanks(kWorldSize, [&](const auto& comm) {
    auto made = Engine::Create(*plan, comm, EngineOptions());
    ASSERT_OK(made);
    std::unique_ptr<Engine> engine = *std::move(made);
    const UnitTraining training = TrainingOf(form);
    UnitTrainer trainer(training, engine.get());
    trainer.Fill();
    HostMemory host;
    host.Bind(engine.get(), true);
    host.ExpectValues();  // Written when they were bound.
    std::optional<HostMemory> first;
    ASSERT_OK(engine->ZeroGrad());
    MakeSteps(form, training, 1, 1, engine.get(), &trainer, &host);

    // Another binding takes the place of the first, and none that of another.
    first.emplace(std::move(host));
    HostMemory second;
    second.Bind(engine.get(), true);
    first.reset();
    second.ExpectValues();
    const ParamId weight = 2;
    ASSERT_OK(BindTo(engine.get(), weight, {}, {}));
    auto& tensor = second.tensors()[static_cast<size_t>(weight)];
    tensor = {};
    const auto grad = engine->Grad(weight);
    ASSERT_OK(grad);
    EXPECT_TRUE(engine->memory().Overlaps(
        {static_cast<const std::byte*>(grad->data), 1}));
    ASSERT_OK(engine->ZeroGrad());
    MakeSteps(form, training, 2, 2, engine.get(), &trainer, &second);

    auto before = second.tensors();
    engine.reset();
    EXPECT_EQ(before, second.tensors());
  });
}

TEST(BoundMemoryTest, Errors) {
  RunForm({.name = "", .stage = 2}, [](const UnitTraining& training,
                                       Engine* engine, UnitTrainer* trainer) {
    const ParamId weight = 2;  // {7, 9}
    const ParamId bias = 3;    // {3}
    const ParamId frozen = 4;  // {5}
    std::vector<std::byte> memory(1000, kGarbage);
    const auto part = [&](size_t begin, size_t bytes) {
      return std::span<std::byte>(memory).subspan(begin, bytes);
    };
    ExpectError(BindTo(engine, 99, part(0, 12), {}),
                StatusCode::kInvalidArgument, {"parameter 99 does not exist"});
    ExpectError(BindTo(engine, bias, part(0, 16), {}),
                StatusCode::kInvalidArgument, {"has 12 bytes"});
    ExpectError(BindTo(engine, bias, part(0, 0), {}),
                StatusCode::kInvalidArgument, {"not 0"});
    ExpectError(BindTo(engine, bias, {}, part(0, 6)),
                StatusCode::kInvalidArgument, {"grad: parameter 3"});
    ExpectError(BindTo(engine, frozen, {}, part(0, 20)),
                StatusCode::kFailedPrecondition, {"frozen"});
    ExpectError(BindTo(engine, bias, part(0, 12), part(8, 12)),
                StatusCode::kInvalidArgument, {"overlap"});
    const auto own = engine->Param(bias);
    ASSERT_OK(own);
    ExpectError(
        BindTo(engine, bias, {static_cast<std::byte*>(own->data), 12}, {}),
        StatusCode::kInvalidArgument, {"lies in the engine's own"});
    ExpectError(BindTo(engine, bias,
                       {reinterpret_cast<std::byte*>(UINTPTR_MAX - 8), 12}, {}),
                StatusCode::kInvalidArgument, {"beyond the last address"});
    EXPECT_EQ(memory, std::vector<std::byte>(1000, kGarbage));

    ASSERT_OK(BindTo(engine, weight, part(100, 252), part(400, 252)));
    for (const size_t begin : {89u, 100u, 200u, 351u, 389u, 500u, 651u}) {
      ExpectError(BindTo(engine, bias, {}, part(begin, 12)),
                  StatusCode::kInvalidArgument, {"bound to parameter 2"});
    }
    for (const size_t begin : {88u, 352u, 388u, 652u}) {
      EXPECT_OK(BindTo(engine, bias, part(begin, 12), {}));
    }
    // A binding may overlap the one that it replaces, and other memory once
    // that is free.
    EXPECT_OK(BindTo(engine, weight, part(110, 252), {}));
    EXPECT_OK(BindTo(engine, bias, part(400, 12), part(500, 12)));
    ExpectError(BindTo(engine, weight, part(270, 252), {}),
                StatusCode::kInvalidArgument, {"bound to parameter 3"});

    trainer->Fill();
    ASSERT_OK(engine->UnitAcquire(0, Pass::kForward, 0));
    ExpectError(BindTo(engine, bias, {}, {}), StatusCode::kFailedPrecondition,
                {"FORWARD"});
    ASSERT_OK(engine->UnitRelease(0));
    ASSERT_OK(engine->BeginStep(training.step));
    ExpectError(BindTo(engine, bias, {}, {}), StatusCode::kFailedPrecondition,
                {"begin_step"});
  });
  RunForm({.name = "", .stage = 3},
          [](const UnitTraining&, Engine* engine, UnitTrainer*) {
            std::vector<std::byte> memory(12);
            ExpectError(BindTo(engine, 3, memory, {}),
                        StatusCode::kInvalidArgument, {"stage 3"});
            EXPECT_OK(BindTo(engine, 3, {}, {}));
          });
}

}  // namespace
}  // namespace shard::bound_memory_test
