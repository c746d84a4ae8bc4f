// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/folder_point.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/fd.h"
#include "core/base/strings.h"

namespace shard::network {

namespace {

constexpr std::string_view kFirstLine = "libshard meeting 1\n";

// Longer than any address and name of a host.
constexpr size_t kMaxBytes = 1024;

std::string PathOf(const std::string& folder, std::string_view job,
                   uint32_t restart) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : job) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return StrCat(folder, "/shard-", FormatHex(hash), "-", restart, ".meeting");
}

StatusOr<std::string> TextOf(const std::string& path) {
  // Not blocking: the path may be that of a pipe.
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid() && errno == ENOENT) return NotFound(path, " is not there");
  if (!fd.valid()) return ErrnoStatus(StrCat("opening ", path), errno);
  std::string text(kMaxBytes + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got =
        ::read(fd.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(StrCat("reading ", path), errno);
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  text.resize(size);
  return text;
}

}  // namespace

FolderPoint::FolderPoint(const std::string& folder, std::string_view job,
                         uint32_t restart)
    : path_(PathOf(folder, job, restart)) {}

FolderPoint::~FolderPoint() {
  if (claimed_.empty()) return;
  // A user may have removed it, for a host that looked dead.
  const auto text = TextOf(path_);
  if (text.ok() && *text == claimed_) ::unlink(path_.c_str());
}

StatusOr<SocketAddress> FolderPoint::Read() {
  SHARD_ASSIGN_OR_RETURN(const std::string text, TextOf(path_));
  const auto wrong = [&] {
    return FailedPrecondition(path_,
                              " is no file of a meeting; remove it, or give "
                              "the job another folder");
  };
  const size_t lines = kFirstLine.size();
  if (text.size() > kMaxBytes ||
      text.substr(0, lines) != kFirstLine.substr(0, text.size())) {
    return wrong();
  }
  const size_t end = text.find('\n', lines);
  if (end == std::string::npos || text.back() != '\n' ||
      end + 1 == text.size()) {
    return Unavailable(path_, " is not written yet");
  }
  const auto point = ParseHostAndPort(text.substr(lines, end - lines));
  if (!point.ok()) return wrong();
  auto address = SocketAddress::Parse(point->host, point->port);
  if (!address.ok()) return wrong();
  master_ = text.substr(end + 1, text.size() - end - 2);
  return address;
}

Status FolderPoint::Claim(const SocketAddress& address, std::string_view name) {
  const Fd fd(::open(path_.c_str(),
                     O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                     0600));
  if (!fd.valid() && errno == EEXIST) {
    return AlreadyExists(path_, " is another host's");
  }
  if (!fd.valid() && errno == ENOENT) {
    return FailedPrecondition(
        "the folder of ", path_,
        " is not there; all hosts of a job must share it");
  }
  if (!fd.valid()) {
    return ErrnoStatus(
        StrCat("making ", path_, ", where the hosts of this job meet"), errno);
  }
  claimed_ = StrCat(kFirstLine, address.ToString(), "\n", name, "\n");
  const ssize_t size = ::write(fd.get(), claimed_.data(), claimed_.size());
  // Hosts that read over a network see the file once it is there.
  if (size == static_cast<ssize_t>(claimed_.size()) && ::fsync(fd.get()) == 0) {
    return Status();
  }
  const int error = size < 0 ? errno : ENOSPC;
  claimed_.clear();
  ::unlink(path_.c_str());
  return ErrnoStatus(StrCat("writing ", path_), error);
}

Status FolderPoint::Stale(std::string_view why) const {
  return FailedPrecondition(
      path_, " is left from a job that is gone, whose master on host ", master_,
      " does not answer (", why,
      "); remove the file, or give this job a name by job=, and a start of it "
      "another number by restart=");
}

}  // namespace shard::network
