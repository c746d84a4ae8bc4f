// SPDX-License-Identifier: Apache-2.0
//
// Reads the options that saves, loads and state dicts have in common.

#ifndef SHARD_API_STATE_OPTIONS_H_
#define SHARD_API_STATE_OPTIONS_H_

#include <span>

#include "api/options.h"
#include "api/progress.h"
#include "core/base/host_array.h"
#include "core/base/status.h"
#include "core/engine/state/checkpoints.h"
#include "core/flat/plan.h"
#include "core/state/state_entries.h"
#include "shard/shard.h"

namespace shard::api {

// shard_state_filter lies within structs that grow, so its own size is frozen.
static_assert(sizeof(shard_state_filter) == 32);

// Reads the part of a state that the host selects, of the plan's model.
inline Status ReadStateFilter(const Plan& plan, const shard_state_filter& from,
                              StateOptions* to) {
  SHARD_RETURN_IF_ERROR(CheckReserved("shard_state_filter", from.reserved));
  to->content = static_cast<StateContent>(from.content);
  SHARD_ASSIGN_OR_RETURN(to->ignore_frozen,
                         ReadFlag("ignore_frozen", from.ignore_frozen));
  SHARD_ASSIGN_OR_RETURN(to->strip_prefix,
                         ReadFlag("strip_prefix", from.strip_prefix));
  const std::span submodules(from.submodules, from.num_submodules);
  SHARD_RETURN_IF_ERROR(CheckHostArray(
      "submodules", submodules, plan.model().modules().size(), "modules"));
  to->submodules.assign(submodules.begin(), submodules.end());
  return Status();
}

inline StatusOr<LoadOptions> ReadLoadOptions(const Plan& plan,
                                             const shard_load_options* given,
                                             shard_load_report* report) {
  if (report != nullptr) {
    SHARD_RETURN_IF_ERROR(ClearResult("shard_load_report", report));
  }
  shard_load_options read;
  SHARD_RETURN_IF_ERROR(ReadOptions("shard_load_options", given, &read));
  SHARD_RETURN_IF_ERROR(CheckReserved("shard_load_options", read.reserved));
  LoadOptions options;
  SHARD_RETURN_IF_ERROR(ReadStateFilter(plan, read.filter, &options.state));
  SHARD_ASSIGN_OR_RETURN(const bool allow_mismatch,
                         ReadFlag("allow_mismatch", read.allow_mismatch));
  SHARD_ASSIGN_OR_RETURN(const bool skip_verify,
                         ReadFlag("skip_verify", read.skip_verify));
  SHARD_ASSIGN_OR_RETURN(options.rules.convert,
                         ReadFlag("convert", read.convert));
  SHARD_ASSIGN_OR_RETURN(
      options.rules.strip_leading_module,
      ReadFlag("strip_leading_module", read.strip_leading_module));
  options.rules.strict = !allow_mismatch;
  options.verify = !skip_verify;
  if (read.timeout > 0) options.timeout = read.timeout;
  SHARD_ASSIGN_OR_RETURN(options.threads, ReadThreads(read.threads));
  options.progress = ToProgress(read.progress, read.progress_user_data);
  return options;
}

// Fills the host's report, which may be null.
inline void WriteLoadReport(const LoadReport& loaded,
                            shard_load_report* report) {
  if (report == nullptr) return;
  shard_load_report out = SHARD_LOAD_REPORT_INIT;
  out.step = loaded.step;
  out.saved_world_size = loaded.saved_world_size;
  out.loaded = loaded.match.loaded;
  out.converted = loaded.match.converted;
  out.missing = static_cast<int64_t>(loaded.match.missing.size());
  out.unexpected = static_cast<int64_t>(loaded.match.unexpected.size());
  WriteResult(out, report);
}

}  // namespace shard::api

#endif  // SHARD_API_STATE_OPTIONS_H_
