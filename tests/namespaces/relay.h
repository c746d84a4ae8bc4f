// SPDX-License-Identifier: Apache-2.0
//
// A link that is worse than a cable: a relay between two interfaces, which
// delays packets and loses some. Not every kernel has netem, which does the
// same.

#ifndef SHARD_TESTS_NAMESPACES_RELAY_H_
#define SHARD_TESTS_NAMESPACES_RELAY_H_

#include <cstddef>
#include <string>

namespace shard::testing {

struct RelayOptions {
  double delay_seconds = 0;  // Of each packet, in each direction.
  double loss = 0;           // The part of the packets that is lost.
  // Packets of more bytes are lost, without a word, as where a tunnel with a
  // smaller MTU drops the ICMP messages that would tell. 0: none.
  size_t largest_packet = 0;
};

// Copies frames between two interfaces of this network for ever. Writes a byte
// to `ready` once it does, and returns only where it cannot.
void RunRelay(const std::string& a, const std::string& b,
              const RelayOptions& options, int ready);

}  // namespace shard::testing

#endif  // SHARD_TESTS_NAMESPACES_RELAY_H_
