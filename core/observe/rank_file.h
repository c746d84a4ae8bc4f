// SPDX-License-Identifier: Apache-2.0
//
// RankFile: a file of one rank, its metrics or its dump, which this rank alone
// writes. A second communicator of the same rank and path, in this process or
// another, has the next file of the series: see file_claim.h. Threads: one at a
// time.

#ifndef SHARD_CORE_OBSERVE_RANK_FILE_H_
#define SHARD_CORE_OBSERVE_RANK_FILE_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/status.h"
#include "core/observe/file_claim.h"

namespace shard {

// Returns the path of a rank's file: `path` with the rank before the extension,
// "run/shard.prom" → "run/shard.rank0.prom".
std::string RankPath(std::string_view path, int rank);

class RankFile {
 public:
  // Claims the file of `rank`, which stays where it is when the host changes
  // its working directory. `what` stands for the file in errors, "the metrics",
  // and outlives it. kFailedPrecondition for a path of a folder, beside which
  // the ranks would write; `example` is the name of a file.
  static StatusOr<std::unique_ptr<RankFile>> Open(std::string_view what,
                                                  std::string_view example,
                                                  const std::string& path,
                                                  int rank);

  const std::string& path() const { return file_.path; }
  int number() const { return file_.number; }

  // Replaces the contents by `text`. A reader sees the old text or the new one:
  // the text is written to "PATH.tmp" first.
  Status Replace(std::string_view text);

 private:
  RankFile(std::string_view what, ClaimedFile file)
      : what_(what), file_(std::move(file)) {}

  const std::string_view what_;
  ClaimedFile file_;
};

}  // namespace shard

#endif  // SHARD_CORE_OBSERVE_RANK_FILE_H_
