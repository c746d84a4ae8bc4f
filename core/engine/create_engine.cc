// SPDX-License-Identifier: Apache-2.0
//
// The begin and the end of an engine; engine.cc has its calls.

#include <unistd.h>

#include <memory>
#include <utility>

#include "core/base/facts.h"
#include "core/comm/check_agreement.h"
#include "core/engine/engine.h"
#include "core/engine/params/instruction_sets.h"
#include "core/engine/params/log_warnings.h"
#include "core/engine/step/supported.h"
#include "core/observe/observer.h"

namespace shard {

namespace {

StatusOr<std::shared_ptr<Device>> OpenDeviceOf(const EngineOptions& options,
                                               DeviceChoice* choice) {
  choice->transport = options.transport;
  choice->one_kernel = options.one_kernel;
  if (options.opened_device != nullptr) return options.opened_device;
  SHARD_ASSIGN_OR_RETURN(*choice, ReadDeviceSpec(options.device));
  return OpenDevice(options.device);
}

// Describes what decides how ranks move tensors, and so is the same on all.
void DescribeDevice(const Device& device, const DeviceChoice& choice,
                    FactSink* sink) {
  const bool is_cpu = device.id().kind == DeviceId::Kind::kCpu;
  sink->Add("", "kind of device", is_cpu ? "cpu" : "cuda");
  sink->Add("", "device reaches shared memory",
            device.ReachesSharedMemory() ? "yes" : "no");
  sink->Add("", "device has memory of the host",
            device.IsHostMemory() ? "yes" : "no");
  sink->Add("", "offload of optimizer states",
            device.offload() == nullptr ? "no" : "yes");
  sink->Add("", "collectives", TransportName(choice.transport));
  sink->Add("", "steps of one kernel", choice.one_kernel);
}

}  // namespace

StatusOr<std::unique_ptr<Engine>> Engine::Create(
    std::shared_ptr<const Plan> plan, const std::shared_ptr<Communicator>& comm,
    const StatusOr<EngineOptions>& options) {
  return Observe(comm->observer(), EventId::kCreateEngine, {},
                 [&] { return Make(std::move(plan), comm, options); });
}

StatusOr<std::unique_ptr<Engine>> Engine::Make(
    std::shared_ptr<const Plan> plan, std::shared_ptr<Communicator> comm,
    const StatusOr<EngineOptions>& options) {
  DeviceChoice choice;
  const double given = options.ok() ? options->timeout : 0;
  const double timeout = given > 0 ? given : comm->timeout();
  const Deadline deadline = Deadline::After(timeout);

  Status local = options.status();
  std::shared_ptr<Device> device;
  std::shared_ptr<Stream> host_stream;
  RankPlacement placement;
  if (local.ok()) local = CheckEngineOptions(*options);
  if (local.ok()) {
    auto opened = OpenDeviceOf(*options, &choice);
    local = opened.status();
    if (opened.ok()) device = *std::move(opened);
  }
  if (local.ok()) {
    placement = PlacementOf(*comm, *device, choice.transport,
                            options->missing_grads != MissingGrads::kError,
                            choice.one_kernel);
    local = CheckSupported(*plan, *comm, placement, nullptr, deadline);
  }
  if (local.ok()) {
    auto wrapped = device->WrapStream(nullptr);
    local = wrapped.status();
    if (wrapped.ok()) host_stream = *std::move(wrapped);
  }
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(comm.get(), "create engine", local, deadline));
  SHARD_RETURN_IF_ERROR(CheckAgreement(
      comm.get(), "the plan", plan->fingerprint(),
      [&](FactSink* sink) { plan->Describe(sink); }, deadline));
  // Equal plans hold equal texts, so this fails on all ranks or on none.
  SHARD_ASSIGN_OR_RETURN(Hypers hypers, Hypers::Create(*plan));
  SHARD_RETURN_IF_ERROR(CheckAgreement(
      comm.get(), "the engine's options",
      [&](FactSink* sink) {
        DescribeEngineOptions(*options, sink);
        DescribeDevice(*device, choice, sink);
      },
      deadline));
  SHARD_RETURN_IF_ERROR(CheckDeviceMemory(*plan, comm.get(), device.get(),
                                          placement, nullptr, deadline));
  const auto blas = FindBlas(*plan, hypers, device.get());
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(comm.get(), "find a BLAS", blas.status(), deadline));
  // All ranks have agreed on both.
  if (device->id().kind == DeviceId::Kind::kCpu ||
      device->offload() != nullptr) {
    SHARD_RETURN_IF_ERROR(CompareInstructionSets(comm.get(), deadline));
  }
  Observer* const observer = comm->observer();
  observer->Log(EventId::kPlan, "rank ", comm->rank(), ": ", plan->Summary(),
                blas->empty() ? "" : ", BLAS ", *blas);
  // The warnings are the same on every rank, so one rank logs them.
  if (comm->rank() == 0) {
    LogWarnings(NewWarnings(*plan, nullptr), observer);
  }
  if (observer->Wants(EventId::kPlanText)) {
    observer->Log(EventId::kPlanText, plan->ToText());
  }

  SHARD_ASSIGN_OR_RETURN(
      auto own,
      comm->Duplicate("engine", ReachesRanks(*comm, *device), deadline));
  std::unique_ptr<Engine> engine(new Engine(
      std::move(comm), std::move(own), std::move(device),
      std::move(host_stream), std::move(hypers), *options, choice, timeout));
  SHARD_ASSIGN_OR_RETURN(
      auto runtime,
      EngineRuntime::Create(std::move(plan), engine->comm_.get(),
                            engine->device_.get(), engine->runtime_options_,
                            nullptr, deadline));
  engine->SetRuntime(std::move(runtime));
  return engine;
}

Engine::Engine(std::shared_ptr<Communicator> host_comm,
               std::shared_ptr<Communicator> comm,
               std::shared_ptr<Device> device,
               std::shared_ptr<Stream> host_stream, Hypers hypers,
               const EngineOptions& options, const DeviceChoice& choice,
               double timeout)
    : host_comm_(std::move(host_comm)),
      comm_(std::move(comm)),
      device_(std::move(device)),
      host_(std::move(host_stream)),
      timeout_(timeout),
      owner_(::getpid()),
      runtime_options_{timeout,
                       options.missing_grads != MissingGrads::kError,
                       options.overlap,
                       choice.transport,
                       choice.one_kernel,
                       &bound_,
                       &host_},
      hypers_(std::move(hypers)),
      counters_(options.loss_scaler),
      initial_params_(comm_.get(), device_.get()),
      steps_({comm_.get(), &hypers_, &counters_, options.missing_grads}),
      full_params_(comm_.get(), device_.get()),
      checkpoints_(comm_->world_size()) {}

Engine::~Engine() {
  // Transfers in progress are finished first: peers wait for them. In a child
  // of fork no transfer is running.
  if (runtime_ == nullptr || ::getpid() != owner_) return;
  if (steps_.captures()) (void)runtime_->EndCapture().ok();
  runtime_->WaitForStreams(Deadline::After(timeout_));
  checkpoints_.WaitForSave();
}

}  // namespace shard
