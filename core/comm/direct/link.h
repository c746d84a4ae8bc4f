// SPDX-License-Identifier: Apache-2.0
//
// Link: how tensors pass between ranks. It makes ranks that share memory behave
// as if they did not, with a link of limited speed: the parameters of
// `?direct=0`, see OpenCommunicator.

#ifndef SHARD_CORE_COMM_DIRECT_LINK_H_
#define SHARD_CORE_COMM_DIRECT_LINK_H_

#include <cstddef>
#include <string>

#include "core/comm/direct/host_chain.h"

namespace shard::direct {

struct Link {
  bool direct = true;  // The ranks see each other's memory.
  // Where they do not: those of a host share memory that they allocate for the
  // host.
  bool shares_host = false;
  double delay = 0;      // Seconds per tensor collective.
  double bandwidth = 0;  // Bytes/s of a rank and direction; 0: no limit.
  // How hosts sum gradients; the same on all ranks.
  HostSums sums = HostSums::kFewestBytes;

  // Returns the least duration of a tensor collective. REQUIRES: delay and
  // bandwidth are finite and not negative.
  double Seconds(size_t sent_bytes) const;

  // Returns "", or the text to append to the description of a communicator: ",
  // without shared memory, delay 0.001 s, bandwidth 1e+09 bytes/s".
  std::string Describe() const;
};

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_LINK_H_
