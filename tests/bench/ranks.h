// SPDX-License-Identifier: Apache-2.0
//
// The two ranks of a benchmark that trains, and their plan.

#ifndef SHARD_TESTS_BENCH_RANKS_H_
#define SHARD_TESTS_BENCH_RANKS_H_

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/flat/plan.h"
#include "core/model/model.h"
#include "core/optim/groups.h"
#include "tests/bench/gpt2_shapes.h"

namespace shard::bench {

inline constexpr int kWorldSize = 2;
inline constexpr double kTimeout = 600;

// Ends the program where a call has failed.
inline void Require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T Require(StatusOr<T> value) {
  Require(value.status());
  return *std::move(value);
}

// Opens one of the two ranks. `observe`: its log, trace and metrics.
inline std::shared_ptr<Communicator> OpenRank(
    const std::string& url, int rank, const ObserverSettings& observe = {}) {
  CommOptions options;
  options.rank = rank;
  options.world_size = kWorldSize;
  options.timeout = kTimeout;
  options.observe = observe;
  return Require(OpenCommunicator(url, options));
}

// Waits for the other rank.
inline void Meet(Communicator* comm) {
  Require(comm->Barrier("bench", Deadline::After(kTimeout)));
}

inline void Shutdown(Communicator* comm) {
  Require(comm->Shutdown(Deadline::After(kTimeout)));
}

// Calls `run(rank)` for both ranks, threads of this process.
template <typename Run>
void RunThreads(const Run& run) {
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

// Returns a plan for fp32 and AdamW. Overwrites the groups of `options`.
inline std::shared_ptr<const Plan> AdamWPlan(std::shared_ptr<Model> model,
                                             PlanOptions options) {
  options.groups =
      Require(PlanGroups(*model, "adamw?lr=1e-3&weight_decay=0.1"));
  return Require(Plan::Create(std::move(model), options));
}

// Returns the ZeRO-1 plan of GPT-2's parameters in one unit.
inline std::shared_ptr<const Plan> WholePlan(const Gpt2Size& size = {}) {
  auto model = std::make_shared<Model>("GPT2");
  for (const NamedShape& p : Gpt2Shapes(size)) {
    Require(model->AddParam(kRootModule, p.name, DType::kF32, p.shape));
  }
  PlanOptions options;
  options.world_size = kWorldSize;
  return AdamWPlan(std::move(model), options);
}

}  // namespace shard::bench

#endif  // SHARD_TESTS_BENCH_RANKS_H_
