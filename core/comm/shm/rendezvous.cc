// SPDX-License-Identifier: Apache-2.0

#include "core/comm/shm/rendezvous.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "core/base/strings.h"
#include "core/comm/direct/control_block.h"
#include "core/comm/shm/memfd.h"

namespace shard::shm {

Status CheckName(std::string_view name) {
  if (name.empty()) {
    return InvalidArgument(
        "shm: needs the name of the group, such as shm:job-17");
  }
  if (name.size() > kMaxNameBytes) {
    return InvalidArgument("the name in shm:", name, " has ", name.size(),
                           " bytes; at most ", kMaxNameBytes, " are possible");
  }
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      return InvalidArgument(
          "the name of a shm: group has a control "
          "character (byte ",
          static_cast<int>(byte), ")");
    }
  }
  return Status();
}

Address AddressOf(std::string_view name) {
  const std::string path =
      StrCat("libshard-", static_cast<uint64_t>(::geteuid()), "-", name);
  static_assert(sizeof("libshard-4294967295-") + kMaxNameBytes <
                sizeof(sockaddr_un::sun_path));
  Address result{};
  result.address.sun_family = AF_UNIX;
  // sun_path[0] stays NUL: the abstract namespace, which leaves no file.
  std::memcpy(result.address.sun_path + 1, path.data(), path.size());
  result.size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
  return result;
}

Status MapControlBlock(const Fd& memory, const RendezvousOptions& options,
                       Rendezvous* rendezvous) {
  const size_t bytes = direct::ControlBlock::Bytes(options.world_size);
  SHARD_ASSIGN_OR_RETURN(rendezvous->control,
                         MapMemory(memory.get(), bytes, 0, bytes));
  rendezvous->membership =
      direct::Membership(rendezvous->block(), options.rank);
  return Status();
}

StatusOr<pid_t> CheckPeer(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return ErrnoStatus("asking who is at the other end of a socket", errno);
  }
  if (peer.uid != ::geteuid()) {
    return PermissionDenied("process ", peer.pid,
                            " at the rendezvous point is "
                            "of user ",
                            peer.uid, ", this one of user ",
                            static_cast<uint64_t>(::geteuid()));
  }
  return peer.pid;
}

StatusOr<Fd> OwnPidfd() {
  // By number: glibc has a wrapper only since 2.36. A pidfd is closed on exec.
  Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!fd.valid() && (errno == EMFILE || errno == ENFILE)) {
    return ErrnoStatus("pidfd_open", errno);
  }
  return fd;
}

}  // namespace shard::shm
