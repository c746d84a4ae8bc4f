// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_BASE_TRANSPORT_H_
#define SHARD_CORE_BASE_TRANSPORT_H_

#include <string_view>

namespace shard {

// How tensors move between the GPUs of ranks.
enum class Transport {
  kStaged,  // Through memory of the host.
  kNccl,    // By NCCL, or not at all.
  kAuto,    // By NCCL, where all ranks can use it, else as kStaged.
};

// Returns the name of a transport in specs of devices: "nccl".
constexpr std::string_view TransportName(Transport transport) {
  switch (transport) {
    case Transport::kStaged:
      return "staged";
    case Transport::kNccl:
      return "nccl";
    case Transport::kAuto:
      return "auto";
  }
  return "unknown";
}

}  // namespace shard

#endif  // SHARD_CORE_BASE_TRANSPORT_H_
