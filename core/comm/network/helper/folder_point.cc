// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/folder_point.h"

#include <fcntl.h>
#include <sodium.h>
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

// Checks that only this user, or root, can have written a file.
Status CheckOwner(int fd, const std::string& path) {
  struct stat file {};
  if (::fstat(fd, &file) != 0) {
    return ErrnoStatus(StrCat("looking at ", path), errno);
  }
  const char* const remedy =
      "; set SHARD_TOKEN or secret_file, by which the hosts of a job know each "
      "other, or give the job a folder of its own";
  if (file.st_uid != ::geteuid() && file.st_uid != 0) {
    return PermissionDenied(path, " belongs to user ", file.st_uid,
                            ", not to this process's, ",
                            static_cast<uint64_t>(::geteuid()), remedy);
  }
  if ((file.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return PermissionDenied("other users may write to ", path, remedy);
  }
  return Status();
}

StatusOr<std::string> TextOf(const std::string& path, bool check_owner) {
  // Not blocking: the path may be that of a pipe.
  const Fd fd(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (!fd.valid() && errno == ENOENT) return NotFound(path, " is not there");
  if (!fd.valid()) return ErrnoStatus(StrCat("opening ", path), errno);
  if (check_owner) SHARD_RETURN_IF_ERROR(CheckOwner(fd.get(), path));
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

// Writes a file that is not there, so that hosts which read it over a network
// see all of it.
Status WriteNew(const std::string& path, std::string_view text) {
  const Fd fd(::open(path.c_str(),
                     O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                     0600));
  if (!fd.valid() && errno == ENOENT) {
    return FailedPrecondition(
        "the folder of ", path,
        " is not there; all hosts of a job must share it");
  }
  if (!fd.valid()) {
    return ErrnoStatus(
        StrCat("making ", path, ", where the hosts of this job meet"), errno);
  }
  const ssize_t size = ::write(fd.get(), text.data(), text.size());
  const bool is_cut = size >= 0 && size < static_cast<ssize_t>(text.size());
  if (size >= 0 && !is_cut && ::fsync(fd.get()) == 0) return Status();
  const int error = is_cut ? ENOSPC : errno;
  ::unlink(path.c_str());
  return ErrnoStatus(StrCat("writing ", path), error);
}

}  // namespace

FolderPoint::FolderPoint(const std::string& folder, std::string_view job,
                         uint32_t restart, bool has_secret)
    : path_(PathOf(folder, job, restart)), has_secret_(has_secret) {}

FolderPoint::~FolderPoint() {
  if (claimed_.empty()) return;
  // A user may have removed it, for a host that looked dead.
  const auto text = TextOf(path_, /*check_owner=*/false);
  if (text.ok() && *text == claimed_) ::unlink(path_.c_str());
}

StatusOr<SocketAddress> FolderPoint::Read() {
  SHARD_ASSIGN_OR_RETURN(const std::string text, TextOf(path_, !has_secret_));
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
    return wrong();
  }
  const auto point = ParseHostAndPort(text.substr(lines, end - lines));
  if (!point.ok()) return wrong();
  auto address = SocketAddress::Parse(point->host, point->port);
  if (!address.ok()) return wrong();
  master_ = text.substr(end + 1, text.size() - end - 2);
  return address;
}

Status FolderPoint::Claim(const SocketAddress& address, std::string_view name) {
  const std::string text =
      StrCat(kFirstLine, address.ToString(), "\n", name, "\n");
  uint64_t number = 0;
  ::randombytes_buf(&number, sizeof(number));
  const std::string own = StrCat(path_, ".", FormatHex(number));
  SHARD_RETURN_IF_ERROR(WriteNew(own, text));
  int error = ::link(own.c_str(), path_.c_str()) == 0 ? 0 : errno;
  // The answer of a server may be lost, and the link be asked for again.
  struct stat file {};
  if (error == EEXIST && ::stat(own.c_str(), &file) == 0 &&
      file.st_nlink == 2) {
    error = 0;
  }
  ::unlink(own.c_str());
  if (error == 0) {
    claimed_ = text;
    return Status();
  }
  if (error == EEXIST) return AlreadyExists(path_, " is another host's");
  return ErrnoStatus(StrCat("linking ", path_,
                            ", where the hosts of this job meet (a file system "
                            "without hard links cannot be used)"),
                     error);
}

Status FolderPoint::Stale(std::string_view why) const {
  return FailedPrecondition(
      path_, " is left from a job that is gone, whose master on host ", master_,
      " does not answer (", why,
      "); remove the file, or give this job a name by job=, and a start of it "
      "another number by restart=");
}

}  // namespace shard::network
