// SPDX-License-Identifier: Apache-2.0
//
// Addresses of hosts: names and how they are resolved, and the address by which
// a host takes part in a job.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_ADDRESS_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_ADDRESS_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/fd.h"
#include "core/base/status.h"
#include "core/comm/network/helper/loop.h"

namespace shard::network {

// An address of IPv4 or IPv6, with a port.
class SocketAddress {
 public:
  // The form in messages between hosts.
  struct Wire {
    uint8_t is_ipv6;
    uint8_t unused;
    uint16_t port;
    std::array<uint8_t, 16> bytes;  // Of IPv4 the first four.
  };

  SocketAddress() = default;  // Of no family.
  // REQUIRES: `address` is of AF_INET or AF_INET6.
  explicit SocketAddress(const sockaddr* address);

  // Parses a numeric address, without brackets. An IPv6 address may end with
  // the interface of a link ("fe80::1%eth0"). Looks up no name.
  static StatusOr<SocketAddress> Parse(const std::string& host, uint16_t port);
  static SocketAddress FromWire(const Wire& wire);
  Wire ToWire() const;

  // Return the address of a socket, or that of its peer.
  static StatusOr<SocketAddress> OfSocket(int socket);
  static StatusOr<SocketAddress> OfPeer(int socket);

  int family() const { return storage_.ss_family; }
  uint16_t port() const;
  void set_port(uint16_t port);
  bool loopback() const;
  bool wildcard() const;
  bool link_local() const;  // IPv6 only: other hosts cannot use the address.
  // Compares without ports.
  bool SameHost(const SocketAddress& other) const;

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage_);
  }
  socklen_t size() const {
    return family() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  }

  // Returns "10.0.0.2:29500" or "[fd00::2]:29500"; the other one "10.0.0.2" or
  // "fd00::2".
  std::string ToString() const;
  std::string HostText() const;

 private:
  sockaddr_storage storage_ = {};
};

struct HostAndPort {
  std::string host;  // Without brackets.
  uint16_t port;
};

// Parses "node-1:29500", "10.0.0.2:29500" or "[fd00::2]:29500".
StatusOr<HostAndPort> ParseHostAndPort(std::string_view text);

// A look-up of a host's name, which runs on a thread of its own: the resolver
// of the system can hang for minutes, and cannot be stopped.
class Resolution {
 public:
  using Addresses = StatusOr<std::vector<SocketAddress>>;
  using Done = std::function<void(Addresses)>;
  // Returns the addresses of a name. Tests replace that of the system.
  using Resolver = std::function<Addresses(const std::string&, uint16_t)>;

  // Begins a look-up. `done` is called from the loop, with the addresses in the
  // order in which they should be tried, or an error: kNotFound for a name that
  // is not known, kUnavailable where no name server answers, and
  // kDeadlineExceeded. A numeric address needs no thread.
  static StatusOr<std::unique_ptr<Resolution>> Start(
      Loop* loop, const std::string& host, uint16_t port,
      const Deadline& deadline, Done done, Resolver resolver = nullptr);
  // `done` is not called any more. The thread goes on by itself.
  ~Resolution();

 private:
  struct State;
  explicit Resolution(std::shared_ptr<State> state)
      : state_(std::move(state)) {}

  const std::shared_ptr<State> state_;
  Loop::Timer timer_;
};

// The user's choice of this host's address. Both may be empty; not both given.
struct LocalChoice {
  std::string interface;  // Such as "eth1".
  std::string address;    // Such as "10.0.0.2".
};

// Returns the address of this host, with port 0: the chosen one, else that from
// which `master` is reached. An interface with several addresses has those of
// the master's family tried first.
StatusOr<SocketAddress> ChooseLocalAddress(const LocalChoice& choice,
                                           const SocketAddress& master);

// Returns the address of this host for a master that other hosts are yet to
// find: the chosen one, else that from which a route leads out of this host;
// else that of its only interface; else that of loopback. kFailedPrecondition
// where it has several interfaces, and no route.
StatusOr<SocketAddress> ChooseMasterAddress(const LocalChoice& choice);

// Returns a listening socket, bound to exactly this address. The error is
// kNotFound where the address is not one of this host, and kAlreadyExists where
// the port is taken. Refuses wildcard addresses.
StatusOr<Fd> ListenAt(const SocketAddress& address);

// Returns a socket that connects to the address. Errors show at the socket.
StatusOr<Fd> ConnectTo(const SocketAddress& address);

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_ADDRESS_H_
