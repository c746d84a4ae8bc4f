// SPDX-License-Identifier: Apache-2.0
//
// LineFile: the file, or the standard error output, that lines of the log are
// appended to. Each line is one system call, so that the lines of several ranks
// do not mix. A line that cannot be written is dropped, and so is one for which
// the reader of a full pipe makes no room in 100 ms. Thread-safe.

#ifndef SHARD_CORE_OBSERVE_LINE_FILE_H_
#define SHARD_CORE_OBSERVE_LINE_FILE_H_

#include <string>
#include <string_view>
#include <utility>

#include "core/base/fd.h"
#include "core/base/status.h"

namespace shard {

class LineFile {
 public:
  // Opens the file at `path`; "" is the standard error output.
  static StatusOr<LineFile> Open(const std::string& path);

  // Appends `line`, which ends with a newline. Returns false for a line that is
  // dropped. `waits`: for the reader of a full pipe.
  bool Write(std::string_view line, bool waits) const;

 private:
  explicit LineFile(Fd fd) : fd_(std::move(fd)) {}

  Fd fd_;  // Not valid: the standard error output.
};

}  // namespace shard

#endif  // SHARD_CORE_OBSERVE_LINE_FILE_H_
