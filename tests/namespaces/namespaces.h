// SPDX-License-Identifier: Apache-2.0
//
// Hosts of a test as network namespaces of this machine. Each has one interface
// with an address of its own; a bridge joins them. A thread enters one, and
// what it opens and starts from then on is on that host: sockets, abstract
// names of Unix sockets, processes.

#ifndef SHARD_TESTS_NAMESPACES_NAMESPACES_H_
#define SHARD_TESTS_NAMESPACES_NAMESPACES_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/fd.h"
#include "core/base/status.h"
#include "tests/namespaces/relay.h"

namespace shard::testing {

class Namespaces {
 public:
  struct Traffic {
    uint64_t sent = 0;  // Bytes, with the headers of Ethernet, IP and TCP.
    uint64_t received = 0;
    // As the interface counts: large ones, if it may.
    uint64_t packets_sent = 0;
    uint64_t segments_resent = 0;  // TCP's, of at most 1,448 bytes.

    // Returns the bytes sent without the headers of Ethernet (14), IPv4 (20)
    // and TCP with its time stamps (32), and without what TCP has sent again:
    // about what it carries. Other packets and short segments make it less.
    uint64_t payload_sent() const {
      return sent - 66 * packets_sent - 1448 * segments_resent;
    }
  };

  // Makes `hosts` namespaces, at most 200. The first call of a process moves it
  // into a user namespace and a network of its own, and has to come from its
  // only thread. Errors where this machine does not allow that, with the cause.
  static StatusOr<std::unique_ptr<Namespaces>> Make(int hosts);

  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;
  ~Namespaces();

  // Moves the calling thread to a host. Processes that it forks are there too.
  Status Enter(int host) const;

  // Returns the path of a host's network, by which nsenter starts programs
  // there while this process lives.
  std::string Path(int host) const;

  // Returns the address of a host: "10.77.0.1" for host 0.
  static std::string Address(int host);

  // Runs a command of ip on a host: "link set eth0 down".
  Status Configure(int host, std::string_view command);

  // Holds what a host sends and receives to a rate of tc: "1gbit".
  Status LimitRate(int host, std::string_view rate);

  // Cuts a host off, or joins it again. No connection is reset: what is sent is
  // lost.
  Status CutLink(int host);
  Status JoinLink(int host);

  // Puts a relay between a host and the others, from now on. REQUIRES: the
  // link is joined, and has no relay.
  Status Relay(int host, const RelayOptions& options);

  // Returns the processes of a host.
  std::vector<pid_t> Processes(int host) const;

  // Returns the TCP sockets that processes of a host hold, as the lines of the
  // kernel's tables.
  StatusOr<std::string> ListSockets(int host) const;

  // Returns what a host has sent and received since it was made.
  StatusOr<Traffic> CountTraffic(int host) const;

 private:
  explicit Namespaces(int number) : number_(number) {}

  // The bridge's end of a host's link.
  std::string PortOf(int host) const;
  // The relay's end of the link that takes a port's place.
  std::string RelayOf(int host) const;

  const int number_;  // Tells this process' networks apart.
  std::vector<Fd> hosts_;
  std::map<int, pid_t> relays_;  // By host.
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_NAMESPACES_NAMESPACES_H_
