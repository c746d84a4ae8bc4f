// SPDX-License-Identifier: Apache-2.0
//
// Plans in files, as shard_plan_encode has them.

#ifndef SHARD_SDK_CLI_PLAN_FILE_H_
#define SHARD_SDK_CLI_PLAN_FILE_H_

#include <string>

#include "sdk/cli/handles.h"
#include "sdk/cli/model_description.h"
#include "shard/shard.h"

namespace shardctl {

// Returns whether the file at `path` begins as a plan does.
bool IsPlanFile(const std::string& path);

struct PlanFile {
  Plan plan;
  // Without its handle, which a plan does not give back.
  ModelDescription model;
  // Options that the plan was made with and shard_plan_info does not have; the
  // optimizer is that of param group 0.
  std::string optimizer;
  std::string partition;
};

// Reads a plan. Throws Failure with the path and the fault of the file.
PlanFile ReadPlanFile(const std::string& path);

// Writes a file, as WriteOutput does.
void WritePlanFile(const std::string& path, const shard_plan* plan);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_PLAN_FILE_H_
