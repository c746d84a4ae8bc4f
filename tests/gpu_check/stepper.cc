// SPDX-License-Identifier: Apache-2.0

#include "tests/gpu_check/stepper.h"

#include <algorithm>
#include <cstddef>

#include "tests/gpu_check/training.h"

namespace shard::gpu_check {

void Tell(const Options& options, const std::string& what, double value,
          const std::string& unit, double least, double most, Report* report) {
  report->Number(what, value, unit);
  if (options.judged.speeds) report->Judge(what, value, unit, least, most);
}

std::vector<Shape> EqualTensors(int tensors, std::int64_t elements) {
  return std::vector<Shape>(static_cast<std::size_t>(tensors),
                            Shape{elements / tensors});
}

Stepper::Stepper(const Form& form, const std::vector<Shape>& shapes,
                 const std::string& device)
    : form_(form), comm_(Comm::open("local:")) {
  Model model = Model::create("Net");
  std::vector<ParamId> params;
  for (std::size_t t = 0; t < shapes.size(); ++t) {
    const ModuleId block =
        model.add_module(root_module, "block" + std::to_string(t), "Block");
    params.push_back(model.add_param(block, "weight", form.dtype, shapes[t]));
  }
  engine_.emplace(Engine::create(
      Plan::create(model, {.world_size = 1,
                           .optimizer = form.optimizer,
                           .masters = form.masters,
                           .wrap = form.units ? "class?names=Block" : ""}),
      comm_, {.device = device}));
  gpu_.emplace(engine_->device().ordinal);
  engine_->set_stream(gpu_->stream());
  engine_->broadcast_params();
  if (form.has_grads) WriteGrads(params, shapes);
  Step();
  Finish();
}

void Stepper::WriteGrads(const std::vector<ParamId>& params,
                         const std::vector<Shape>& shapes) {
  std::int64_t most = 0;
  for (const Shape& shape : shapes) most = std::max(most, NumelOf(shape));
  const std::vector<std::byte> values = Values(form_.dtype, 1, most);
  for (const ParamId param : params) {
    void* grad = nullptr;
    std::int64_t numel = 0;
    detail::check(
        shard_engine_grad(engine_->get(), detail::raw(param), &grad, &numel));
    gpu_->Copy(grad, values.data(),
               static_cast<std::size_t>(numel) * sizeof(float));
  }
  // The copies read what is freed here.
  gpu_->Finish();
}

void Stepper::Step() {
  for (const UnitId unit : engine_->plan().units()) {
    engine_->mark_unit_grads_ready(unit);
  }
  engine_->step_without_report(form_.step);
}

void Stepper::BegunStep(const std::function<void()>& backward) {
  engine_->begin_step(form_.step);
  for (int unit = NumUnits(); unit-- > 0;) {
    backward();
    engine_->mark_unit_grads_ready(UnitId{unit});
  }
  engine_->step_without_report(form_.step);
}

int Stepper::NumUnits() const { return engine_->plan().info().num_units; }

void Stepper::Finish() {
  engine_->synchronize();
  gpu_->Finish();
}

double Stepper::SecondsOnce() {
  constexpr int kSteps = 3;
  const auto start = Clock::now();
  for (int s = 0; s < kSteps; ++s) Step();
  Finish();
  return SecondsSince(start) / kSteps;
}

double Stepper::Seconds() {
  std::vector<double> seconds;
  for (int i = 0; i < 7; ++i) seconds.push_back(SecondsOnce());
  return Median(seconds);
}

double Stepper::HostSeconds() {
  std::vector<double> seconds;
  for (int i = 0; i < 50; ++i) {
    Finish();
    const auto start = Clock::now();
    Step();
    seconds.push_back(SecondsSince(start));
  }
  return Median(seconds);
}

}  // namespace shard::gpu_check
