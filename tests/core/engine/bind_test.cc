// SPDX-License-Identifier: Apache-2.0
//
// Bindings of the host's memory: replaced, ended and refused.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tests/core/base/expect_status.h"
#include "tests/core/engine/bound_host.h"
#include "tests/core/engine/create_engine.h"

namespace shard::bind_test {
namespace {

// Memory that is bound no more is neither read nor written, nor is any once the
// engine is gone: the address sanitizer sees it.
TEST(BindTest, ABindingEnds) {
  const BoundForm form{.name = "", .stage = 1};
  const auto plan = PlanOf(TrainingOf(form));
  ASSERT_OK(plan);
  RunThreadRanks(kBoundRanks, [&](const auto& comm) {
    auto made = CreateEngine(*plan, comm, EngineOptions());
    ASSERT_OK(made);
    std::unique_ptr<Engine> engine = *std::move(made);
    const UnitTraining training = TrainingOf(form);
    UnitTrainer trainer(training, engine.get());
    trainer.Fill();
    BoundHost host;
    host.Bind(engine.get(), true);
    host.ExpectValues();  // Written when they were bound.
    std::optional<BoundHost> first;
    ASSERT_OK(engine->ZeroGrad());
    MakeSteps(form, training, 1, 1, engine.get(), &trainer, &host);

    // Another binding takes the place of the first, and none that of another.
    first.emplace(std::move(host));
    BoundHost second;
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

TEST(BindTest, Errors) {
  RunBound({.name = "", .stage = 2}, [](const UnitTraining& training,
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
  RunBound({.name = "", .stage = 3},
           [](const UnitTraining&, Engine* engine, UnitTrainer*) {
             std::vector<std::byte> memory(12);
             ExpectError(BindTo(engine, 3, memory, {}),
                         StatusCode::kInvalidArgument, {"stage 3"});
             EXPECT_OK(BindTo(engine, 3, {}, {}));
           });
}

}  // namespace
}  // namespace shard::bind_test
