// SPDX-License-Identifier: Apache-2.0
//
// The places of a model's host tensors in one block of memory, which every rank
// has whole. Host tensors lie in module-walk order, so that ranks that added
// them in another order have the same block.

#ifndef SHARD_CORE_FLAT_HOST_TENSORS_H_
#define SHARD_CORE_FLAT_HOST_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/rounding.h"
#include "core/base/status.h"
#include "core/model/model.h"

namespace shard {

// Every host tensor begins at a multiple of this many bytes: a cache line.
inline constexpr uint64_t kHostTensorAlignment = 64;

// Returns the bytes from the begin of a host tensor to that of the next one.
constexpr uint64_t RoundUpToHostTensor(uint64_t bytes) {
  return RoundUp(bytes, kHostTensorAlignment);
}

struct HostTensorLayout {
  // The stored host tensors, in module-walk order: those that are not ignored.
  std::vector<HostTensorId> walk;
  // The first byte of each host tensor, by HostTensorId; -1: ignored.
  std::vector<int64_t> offsets;
  uint64_t bytes = 0;

  // Returns the place of a host tensor. REQUIRES: a valid id of a stored one.
  size_t OffsetOf(HostTensorId id) const {
    return static_cast<size_t>(offsets[static_cast<size_t>(id)]);
  }
};

// Lays out the host tensors of a model. kInvalidArgument names the one that
// brings them to more than 2^53 bytes.
StatusOr<HostTensorLayout> LayOutHostTensors(const Model& model);

}  // namespace shard

#endif  // SHARD_CORE_FLAT_HOST_TENSORS_H_
