// SPDX-License-Identifier: Apache-2.0
//
// Training with a known result: an engine with threads as ranks beside the
// reference of exact_reference.h.
//
// Every rank compares the parameters that it reads in every pass, so a
// parameter that is stale or not gathered yet shows at once. Comparisons and
// writes of gradients are work of the host's stream, whose error is a
// difference.

#ifndef SHARD_TESTS_CORE_ENGINE_EXACT_TRAINING_H_
#define SHARD_TESTS_CORE_ENGINE_EXACT_TRAINING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "core/engine/transfer/collectives_memory.h"
#include "core/flat/plan.h"
#include "core/model/model.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/exact_reference.h"
#include "tests/core/engine/training.h"

namespace shard {

struct ExactTraining {
  std::shared_ptr<const Plan> plan;
  EngineOptions engine;
  StepOptions step;
  std::string link;
  int steps = 5;
  int passes = 1;
  // If true, a unit is in use while the units nested in it are; otherwise units
  // are in use one after the other.
  bool nested = true;
  bool per_param = false;
  // If true, ranks visit units, or declare them ready, in different orders.
  bool shuffled = false;
  // Null when every rank has gradients of every parameter.
  std::function<bool(int step, int pass, int rank, ParamId param)> has_grad;
  // Called on every rank before parameters have values, if not null.
  std::function<void(Engine* engine)> prepare;

  bool Has(int s, int pass, int rank, ParamId param) const {
    return has_grad == nullptr || has_grad(s, pass, rank, param);
  }
};

// Sets initial values in the parameter's dtype, from rank 0.
inline void FillExactly(Engine* engine) {
  const Plan& plan = engine->plan();
  for (size_t p = 0; p < plan.places().size(); ++p) {
    if (plan.places()[p].buffer < 0) continue;
    const auto& param = plan.model().params()[p];
    std::vector<float> values;
    for (int64_t i = 0; i < param.numel; ++i) {
      values.push_back(ExactInitial(static_cast<ParamId>(p), i));
    }
    std::vector<unsigned char> bytes(DTypeBytes(param.dtype, param.numel));
    Store(param.dtype, values, bytes.data());
    const Status set =
        engine->SetParam(static_cast<ParamId>(p), bytes.data(), bytes.size());
    ASSERT_TRUE(set.ok()) << set.ToString();
  }
  const Status broadcast = engine->BroadcastParams(0);
  ASSERT_TRUE(broadcast.ok()) << broadcast.ToString();
}

// The part of one rank in an ExactTraining.
class ExactTrainer {
 public:
  ExactTrainer(const ExactTraining& training, Engine* engine)
      : training_(training),
        engine_(*engine),
        plan_(engine->plan()),
        rank_(engine->comm()->rank()),
        turned_(training.shuffled && rank_ % 2 == 1),
        gathers_(plan_.shards_params() && !engine->SharesTensors()) {}

  // Returns the first failure, or "" if there is none so far.
  const std::string& failure() const { return failure_; }
  bool ok() const { return failure_.empty(); }

  // Makes a forward pass and compares all parameters with `expected`, which
  // must outlive the engine.
  void Forward(const DoubleTensors& expected) {
    expected_ = &expected;
    Walk(Pass::kForward);
    if (!ok()) return;
    Check(engine_.host_stream().Synchronize(Deadline::After(60)), "forward");
  }
  // Makes a backward pass: compares as Forward does, and stores the gradients
  // of pass `pass` in step `step`.
  void Backward(int step, int pass, const DoubleTensors& expected) {
    expected_ = &expected;
    step_ = step;
    pass_ = pass;
    Check(engine_.SetAccumulate(pass < training_.passes), "set_accumulate");
    Walk(Pass::kBackward);
  }
  void Passes(int step, const DoubleTensors& expected) {
    for (int pass = 1; pass <= training_.passes && ok(); ++pass) {
      Forward(expected);
      if (ok()) Backward(step, pass, expected);
    }
  }
  void Step(StepReport* report) {
    if (!ok()) return;
    Check(engine_.Step(training_.step, report), "step");
    Check(engine_.ZeroGrad(), "zero_grad");
  }

 private:
  bool Check(const Status& status, std::string_view what) {
    if (!status.ok()) Fail(StrCat(what, ": ", status.ToString()));
    return status.ok();
  }
  void Fail(const std::string& what) {
    if (ok()) failure_ = StrCat("rank ", rank_, ", step ", step_, ": ", what);
  }

  void Walk(Pass pass) {
    if (training_.nested) return Visit(0, pass);
    const auto units = static_cast<int32_t>(plan_.units().size());
    const bool down = (pass == Pass::kBackward) != (turned_ && !gathers_);
    for (int32_t i = 0; i < units && ok(); ++i) {
      const int32_t unit = down ? units - 1 - i : i;
      Use(unit, pass, [] {});
    }
  }

  void Visit(int32_t unit, Pass pass) {
    std::vector<int32_t> nested;
    for (size_t u = 0; u < plan_.units().size(); ++u) {
      if (plan_.units()[u].parent == unit) {
        nested.push_back(static_cast<int32_t>(u));
      }
    }
    if ((pass == Pass::kBackward) != (turned_ && !gathers_)) {
      std::reverse(nested.begin(), nested.end());
    }
    Use(unit, pass, [&] {
      for (const int32_t inner : nested) {
        if (ok()) Visit(inner, pass);
      }
    });
  }

  template <typename Within>
  void Use(int32_t unit, Pass pass, Within within) {
    if (!Check(engine_.UnitAcquire(unit, pass, 0), "acquire")) return;
    if (!turned_) within();
    if (ok()) Compare(unit);
    if (ok() && pass == Pass::kBackward) WriteGrads(unit);
    if (turned_ && ok()) within();
    if (ok()) Check(engine_.UnitRelease(unit), "release");
  }

  template <typename Do>
  void ForEachParam(int32_t unit, Do act) {
    for (const int32_t b : plan_.units()[static_cast<size_t>(unit)].buffers) {
      const FlatBufferPlan& buffer = plan_.buffers()[static_cast<size_t>(b)];
      for (const Slot& slot : buffer.layout.slots()) {
        if (ok()) act(slot.param, buffer);
      }
    }
  }

  void Compare(int32_t unit) {
    ForEachParam(unit, [&](ParamId param, const FlatBufferPlan& buffer) {
      const auto tensor = engine_.Param(param);
      if (!Check(tensor.status(), "param")) return;
      engine_.host_stream().Call(
          "compare a parameter",
          [param, from = *tensor, dtype = buffer.dtype,
           expected = &(*expected_)[static_cast<size_t>(param)]]() -> Status {
            const std::string difference = DifferenceOf(
                dtype, Load(dtype, from.data, from.numel), *expected);
            if (difference.empty()) return Status();
            return Corrupt("parameter ", param, ": ", difference);
          });
      Check(engine_.host_stream().status(), "compare");
    });
  }

  void WriteGrads(int32_t unit) {
    int with = 0;
    int without = 0;
    std::vector<ParamId> written;
    ForEachParam(unit, [&](ParamId param, const FlatBufferPlan& buffer) {
      if (!buffer.trainable) return;
      if (!training_.Has(step_, pass_, rank_, param)) {
        ++without;
        // Writes values that must not count, because this rank has no gradient.
        // Whole gradients are left alone: they have the sums of all passes.
        if (plan_.shards_grads() || training_.passes == 1) {
          const auto tensor = engine_.Grad(param);
          if (!Check(tensor.status(), "grad")) return;
          engine_.host_stream().Call("scribble", [to = *tensor,
                                                  dtype = buffer.grad_dtype] {
            Store(dtype, std::vector<float>(static_cast<size_t>(to.numel), 9),
                  to.data);
            return Status();
          });
        }
        return;
      }
      const auto tensor = engine_.Grad(param);
      if (!Check(tensor.status(), "grad")) return;
      engine_.host_stream().Call(
          "write a gradient",
          [to = *tensor, dtype = buffer.grad_dtype, param, step = step_,
           pass = pass_, rank = rank_,
           scale = static_cast<float>(engine_.loss_scale())] {
            std::vector<float> grads = Load(dtype, to.data, to.numel);
            for (size_t i = 0; i < grads.size(); ++i) {
              grads[i] += scale * ExactGrad(step, pass, rank, param,
                                            static_cast<int64_t>(i));
            }
            Store(dtype, grads, to.data);
            return Status();
          });
      ++with;
      written.push_back(param);
    });
    if (!ok()) return;
    if (with == 0 && without > 0) return;  // The release declares nothing.
    if (turned_) std::reverse(written.begin(), written.end());
    if ((training_.per_param && with > 0) || without > 0) {
      for (const ParamId param : written) {
        if (!Check(engine_.MarkParamGradReady(param), "mark_param_grad_ready"))
          return;
      }
      if (without == 0) return;
    }
    Check(engine_.MarkUnitGradsReady(unit), "mark_unit_grads_ready");
  }

  const ExactTraining& training_;
  Engine& engine_;
  const Plan& plan_;
  const int rank_;
  const bool turned_;
  const bool gathers_;
  const DoubleTensors* expected_ = nullptr;
  int step_ = 0;
  int pass_ = 0;
  std::string failure_;
};

// Returns the gradients of a step summed over the ranks for which
// `active(rank)`; empty for a parameter that is frozen or ignored, or, with
// `skip`, for one of which no rank has a gradient.
template <typename Active>
DoubleTensors SumsOf(const ExactTraining& training, int step, bool skip,
                     Active active) {
  const Plan& plan = *training.plan;
  const auto& params = plan.model().params();
  DoubleTensors sums(params.size());
  for (size_t p = 0; p < params.size(); ++p) {
    if (plan.places()[p].buffer < 0 || !params[p].trainable) continue;
    std::vector<double> sum(static_cast<size_t>(params[p].numel));
    bool any = false;
    for (int pass = 1; pass <= training.passes; ++pass) {
      for (int rank = 0; rank < plan.options().world_size; ++rank) {
        const auto param = static_cast<ParamId>(p);
        if (!active(rank) || !training.Has(step, pass, rank, param)) continue;
        any = true;
        for (size_t i = 0; i < sum.size(); ++i) {
          sum[i] += ExactGrad(step, pass, rank, param, static_cast<int64_t>(i));
        }
      }
    }
    if (any || !skip) sums[p] = std::move(sum);
  }
  return sums;
}

// Runs the training and its reference. Returns the first failure, or "".
inline std::string TrainExactly(const ExactTraining& training) {
  const Plan& plan = *training.plan;
  const int world_size = plan.options().world_size;
  const bool skip = training.engine.missing_grads == MissingGrads::kSkip;
  ExactReference reference(plan);
  std::vector<DoubleTensors> expected = {reference.values()};
  std::vector<double> norms;
  for (int step = 1; step <= training.steps; ++step) {
    reference.Step(SumsOf(training, step, skip, [](int) { return true; }),
                   world_size, training.step.max_grad_norm);
    expected.push_back(reference.values());
    norms.push_back(reference.norm());
  }
  std::vector<std::string> failures(static_cast<size_t>(world_size));
  RunThreadRanks(
      world_size,
      [&](const auto& comm) {
        std::string& failure = failures[static_cast<size_t>(comm->rank())];
        auto made = CreateEngine(training.plan, comm, training.engine);
        if (!made.ok()) {
          failure = made.status().ToString();
          return;
        }
        const bool shares = (*made)->SharesTensors();
        uint64_t planned = plan.Memory(shares, (*made)->offload(),
                                       ProcessorOf((*made)->device().kind))
                               .HostTotal(1, shares);
        // A rank that lacks gradients has the sums of its shard group.
        if (!shares && training.engine.missing_grads != MissingGrads::kError) {
          planned += GroupSumBytes(plan);
        }
        if ((*made)->Memory().HostTotal(1, shares) != planned) {
          failure = "memory is not as planned";
        }
        if (training.prepare != nullptr) training.prepare(made->get());
        FillExactly(made->get());
        ExactTrainer trainer(training, made->get());
        for (int step = 1; step <= training.steps && trainer.ok(); ++step) {
          trainer.Passes(step, expected[static_cast<size_t>(step - 1)]);
          StepReport report;
          trainer.Step(&report);
          const double norm = norms[static_cast<size_t>(step - 1)];
          if (trainer.ok() && training.step.max_grad_norm > 0 &&
              std::abs(report.grad_norm - norm) > 1e-5 * norm) {
            failure = StrCat("norm of step ", step, " is ", report.grad_norm,
                             ", not ", norm);
          }
          if (trainer.ok() && report.step != step) failure = "step number";
        }
        if (trainer.ok()) trainer.Forward(expected.back());
        if (trainer.ok() && failure.empty()) {
          failure = StateDifference(**made, reference);
        }
        if (!trainer.ok()) failure = trainer.failure();
      },
      20, training.link);
  for (const std::string& failure : failures) {
    if (!failure.empty()) return failure;
  }
  return "";
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_EXACT_TRAINING_H_
