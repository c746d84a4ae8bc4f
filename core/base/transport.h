// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_BASE_TRANSPORT_H_
#define SHARD_CORE_BASE_TRANSPORT_H_

namespace shard {

// How tensors move between the GPUs of ranks.
enum class Transport {
  kStaged,  // Through memory of the host.
  kNccl,    // By NCCL, or not at all.
  kAuto,    // By NCCL, where all ranks can use it, else as kStaged.
};

}  // namespace shard

#endif  // SHARD_CORE_BASE_TRANSPORT_H_
