// SPDX-License-Identifier: Apache-2.0
//
// The parameters and states that a rank owns after a collective of NCCL has
// failed, over the fakes of the driver and of NCCL. Kernels that were enqueued
// behind the collective run all the same, on gradients that did not come: they
// must write nothing. What is owned has the bits of before the step, or, by
// buffer, those of the whole step where its gradients were there before.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/forwarding_device.h"
#include "core/device/offload/offloading_device.h"
#include "core/engine/engine.h"
#include "kernels/cpu/norm.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/flat/sharding.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::nccl_failure_test {
namespace {

using cuda_training::Fill;
using cuda_training::Form;
using cuda_training::MakePlan;
using cuda_training::ParamsOf;
using testing::FakeNccl;
namespace fake_cuda = testing::fake_cuda;
namespace fake_nccl = testing::fake_nccl;

constexpr int kUnits = 3;
constexpr int kRanks = 2;

struct Case {
  const char* name;
  const char* optimizer = "adamw";
  int stage = 1;
  bool has_norm = false;
  bool begun = false;  // With begin_step.
  bool offloads = false;
  bool deterministic = false;  // Gradients are sent, else NCCL sums them.
};

std::ostream& operator<<(std::ostream& out, const Case& it) {
  return out << it.name;
}

using Bytes = std::vector<unsigned char>;

// Keeps memory until the device ends, so that it can be read when an engine has
// ended, and nothing writes there.
class KeepingDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;

  StatusOr<DeviceMemory> Allocate(size_t bytes,
                                  std::string_view what) override {
    return Keep(ForwardingDevice::Allocate(bytes, what));
  }
  StatusOr<DeviceMemory> AllocateStates(size_t bytes,
                                        std::string_view what) override {
    return Keep(ForwardingDevice::AllocateStates(bytes, what));
  }

 private:
  StatusOr<DeviceMemory> Keep(StatusOr<DeviceMemory> memory) {
    SHARD_RETURN_IF_ERROR(memory.status());
    kept_.push_back(std::make_shared<DeviceMemory>(*std::move(memory)));
    return DeviceMemory(kept_.back()->data(), kept_.back()->size(),
                        kept_.back());
  }

  std::vector<std::shared_ptr<DeviceMemory>> kept_;
};

// The parameters and states that a rank owns, by buffer of the plan.
using OwnedMemory = std::vector<std::vector<std::span<const unsigned char>>>;

OwnedMemory Owned(const Engine& engine) {
  OwnedMemory all;
  const int range = engine.plan().RangeOf(engine.comm()->rank());
  for (const EngineBuffer& buffer : engine.memory().buffers()) {
    auto& owned = all.emplace_back();
    const auto add = [&](const void* from, size_t size) {
      owned.emplace_back(static_cast<const unsigned char*>(from), size);
    };
    const int64_t shard = buffer.plan->layout.shard_numel();
    add(buffer.ParamAt(range * shard), DTypeBytes(buffer.plan->dtype, shard));
    for (size_t s = 0; s < buffer.states.size(); ++s) {
      add(buffer.states[s],
          DTypeBytes(buffer.plan->states[s].tensor.dtype,
                     buffer.plan->StateLayout(s).shard_numel()));
    }
  }
  return all;
}

std::vector<Bytes> Read(const OwnedMemory& memory) {
  std::vector<Bytes> all;
  for (const auto& owned : memory) {
    Bytes& bytes = all.emplace_back();
    for (const auto& part : owned) {
      bytes.insert(bytes.end(), part.begin(), part.end());
    }
  }
  return all;
}

// A call of rank 1 in the step. A reduction that NCCL does not sum has a
// receive as well.
enum class Kind { kReduction, kReceive, kNorm, kGather };

struct Outcome {
  std::array<std::vector<Bytes>, kRanks> before;
  std::array<std::vector<Bytes>, kRanks> after;
  std::array<bool, kRanks> enqueued = {};  // The whole step, before a failure.
  std::vector<Kind> kinds;  // By collective, as StickAt counts them.
};

class NcclFailureTest : public ::testing::TestWithParam<Case> {
 protected:
  const Case& of() const { return GetParam(); }

  StatusOr<std::shared_ptr<Device>> MakeDevice(int rank) const {
    SHARD_ASSIGN_OR_RETURN(auto device, cuda::OpenDevice(StrCat(rank)));
    if (of().offloads) {
      SHARD_ASSIGN_OR_RETURN(auto host, OpenDevice("cpu"));
      device = OffloadStates(std::move(device), std::move(host),
                             {.threads = 2, .window = 512});
    }
    device = std::make_shared<KeepingDevice>(std::move(device));
    return device;
  }

  // Without a norm, units are updated as their gradients come.
  StepOptions Options() const {
    StepOptions options;
    if (of().has_norm) options.max_grad_norm = 0.5;
    return options;
  }

  // Gives gradients to a unit that was acquired.
  static Status WriteGrads(Engine* engine, int32_t unit, int step) {
    for (const ParamId param : ParamsOf(engine->plan(), unit)) {
      SHARD_ASSIGN_OR_RETURN(const Engine::Tensor grad, engine->Grad(param));
      auto* const values = static_cast<float*>(grad.data);
      SHARD_RETURN_IF_ERROR(engine->Synchronize(0));
      for (int64_t i = 0; i < grad.numel; ++i) {
        values[i] = GradientValue(step, param, i);
      }
    }
    return Status();
  }

  // Steps. Where gradients are whole, `enqueue` is called between the writing
  // of the gradients and the first reduction, and nothing waits afterwards.
  Status Train(Engine* engine, int step,
               const std::function<void()>& enqueue) const {
    if (of().begun) SHARD_RETURN_IF_ERROR(engine->BeginStep(Options()));
    SHARD_RETURN_IF_ERROR(engine->Synchronize(0));
    const bool is_whole = of().stage <= 1;
    if (!is_whole) enqueue();
    const auto units = static_cast<int32_t>(engine->plan().units().size());
    for (int32_t unit = units; unit-- > 0;) {
      SHARD_RETURN_IF_ERROR(engine->UnitAcquire(unit, Pass::kBackward, 0));
      SHARD_RETURN_IF_ERROR(WriteGrads(engine, unit, step));
      if (is_whole) continue;
      SHARD_RETURN_IF_ERROR(engine->MarkUnitGradsReady(unit));
      SHARD_RETURN_IF_ERROR(engine->UnitRelease(unit));
    }
    if (is_whole) enqueue();
    for (int32_t unit = units; is_whole && unit-- > 0;) {
      SHARD_RETURN_IF_ERROR(engine->MarkUnitGradsReady(unit));
      SHARD_RETURN_IF_ERROR(engine->UnitRelease(unit));
    }
    return engine->Step(Options(), nullptr);
  }

  // Trains two steps. In the second one the collective `failing`, if any, is
  // stuck on rank 1, and the group ends some time after `ended` kernels of NCCL
  // have ended on each rank: while hosts enqueue what comes behind.
  Outcome Run(std::optional<uint64_t> failing, uint64_t ended) const {
    const Form form = {.units = kUnits,
                       .world_size = kRanks,
                       .stage = of().stage,
                       .optimizer = of().optimizer,
                       .shapes = {{40, 50}, {50, 40}},
                       .deterministic = of().deterministic};
    fake_cuda::Options gpus;
    gpus.devices = kRanks;
    // Memory of NCCL's own would not be the device's, which is kept.
    const FakeNccl fake(gpus, {.registers = false});
    const auto plan = MakePlan(form);
    EXPECT_TRUE(of().stage == 0 || ShardsAsItsStage(*plan));
    Outcome outcome;
    RunThreadRanks(
        kRanks,
        [&](const std::shared_ptr<Communicator>& comm) {
          const auto rank = static_cast<size_t>(comm->rank());
          const auto meet = [&](std::string_view what) {
            ASSERT_OK(comm->Barrier(what, Deadline::After(30)));
          };
          const auto device = MakeDevice(comm->rank());
          ASSERT_OK(device);
          EngineOptions options;
          options.opened_device = *device;
          options.transport = Transport::kNccl;
          auto engine = Engine::Create(plan, comm, options);
          ASSERT_OK(engine);
          ASSERT_OK(Fill(engine->get()));
          ASSERT_OK(Train(engine->get(), 1, [] {}));
          ASSERT_OK((*engine)->Synchronize(0));
          const OwnedMemory owned = Owned(**engine);
          outcome.before[rank] = Read(owned);
          size_t logged = 0;
          std::thread ending;
          const Status enqueued = Train(engine->get(), 2, [&] {
            meet("written");
            if (rank == 1) logged = fake_nccl::Log().size();
            if (rank == 1 && failing) {
              fake_nccl::StickAt(*failing, {.rank = 1});
              ending = std::thread([&, before = EndedOn(1)] {
                EXPECT_TRUE(testing::ComesTrue(
                    [&] { return EndedOn(1) >= before + ended; }));
                // Any time will do, and the later, the more is enqueued.
                std::this_thread::sleep_for(std::chrono::milliseconds(10));
                comm->Abort(Cancelled("a failure"));
              });
            }
            meet("set");
          });
          const Status done =
              enqueued.ok() ? (*engine)->Synchronize(0) : enqueued;
          EXPECT_EQ(done.ok(), !failing.has_value()) << done.ToString();
          if (ending.joinable()) ending.join();
          engine->reset();
          outcome.enqueued[rank] = enqueued.ok();
          outcome.after[rank] = Read(owned);
          if (rank == 1) outcome.kinds = KindsSince(logged);
        },
        30, "direct=0");
    return outcome;
  }

  static uint64_t EndedOn(int rank) {
    return fake_nccl::Count({.rank = rank}).ended;
  }

  static std::vector<Kind> KindsSince(size_t logged) {
    std::vector<Kind> kinds;
    const auto log = fake_nccl::Log();
    for (size_t i = logged; i < log.size(); ++i) {
      if (log[i].rank != 1) continue;
      if (log[i].symbol == "ncclSend" || log[i].symbol == "ncclReduceScatter") {
        kinds.push_back(Kind::kReduction);
      } else if (log[i].symbol == "ncclRecv") {
        kinds.push_back(Kind::kReceive);
      } else if (log[i].symbol == "ncclAllGather") {
        kinds.push_back(log[i].count == sizeof(NormSum) ? Kind::kNorm
                                                        : Kind::kGather);
      }
    }
    return kinds;
  }

  // Expects what a rank owns after a failure to be what it may be.
  void ExpectWhole(const Outcome& whole, const Outcome& failed,
                   uint64_t failing) const {
    size_t reduced = 0;  // Units before the failure.
    bool all_come = true;
    for (size_t c = 0; c < whole.kinds.size(); ++c) {
      const bool came = c + 1 < failing;
      if (whole.kinds[c] == Kind::kReduction && came) ++reduced;
      if (whole.kinds[c] != Kind::kGather && !came) all_come = false;
    }
    for (size_t rank = 0; rank < kRanks; ++rank) {
      SCOPED_TRACE(StrCat("rank ", rank));
      const std::vector<Bytes>& before = failed.before[rank];
      const std::vector<Bytes>& after = failed.after[rank];
      ASSERT_TRUE(before == whole.before[rank]);
      ASSERT_EQ(after.size(), size_t{kUnits});
      size_t stepped = 0;
      for (size_t b = 0; b < after.size(); ++b) {
        SCOPED_TRACE(StrCat("buffer ", b));
        const bool is_before = after[b] == before[b];
        if (!is_before) ++stepped;
        EXPECT_TRUE(is_before || after[b] == whole.after[rank][b]);
        // Units are reduced from the last.
        const bool came = of().has_norm ? all_come : kUnits - b <= reduced;
        EXPECT_TRUE(is_before || came);
      }
      if (of().has_norm && !of().offloads && failed.enqueued[rank]) {
        EXPECT_TRUE(stepped == 0 || stepped == kUnits);
      }
    }
  }
};

TEST_P(NcclFailureTest, WhatARankOwnsIsOfBeforeTheStepOrOfItsEnd) {
  const Outcome whole = Run(std::nullopt, 0);
  const auto count = [&](Kind kind) {
    return std::count(whole.kinds.begin(), whole.kinds.end(), kind);
  };
  ASSERT_EQ(count(Kind::kReduction), kUnits);
  ASSERT_EQ(count(Kind::kReceive), of().deterministic ? kUnits : 0);
  for (size_t rank = 0; rank < kRanks; ++rank) {
    for (size_t b = 0; b < size_t{kUnits}; ++b) {
      ASSERT_TRUE(whole.after[rank][b] != whole.before[rank][b]);
    }
  }
  uint64_t kernels = 0;
  for (uint64_t c = 1; c <= whole.kinds.size(); ++c) {
    // It is of the same kernel as what is sent.
    if (whole.kinds[c - 1] == Kind::kReceive) continue;
    SCOPED_TRACE(StrCat("collective ", c, " of ", whole.kinds.size()));
    const Outcome failed = Run(c, kernels++);
    if (HasFatalFailure()) return;
    ExpectWhole(whole, failed, c);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, NcclFailureTest,
    ::testing::Values(
        Case{.name = "Elements"},
        Case{.name = "ElementsInRankOrder", .deterministic = true},
        Case{.name = "Norm", .has_norm = true},
        Case{
            .name = "NormInRankOrder", .has_norm = true, .deterministic = true},
        Case{.name = "Begun", .begun = true},
        Case{.name = "Replicated", .stage = 0},
        Case{.name = "Sharded", .stage = 3, .has_norm = true},
        Case{.name = "Lamb", .optimizer = "lamb", .has_norm = true},
        Case{.name = "Adafactor", .optimizer = "adafactor", .has_norm = true},
        Case{.name = "Muon", .optimizer = "muon?ns_steps=2", .has_norm = true},
        Case{.name = "Offloaded", .offloads = true},
        Case{.name = "OffloadedNorm", .has_norm = true, .offloads = true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace shard::nccl_failure_test
