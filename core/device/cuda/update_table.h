// SPDX-License-Identifier: Apache-2.0
//
// UpdateTable: what the kernels of a device read of an UpdateList, in the
// device's memory. Made once for a list (Device::Prepare), so that an update
// copies nothing but the arguments of its launches.
//
// Immutable once made; thread-safe.

#ifndef SHARD_CORE_DEVICE_CUDA_UPDATE_TABLE_H_
#define SHARD_CORE_DEVICE_CUDA_UPDATE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/device/cuda/context.h"
#include "core/device/cuda/cublas.h"
#include "core/device/cuda/memory.h"
#include "core/device/cuda/muon_batch.h"
#include "core/device/update_list.h"
#include "kernels/cuda/adafactor.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/peers.h"
#include "kernels/cuda/update_elements.h"
#include "kernels/cuda/update_tensors.h"

namespace shard::cuda {

// A range, or a batch of its matrices, which launches update together.
struct UpdatePart {
  // The gradients are the list's.
  ElementRange range;
  // Set for tensor formulas. All parts use the same memory for sums, as they do
  // the list's workspace.
  SquareTable squares;
  MatrixTable matrices;  // Set for Adafactor.
  std::optional<MuonBatch> muon;
};

// The launch that updates all ranges of a list that one kernel updates.
struct StepLaunch {
  Formula formula;
  ElementRange first;
  const ElementRange* more;  // The others, in the device's memory.
  uint32_t num_more;
  uint64_t num_tiles;  // Of all.
};

class UpdateTable {
 public:
  // `cublas` is read for Muon only. Errors: kInvalidArgument for a range with
  // more tiles than a kernel counts; those of Memory::Allocate, and of the
  // products.
  static StatusOr<std::shared_ptr<const UpdateTable>> Make(
      const std::shared_ptr<Context>& context, const Memory& memory,
      std::shared_ptr<const Cublas> cublas, const UpdateList& list);

  // Returns the table of a list. REQUIRES: Device::Prepare was given the list.
  static const UpdateTable& Of(const UpdateList& list) {
    return *static_cast<const UpdateTable*>(list.prepared.get());
  }

  // Returns the argument of a norm pass over a range: its gradients, what is
  // kept of them, and their number.
  const AddToNormArgs& NormOf(size_t range) const { return norms_[range]; }
  std::span<const UpdatePart> PartsOf(size_t range) const {
    return std::span(parts_).subspan(
        first_parts_[range], first_parts_[range + 1] - first_parts_[range]);
  }
  // Returns the launches that update all ranges but those of tensor formulas.
  std::span<const StepLaunch> step() const { return step_; }
  // Returns the meetings of these launches with those of other ranks, in the
  // device's memory; null where the list has no peers.
  PeerMeetings* meetings() const {
    return reinterpret_cast<PeerMeetings*>(meetings_.data());
  }

 private:
  struct Slices;

  Status AddPeers(const Memory& memory, const UpdateList& list);
  Status AddStep(const Memory& memory, const UpdateList& list);
  Status AddSquares(const Memory& memory, const UpdateList& list,
                    const std::vector<Slices>& slices);
  Status AddMatrices(const Memory& memory, const UpdateList& list);
  Status AddProducts(const Memory& memory, MuonProducts* products,
                     const UpdateList& list, const std::vector<Slices>& slices);

  DeviceMemory slices_;
  DeviceMemory sources_;
  DeviceMemory peer_params_;
  DeviceMemory peer_flags_;
  DeviceMemory meetings_;
  DeviceMemory ranges_;
  DeviceMemory first_groups_;
  DeviceMemory square_sums_;
  DeviceMemory matrix_slices_;
  DeviceMemory matrix_sums_;
  DeviceMemory matrix_scales_;
  DeviceMemory product_scratch_;
  std::vector<AddToNormArgs> norms_;
  std::vector<UpdatePart> parts_;
  std::vector<size_t> first_parts_;  // By range, and the end.
  std::vector<StepLaunch> step_;
};

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_UPDATE_TABLE_H_
