// SPDX-License-Identifier: Apache-2.0

#include "core/observe/metrics_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/strings.h"
#include "core/base/write_signals.h"

namespace shard {

namespace {

Status CheckIsNoFolder(const std::string& path) {
  struct stat facts;
  if (!path.ends_with('/') &&
      (::stat(path.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode))) {
    return Status();
  }
  return FailedPrecondition("the path of the metrics, '", path,
                            "', is a folder; name a file in it, such as "
                            "shard.prom");
}

}  // namespace

std::string MetricsPath(std::string_view path, int rank) {
  return BeforeExtension(path, StrCat(".rank", rank));
}

StatusOr<std::unique_ptr<MetricsFile>> MetricsFile::Open(
    const std::string& path, int rank) {
  SHARD_RETURN_IF_ERROR(CheckIsNoFolder(path));
  SHARD_ASSIGN_OR_RETURN(
      ClaimedFile file,
      ClaimFile("the metrics", FromRoot(MetricsPath(path, rank))));
  return std::unique_ptr<MetricsFile>(new MetricsFile(std::move(file)));
}

Status MetricsFile::Replace(std::string_view text) {
  const std::string temporary = StrCat(file_.path, ".tmp");
  const auto error = [&](std::string_view what) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return ErrnoStatus(StrCat(what, " the metrics '", file_.path, "'"), error);
  };
  // A link that somebody has put there is not followed.
  ::unlink(temporary.c_str());
  Fd fd(::open(temporary.c_str(),
               O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd.valid()) return error("opening");
  SetLock(fd.get(), FileLock::kClaim, F_WRLCK);
  while (!text.empty()) {
    const ssize_t count = WithoutSizeSignal(
        [&] { return ::write(fd.get(), text.data(), text.size()); });
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return error("writing");
    text.remove_prefix(static_cast<size_t>(count));
  }
  if (::rename(temporary.c_str(), file_.path.c_str()) != 0) {
    return error("replacing");
  }
  file_.fd = std::move(fd);  // The claim of the old file ends.
  return Status();
}

}  // namespace shard
