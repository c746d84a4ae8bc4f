// SPDX-License-Identifier: Apache-2.0

#include "core/observe/rank_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/strings.h"
#include "core/base/write_signals.h"

namespace shard {

namespace {

Status CheckIsNoFolder(std::string_view what, std::string_view example,
                       const std::string& path) {
  struct stat facts;
  if (!path.ends_with('/') &&
      (::stat(path.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode))) {
    return Status();
  }
  return FailedPrecondition("the path of ", what, ", '", path,
                            "', is a folder; name a file in it, such as ",
                            example);
}

}  // namespace

std::string RankPath(std::string_view path, int rank) {
  return BeforeExtension(path, StrCat(".rank", rank));
}

StatusOr<std::unique_ptr<RankFile>> RankFile::Open(std::string_view what,
                                                   std::string_view example,
                                                   const std::string& path,
                                                   int rank) {
  SHARD_RETURN_IF_ERROR(CheckIsNoFolder(what, example, path));
  SHARD_ASSIGN_OR_RETURN(ClaimedFile file,
                         ClaimFile(what, FromRoot(RankPath(path, rank))));
  return std::unique_ptr<RankFile>(new RankFile(what, std::move(file)));
}

Status RankFile::Replace(std::string_view text) {
  const std::string temporary = StrCat(file_.path, ".tmp");
  const auto error = [&](std::string_view doing) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return ErrnoStatus(StrCat(doing, " ", what_, " '", file_.path, "'"), error);
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
