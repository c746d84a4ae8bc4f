// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_COMM_CONTROL_BYTES_H_
#define SHARD_CORE_COMM_CONTROL_BYTES_H_

#include <cstddef>
#include <cstdint>

namespace shard {

// Returns the bytes that one communicator or exchange of `ranks` ranks takes on
// a host beside SymmetricBuffers, page rounding included: its control block
// and, where the ranks share no memory, the staging that tensors are exchanged
// through.
uint64_t ControlBytes(int ranks, bool shares_memory);

// Returns the bytes that notices of `bytes` bytes each take on a host.
uint64_t NoticesBytes(int ranks, size_t bytes);

}  // namespace shard

#endif  // SHARD_CORE_COMM_CONTROL_BYTES_H_
