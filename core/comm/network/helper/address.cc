// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"

namespace shard::network {

namespace {

const sockaddr_in& AsIpv4(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in&>(storage);
}
const sockaddr_in6& AsIpv6(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in6&>(storage);
}

// The interfaces of this host, one entry for each of their addresses.
class Interfaces {
 public:
  static StatusOr<Interfaces> List() {
    Interfaces result;
    ifaddrs* first = nullptr;
    if (::getifaddrs(&first) != 0) {
      return ErrnoStatus("listing the network interfaces", errno);
    }
    result.first_.reset(first);
    return result;
  }

  const ifaddrs* first() const { return first_.get(); }

  static bool HasAddress(const ifaddrs& entry) {
    return entry.ifa_addr != nullptr && (entry.ifa_addr->sa_family == AF_INET ||
                                         entry.ifa_addr->sa_family == AF_INET6);
  }

  bool Have(const SocketAddress& address) const {
    for (const ifaddrs* entry = first(); entry; entry = entry->ifa_next) {
      if (HasAddress(*entry) &&
          SocketAddress(entry->ifa_addr).SameHost(address)) {
        return true;
      }
    }
    return false;
  }

  // Returns the names of the interfaces by which other hosts may reach this
  // one.
  std::vector<std::string> Reachable() const {
    std::vector<std::string> names;
    for (const ifaddrs* entry = first(); entry; entry = entry->ifa_next) {
      if (!HasAddress(*entry) || (entry->ifa_flags & IFF_UP) == 0) continue;
      const SocketAddress address(entry->ifa_addr);
      if (address.loopback() || address.link_local()) continue;
      if (std::find(names.begin(), names.end(), entry->ifa_name) ==
          names.end()) {
        names.push_back(entry->ifa_name);
      }
    }
    return names;
  }

 private:
  struct Free {
    void operator()(ifaddrs* first) const { ::freeifaddrs(first); }
  };
  std::unique_ptr<ifaddrs, Free> first_;
};

StatusOr<SocketAddress> AddressOfInterface(const std::string& name,
                                           int family) {
  SHARD_ASSIGN_OR_RETURN(const Interfaces interfaces, Interfaces::List());
  std::string known;
  bool exists = false;
  bool up = false;
  SocketAddress found;
  for (const ifaddrs* entry = interfaces.first(); entry;
       entry = entry->ifa_next) {
    if (entry->ifa_addr && entry->ifa_addr->sa_family == AF_PACKET) {
      StrAppend(&known, known.empty() ? "" : ", ", entry->ifa_name);
    }
    if (name != entry->ifa_name) continue;
    exists = true;
    up = up || (entry->ifa_flags & IFF_UP) != 0;
    if (!Interfaces::HasAddress(*entry)) continue;
    const SocketAddress address(entry->ifa_addr);
    if (address.link_local()) continue;
    const bool better = address.family() == family && found.family() != family;
    if (found.family() == AF_UNSPEC || better) found = address;
  }
  if (!exists) {
    return NotFound("this host has no interface ", name, "; it has ", known);
  }
  if (!up) {
    return Unavailable("the interface ", name, " is down; `ip link set ", name,
                       " up` enables it");
  }
  if (found.family() == AF_UNSPEC) {
    return NotFound("the interface ", name,
                    " has no address that other hosts can reach; `ip address "
                    "show ",
                    name, "` lists its addresses");
  }
  found.set_port(0);
  return found;
}

// Returns the address from which the kernel would send to `master`. A datagram
// socket that connects sends nothing.
StatusOr<SocketAddress> AddressTowards(const SocketAddress& master) {
  const Fd socket(
      ::socket(master.family(), SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return ErrnoStatus("opening a socket", errno);
  if (::connect(socket.get(), master.get(), master.size()) != 0) {
    return Unavailable("this host has no route to ", master.HostText(), ": ",
                       ErrnoStatus("connecting", errno).message(),
                       "; interface= or address= choose another one");
  }
  SHARD_ASSIGN_OR_RETURN(SocketAddress local,
                         SocketAddress::OfSocket(socket.get()));
  local.set_port(0);
  return local;
}

}  // namespace

SocketAddress::SocketAddress(const sockaddr* address) {
  std::memcpy(&storage_, address,
              address->sa_family == AF_INET ? sizeof(sockaddr_in)
                                            : sizeof(sockaddr_in6));
}

StatusOr<SocketAddress> SocketAddress::Parse(const std::string& host,
                                             uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) {
    return InvalidArgument("\"", host, "\" is no IPv4 or IPv6 address");
  }
  SocketAddress address(found->ai_addr);
  ::freeaddrinfo(found);
  address.set_port(port);
  return address;
}

SocketAddress SocketAddress::FromWire(const Wire& wire) {
  SocketAddress address;
  if (wire.is_ipv6 != 0) {
    auto& ipv6 = reinterpret_cast<sockaddr_in6&>(address.storage_);
    ipv6.sin6_family = AF_INET6;
    std::memcpy(&ipv6.sin6_addr, wire.bytes.data(), sizeof(ipv6.sin6_addr));
  } else {
    auto& ipv4 = reinterpret_cast<sockaddr_in&>(address.storage_);
    ipv4.sin_family = AF_INET;
    std::memcpy(&ipv4.sin_addr, wire.bytes.data(), sizeof(ipv4.sin_addr));
  }
  address.set_port(wire.port);
  return address;
}

SocketAddress::Wire SocketAddress::ToWire() const {
  Wire wire{};
  wire.port = port();
  if (family() == AF_INET6) {
    wire.is_ipv6 = 1;
    std::memcpy(wire.bytes.data(), &AsIpv6(storage_).sin6_addr, 16);
  } else {
    std::memcpy(wire.bytes.data(), &AsIpv4(storage_).sin_addr, 4);
  }
  return wire;
}

StatusOr<SocketAddress> SocketAddress::OfSocket(int socket) {
  SocketAddress address;
  socklen_t size = sizeof(address.storage_);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage_),
                    &size) != 0) {
    return ErrnoStatus("asking for the address of a socket", errno);
  }
  return address;
}

StatusOr<SocketAddress> SocketAddress::OfPeer(int socket) {
  SocketAddress address;
  socklen_t size = sizeof(address.storage_);
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address.storage_),
                    &size) != 0) {
    return ErrnoStatus("asking for the address of a peer", errno);
  }
  return address;
}

uint16_t SocketAddress::port() const {
  return ntohs(family() == AF_INET6 ? AsIpv6(storage_).sin6_port
                                    : AsIpv4(storage_).sin_port);
}

void SocketAddress::set_port(uint16_t port) {
  if (family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(storage_).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(storage_).sin_port = htons(port);
  }
}

bool SocketAddress::loopback() const {
  if (family() == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&AsIpv6(storage_).sin6_addr);
  }
  return ntohl(AsIpv4(storage_).sin_addr.s_addr) >> 24 == 127;
}

bool SocketAddress::wildcard() const {
  if (family() == AF_INET6) {
    const in6_addr& address = AsIpv6(storage_).sin6_addr;
    // "::ffff:0.0.0.0" binds all addresses of IPv4.
    return IN6_IS_ADDR_UNSPECIFIED(&address) ||
           (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr32[3] == 0);
  }
  return AsIpv4(storage_).sin_addr.s_addr == INADDR_ANY;
}

bool SocketAddress::link_local() const {
  return family() == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&AsIpv6(storage_).sin6_addr);
}

bool SocketAddress::SameHost(const SocketAddress& other) const {
  if (family() != other.family()) return false;
  if (family() == AF_INET6) {
    return IN6_ARE_ADDR_EQUAL(&AsIpv6(storage_).sin6_addr,
                              &AsIpv6(other.storage_).sin6_addr);
  }
  return AsIpv4(storage_).sin_addr.s_addr ==
         AsIpv4(other.storage_).sin_addr.s_addr;
}

std::string SocketAddress::HostText() const {
  char text[INET6_ADDRSTRLEN] = "";
  const void* bytes =
      family() == AF_INET6
          ? static_cast<const void*>(&AsIpv6(storage_).sin6_addr)
          : &AsIpv4(storage_).sin_addr;
  if (family() == AF_UNSPEC) return "no address";
  ::inet_ntop(family(), bytes, text, sizeof(text));
  return text;
}

std::string SocketAddress::ToString() const {
  if (family() == AF_INET6) return StrCat("[", HostText(), "]:", port());
  return StrCat(HostText(), ":", port());
}

StatusOr<HostAndPort> ParseHostAndPort(std::string_view text) {
  const auto wrong = [text](std::string_view why) {
    return InvalidArgument("\"", text, "\" ", why,
                           "; allowed are HOST:PORT and [IPV6]:PORT, such as "
                           "node-1:29500");
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong("has no port");
  std::string_view host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":[]") != std::string_view::npos) {
    return wrong("has an IPv6 address without brackets");
  }
  if (host.empty()) return wrong("has no host");
  const auto port = ParseInt(text.substr(colon + 1));
  if (!port || *port < 1 || *port > 65535) {
    return wrong("has no port from 1 to 65535");
  }
  return HostAndPort{std::string(host), static_cast<uint16_t>(*port)};
}

StatusOr<SocketAddress> ChooseLocalAddress(const LocalChoice& choice,
                                           const SocketAddress& master) {
  if (!choice.interface.empty() && !choice.address.empty()) {
    return InvalidArgument("both interface=", choice.interface,
                           " and address=", choice.address,
                           " are given; one of them chooses the address");
  }
  if (!choice.interface.empty()) {
    return AddressOfInterface(choice.interface, master.family());
  }
  if (choice.address.empty()) {
    SHARD_ASSIGN_OR_RETURN(const SocketAddress local, AddressTowards(master));
    if (local.link_local()) {
      return InvalidArgument(
          "the master is reached from ", local.HostText(),
          ", which is valid on one link only; interface= or address= choose "
          "another address");
    }
    return local;
  }
  SHARD_ASSIGN_OR_RETURN(const SocketAddress chosen,
                         SocketAddress::Parse(choice.address, 0));
  if (chosen.wildcard()) {
    return InvalidArgument("address=", choice.address,
                           " is that of all interfaces; give the address by "
                           "which the other hosts reach this one");
  }
  SHARD_ASSIGN_OR_RETURN(const Interfaces interfaces, Interfaces::List());
  if (!chosen.loopback() && !interfaces.Have(chosen)) {
    return NotFound("address=", choice.address,
                    " is not an address of this host; `ip address` lists them");
  }
  return chosen;
}

StatusOr<SocketAddress> ChooseMasterAddress(const LocalChoice& choice) {
  // No host has this address, which RFC 5737 keeps for documents: the default
  // route leads to it. Nothing is sent.
  SHARD_ASSIGN_OR_RETURN(const SocketAddress elsewhere,
                         SocketAddress::Parse("192.0.2.1", 9));
  auto routed = ChooseLocalAddress(choice, elsewhere);
  if (routed.ok() || !choice.interface.empty() || !choice.address.empty()) {
    return routed;
  }
  SHARD_ASSIGN_OR_RETURN(const Interfaces interfaces, Interfaces::List());
  const std::vector<std::string> names = interfaces.Reachable();
  if (names.empty()) return SocketAddress::Parse("127.0.0.1", 0);
  if (names.size() == 1) return AddressOfInterface(names.front(), AF_INET);
  std::string list;
  for (const std::string& name : names) {
    StrAppend(&list, list.empty() ? "" : ", ", name);
  }
  return FailedPrecondition(
      "no route leads out of this host, and it has the interfaces ", list,
      "; interface= names the one by which the other hosts reach it");
}

StatusOr<Fd> ListenAt(const SocketAddress& address) {
  if (address.wildcard()) {
    return InvalidArgument("listening at ", address.ToString(),
                           " would listen on every interface; name one "
                           "address of this host");
  }
  Fd socket(::socket(address.family(),
                     SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return ErrnoStatus("opening a socket", errno);
  const int on = 1;
  // Connections of an earlier job may still be in TIME_WAIT.
  if (::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on))) {
    return ErrnoStatus("setting SO_REUSEADDR", errno);
  }
  // With SO_REUSEADDR it may be listen() that finds the port taken.
  if (::bind(socket.get(), address.get(), address.size()) == 0) {
    // Where net.ipv4.ip_nonlocal_bind is set, bind() takes every address.
    SHARD_ASSIGN_OR_RETURN(const Interfaces interfaces, Interfaces::List());
    if (!address.loopback() && !interfaces.Have(address)) {
      errno = EADDRNOTAVAIL;
    } else if (::listen(socket.get(), 4096) == 0) {
      return socket;
    }
  }
  if (errno == EADDRNOTAVAIL) {
    return NotFound(address.HostText(), " is not an address of this host");
  }
  if (errno == EADDRINUSE && address.port() == 0) {
    return ResourceExhausted(
        "no port of ", address.HostText(),
        " is free of those in net.ipv4.ip_local_port_range; `ss -tan` lists "
        "who has them, and `sysctl` sets a wider range");
  }
  if (errno == EADDRINUSE) {
    return AlreadyExists("port ", address.port(), " of ", address.HostText(),
                         " is taken; `ss -ltnp 'sport = :", address.port(),
                         "'` names the process");
  }
  if (errno == EACCES) {
    return PermissionDenied("listening at ", address.ToString(),
                            " is not allowed; take a port of 1024 or more");
  }
  return ErrnoStatus(StrCat("listening at ", address.ToString()), errno);
}

StatusOr<Fd> ConnectTo(const SocketAddress& address) {
  Fd socket(::socket(address.family(),
                     SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return ErrnoStatus("opening a socket", errno);
  if (::connect(socket.get(), address.get(), address.size()) != 0 &&
      errno != EINPROGRESS && errno != EINTR) {
    return Unavailable("connecting to ", address.ToString(), ": ",
                       ErrnoStatus("connect", errno).message());
  }
  return socket;
}

}  // namespace shard::network
