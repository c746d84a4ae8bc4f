// SPDX-License-Identifier: Apache-2.0

#include "core/comm/shm/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/strings.h"
#include "core/base/write_signals.h"

namespace shard::shm {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

// Allocates the pages of a range of `fd`, which is mapped at `data`.
//
// Ranks that populate their shares of one file do so side by side: each page is
// zeroed once, and already mapped when the rank first writes to it. fallocate
// alone holds the file's lock, so ranks take turns, and leaves every page to be
// zeroed and mapped in a page fault of its own.
Status Commit(int fd, std::byte* data, size_t begin, size_t bytes) {
  // Commits in pieces: an interrupted fallocate gives back all that it took, so
  // one large call under a host's interval timer might never end.
  constexpr size_t kPiece = size_t{64} << 20;
  const size_t end = begin + bytes;
  for (size_t at = begin; at < end;) {
    const size_t size = std::min(end - at, kPiece);
    // Where populating fails, fallocate commits the piece, or tells why not:
    // Linux before 5.14 cannot populate, and a file that cannot be filled is
    // EFAULT to madvise.
    const bool committed =
        ::madvise(data + at, size, MADV_POPULATE_WRITE) == 0 ||
        WithoutSizeSignal([&] {
          return ::fallocate(fd, 0, static_cast<off_t>(at),
                             static_cast<off_t>(size));
        }) == 0;
    if (committed) {
      at += size;
    } else if (errno != EINTR) {
      return ErrnoStatus(
          StrCat("taking ", FormatBytes(bytes), " of shared memory"), errno);
    }
  }
  return Status();
}

}  // namespace

StatusOr<Fd> CreateMemory(const char* label, size_t bytes) {
  Fd fd(::memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus("memfd_create", errno);
  const int sized = WithoutSizeSignal(
      [&] { return ::ftruncate(fd.get(), static_cast<off_t>(bytes)); });
  if (sized != 0) {
    return ErrnoStatus(StrCat("sizing shared memory to ", FormatBytes(bytes)),
                       errno);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return ErrnoStatus("sealing shared memory", errno);
  }
  return fd;
}

StatusOr<Mapping> MapMemory(int fd, size_t bytes, size_t commit_begin,
                            size_t commit_bytes) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  struct stat info {};
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(fd, &info) != 0 ||
      info.st_size < 0 || static_cast<size_t>(info.st_size) < bytes) {
    return Internal("a peer sent something that is not sealed memory of ",
                    bytes, " bytes");
  }
  SHARD_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Shared(fd, bytes));
  SHARD_RETURN_IF_ERROR(Commit(fd, mapping.data(), commit_begin, commit_bytes));
  return mapping;
}

}  // namespace shard::shm
