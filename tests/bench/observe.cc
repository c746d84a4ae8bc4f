// SPDX-License-Identifier: Apache-2.0
//
// The price of log, trace and metrics: whole training steps of an engine whose
// rank writes all three, over those of an engine whose rank writes nothing. Two
// ranks, threads of this process; fp32 AdamW; the host stores no gradients and
// computes nothing, so the steps are as short as they get.
//
//   zero1   GPT-2 124M, ranks that share memory: few events, a long step
//   zero3   16 small blocks as units, ranks that do not: a step of many events
//
// off_over_off, of two engines that write nothing, is the noise. All are
// interleaved, in an order that turns; ratios are medians of the ratios per
// round.

#include <stdlib.h>

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "tests/bench/bench.h"
#include "tests/bench/blocks.h"
#include "tests/bench/ranks.h"

namespace shard::bench {
namespace {

constexpr int kRounds = 40;
constexpr Gpt2Size kSmall = {256, 256, 256, 16};

enum Kind { kOff, kOffAgain, kOn, kNumKinds };

struct Workload {
  const char* name;
  int stage;
  Gpt2Size size;
  const char* query;
  int steps;  // Per round, between which the files are written.
};

class Rank {
 public:
  Rank(const Workload& workload, int rank, Kind kind, const std::string& folder)
      : steps_(workload.steps) {
    ObserverSettings observe;
    if (kind == kOn) {
      observe = {LogLevel::kDebug, folder + "/log", folder + "/trace.json",
                 folder + "/metrics.prom"};
    }
    comm_ = OpenRank(StrCat("threads:", kWorldSize, "?name=", workload.name,
                            kind, workload.query),
                     rank, observe);
    PlanOptions plan;
    plan.stage = workload.stage;
    plan.world_size = kWorldSize;
    engine_ = Require(Engine::Create(BlockPlan(workload.size, plan), comm_,
                                     EngineOptions{.timeout = kTimeout}));
    Require(engine_->BroadcastParams(kTimeout));
  }

  // Returns the seconds of a step.
  double Train() {
    Meet(comm_.get());
    const double start = Seconds();
    for (int s = 0; s < steps_; ++s) {
      VisitUnits(engine_.get(), Pass::kForward, [](int32_t) {});
      VisitUnits(engine_.get(), Pass::kBackward, [&](int32_t unit) {
        Require(engine_->MarkUnitGradsReady(unit));
      });
      StepReport report;
      Require(engine_->Step(StepOptions(), &report));
    }
    Meet(comm_.get());
    return (Seconds() - start) / steps_;
  }

  void End() { Shutdown(comm_.get()); }

 private:
  const int steps_;
  std::shared_ptr<Communicator> comm_;
  std::unique_ptr<Engine> engine_;
};

void Measure(const Workload& workload, int rank, const std::string& folder) {
  std::vector<Rank> ranks;
  for (const Kind kind : {kOff, kOffAgain, kOn}) {
    ranks.emplace_back(workload, rank, kind, folder);
  }
  std::vector<double> off;
  std::vector<double> noise;
  std::vector<double> on;
  for (int round = -1; round < kRounds; ++round) {
    std::array<double, kNumKinds> seconds = {};
    for (int k = 0; k < kNumKinds; ++k) {
      const auto kind = static_cast<size_t>((k + round + 1) % kNumKinds);
      seconds[kind] = ranks[kind].Train();
    }
    if (round < 0) continue;
    off.push_back(seconds[kOff] * 1e3);
    noise.push_back(seconds[kOffAgain] / seconds[kOff]);
    on.push_back(seconds[kOn] / seconds[kOff]);
  }
  for (Rank& one : ranks) one.End();
  if (rank != 0) return;
  const auto bench = [&](const char* metric, double value, const char* unit) {
    Bench("observe", StrCat(workload.name, ".", metric).c_str(), value, unit);
  };
  bench("step_ms", Median(off), "ms");
  bench("off_over_off", Median(noise), "x");
  bench("on_over_off", Median(on), "x");
}

void Run(const std::string& folder) {
  const Workload workloads[] = {{"zero1", 1, Gpt2Size(), "", 2},
                                {"zero3", 3, kSmall, "&direct=0", 20}};
  for (const Workload& workload : workloads) {
    RunThreads([&](int rank) { Measure(workload, rank, folder); });
  }
}

}  // namespace
}  // namespace shard::bench

int main() {
  std::string folder = std::filesystem::temp_directory_path() / "shard.XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  shard::bench::Run(folder);
  std::filesystem::remove_all(folder);
  return 0;
}
