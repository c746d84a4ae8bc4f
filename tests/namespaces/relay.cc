// SPDX-License-Identifier: Apache-2.0

#include "tests/namespaces/relay.h"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fd.h"

namespace shard::testing {
namespace {

using Clock = std::chrono::steady_clock;

// Before each frame is a virtio_net_hdr, whose header C++ cannot read. It says
// what the sender has left to the device: a checksum.
constexpr size_t kHead = 10;
constexpr size_t kLargest = kHead + ETH_HLEN + 65'536;
// The packets that may wait: as many as a long link holds, and no more.
constexpr size_t kMostWaiting = 100'000;
constexpr int kReceiveBytes = 16 << 20;

struct Frame {
  Clock::time_point due;
  int to = 0;
  std::string bytes;
};

// Returns a socket for all frames that come to an interface, and for any to
// send; none where there can be none.
Fd Open(const std::string& interface) {
  Fd fd(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(::if_nametoindex(interface.c_str()));
  if (::setsockopt(fd.get(), SOL_PACKET, PACKET_IGNORE_OUTGOING, &on,
                   sizeof(on)) != 0 ||
      ::setsockopt(fd.get(), SOL_PACKET, PACKET_VNET_HDR, &on, sizeof(on)) !=
          0 ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address),
             sizeof(address)) != 0) {
    fd.Reset();
  }
  // As much as this user may have: packets beyond are lost, as in any network.
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &kReceiveBytes,
               sizeof(kReceiveBytes));
  return fd;
}

class Relay {
 public:
  Relay(std::array<Fd, 2> ends, const RelayOptions& options)
      : ends_(std::move(ends)), options_(options) {}

  [[noreturn]] void Run() {
    for (;;) {
      const auto now = Clock::now();
      for (; !waiting_.empty() && waiting_.front().due <= now;
           waiting_.pop_front()) {
        const Frame& frame = waiting_.front();
        // A packet for which there is no room is lost, as in any network.
        (void)::send(ends_[static_cast<size_t>(frame.to)].get(),
                     frame.bytes.data(), frame.bytes.size(), 0);
      }
      Wait();
      for (int from : {0, 1}) ReadFrom(from);
    }
  }

 private:
  void Wait() {
    timespec left{};
    if (!waiting_.empty()) {
      const auto nanos =
          std::chrono::duration_cast<std::chrono::nanoseconds>(std::max(
              Clock::duration::zero(), waiting_.front().due - Clock::now()));
      left.tv_sec = nanos.count() / 1'000'000'000;
      left.tv_nsec = nanos.count() % 1'000'000'000;
    }
    pollfd entries[] = {{ends_[0].get(), POLLIN, 0},
                        {ends_[1].get(), POLLIN, 0}};
    ::ppoll(entries, 2, waiting_.empty() ? nullptr : &left, nullptr);
  }

  void ReadFrom(int from) {
    const auto due = Clock::now() +
                     std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(options_.delay_seconds));
    for (;;) {
      const ssize_t size = ::recv(ends_[static_cast<size_t>(from)].get(),
                                  buffer_.data(), buffer_.size(), 0);
      if (size < static_cast<ssize_t>(kHead + ETH_HLEN)) return;
      const auto bytes = static_cast<size_t>(size);
      if (options_.largest_packet > 0 &&
          bytes > kHead + ETH_HLEN + options_.largest_packet) {
        continue;
      }
      if (std::uniform_real_distribution<>()(random_) < options_.loss ||
          waiting_.size() >= kMostWaiting) {
        continue;
      }
      waiting_.push_back({due, 1 - from, std::string(buffer_.data(), bytes)});
    }
  }

  const std::array<Fd, 2> ends_;
  const RelayOptions options_;
  std::mt19937 random_{19};
  std::vector<char> buffer_ = std::vector<char>(kLargest);
  std::deque<Frame> waiting_;  // In the order of their times.
};

}  // namespace

void RunRelay(const std::string& a, const std::string& b,
              const RelayOptions& options, int ready) {
  std::array<Fd, 2> ends = {Open(a), Open(b)};
  if (!ends[0].valid() || !ends[1].valid() || ::write(ready, "", 1) != 1) {
    return;
  }
  Relay(std::move(ends), options).Run();
}

}  // namespace shard::testing
