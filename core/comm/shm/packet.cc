// SPDX-License-Identifier: Apache-2.0

#include "core/comm/shm/packet.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "core/base/strings.h"

namespace shard::shm {

namespace {

constexpr int kSliceMillis = 50;
constexpr size_t kMaxPacketBytes = 4096;
constexpr size_t kKernelFdsPerPacket = 253;  // SCM_MAX_FD

Status PeerGone() { return Unavailable("the connection was closed"); }

bool IsPeerGone(int error) {
  return error == EPIPE || error == ECONNRESET || error == ENOTCONN;
}

// Waits for `events` or a hang-up for at most one slice.
void Poll(int socket, short events, const Deadline& deadline) {
  pollfd entry{socket, events, 0};
  ::poll(&entry, 1, PollMillis(deadline, kSliceMillis));
}

}  // namespace

int PollMillis(const Deadline& deadline, int longest) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline.Remaining());
  return static_cast<int>(std::min<int64_t>(left.count(), longest));
}

Status Send(int socket, const void* data, size_t size,
            const std::vector<int>& fds, const Deadline& deadline) {
  iovec part{const_cast<void*>(data), size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFdsPerPacket * sizeof(int))]{};
  if (!fds.empty()) {
    const size_t bytes = fds.size() * sizeof(int);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(header), fds.data(), bytes);
  }
  for (;;) {
    if (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
      return Status();
    }
    if (errno == EINTR) continue;
    if (IsPeerGone(errno)) return PeerGone();
    // ETOOMANYREFS: too many descriptors of this user are in flight. Their
    // number falls as the other ranks receive; there is no event to poll for.
    const bool crowded = errno == ETOOMANYREFS;
    if (!crowded && errno != EAGAIN && errno != ENOBUFS) {
      return ErrnoStatus("sending to a peer", errno);
    }
    if (deadline.Expired()) return DeadlineExceeded("a peer does not receive");
    if (crowded) {
      ::poll(nullptr, 0, 1);
    } else {
      Poll(socket, POLLOUT, deadline);
    }
  }
}

StatusOr<Packet> ReceiveNow(int socket) {
  Packet packet;
  packet.bytes.resize(kMaxPacketBytes);
  // Reserved before, so that received descriptors are owned without an
  // allocation, which may fail.
  packet.fds.reserve(kKernelFdsPerPacket);
  iovec part{packet.bytes.data(), packet.bytes.size()};
  // Room for the most that any peer can send, so that only a lack of
  // descriptors truncates it.
  alignas(cmsghdr) char control[CMSG_SPACE(kKernelFdsPerPacket * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t size = 0;
  // A peer that closes with unread packets leaves ECONNRESET in front of the
  // packets that it had sent; reporting the error clears it.
  int resets = 0;
  do {
    size = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (size < 0 &&
           (errno == EINTR || (errno == ECONNRESET && ++resets < 2)));
  if (size < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return NotFound("no packet");
    if (IsPeerGone(errno)) return PeerGone();
    return ErrnoStatus("receiving from a peer", errno);
  }
  // Takes ownership of the descriptors before the packet is checked.
  bool no_room = (message.msg_flags & MSG_CTRUNC) != 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      packet.fds.emplace_back(fd);
      no_room = no_room || !packet.fds.back().valid();
    }
  }
  // Empty packets are never sent: this is the end.
  if (size == 0) return PeerGone();
  if (no_room) {
    return ResourceExhausted(
        "this process may not open more files (RLIMIT_NOFILE); raise it with "
        "'ulimit -n'");
  }
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return InvalidArgument("a packet of more than ", kMaxPacketBytes, " bytes");
  }
  packet.bytes.resize(static_cast<size_t>(size));
  return packet;
}

StatusOr<Packet> Receive(int socket, const Deadline& deadline,
                         const std::function<bool()>& give_up) {
  for (;;) {
    auto packet = ReceiveNow(socket);
    if (packet.ok() || packet.status().code() != StatusCode::kNotFound) {
      return packet;
    }
    if (give_up && give_up()) return Cancelled("the group has failed");
    if (deadline.Expired()) {
      return DeadlineExceeded("nothing came within ", deadline.seconds(), " s");
    }
    Poll(socket, POLLIN, deadline);
  }
}

}  // namespace shard::shm
