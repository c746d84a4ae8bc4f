// SPDX-License-Identifier: Apache-2.0
//
// Scripts of training with missing gradients: the calls of each rank in each
// step, and which of its gradients count then. Both are part of the script,
// following the description of the calls in shard.h; RunScript compares an
// engine that is called in this way with a reference in double.
//
// Gradients and initial values are those of exact_training.h, whose sums are
// exact.

#ifndef SHARD_TESTS_CORE_ENGINE_GRADIENT_SCRIPT_H_
#define SHARD_TESTS_CORE_ENGINE_GRADIENT_SCRIPT_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "core/flat/plan.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/exact_training.h"
#include "tests/core/engine/thread_ranks.h"

namespace shard {

// One call of a host, or one change that the host makes to a gradient.
struct Act {
  enum Kind {
    kAcquire,  // For the backward pass.
    kRelease,
    kStore,     // Overwrites the gradient with that of `pass`.
    kAdd,       // Adds the gradient of `pass` to the present one.
    kScribble,  // Writes values that do not count.
    kParamReady,
    kUnitReady,
    kAccumulate,  // Sets accumulate to 1 if `id` is not 0, else to 0.
    kZeroGrad,
  };
  Kind kind;
  int32_t id = 0;  // A unit or a parameter.
  int pass = 1;
};

// The acts of a rank in a step, and the passes whose gradients count, by
// ParamId; empty for a parameter of which the rank has no gradient.
struct RankStep {
  std::vector<Act> acts;
  std::vector<std::vector<int>> passes;
  bool zero_grad_after = false;

  void Do(Act::Kind kind, int32_t id = 0, int pass = 1) {
    acts.push_back({kind, id, pass});
  }
  // Adds an act that gives the gradient of `param` in `pass`; the gradient
  // counts.
  void Give(ParamId param, int pass, Act::Kind how) {
    Do(how, param, pass);
    passes[static_cast<size_t>(param)].push_back(pass);
  }
};

struct GradientScript {
  std::shared_ptr<const Plan> plan;
  EngineOptions engine;
  StepOptions step;
  std::string link;
  // The steps of each rank until the rank joins, by rank. The script has as
  // many steps as the longest list.
  std::vector<std::vector<RankStep>> ranks;

  size_t NumSteps() const {
    size_t most = 0;
    for (const auto& steps : ranks) most = std::max(most, steps.size());
    return most;
  }
};

// Runs sgd and adam in double, and records which steps each parameter made.
class ScriptReference {
 public:
  explicit ScriptReference(const GradientScript& script)
      : script_(script),
        optimizer_(*Optimizer::Parse(
            script.plan->options().groups.front().optimizer)) {
    for (const auto& param : script.plan->model().params()) {
      Tensor tensor;
      tensor.id = static_cast<ParamId>(tensors_.size());
      tensor.trainable = param.trainable;
      for (int64_t i = 0; i < param.numel; ++i) {
        tensor.values.push_back(ExactInitial(tensor.id, i));
      }
      tensor.m.resize(tensor.values.size());
      tensor.v.resize(tensor.values.size());
      tensors_.push_back(std::move(tensor));
    }
  }

  // Makes a step and returns the norm of the averaged gradients.
  double Step(size_t step) {
    const bool skip = script_.engine.missing_grads == MissingGrads::kSkip;
    const auto divisor = static_cast<double>(script_.ranks.size());
    std::vector<std::vector<double>> means(tensors_.size());
    std::vector<bool> steps(tensors_.size());
    double square = 0;
    for (size_t p = 0; p < tensors_.size(); ++p) {
      if (!tensors_[p].trainable) continue;
      std::vector<double>& mean = means[p];
      mean.resize(tensors_[p].values.size());
      steps[p] = !skip;
      for (size_t r = 0; r < script_.ranks.size(); ++r) {
        if (step >= script_.ranks[r].size()) continue;
        for (const int pass : script_.ranks[r][step].passes[p]) {
          steps[p] = true;
          for (size_t i = 0; i < mean.size(); ++i) {
            mean[i] +=
                ExactGrad(static_cast<int>(step), pass, static_cast<int>(r),
                          tensors_[p].id, static_cast<int64_t>(i)) /
                divisor;
          }
        }
      }
      for (const double g : mean) square += g * g;
    }
    const double norm = std::sqrt(square);
    const double most = script_.step.max_grad_norm;
    const double scale = most > 0 ? std::min(1.0, most / (norm + 1e-6)) : 1;
    for (size_t p = 0; p < tensors_.size(); ++p) {
      if (steps[p]) Update(means[p], scale, &tensors_[p]);
    }
    return norm;
  }

  DoubleTensors Values() const {
    DoubleTensors values;
    for (const Tensor& tensor : tensors_) values.push_back(tensor.values);
    return values;
  }

 private:
  struct Tensor {
    ParamId id;
    bool trainable;
    std::vector<double> values;
    std::vector<double> m;
    std::vector<double> v;
    int steps = 0;
  };

  void Update(const std::vector<double>& mean, double scale, Tensor* tensor) {
    const int t = ++tensor->steps;
    const double lr = *optimizer_.Get("lr");
    const bool adam = optimizer_.Get("beta1").ok();
    const double momentum = adam ? 0 : *optimizer_.Get("momentum");
    const double beta1 = adam ? *optimizer_.Get("beta1") : 0;
    const double beta2 = adam ? *optimizer_.Get("beta2") : 0;
    const double eps = adam ? *optimizer_.Get("eps") : 0;
    const double m_scale = 1 / (1 - std::pow(beta1, t));
    const double v_scale = 1 / (1 - std::pow(beta2, t));
    for (size_t i = 0; i < mean.size(); ++i) {
      const double g = mean[i] * scale;
      double& m = tensor->m[i];
      double& v = tensor->v[i];
      if (!adam) {
        m = t == 1 ? g : momentum * m + g;
        tensor->values[i] -= lr * m;
        continue;
      }
      m = beta1 * m + (1 - beta1) * g;
      v = beta2 * v + (1 - beta2) * g * g;
      tensor->values[i] -= lr * m * m_scale / (std::sqrt(v * v_scale) + eps);
    }
  }

  const GradientScript& script_;
  const Optimizer optimizer_;
  std::vector<Tensor> tensors_;
};

// The part of one rank in a script. Reads and writes of tensors are work of the
// host's stream, whose error is a difference.
class ScriptHost {
 public:
  ScriptHost(const GradientScript& script, Engine* engine)
      : script_(script),
        engine_(*engine),
        plan_(engine->plan()),
        rank_(engine->comm()->rank()) {}

  // Compares all parameters with `expected`, in a forward pass. `expected` must
  // outlive the engine.
  Status Compare(const DoubleTensors& expected) {
    for (size_t u = 0; u < plan_.units().size(); ++u) {
      const auto unit = static_cast<int32_t>(u);
      SHARD_RETURN_IF_ERROR(engine_.UnitAcquire(unit, Pass::kForward, 0));
      for (const int32_t b : plan_.units()[u].buffers) {
        const FlatBufferPlan& buffer = plan_.buffers()[static_cast<size_t>(b)];
        for (const Slot& slot : buffer.layout.slots()) {
          SHARD_ASSIGN_OR_RETURN(const auto tensor, engine_.Param(slot.param));
          engine_.host_stream().Call(
              "compare a parameter",
              [param = slot.param, tensor, dtype = buffer.dtype, &expected] {
                const std::string difference =
                    DifferenceOf(dtype, Load(dtype, tensor.data, tensor.numel),
                                 expected[static_cast<size_t>(param)]);
                return difference.empty()
                           ? Status()
                           : Corrupt("parameter ", param, ": ", difference);
              });
        }
      }
      SHARD_RETURN_IF_ERROR(engine_.UnitRelease(unit));
    }
    return engine_.host_stream().Synchronize(Deadline::After(60));
  }

  Status Run(size_t step) {
    const RankStep& todo = script_.ranks[static_cast<size_t>(rank_)][step];
    for (const Act& act : todo.acts) {
      const Status done = Do(act, static_cast<int>(step));
      if (!done.ok()) {
        return done.WithContext(StrCat("act ", &act - todo.acts.data(),
                                       " of kind ", static_cast<int>(act.kind),
                                       " with ", act.id));
      }
    }
    return Status();
  }

 private:
  Status Do(const Act& act, int step) {
    switch (act.kind) {
      case Act::kAcquire:
        return engine_.UnitAcquire(act.id, Pass::kBackward, 0);
      case Act::kRelease:
        return engine_.UnitRelease(act.id);
      case Act::kParamReady:
        return engine_.MarkParamGradReady(act.id);
      case Act::kUnitReady:
        return engine_.MarkUnitGradsReady(act.id);
      case Act::kAccumulate:
        return engine_.SetAccumulate(act.id != 0);
      case Act::kZeroGrad:
        return engine_.ZeroGrad();
      case Act::kStore:
      case Act::kAdd:
      case Act::kScribble:
        return Write(act, step);
    }
    return Internal("act ", static_cast<int>(act.kind));
  }

  Status Write(const Act& act, int step) {
    SHARD_ASSIGN_OR_RETURN(const auto tensor, engine_.Grad(act.id));
    const auto place = plan_.places()[static_cast<size_t>(act.id)];
    const DType dtype =
        plan_.buffers()[static_cast<size_t>(place.buffer)].grad_dtype;
    engine_.host_stream().Call(
        "write a gradient", [tensor, dtype, act, step, rank = rank_] {
          std::vector<float> grads = Load(dtype, tensor.data, tensor.numel);
          for (size_t i = 0; i < grads.size(); ++i) {
            const float grad = act.kind == Act::kScribble
                                   ? 9
                                   : ExactGrad(step, act.pass, rank, act.id,
                                               static_cast<int64_t>(i));
            grads[i] = act.kind == Act::kAdd ? grads[i] + grad : grad;
          }
          Store(dtype, grads, tensor.data);
          return Status();
        });
    return Status();
  }

  const GradientScript& script_;
  Engine& engine_;
  const Plan& plan_;
  const int rank_;
};

// Runs the script and its reference. Returns the first failure, or "".
inline std::string RunScript(const GradientScript& script) {
  const size_t steps = script.NumSteps();
  ScriptReference reference(script);
  std::vector<DoubleTensors> expected = {reference.Values()};
  std::vector<double> norms;
  for (size_t step = 0; step < steps; ++step) {
    norms.push_back(reference.Step(step));
    expected.push_back(reference.Values());
  }
  const auto train = [&](Engine* engine) -> Status {
    ScriptHost host(script, engine);
    const auto rank = static_cast<size_t>(engine->comm()->rank());
    for (size_t step = 0; step < script.ranks[rank].size(); ++step) {
      const std::string where = StrCat("step ", step);
      SHARD_RETURN_IF_ERROR(host.Compare(expected[step]).WithContext(where));
      SHARD_RETURN_IF_ERROR(host.Run(step).WithContext(where));
      StepReport report;
      SHARD_RETURN_IF_ERROR(
          engine->Step(script.step, &report).WithContext(where));
      if (script.step.max_grad_norm > 0 &&
          std::abs(report.grad_norm - norms[step]) > 1e-5 * norms[step]) {
        return Corrupt(where, ": norm ", report.grad_norm, ", not ",
                       norms[step]);
      }
      if (script.ranks[rank][step].zero_grad_after) {
        SHARD_RETURN_IF_ERROR(engine->ZeroGrad());
      }
    }
    int64_t joined = 0;
    SHARD_RETURN_IF_ERROR(engine->Join(0, &joined));
    return host.Compare(expected.back()).WithContext("after the last step");
  };
  const auto world_size = static_cast<int>(script.ranks.size());
  std::vector<std::string> failures(script.ranks.size());
  RunThreadRanks(
      world_size,
      [&](const auto& comm) {
        auto made = CreateEngine(script.plan, comm, script.engine);
        Status status = made.status();
        if (status.ok()) {
          FillExactly(made->get());
          status = train(made->get());
        }
        if (status.ok()) return;
        failures[static_cast<size_t>(comm->rank())] =
            StrCat("rank ", comm->rank(), ": ", status.ToString());
      },
      20, script.link);
  // A wrong result is reported before the failures of ranks that waited.
  std::string first;
  for (const std::string& failure : failures) {
    if (first.empty() || failure.find("element") != std::string::npos) {
      first = failure.empty() ? first : failure;
    }
  }
  return first;
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_GRADIENT_SCRIPT_H_
