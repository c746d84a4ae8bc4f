// SPDX-License-Identifier: Apache-2.0

#include "core/observe/metrics_file.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/fd.h"
#include "core/base/strings.h"
#include "core/base/write_signals.h"

namespace shard {

Status CheckIsNoFolder(const std::string& path) {
  struct stat facts;
  if (!path.ends_with('/') &&
      (::stat(path.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode))) {
    return Status();
  }
  return FailedPrecondition("the metrics '", path,
                            "' are a folder; name a file in it, such as "
                            "shard.prom");
}

std::string MetricsPath(std::string_view path, int rank) {
  const size_t name = path.rfind('/') + 1;  // 0 without a slash.
  const size_t dot = path.rfind('.');
  // A leading dot begins the name of a hidden file, not an extension.
  const size_t at =
      dot == std::string_view::npos || dot <= name ? path.size() : dot;
  return StrCat(path.substr(0, at), ".rank", rank, path.substr(at));
}

std::string FromRoot(const std::string& path) {
  char folder[PATH_MAX];
  if (path.starts_with('/') || ::getcwd(folder, sizeof(folder)) == nullptr) {
    return path;
  }
  return StrCat(folder, "/", path);
}

Status ReplaceFile(const std::string& path, std::string_view text) {
  const std::string temporary = StrCat(path, ".tmp");
  const auto error = [&](std::string_view what) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return ErrnoStatus(StrCat(what, " the metrics '", path, "'"), error);
  };
  // A link that somebody has put there is not followed.
  ::unlink(temporary.c_str());
  const Fd fd(::open(temporary.c_str(),
                     O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                     0666));
  if (!fd.valid()) return error("opening");
  while (!text.empty()) {
    const ssize_t count = WithoutSizeSignal(
        [&] { return ::write(fd.get(), text.data(), text.size()); });
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return error("writing");
    text.remove_prefix(static_cast<size_t>(count));
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) return error("replacing");
  return Status();
}

}  // namespace shard
