// SPDX-License-Identifier: Apache-2.0
//
// A training step of GPT-2 124M in ZeRO-3 beside the same step in ZeRO-1, as
// memory sees it: fp32 AdamW, two processes on shared memory, blocks as units.
// The host acquires and releases every unit for the forward pass. For the
// backward pass it acquires each unit, stores all its gradients, as a backward
// pass does at its end, declares them ready, and releases the unit; then it
// steps. The host does exactly that in both stages. Its own computation and
// reads are left out, so that the benchmark compares the library's cost and the
// stores alone.
//
// Bytes per element of a rank's range, W ranks:
//
//                       ZeRO-1      ZeRO-3      ZeRO-3, not begun
//   the host's stores   4 W         4 W         4 W
//   reduction           -           -           4 W + 4
//   update              4 W + 24    4 W + 24    28
//
// over_zero1 is that of a host that overwrites its gradients
// (SHARD_PASS_BACKWARD_OVERWRITE) and begins the step before the backward pass
// (shard_engine_begin_step), so that ZeRO-3 updates from the slots themselves.
// not_begun is the same without shard_engine_begin_step, as for a step that
// clips. from_zeros is that of a host that adds to its gradients, and calls
// shard_engine_zero_grad before each step: 4 W more in either stage.
//
// The roofs are those of steps that are not begun. They move the same bytes of
// the same buffers in the same order with the simplest loops: one thread per
// rank, with a barrier before the gradients of others are read and one before
// they are overwritten.
//
// All are interleaved; ratios are medians over the rounds.

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "core/engine/transfer/transfers.h"
#include "tests/bench/bench.h"
#include "tests/bench/blocks.h"
#include "tests/bench/ranks.h"
#include "tests/bench/roof.h"

namespace shard::bench {
namespace {

constexpr int kRounds = 15;
constexpr float kGradient = 1e-9f;

struct Times {
  double all_ms = 0;
  double step_ms = 0;  // The time of shard_engine_step alone.
};

class Rank {
 public:
  Rank(int stage, std::shared_ptr<Communicator> comm)
      : comm_(std::move(comm)),
        engine_(Require(Engine::Create(PlanOf(stage), comm_,
                                       EngineOptions{.timeout = kTimeout}))) {
    Require(engine_->BroadcastParams(kTimeout));
  }

  // Returns the times from the moment when all ranks have begun until all are
  // done.
  Times Train(bool from_zeros, bool begun, StepReport* report) {
    Meet(comm_.get());
    Times times;
    const double start = Seconds();
    if (begun) Require(engine_->BeginStep(StepOptions()));
    if (from_zeros) Require(engine_->ZeroGrad());
    VisitUnits(engine_.get(), Pass::kForward, [](int32_t) {});
    const Pass pass = from_zeros ? Pass::kBackward : Pass::kBackwardOverwrite;
    VisitUnits(engine_.get(), pass, [&](int32_t unit) {
      ForEachParam(engine_->plan(), unit, [&](ParamId param) {
        const Engine::Tensor grad = Require(engine_->Grad(param));
        auto* const out = static_cast<float*>(grad.data);
        const auto count = static_cast<size_t>(grad.numel);
        if (from_zeros) {
          AddRoof(out, count, kGradient);
        } else {
          StoreRoof(out, count, kGradient);
        }
      });
      Require(engine_->MarkUnitGradsReady(unit));
    });
    const double backward = Seconds();
    Require(engine_->Step(StepOptions(), report));
    times.step_ms = (Seconds() - backward) * 1e3;
    times.all_ms = (Seconds() - start) * 1e3;
    return times;
  }

  double Roof() {
    Meet(comm_.get());
    const double start = Seconds();
    if (engine_->plan().shards_grads()) {
      RoofOfSlots();
    } else {
      RoofOfWholeGrads();
    }
    Meet(comm_.get());
    return (Seconds() - start) * 1e3;
  }

  bool shards_grads() const { return engine_->plan().shards_grads(); }

  // Returns the number of elements in this rank's ranges.
  int64_t range_numel() const {
    int64_t numel = 0;
    for (const FlatBufferPlan& buffer : engine_->plan().buffers()) {
      numel += buffer.layout.shard_numel();
    }
    return numel;
  }

 private:
  static std::shared_ptr<const Plan> PlanOf(int stage) {
    PlanOptions options;
    options.stage = stage;
    options.world_size = kWorldSize;
    return BlockPlan(Gpt2Size(), options);
  }

  void RoofOfWholeGrads() {
    const int rank = comm_->rank();
    const std::vector<EngineBuffer>& buffers = engine_->memory().buffers();
    for (size_t b = buffers.size(); b-- > 0;) {
      StoreRoof(static_cast<float*>(buffers[b].GradAt(rank, 0)),
                static_cast<size_t>(buffers[b].plan->layout.padded_numel()),
                kGradient);
    }
    Meet(comm_.get());
    for (size_t b = buffers.size(); b-- > 0;) {
      const EngineBuffer& buffer = buffers[b];
      const int64_t range = buffer.plan->layout.shard_numel();
      const int64_t begin = rank * range;
      AdamRoof(static_cast<const float*>(buffer.GradAt(0, begin)),
               static_cast<const float*>(buffer.GradAt(1, begin)),
               static_cast<float*>(buffer.ParamAt(begin)),
               reinterpret_cast<float*>(buffer.states[0]),
               reinterpret_cast<float*>(buffer.states[1]),
               static_cast<size_t>(range), zero_);
    }
  }

  void RoofOfSlots() {
    const Plan& plan = engine_->plan();
    const EngineMemory& memory = engine_->memory();
    const std::vector<EngineBuffer>& buffers = memory.buffers();
    const int rank = comm_->rank();
    for (size_t u = plan.units().size(); u-- > 0;) {
      const int32_t depth = plan.units()[u].depth;
      const int slots = plan.grad_slots()[static_cast<size_t>(depth)].count;
      const int slot = static_cast<int>(u) % slots;
      const auto parts = SlotParts(plan, static_cast<int32_t>(u), true);
      for (const SlotPart& part : parts) {
        const auto count = static_cast<size_t>(
            buffers[part.buffer].plan->layout.padded_numel());
        auto* const grads = reinterpret_cast<float*>(
            memory.GradSlot(rank, depth, slot) + part.offset);
        StoreRoof(grads, count, kGradient);
      }
      Meet(comm_.get());
      for (const SlotPart& part : parts) {
        const EngineBuffer& buffer = buffers[part.buffer];
        const auto range =
            static_cast<size_t>(buffer.plan->layout.shard_numel());
        const auto grads = [&](int from) {
          return reinterpret_cast<const float*>(
                     memory.GradSlot(from, depth, slot) + part.offset) +
                 static_cast<size_t>(rank) * range;
        };
        SumRoof(grads(0), grads(1), reinterpret_cast<float*>(buffer.sum),
                range);
      }
      Meet(comm_.get());
    }
    for (size_t b = buffers.size(); b-- > 0;) {
      const EngineBuffer& buffer = buffers[b];
      const int64_t range = buffer.plan->layout.shard_numel();
      float* const states[] = {reinterpret_cast<float*>(buffer.states[0]),
                               reinterpret_cast<float*>(buffer.states[1])};
      UpdateRoof(reinterpret_cast<const float*>(buffer.sum),
                 static_cast<float*>(buffer.ParamAt(rank * range)), states, 2,
                 static_cast<size_t>(range), zero_);
    }
  }

  std::shared_ptr<Communicator> comm_;
  std::unique_ptr<Engine> engine_;
  volatile float zero_ = 0;
};

struct Samples {
  std::vector<double> roof, all, step, from_zeros, begun, begun_from_zeros;
  std::vector<double> communication, exposed;  // Of the steps of `all`.
};

double MedianRatio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return Median(ratios);
}

void Report(const char* stage, const Samples& samples, const StepReport& last,
            double host_bytes, double elements) {
  const auto bench = [&](const char* metric, double value, const char* unit) {
    Bench("zero3_step", StrCat(stage, ".", metric).c_str(), value, unit);
  };
  bench("all_ms", Median(samples.all), "ms");
  bench("step_ms", Median(samples.step), "ms");
  bench("from_zeros_ms", Median(samples.from_zeros), "ms");
  bench("begun_ms", Median(samples.begun), "ms");
  bench("begun_from_zeros_ms", Median(samples.begun_from_zeros), "ms");
  bench("roof_ms", Median(samples.roof), "ms");
  bench("ratio_to_roof", MedianRatio(samples.roof, samples.all), "x");
  bench("bytes_per_element",
        host_bytes + static_cast<double>(last.bytes_moved) / elements, "B");
  bench("communication_ms", Median(samples.communication) * 1e3, "ms");
  bench("exposed_ms", Median(samples.exposed) * 1e3, "ms");
}

// Runs the benchmark on one of the two ranks. Only rank 0 prints.
void Run(int rank, const std::string& url) {
  const auto comm = OpenRank(url, rank);
  Rank zero1(1, comm);
  Rank zero3(3, comm);
  if (!zero3.shards_grads()) {
    Require(Internal("ZeRO-3 shards nothing of this model"));
  }
  Samples one;
  Samples three;
  StepReport last1;
  StepReport last3;
  const auto measure = [](Rank* self, bool keep, Samples* samples,
                          StepReport* last) {
    const double begun_ms = self->Train(false, true, last).all_ms;
    const double begun_from_zeros_ms = self->Train(true, true, last).all_ms;
    const double from_zeros_ms = self->Train(true, false, last).all_ms;
    const double roof_ms = self->Roof();
    const Times times = self->Train(false, false, last);
    if (!keep) return;
    samples->begun.push_back(begun_ms);
    samples->begun_from_zeros.push_back(begun_from_zeros_ms);
    samples->from_zeros.push_back(from_zeros_ms);
    samples->roof.push_back(roof_ms);
    samples->all.push_back(times.all_ms);
    samples->step.push_back(times.step_ms);
    samples->communication.push_back(last->comm.seconds);
    samples->exposed.push_back(last->comm.seconds_exposed);
  };
  for (int round = -2; round < kRounds; ++round) {
    // In the rounds before, caches and page tables are cold.
    const bool keep = round >= 0;
    measure(&zero1, keep, &one, &last1);
    measure(&zero3, keep, &three, &last3);
  }
  Shutdown(comm.get());
  if (rank != 0) return;
  // Bytes per element of a range, of the stores and of the reduction.
  constexpr double kStores = 4 * kWorldSize;
  const auto elements = static_cast<double>(zero1.range_numel());
  Report("zero1", one, last1, kStores, elements);
  Report("zero3", three, last3, kStores + (4 * kWorldSize + 4), elements);
  const char* name = "zero3_step";
  Bench(name, "step_over_zero1", MedianRatio(three.step, one.step), "x");
  Bench(name, "roof_over_zero1", MedianRatio(three.roof, one.roof), "x");
  Bench(name, "not_begun_over_zero1", MedianRatio(three.all, one.all), "x");
  Bench(name, "not_begun_from_zeros_over_zero1",
        MedianRatio(three.from_zeros, one.from_zeros), "x");
  Bench(name, "from_zeros_over_zero1",
        MedianRatio(three.begun_from_zeros, one.begun_from_zeros), "x");
  Bench(name, "over_zero1", MedianRatio(three.begun, one.begun), "x");
}

int Main() {
  const std::string url =
      StrCat("shm:bench-", getpid(), "-", std::random_device()());
  const int child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Run(1, url);
    _exit(0);
  }
  Run(0, url);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace shard::bench

int main() { return shard::bench::Main(); }
