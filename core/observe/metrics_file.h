// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_OBSERVE_METRICS_FILE_H_
#define SHARD_CORE_OBSERVE_METRICS_FILE_H_

#include <string>
#include <string_view>

#include "core/base/status.h"

namespace shard {

// Returns an error for a path of a folder, beside which the ranks would write.
Status CheckIsNoFolder(const std::string& path);

// Returns the path of a rank's metrics: `path` with the rank before the
// extension, "run/shard.prom" → "run/shard.rank0.prom".
std::string MetricsPath(std::string_view path, int rank);

// Returns `path` as seen from the root, for a host that changes its working
// directory later on; `path` itself where the working directory is not known.
std::string FromRoot(const std::string& path);

// Replaces the file at `path` by `text`. A reader sees the old text or the new
// one. The text is written to "PATH.tmp" first.
Status ReplaceFile(const std::string& path, std::string_view text);

}  // namespace shard

#endif  // SHARD_CORE_OBSERVE_METRICS_FILE_H_
