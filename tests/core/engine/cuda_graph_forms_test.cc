// SPDX-License-Identifier: Apache-2.0
//
// Captured steps of every form of parameters and gradients, on the fake of the
// driver: other dtypes than fp32, tensors that the host bound, and a backward
// pass that is part of the graph. Parameters and states have the bits of plain
// steps.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_graph_host.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/whole_state.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_graph_forms_test {
namespace {

using cuda_graphs::Host;
using cuda_graphs::MakePlan;
using cuda_training::Clipped;
using testing::fake_cuda::Access;
using testing::fake_cuda::Count;
using testing::fake_cuda::LaunchInLibrary;

// Whether a step is skipped: the gradients of two of a hundred are not finite.
bool IsNotFinite(int step) { return step == 7 || step == 61; }

struct Form {
  const char* name;
  DType dtype = DType::kF32;
  Masters masters = Masters::kF32;
  bool f32_grads = false;
  bool is_bound = false;
  // The backward pass is part of the graph, else the host enqueues it before
  // each launch.
  bool captures_backward = false;
  // The backward pass adds to the gradients, as one of many does.
  bool adds_grads = false;
  int steps = 20;
};

std::ostream& operator<<(std::ostream& out, const Form& form) {
  return out << form.name;
}

// A host whose backward pass is a kernel for each parameter, which reads the
// parameter and the number of the step, and writes the gradient.
class FormHost {
 public:
  explicit FormHost(const Form& form)
      : host_(MakePlan("adamw", form.dtype, form.masters, form.f32_grads)),
        adds_grads_(form.adds_grads),
        step_(static_cast<int*>(host_.AllocatePinned(sizeof(int)))) {
    if (form.is_bound) Bind();
  }

  Host* host() { return &host_; }
  Engine* engine() { return host_.engine(); }

  // Sets the number that backward passes read when they run. The host has
  // waited for the step before.
  void SetStep(int step) { *step_ = step; }

  void EnqueueBackward() {
    const Plan& plan = engine()->plan();
    for (size_t p = 0; p < plan.model().params().size(); ++p) {
      const auto param = static_cast<ParamId>(p);
      const FlatBufferPlan& buffer = plan.buffer(plan.place(param).buffer);
      const auto from = engine()->Param(param);
      const auto to = engine()->Grad(param);
      ASSERT_OK(from);
      ASSERT_OK(to);
      const std::vector<Access> accesses = {
          {step_, sizeof(int), false},
          {from->data, DTypeBytes(buffer.dtype, from->numel), false},
          {to->data, DTypeBytes(buffer.grad_dtype, to->numel), true}};
      const auto run = [this, &buffer, param, from = *from, to = *to] {
        std::vector<float> values = Load(buffer.dtype, from.data, from.numel);
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = 0.125f * values[i] +
                      GradientValue(*step_, param, static_cast<int64_t>(i));
        }
        if (adds_grads_) {
          const std::vector<float> before =
              Load(buffer.grad_dtype, to.data, to.numel);
          for (size_t i = 0; i < values.size(); ++i) values[i] += before[i];
        }
        if (IsNotFinite(*step_)) {
          values[0] = std::numeric_limits<float>::quiet_NaN();
        }
        Store(buffer.grad_dtype, values, to.data);
      };
      ASSERT_EQ(
          LaunchInLibrary(host_.stream().get(), "backward", accesses, run),
          cuda::CuResult::kSuccess);
    }
  }

  // Expects bound values to be the parameters. The host has waited for all
  // work.
  void ExpectBoundValues() {
    for (size_t p = 0; p < bound_.size(); ++p) {
      const std::span<std::byte> values = bound_[p].values;
      if (values.empty()) continue;
      const auto param = engine()->Param(static_cast<ParamId>(p));
      ASSERT_OK(param);
      EXPECT_NE(param->data, values.data());
      EXPECT_EQ(std::memcmp(param->data, values.data(), values.size()), 0)
          << "parameter " << p;
    }
  }

 private:
  // Binds, in turn: both, values, the gradient, nothing.
  void Bind() {
    const Plan& plan = engine()->plan();
    bound_.resize(plan.model().params().size());
    for (size_t p = 0; p < bound_.size(); ++p) {
      const auto param = static_cast<ParamId>(p);
      const FlatBufferPlan& buffer = plan.buffer(plan.place(param).buffer);
      const int64_t numel = plan.model().params()[p].numel;
      if (p % 4 < 2) {
        bound_[p].values = host_.Allocate(DTypeBytes(buffer.dtype, numel));
      }
      if (p % 4 == 0 || p % 4 == 2) {
        bound_[p].grad = host_.Allocate(DTypeBytes(buffer.grad_dtype, numel));
      }
      ASSERT_OK(engine()->Bind(param, bound_[p]));
    }
    ASSERT_OK(engine()->ZeroGrad());
  }

  Host host_;
  const bool adds_grads_;
  int* const step_;
  std::vector<BoundMemory::Tensors> bound_;
};

class GraphFormsTest : public ::testing::TestWithParam<Form> {
 protected:
  void SetUp() override { testing::ResetWithKernels(); }
  void TearDown() override { testing::FakeCuda::Check(); }
};

TEST_P(GraphFormsTest, ReplaysHaveTheBitsOfSteps) {
  const Form& form = GetParam();
  WholeState states[2];  // Of plain steps, and of replays.
  std::vector<double> expected_norms;
  for (const bool replays : {false, true}) {
    FormHost host(form);
    Engine* const engine = host.engine();
    StepOptions options = Clipped();
    options.skip_nonfinite = true;
    if (replays) {
      ASSERT_OK(host.host()->Capture(options, [&] {
        if (form.captures_backward) host.EnqueueBackward();
      }));
    }
    const bool enqueues = !replays || !form.captures_backward;
    std::vector<double> norms;
    int skipped = 0;
    for (int step = 1; step <= form.steps; ++step) {
      ASSERT_OK(engine->SetHyper(-1, "lr", 0.05 / step));
      ASSERT_OK(engine->Synchronize(0));
      host.SetStep(step);
      const auto passes = [&] { return Count().Launches("backward"); };
      const uint64_t before = passes();
      // The graph copies bound gradients, whoever has written them.
      if (enqueues) host.EnqueueBackward();
      if (replays) {
        ASSERT_OK(host.host()->Replay(options));
      } else {
        ASSERT_OK(engine->Step(options, nullptr));
        ASSERT_OK(engine->ZeroGrad());
      }
      // One kernel for each parameter, however it was enqueued.
      EXPECT_EQ(passes() - before, engine->plan().model().params().size());
      const auto report = engine->LastReport();
      ASSERT_OK(report);
      EXPECT_EQ(report->skipped, IsNotFinite(step));
      if (report->skipped) ++skipped;
      norms.push_back(report->skipped ? -1 : report->grad_norm);
    }
    ASSERT_OK(engine->Synchronize(0));
    EXPECT_EQ(skipped, form.steps < 61 ? 1 : 2);
    EXPECT_EQ(engine->step(), form.steps - skipped);
    host.ExpectBoundValues();
    states[replays ? 1 : 0].Add(*engine);
    if (!replays) {
      // Each step has its own norm, and the parameters have moved.
      for (int step = 1; step < form.steps; ++step) {
        EXPECT_NE(norms[static_cast<size_t>(step)],
                  norms[static_cast<size_t>(step) - 1]);
      }
      expected_norms = norms;
      continue;
    }
    EXPECT_EQ(norms, expected_norms);
    EXPECT_EQ(states[1].Differences(states[0]), "");
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, GraphFormsTest,
    ::testing::Values(
        Form{.name = "f32_backward", .captures_backward = true, .steps = 100},
        // The zeros after a step are part of the graph.
        Form{.name = "adding_backward",
             .captures_backward = true,
             .adds_grads = true},
        Form{.name = "bound_adding_backward",
             .is_bound = true,
             .captures_backward = true,
             .adds_grads = true},
        Form{.name = "bf16_masters", .dtype = DType::kBF16},
        Form{.name = "bf16_masters_f32_grads_backward",
             .dtype = DType::kBF16,
             .f32_grads = true,
             .captures_backward = true},
        // Random bits round parameters, and are those of a step's number.
        Form{.name = "bf16_stochastic",
             .dtype = DType::kBF16,
             .masters = Masters::kNoneStochastic},
        Form{.name = "bf16_stochastic_backward",
             .dtype = DType::kBF16,
             .masters = Masters::kNoneStochastic,
             .captures_backward = true},
        Form{.name = "bf16_nearest",
             .dtype = DType::kBF16,
             .masters = Masters::kNoneNearest},
        Form{.name = "f16_masters", .dtype = DType::kF16},
        Form{.name = "bound", .is_bound = true},
        Form{.name = "bound_backward",
             .is_bound = true,
             .captures_backward = true},
        Form{.name = "bound_bf16_masters_backward",
             .dtype = DType::kBF16,
             .is_bound = true,
             .captures_backward = true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace shard::cuda_graph_forms_test
