// SPDX-License-Identifier: Apache-2.0
//
// The engine's saves and loads.

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/agreement.h"
#include "core/engine/engine.h"
#include "core/engine/state/describe.h"
#include "core/engine/state/load_state.h"
#include "core/engine/transfer/ok_or_abort.h"
#include "core/model/names.h"

namespace shard {

namespace {

// A hostile checkpoint may say anything.
Status CheckSteps(const Manifest& manifest) {
  int64_t most = manifest.step();
  for (size_t t = 0; t < manifest.num_tensors(); ++t) {
    most = std::max(most, manifest.tensor_step(t));
  }
  if (most <= Engine::kMostSteps) return Status();
  return OutOfRange("step ", most, " is out of range; allowed: 0 to ",
                    Engine::kMostSteps);
}

Status CheckThreads(int threads) {
  constexpr int kMost = 256;
  if (threads >= 1 && threads <= kMost) return Status();
  return InvalidArgument("threads ", threads,
                         " is out of range; allowed: 1 to ", kMost);
}

Status CheckSaveOptions(const SaveOptions& options) {
  SHARD_RETURN_IF_ERROR(CheckThreads(options.threads));
  if (options.keep_last < 0 || options.keep_every < 0) {
    return InvalidArgument("keep_last ", options.keep_last, ", keep_every ",
                           options.keep_every, "; allowed: 0 and above");
  }
  if (options.keep_every > 0 && options.keep_last == 0) {
    return InvalidArgument("keep_every ", options.keep_every,
                           " without keep_last: all are kept anyway");
  }
  return Status();
}

}  // namespace

TrainingNumbers Engine::Numbers() const {
  TrainingNumbers numbers;
  numbers.step = step_;
  numbers.param_steps = param_steps_;
  if (loss_scaler_.dynamic()) numbers.loss_scale = loss_scaler_.state();
  for (const Optimizer& optimizer : hypers_.optimizers()) {
    numbers.groups.push_back(optimizer.ToString());
  }
  return numbers;
}

StatusOr<std::shared_ptr<AsyncSave>> Engine::Save(
    const std::string& root, const StatusOr<SaveOptions>& options) {
  const double timeout = options.ok() ? options->timeout : 0;
  const WorkDeadline deadline = WorkDeadlineOf(timeout);
  Status local = options.status();
  if (local.ok()) local = CheckSaveOptions(*options);
  if (local.ok()) local = CheckStateOptions(plan().model(), options->state);
  if (local.ok()) local = CheckBetweenSteps("save");
  if (local.ok()) local = checkpoints_.Settle(deadline.Work());
  SHARD_RETURN_IF_ERROR(assembly_->units().EnterChange(Activity::kSave, local,
                                                       deadline.Meeting()));
  SHARD_RETURN_IF_ERROR(CheckAgreement(
      comm_.get(), "how to save",
      [&](FactSink* sink) {
        DescribeState(plan().model(), options->state, sink);
        sink->Add("", "async", options->async);
        sink->Add("", "overwrite", options->overwrite);
        sink->Add("", "timeout", options->timeout);
      },
      deadline.Meeting()));
  SHARD_RETURN_IF_ERROR(OkOrAbort(
      comm_.get(), assembly_->compute().Synchronize(deadline.Work())));
  SavedState state;
  state.plan = assembly_->plan();
  state.memory = &memory();
  state.numbers = Numbers();
  state.optimizers = hypers_.optimizers();
  return checkpoints_.Save(std::move(state), root, *options, deadline,
                           comm_.get(), device_.get());
}

Status Engine::EnterLoad(const StatusOr<LoadOptions>& options,
                         const WorkDeadline& deadline) {
  Status local = options.status();
  if (local.ok()) local = CheckThreads(options->threads);
  if (local.ok()) local = CheckStateOptions(plan().model(), options->state);
  if (local.ok() && !filling_) local = CheckBetweenSteps("load");
  if (local.ok() && filling_) local = CheckLoadWhileFilling(options->state);
  if (local.ok()) local = checkpoints_.Settle(deadline.Work());
  SHARD_RETURN_IF_ERROR(assembly_->units().EnterChange(Activity::kLoad, local,
                                                       deadline.Meeting()));
  return CheckAgreement(
      comm_.get(), "how to load",
      [&](FactSink* sink) {
        DescribeState(plan().model(), options->state, sink);
        sink->Add("", "allow_mismatch", !options->rules.strict);
        sink->Add("", "convert", options->rules.convert);
        sink->Add("", "strip_leading_module",
                  options->rules.strip_leading_module);
        sink->Add("", "from_rank0", options->from_rank0);
      },
      deadline.Meeting());
}

Status Engine::Load(const std::string& path,
                    const StatusOr<LoadOptions>& options, LoadReport* report) {
  *report = {};
  const WorkDeadline deadline =
      WorkDeadlineOf(options.ok() ? options->timeout : 0);
  SHARD_RETURN_IF_ERROR(EnterLoad(options, deadline));
  FileEnv* const env =
      options->env == nullptr ? FileEnv::Posix() : options->env;
  SHARD_ASSIGN_OR_RETURN(const auto store,
                         Checkpoints::Open(path, env, comm_.get(), deadline));
  const Manifest* const manifest = store->manifest();
  report->path = store->describe();
  report->step = manifest == nullptr ? -1 : manifest->step();
  report->saved_world_size = manifest == nullptr ? 0 : manifest->world_size();
  SHARD_ASSIGN_OR_RETURN(const std::vector<StateEntry> entries,
                         ListStateEntries(plan(), options->state));
  // What may fail comes before memory is written.
  const bool numbers =
      manifest != nullptr && options->state.content != StateContent::kModel;
  Checkpoints::Blobs blobs;
  if (numbers) {
    auto read =
        Checkpoints::ReadBlobs(*store, comm_->rank(), comm_->world_size());
    Status local = read.status();
    if (local.ok()) local = CheckSteps(*manifest);
    SHARD_RETURN_IF_ERROR(AgreeOnStatus(comm_.get(), "load checkpoint: blobs",
                                        local, deadline.Work()));
    blobs = *std::move(read);
  }
  SHARD_ASSIGN_OR_RETURN(
      const std::vector<EntryMatch> matches,
      LoadFrom(*store, entries, *options, deadline, &report->match));
  if (!numbers) return Status();
  TakeNumbers(options->state, entries, matches, *manifest);
  // Of some modules, the run's own data goes on.
  if (options->state.submodules.empty()) {
    checkpoints_.TakeBlobs(std::move(blobs));
  }
  return Status();
}

Status Engine::CheckLoadWhileFilling(const StateOptions& options) const {
  if (options.content != StateContent::kOptimizer &&
      options.submodules.empty() && !options.ignore_frozen) {
    return Status();
  }
  return FailedPrecondition(
      "load of a part in state FILLING: parameters have no values yet; load "
      "the whole model, or set and broadcast them first");
}

StatusOr<std::vector<EntryMatch>> Engine::LoadFrom(
    const TensorStore& store, const std::vector<StateEntry>& entries,
    const LoadOptions& options, const WorkDeadline& deadline,
    MatchReport* report) {
  SHARD_ASSIGN_OR_RETURN(
      std::vector<EntryMatch> matches,
      MatchState(plan(), entries, store, options.state, options.rules, report));
  bool missing_params = false;
  for (size_t e = 0; e < entries.size(); ++e) {
    missing_params |= entries[e].is_param() && entries[e].alias_of < 0 &&
                      entries[e].numel > 0 &&
                      matches[e].kind == EntryMatch::Kind::kNone;
  }
  if (filling_ && missing_params) {
    return FailedPrecondition(
        store.describe(),
        " lacks parameters, and in state FILLING they have no values yet; set "
        "and broadcast them first, then load");
  }

  SHARD_RETURN_IF_ERROR(AgreeOnStatus(
      comm_.get(), "load: elements",
      CheckElements(store, entries, matches, options), deadline.Meeting()));

  // Memory is written from here on: on an error, what there was is gone.
  const bool params = options.state.content != StateContent::kOptimizer;
  StateReader reader(plan(), memory(), hypers_.optimizers(), comm_.get(),
                     device_.get(), &assembly_->compute(), deadline);
  ReadOptions read;
  read.threads = options.threads;
  read.verify = options.verify;
  read.progress = options.progress;
  const Status done =
      options.from_rank0
          ? reader.ReadFromRank0(store, entries, matches, read)
          : AgreeOnStatus(comm_.get(), "load: read",
                          reader.Read(store, entries, matches, read),
                          deadline.Work());
  if (!done.ok()) {
    // No mixture of two states: what was written in part is as new.
    if (params) filling_ = true;
    ResetStates(deadline.Work());
    return done;
  }
  if (!params) return matches;
  Transfers& transfers = assembly_->transfers();
  const Deadline published = deadline.Meeting();  // As parameters of a step.
  for (size_t b = 0; b < memory().buffers().size(); ++b) {
    SHARD_RETURN_IF_ERROR(transfers.Publish(b, published));
  }
  SHARD_RETURN_IF_ERROR(transfers.Finish(published));
  SHARD_RETURN_IF_ERROR(
      OkOrAbort(comm_.get(), assembly_->compute().Synchronize(published)));
  filled_.clear();
  filling_ = false;
  return matches;
}

Status Engine::CheckElements(const TensorStore& store,
                             const std::vector<StateEntry>& entries,
                             const std::vector<EntryMatch>& matches,
                             const LoadOptions& options) const {
  const int rank = comm_->rank();
  if (options.from_rank0 && rank != 0) return Status();
  for (size_t e = 0; e < entries.size(); ++e) {
    if (matches[e].kind == EntryMatch::Kind::kNone) continue;
    OwnedElements needed{0, entries[e].numel, 0};
    if (!options.from_rank0) needed = OwnedBy(plan(), entries[e], rank);
    if (store.Has(matches[e].tensor, needed.begin, needed.numel)) continue;
    return OutOfRange("'", entries[e].key, "': ", store.describe(),
                      " has not all of the ", needed.numel,
                      " elements from number ", needed.begin,
                      " on that are loaded from it here");
  }
  return Status();
}

void Engine::ResetStates(const Deadline& deadline) {
  Stream& compute = assembly_->compute();
  for (const EngineBuffer& buffer : memory().buffers()) {
    for (size_t s = 0; s < buffer.states.size(); ++s) {
      compute.FillZeros(buffer.states[s],
                        DTypeBytes(buffer.plan->states[s].tensor.dtype,
                                   buffer.plan->StateLayout(s).shard_numel()));
    }
  }
  step_ = 0;
  param_steps_.clear();
  // An error of the stream is that of the next call, which waits for it.
  (void)FillMasters(*assembly_, deadline).ok();
}

void Engine::TakeParamNumbers(const std::vector<StateEntry>& entries,
                              const std::vector<EntryMatch>& matches,
                              const Manifest& manifest) {
  std::vector<bool> restored(hypers_.optimizers().size());
  for (size_t e = 0; e < entries.size(); ++e) {
    if (matches[e].kind == EntryMatch::Kind::kNone) continue;
    const auto param = static_cast<size_t>(entries[e].param);
    const ParamPlace& place = plan().places()[param];
    const FlatBufferPlan& buffer =
        plan().buffers()[static_cast<size_t>(place.buffer)];
    if (!buffer.trainable) continue;
    const size_t tensor = matches[e].tensor;
    // A count belongs to the states that it was counted with, where there are
    // any but master weights.
    const size_t own = buffer.states.size() - (buffer.has_masters ? 1 : 0);
    const auto state = static_cast<size_t>(entries[e].state);
    if (own == 0 || (!entries[e].is_param() && state < own)) {
      param_steps_[static_cast<size_t>(plan().positions()[param])] =
          manifest.trainable(tensor) ? manifest.tensor_step(tensor) : 0;
    }
    const auto group = static_cast<size_t>(buffer.group);
    const int32_t stored = manifest.group(tensor);
    if (restored[group] || stored < 0) continue;
    restored[group] = true;
    const Status status = hypers_.Restore(
        buffer.group, manifest.group_optimizer(static_cast<size_t>(stored)));
    if (!status.ok() && comm_->rank() == 0) {
      comm_->logger().Log(LogLevel::kWarning, "param group ", group,
                          " keeps its hyperparameters: ", status.message());
    }
  }
}

void Engine::CollapseParamSteps() {
  const auto as_all = [&](size_t param) {
    const int32_t b = plan().places()[param].buffer;
    if (b < 0 || !plan().buffers()[static_cast<size_t>(b)].trainable ||
        plan().model().params()[param].numel == 0) {
      return true;
    }
    return param_steps_[static_cast<size_t>(plan().positions()[param])] ==
           step_;
  };
  bool even = true;
  for (size_t p = 0; p < plan().places().size(); ++p) even &= as_all(p);
  if (even) param_steps_.clear();
}

void Engine::TakeNumbers(const StateOptions& options,
                         const std::vector<StateEntry>& entries,
                         const std::vector<EntryMatch>& matches,
                         const Manifest& manifest) {
  if (param_steps_.empty()) param_steps_.assign(plan().NumStored(), step_);
  // Of some modules only their own steps are taken.
  if (options.submodules.empty()) step_ = manifest.step();
  TakeParamNumbers(entries, matches, manifest);
  CollapseParamSteps();
  if (!options.submodules.empty()) return;
  LossScaler::State scale = loss_scaler_.state();
  for (size_t s = 0; s < manifest.num_scalars(); ++s) {
    const ScalarInfo scalar = manifest.scalar(s);
    scale.Take(scalar.name, scalar.value);
  }
  RestoreLossScale(scale);
}

void Engine::RestoreLossScale(const LossScaler::State& scale) {
  const Status restored = loss_scaler_.Restore(scale);
  if (restored.ok()) return;
  // A scale that fits goes on without its count.
  const bool fits = loss_scaler_.Restore({scale.scale, 0}).ok();
  if (comm_->rank() != 0) return;
  comm_->logger().Log(LogLevel::kWarning,
                      fits ? "the good steps of the loss scale count from 0: "
                           : "the engine keeps its loss scale: ",
                      restored.message());
}

}  // namespace shard
