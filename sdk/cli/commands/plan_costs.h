// SPDX-License-Identifier: Apache-2.0
//
// The memory, traffic and time of a rank, for several plans of one model, as a
// table and as JSON.

#ifndef SHARD_SDK_CLI_COMMANDS_PLAN_COSTS_H_
#define SHARD_SDK_CLI_COMMANDS_PLAN_COSTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "sdk/cli/commands/plan_fit.h"
#include "sdk/cli/commands/traffic.h"
#include "sdk/cli/model_description.h"
#include "sdk/cli/text.h"
#include "shard/shard.h"

namespace shardctl {

// The rank whose costs are computed. 0: unknown.
struct RankResources {
  MemoryLimits limits;
  uint64_t bandwidth = 0;  // Bytes per second, one way.
  double flops = 0;        // Floating-point operations per second.
  double tokens = 0;       // Per step.
  int32_t micro_batches = 1;
};

// The plan that lacks the least memory, where none fits, and the options that
// make one fit.
struct FitAdvice {
  PlanVariant nearest;
  PlanFit fit;
  bool is_searched = false;  // A plan that was read has no other options.
  std::vector<std::string> options;
};

// The model and the options that all plans have in common, as they are shown.
struct PlannedModel {
  std::string path;
  ModelDescription description;
  std::string optimizer;
  std::string partition;
};

class PlanCosts {
 public:
  explicit PlanCosts(const RankResources& rank) : rank_(rank) {}

  // Adds the costs of a plan. Throws Failure.
  void Add(const shard_plan* plan);

  // Returns whether some plan fits into the memory that there is.
  bool AnyFits() const;

  // Returns the ranks and the stage of the plan that lacks the least memory.
  // REQUIRES: a plan was added.
  FitAdvice Nearest() const;

  // Print the plans. `advice` is null where a plan fits.
  void PrintTable(const PlannedModel& model, const FitAdvice* advice) const;
  void PrintJsonDocument(const PlannedModel& model,
                         const FitAdvice* advice) const;

 private:
  struct Row {
    int32_t ranks = 0;
    int32_t stage = 0;
    uint64_t fingerprint = 0;
    int32_t units = 0;
    int32_t buffers = 0;
    shard_memory alone = SHARD_MEMORY_INIT;
    shard_memory shared = SHARD_MEMORY_INIT;
    shard_memory on_device = SHARD_MEMORY_INIT;  // Where there is a device.
    PlanFit fit;
    Traffic traffic;
    std::string warnings;
  };

  // Seconds; negative: unknown.
  struct Times {
    double communication = -1;
    double computation = -1;
    double step_hidden = -1;
    double step_exposed = -1;
  };

  const shard_memory& MemoryOf(const Row& row) const;
  bool on_device() const { return !rank_.limits.device.empty(); }
  Times TimesOf(const Row& row, int64_t elements) const;
  Json PlanJson(const Row& row, int64_t elements) const;
  std::string TableText(int64_t elements) const;
  std::string WarningsText() const;

  const RankResources rank_;
  std::vector<Row> rows_;
};

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_PLAN_COSTS_H_
