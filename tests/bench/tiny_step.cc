// SPDX-License-Identifier: Apache-2.0
//
// The step of a model so small that what the engine does around the update
// shows: 200 parameters of 1,000 elements, fp32 AdamW, ZeRO-1, two ranks that
// are threads of this process and share memory. A step meets the other rank
// twice, before and after the update, so two bare barriers of the same group
// stand beside it: what a step costs at least.
//
// All are interleaved; the benchmark prints medians over the rounds.

#include <memory>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "tests/bench/bench.h"
#include "tests/bench/ranks.h"

namespace shard::bench {
namespace {

constexpr int kRounds = 41;
constexpr int kSteps = 500;  // Per round.
constexpr int kParams = 200;
constexpr int64_t kNumel = 1000;

std::shared_ptr<const Plan> TinyPlan() {
  auto model = std::make_shared<Model>("Tiny");
  for (int p = 0; p < kParams; ++p) {
    Require(
        model->AddParam(kRootModule, StrCat("p", p), DType::kF32, {kNumel}));
  }
  PlanOptions options;
  options.world_size = kWorldSize;
  return AdamWPlan(std::move(model), options);
}

class Rank {
 public:
  explicit Rank(std::shared_ptr<Communicator> comm)
      : comm_(std::move(comm)),
        engine_(Require(Engine::Create(TinyPlan(), comm_,
                                       EngineOptions{.timeout = kTimeout}))) {
    Require(engine_->BroadcastParams(kTimeout));
  }

  // Each of these returns the microseconds of one.
  double Step() {
    return Measure([&] {
      StepReport report;
      Require(engine_->Step(StepOptions(), &report));
    });
  }
  double TwoBarriers() {
    return Measure([&] {
      Meet(comm_.get());
      Meet(comm_.get());
    });
  }

 private:
  template <typename Act>
  double Measure(Act act) {
    Meet(comm_.get());
    const double start = Seconds();
    for (int i = 0; i < kSteps; ++i) act();
    return (Seconds() - start) * 1e6 / kSteps;
  }

  std::shared_ptr<Communicator> comm_;
  std::unique_ptr<Engine> engine_;
};

// Runs the benchmark on one of the two ranks. Only rank 0 prints.
void Run(int rank) {
  const auto comm = OpenRank(StrCat("threads:", kWorldSize), rank);
  Rank tiny(comm);
  std::vector<double> steps;
  std::vector<double> barriers;
  std::vector<double> over;
  for (int round = -1; round < kRounds; ++round) {
    const double step = tiny.Step();
    const double two = tiny.TwoBarriers();
    if (round < 0) continue;
    steps.push_back(step);
    barriers.push_back(two);
    over.push_back(step / two);
  }
  if (rank == 0) {
    Bench("tiny_step", "step_us", Median(steps), "us");
    Bench("tiny_step", "two_barriers_us", Median(barriers), "us");
    Bench("tiny_step", "over_two_barriers", Median(over), "x");
  }
  Shutdown(comm.get());
}

}  // namespace
}  // namespace shard::bench

int main() {
  shard::bench::RunThreads(shard::bench::Run);
  return 0;
}
