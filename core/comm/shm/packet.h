// SPDX-License-Identifier: Apache-2.0
//
// Packets with file descriptors over Unix sockets (SOCK_SEQPACKET: a packet
// arrives whole or not at all, so that a stray peer's bytes cannot shift later
// ones). Every call has a deadline; none raises SIGPIPE; every descriptor
// received is owned, and closed on exec.

#ifndef SHARD_CORE_COMM_SHM_PACKET_H_
#define SHARD_CORE_COMM_SHM_PACKET_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/fd.h"
#include "core/base/status.h"

namespace shard::shm {

// The most descriptors of a packet that is sent.
inline constexpr size_t kMaxFdsPerPacket = 128;

struct Packet {
  std::string bytes;
  std::vector<Fd> fds;
};

// Sends a packet. kUnavailable when the peer is gone. REQUIRES: fds.size() <=
// kMaxFdsPerPacket.
Status Send(int socket, const void* data, size_t size,
            const std::vector<int>& fds, const Deadline& deadline);

// Receives a packet. kUnavailable when the peer is gone; kCancelled when
// `give_up`, called every 50 ms, returns true.
StatusOr<Packet> Receive(int socket, const Deadline& deadline,
                         const std::function<bool()>& give_up = nullptr);

// Receives a packet that is there already, else returns kNotFound.
StatusOr<Packet> ReceiveNow(int socket);

// Returns a timeout for poll() in milliseconds, rounded up so that a wait does
// not spin at its end.
int PollMillis(const Deadline& deadline, int longest);

}  // namespace shard::shm

#endif  // SHARD_CORE_COMM_SHM_PACKET_H_
