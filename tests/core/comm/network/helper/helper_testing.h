// SPDX-License-Identifier: Apache-2.0
//
// What the tests of network helpers share: loops that run until something is
// true, sockets of strangers, and whole hosts on threads.

#ifndef SHARD_TESTS_CORE_COMM_NETWORK_HELPER_HELPER_TESTING_H_
#define SHARD_TESTS_CORE_COMM_NETWORK_HELPER_HELPER_TESTING_H_

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/fd.h"
#include "core/base/strings.h"
#include "core/comm/network/helper/address.h"
#include "core/comm/network/helper/handshake.h"
#include "core/comm/network/helper/loop.h"
#include "tests/core/base/expect_status.h"

namespace shard::network {

inline std::unique_ptr<Loop> MakeLoop() {
  auto loop = Loop::Create();
  EXPECT_OK(loop);
  return *std::move(loop);
}

// Runs the loop until `condition` holds. Returns false after `seconds`.
inline bool RunUntil(Loop* loop, const std::function<bool()>& condition,
                     double seconds = 30) {
  const Deadline deadline = Deadline::After(seconds);
  while (!condition()) {
    if (deadline.Expired()) return false;
    const Status status =
        loop->RunOnce(Deadline::After(std::min(0.05, seconds)));
    EXPECT_OK(status);
    if (!status.ok()) return false;
  }
  return true;
}

inline void RunFor(Loop* loop, double seconds) {
  RunUntil(
      loop, [] { return false; }, seconds);
}

inline SocketAddress Loopback(uint16_t port = 0) {
  return *SocketAddress::Parse("127.0.0.1", port);
}

inline bool HasIpv6() { return ListenAt(*SocketAddress::Parse("::1", 0)).ok(); }

// Returns a port at which nobody listens.
inline uint16_t FreePort(const char* host = "127.0.0.1") {
  const auto socket = ListenAt(*SocketAddress::Parse(host, 0));
  EXPECT_OK(socket);
  return SocketAddress::OfSocket(socket->get())->port();
}

inline Identity MakeIdentity(std::string_view secret = "a secret") {
  Identity identity{
      .job_id = "job-17", .restart = 3, .library_version = "1.2.3"};
  if (!secret.empty()) identity.secret = *Secret::FromText(secret);
  return identity;
}

inline std::shared_ptr<const Identity> Share(Identity identity) {
  return std::make_shared<const Identity>(std::move(identity));
}

// A stranger's blocking socket.
class Stranger {
 public:
  explicit Stranger(const SocketAddress& address)
      : fd_(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    connected_ = ::connect(fd_.get(), address.get(), address.size()) == 0;
  }
  explicit Stranger(Fd fd) : fd_(std::move(fd)), connected_(true) {}

  bool connected() const { return connected_; }
  int get() const { return fd_.get(); }
  bool Send(std::string_view bytes) {
    return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // Returns exactly so many bytes, or less at the end of the connection.
  std::string Receive(size_t count) {
    std::string bytes(count, '\0');
    size_t size = 0;
    while (size < count) {
      const ssize_t got =
          ::recv(fd_.get(), bytes.data() + size, count - size, 0);
      if (got <= 0) break;
      size += static_cast<size_t>(got);
    }
    bytes.resize(size);
    return bytes;
  }
  // Returns true when the peer has ended the connection.
  bool Ended() {
    char bytes[512];
    for (;;) {
      const ssize_t size =
          ::recv(fd_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      if (size > 0) continue;
      return size == 0 || errno != EAGAIN;
    }
  }

 private:
  Fd fd_;
  bool connected_ = false;
};

}  // namespace shard::network

#endif  // SHARD_TESTS_CORE_COMM_NETWORK_HELPER_HELPER_TESTING_H_
