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

StatusOr<Mapping> MapMemory(int fd, size_t bytes) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  struct stat info {};
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(fd, &info) != 0 ||
      info.st_size < 0 || static_cast<size_t>(info.st_size) < bytes) {
    return Internal("a peer sent something that is not sealed memory of ",
                    bytes, " bytes");
  }
  return Mapping::Shared(fd, bytes);
}

Status CommitMemory(int fd, size_t begin, size_t bytes) {
  // Commits in pieces: an interrupted fallocate gives back all that it took, so
  // one large call under a host's interval timer might never end.
  constexpr size_t kPiece = size_t{64} << 20;
  for (size_t done = 0; done < bytes;) {
    const size_t size = std::min(bytes - done, kPiece);
    const int taken = WithoutSizeSignal([&] {
      return ::fallocate(fd, 0, static_cast<off_t>(begin + done),
                         static_cast<off_t>(size));
    });
    if (taken == 0) {
      done += size;
    } else if (errno != EINTR) {
      return ErrnoStatus(
          StrCat("taking ", FormatBytes(bytes), " of shared memory"), errno);
    }
  }
  return Status();
}

}  // namespace shard::shm
