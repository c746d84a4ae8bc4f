// SPDX-License-Identifier: Apache-2.0
//
// Measures how much of the communication is hidden behind the computation where
// ranks share no memory: two ranks, threads of this process, on a simulated
// link; a GPT of 16 blocks, fp32 AdamW, blocks as units. The computation is a
// sleep per unit, in the backward pass twice as long as in the forward pass, as
// of an accelerator that leaves the host's cores alone. The sleeps take twice
// as long in all as the link needs for the bytes of a step.
//
//   zero1   with overlap: reduce-scatter behind backward, all-gather behind the
//           next forward
//   zero3   with prefetch: all-gathers behind forward and backward,
//           reduce-scatter behind backward
//
//   hidden = 1 - (both - compute - update) / (alone - update)
//
// both: a step with sleeps. alone: a step without sleeps. compute: the sleeps
// with nothing between them. update: the optimizer's seconds, which belong to
// neither. Steps are measured from the end of one to the end of the next, after
// other steps, so that work which a step leaves to the next one counts.
//
// The engine's own counters are printed too: the part of the bytes that had
// arrived before the host asked for them, and 1 - seconds waited / seconds of
// communication.
//
// All are interleaved; the benchmark prints medians over the rounds.

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "tests/bench/bench.h"
#include "tests/bench/blocks.h"
#include "tests/bench/ranks.h"

namespace shard::bench {
namespace {

constexpr int kRounds = 7;
constexpr int kSteps = 4;  // The steps of a round. The first is not measured.
constexpr double kDelay = 1e-4;
constexpr double kBandwidth = 5e8;
constexpr double kComputePerCommunication = 2;
// A large vocabulary would make the root most of the model, and no computation
// hides the first and the last unit.
constexpr Gpt2Size kSize = {256, 256, 256, 16};

// Medians over the measured steps of a round.
struct Round {
  double seconds = 0;
  double update = 0;
  double bytes_overlapped = 0;    // As a part of all bytes.
  double seconds_overlapped = 0;  // As a part of all seconds.
};

class Rank {
 public:
  Rank(int stage, std::shared_ptr<Communicator> comm) : comm_(std::move(comm)) {
    PlanOptions options;
    options.stage = stage;
    options.world_size = kWorldSize;
    EngineOptions engine_options;
    engine_options.timeout = kTimeout;
    engine_options.overlap = stage == 1;
    engine_ = Require(
        Engine::Create(BlockPlan(kSize, options), comm_, engine_options));
    Require(engine_->BroadcastParams(kTimeout));
    // Parameters are gathered or published once, and gradients reduced once.
    // Stage 3 gathers again for the backward pass.
    const int exchanges = stage == 3 ? 3 : 2;
    for (const FlatBufferPlan& buffer : engine_->plan().buffers()) {
      const double bytes = static_cast<double>(DTypeBytes(
                               buffer.dtype, buffer.layout.shard_numel())) *
                           (kWorldSize - 1);
      link_seconds_ += exchanges * (kDelay + bytes / kBandwidth);
      numel_ += static_cast<double>(buffer.layout.numel());
    }
  }

  double link_seconds() const { return link_seconds_; }

  Round Train(bool computes) {
    Meet(comm_.get());
    std::vector<double> seconds;
    std::vector<double> update;
    std::vector<double> bytes;
    std::vector<double> waited;
    double last = 0;
    for (int step = 0; step < kSteps; ++step) {
      VisitUnits(engine_.get(), Pass::kForward,
                 [&](int32_t unit) { Compute(computes, unit, 1); });
      VisitUnits(engine_.get(), Pass::kBackward, [&](int32_t unit) {
        Compute(computes, unit, 2);
        Require(engine_->MarkUnitGradsReady(unit));
      });
      StepReport report;
      Require(engine_->Step(StepOptions(), &report));
      const double now = Seconds();
      if (step > 0) {
        const CommCounters& comm = report.comm;
        seconds.push_back(now - last);
        update.push_back(report.seconds_update);
        bytes.push_back(static_cast<double>(comm.bytes_overlapped) /
                        static_cast<double>(comm.bytes));
        waited.push_back(1 - comm.seconds_exposed / comm.seconds);
      }
      last = now;
    }
    return {Median(seconds), Median(update), Median(bytes), Median(waited)};
  }

  // Returns the seconds of a step's sleeps.
  double ComputeAlone() {
    const double start = Seconds();
    const auto units = static_cast<int32_t>(engine_->plan().units().size());
    for (int32_t u = 0; u < units; ++u) Compute(true, u, 1);
    for (int32_t u = 0; u < units; ++u) Compute(true, u, 2);
    return Seconds() - start;
  }

 private:
  // Does a unit's part of the computation, by its elements: `share` thirds of a
  // step.
  void Compute(bool computes, int32_t unit, int share) const {
    if (!computes) return;
    const auto begin = std::chrono::steady_clock::now();
    double numel = 0;
    const Plan& plan = engine_->plan();
    for (const int32_t b : plan.units()[static_cast<size_t>(unit)].buffers) {
      numel += static_cast<double>(
          plan.buffers()[static_cast<size_t>(b)].layout.numel());
    }
    const std::chrono::duration<double> span(
        kComputePerCommunication * link_seconds_ * numel / numel_ * share / 3);
    std::this_thread::sleep_until(
        begin +
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(span));
  }

  std::shared_ptr<Communicator> comm_;
  std::unique_ptr<Engine> engine_;
  double link_seconds_ = 0;
  double numel_ = 0;
};

struct Samples {
  std::vector<double> both, alone, compute, hidden, bytes, waited;
};

void Measure(Rank* rank, bool keep, Samples* samples) {
  const double compute = rank->ComputeAlone();
  const Round alone = rank->Train(false);
  const Round both = rank->Train(true);
  if (!keep) return;
  samples->both.push_back(both.seconds);
  samples->alone.push_back(alone.seconds - alone.update);
  samples->compute.push_back(compute);
  samples->hidden.push_back(1 - (both.seconds - both.update - compute) /
                                    (alone.seconds - alone.update));
  samples->bytes.push_back(both.bytes_overlapped);
  samples->waited.push_back(both.seconds_overlapped);
}

double Report(const char* stage, const Rank& rank, const Samples& samples) {
  const auto bench = [&](const char* metric, double value, const char* unit) {
    Bench("overlap", StrCat(stage, ".", metric).c_str(), value, unit);
  };
  bench("link_ms", rank.link_seconds() * 1e3, "ms");
  bench("communication_ms", Median(samples.alone) * 1e3, "ms");
  bench("compute_ms", Median(samples.compute) * 1e3, "ms");
  bench("both_ms", Median(samples.both) * 1e3, "ms");
  bench("counted_bytes_overlapped", Median(samples.bytes), "x");
  bench("counted_seconds_hidden", Median(samples.waited), "x");
  const double hidden = Median(samples.hidden);
  bench("hidden_fraction", hidden, "x");
  return hidden;
}

// Runs the benchmark on one of the two ranks. Only rank 0 prints.
void Run(int rank) {
  const auto comm =
      OpenRank(StrCat("threads:", kWorldSize, "?direct=0&delay=", kDelay,
                      "&bandwidth=", kBandwidth),
               rank);
  Rank zero1(1, comm);
  Rank zero3(3, comm);
  Samples one;
  Samples three;
  for (int round = -1; round < kRounds; ++round) {
    Measure(&zero1, round >= 0, &one);
    Measure(&zero3, round >= 0, &three);
  }
  if (rank == 0) {
    const double hidden1 = Report("zero1", zero1, one);
    const double hidden3 = Report("zero3", zero3, three);
    Bench("overlap", "hidden_fraction", std::min(hidden1, hidden3), "x");
  }
  Shutdown(comm.get());
}

}  // namespace
}  // namespace shard::bench

int main() {
  shard::bench::RunThreads(shard::bench::Run);
  return 0;
}
