// SPDX-License-Identifier: Apache-2.0
//
// Engine: sharded training on one rank. It owns the buffers a plan describes,
// gives the host pointers into them, and runs the step.
//
// States: kFilling until BroadcastParams, then kTraining. A call in the wrong
// one fails with the state it found and the one it needs.
//
// Threads: one at a time. COLLECTIVE calls as in core/comm/communicator.h.

#ifndef SHARD_CORE_ENGINE_ENGINE_H_
#define SHARD_CORE_ENGINE_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/mapping.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/engine/buffers.h"
#include "core/engine/step.h"
#include "core/flat/plan.h"
#include "core/optim/loss_scaler.h"
#include "core/optim/optimizer.h"

namespace shard {

// What a host says about one step; 0 is the default of every field. They must
// be the same on every rank; docs of the fields: shard_step_options in shard.h.
struct StepOptions {
  double lr = 0;
  double max_grad_norm = 0;
  double grad_norm_type = 0;
  double clip_value = 0;
  double grad_divisor = 0;
  double loss_scale = 0;
  double timeout = 0;
  bool skip_nonfinite = false;
};

// All groups, where a GroupId is asked for.
inline constexpr GroupId kAllGroups = -1;

struct EngineOptions {
  double timeout = 0;  // Seconds; 0: the communicator's.
  LossScaler loss_scaler;
};

class Engine {
 public:
  // COLLECTIVE. Options that this rank could not read (`plan` may then be
  // null), or that are wrong, are an error on all ranks.
  static StatusOr<std::unique_ptr<Engine>> Create(
      std::shared_ptr<const Plan> plan, std::shared_ptr<Communicator> comm,
      const StatusOr<EngineOptions>& options = EngineOptions());

  struct Tensor {
    void* data;
    int64_t numel;
  };

  // Errors: an id that does not exist, an ignored parameter; for Grad also a
  // frozen one.
  StatusOr<Tensor> Param(ParamId param) const;
  StatusOr<Tensor> Grad(ParamId param) const;

  void ZeroGrad();

  // Hyperparameters by group and key. Local: every rank changes the same before
  // the next step, or that is kDesync. A change for kAllGroups is made in every
  // group that has the key, or, on an error, in none. Errors: a group that does
  // not exist, and those of Optimizer.
  Status SetHyper(GroupId group, std::string_view key, double value);
  StatusOr<double> GetHyper(GroupId group, std::string_view key) const;
  // The group's optimizer with all values, in its canonical text form.
  StatusOr<std::string> GroupText(GroupId group) const;

  // What the host is to multiply its loss by in the next step.
  double loss_scale() const { return loss_scaler_.scale(); }

  // Rank 0 stores; other ranks check their arguments.
  Status SetParam(ParamId param, const void* data, size_t bytes);

  // COLLECTIVE. kFilling → kTraining. `timeout` 0: the engine's.
  Status BroadcastParams(double timeout);

  // For a run that began in another program. Local; every rank does the same.
  // REQUIRES: kTraining, which is an error otherwise. See import_state.h.
  Status SetState(ParamId param, std::string_view name, const float* values,
                  size_t count);
  // As if this many steps had been done: 0 to 2^32 - 2.
  Status SetStep(int64_t step);

  // COLLECTIVE. Options that this rank could not read, or that are out of
  // range, are an error on all ranks.
  Status Step(const StatusOr<StepOptions>& options, StepReport* report);

  const Plan& plan() const { return *plan_; }
  Communicator* comm() const { return comm_.get(); }
  // The memory itself, for what reads or measures it whole.
  const std::vector<EngineBuffer>& buffers() const { return buffers_; }
  MemoryReport Memory() const;

 private:
  enum class State { kFilling, kTraining };

  Engine(std::shared_ptr<const Plan> plan, std::shared_ptr<Communicator> comm,
         std::vector<Optimizer> optimizers, LossScaler loss_scaler,
         double timeout);

  Deadline DeadlineOf(double timeout) const;
  StatusOr<const ParamPlace*> PlaceOf(ParamId param) const;
  Status CheckGroup(GroupId group) const;
  // The optimizers with this value in `group`.
  StatusOr<std::vector<Optimizer>> Changed(GroupId group, std::string_view key,
                                           double value) const;
  Status AllocateWorkspace();
  // Widens this rank's part of the parameters into its master weights.
  void FillMasters();
  Status CheckTraining(std::string_view what) const;
  // What is wrong with `options` on this rank alone.
  Status CheckStep(const StepOptions& options) const;
  // What the sum of the ranks' gradients is divided by, and what of that is
  // the loss's scale.
  double GradDivisor(const StepOptions& options) const;
  double LossScale(const StepOptions& options) const;
  // COLLECTIVE. OK when every rank is here, with the same options, and `local`
  // is OK on all of them.
  Status EnterStep(const StepOptions& options, const Status& local,
                   const Deadline& deadline);

  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<Communicator> comm_;
  std::vector<Optimizer> optimizers_;  // By group.
  LossScaler loss_scaler_;
  double timeout_;
  double trainable_numel_ = 0;
  State state_ = State::kFilling;
  int64_t step_ = 0;
  std::vector<EngineBuffer> buffers_;
  Mapping workspace_;
  std::unique_ptr<StepStrategy> strategy_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_ENGINE_H_
