// SPDX-License-Identifier: Apache-2.0
//
// UpdateTable: what the kernels of a device read of an UpdateList, in the
// device's memory. Made once for a list (Device::Prepare), so that an update
// copies nothing but the arguments of its launch.
//
// Immutable once made; thread-safe.

#ifndef SHARD_CORE_DEVICE_CUDA_UPDATE_TABLE_H_
#define SHARD_CORE_DEVICE_CUDA_UPDATE_TABLE_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/device/cuda/memory.h"
#include "core/device/update_list.h"
#include "kernels/cuda/adafactor.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/update_elements.h"
#include "kernels/cuda/update_tensors.h"

namespace shard::cuda {

class UpdateTable {
 public:
  // Errors: kUnimplemented for a formula that has no kernel; kInvalidArgument
  // for a range with more tiles than a kernel counts; and those of
  // Memory::Allocate.
  static StatusOr<std::shared_ptr<const UpdateTable>> Make(
      const Memory& memory, const UpdateList& list);

  // Returns the table of a list. REQUIRES: Device::Prepare was given the list.
  static const UpdateTable& Of(const UpdateList& list) {
    return *static_cast<const UpdateTable*>(list.prepared.get());
  }

  // Returns the argument of a norm pass over a range: its gradients, what is
  // kept of them, and their number.
  const AddToNormArgs& NormOf(size_t range) const { return norms_[range]; }
  // Returns the argument of a kernel for a range. `gradients` are read instead
  // of the range's own, where they are given.
  ElementRange RangeOf(size_t range, const GradientSources* gradients) const;
  // Returns where the kernels of a range sum squares. Ranges use the same
  // memory, as they do the list's workspace. REQUIRES: a tensor formula.
  const SquareTable& SquaresOf(size_t range) const { return squares_[range]; }
  // Returns the range's matrices. Ranges use the same scratch memory. REQUIRES:
  // Adafactor.
  const MatrixTable& MatricesOf(size_t range) const { return matrices_[range]; }

 private:
  Status AddSquares(const Memory& memory,
                    const std::vector<std::vector<ElementSlice>>& slices);
  Status AddMatrices(const Memory& memory, const UpdateList& list);

  DeviceMemory slices_;
  DeviceMemory sources_;
  DeviceMemory first_groups_;
  DeviceMemory square_sums_;
  DeviceMemory matrix_slices_;
  DeviceMemory matrix_sums_;
  DeviceMemory matrix_scales_;
  std::vector<AddToNormArgs> norms_;
  std::vector<ElementRange> ranges_;
  std::vector<SquareTable> squares_;
  std::vector<MatrixTable> matrices_;
};

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_UPDATE_TABLE_H_
