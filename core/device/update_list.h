// SPDX-License-Identifier: Apache-2.0
//
// UpdateList: a table of all tensors that the steps of an engine update: this
// rank's range of each trainable buffer, and the parameters in it. With the
// table, Stream::Update is one operation per range, whatever the number of
// parameters.
//
// All references between its parts are indices, so that a copy of a list, as a
// device may keep one, is a list. Immutable once made.

#ifndef SHARD_CORE_DEVICE_UPDATE_LIST_H_
#define SHARD_CORE_DEVICE_UPDATE_LIST_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/offload.h"
#include "core/device/peer_waits.h"
#include "core/device/step_block.h"
#include "kernels/cpu/gradients.h"
#include "kernels/formula/registry.h"

namespace shard {

// A parameter, or the part of one, that lies in a range.
struct UpdateSlice {
  size_t begin;         // First element, from the range's begin.
  size_t count;         // > 0
  int64_t param_begin;  // The same element, from the parameter's first.
  uint32_t position;    // Its ParamPlace::position.
};

// The part of a slice that tensor formulas read. The slice is a whole
// parameter. Workspaces hold the gradients of `batch` parameters, `stride`
// elements apart, then the kernel's scratch memory, then, from `copy` on, a
// parameter in fp32. A GPU reads `batch` alone, and lays the workspace out in
// its own way.
struct TensorSlice {
  size_t shape;  // The first size, in UpdateList::sizes.
  int ndim;
  size_t batch;  // At most this many of one shape are stepped together.
  size_t stride;
  size_t copy;
  // Where the parameter's part of each state begins, in elements from the
  // range's begin.
  std::array<size_t, kMaxStates> state_begins;
};

// This rank's part of one trainable flat buffer. Tensors begin at the range's
// first element; those that it does not have are null.
struct UpdateRange {
  Formula formula;
  int32_t group;
  size_t count;

  // The gradients: those of all ranks, where memory is shared and gradients are
  // whole; or their sum, where it was reduced before.
  size_t first_source;  // In UpdateList::sources.
  size_t num_sources;
  DType source_dtype;
  // This rank's own gradients, or the sum. A norm pass leaves the sum there if
  // keeps_sum: only fp32 holds it without rounding.
  void* own_grads;
  bool keeps_sum;

  DType param_dtype;
  void* param;
  float* master;
  bool stochastic_rounding;  // Of bf16 parameters without a master.
  DType state_dtype;
  size_t num_states;
  std::array<void*, kMaxStates> states;
  std::array<float*, kMaxStates> scales;  // kQ8: one for each 256 elements.

  // By ascending begin; those of tensor formulas by shape, so that equal shapes
  // are adjacent.
  size_t first_slice;  // In UpdateList::slices.
  size_t num_slices;
  bool is_tensor;            // The formula is a tensor formula:
  size_t first_tensor;       // in UpdateList::tensors.
  int matmul_precision = 0;  // Of Muon: Muon::kHighest and so on.

  // Returns whether random bits or blocks are numbered by the parameter's
  // element, so that slices cannot be updated together.
  bool ByParam() const {
    return state_dtype != DType::kF32 || stochastic_rounding;
  }
};

// The memory of the GPUs of all ranks, as one rank's kernels reach it, for an
// update in which ranks meet (kernels/cuda/peers.h).
struct UpdatePeers {
  int rank = 0;
  // By range and other rank: where the range of the parameters lies there.
  std::vector<std::vector<void*>> params;
  std::vector<uint64_t*> flags;  // By rank: two for each rank.
  PeerWaits* waits = nullptr;
};

struct UpdateList {
  std::vector<UpdateRange> ranges;  // By trainable buffer.
  std::vector<UpdateSlice> slices;
  std::vector<TensorSlice> tensors;
  std::vector<int64_t> sizes;
  std::vector<const void*> sources;  // In rank order.
  // Set where the sources are those of all ranks, whose GPUs get the
  // parameters, too. Such a list is for UpdateAll, which all ranks call.
  std::optional<UpdatePeers> peers;
  float* workspace = nullptr;
  // Where states are offloaded: the memory through which windows pass, and the
  // seconds after which a window's copies are not waited for any more.
  std::byte* staging = nullptr;
  OffloadStaging staging_layout;
  double copy_timeout = 0;
  // The form of the list that Device::Prepare made for that device's kernels.
  std::shared_ptr<const void> prepared;

  std::span<const UpdateSlice> SlicesOf(const UpdateRange& range) const {
    return {slices.data() + range.first_slice, range.num_slices};
  }
  std::span<const int64_t> ShapeOf(const TensorSlice& tensor) const {
    return {sizes.data() + tensor.shape, static_cast<size_t>(tensor.ndim)};
  }
  // Returns the range's gradients; `summed`: a norm pass has run.
  GradientSources GradientsOf(const UpdateRange& range, bool summed) const {
    if (summed && range.keeps_sum) {
      return {&range.own_grads, 1, range.source_dtype};
    }
    return {sources.data() + range.first_source, range.num_sources,
            range.source_dtype};
  }
};

// Calls `run(begin, count, row, first)` for each run of elements that one
// kernel updates; `first` is the slice that the run begins with. Adjacent
// slices of one row are one run, with the padding between them, unless
// range.ByParam(). Padding is updated too: nobody reads its values. REQUIRES:
// an element formula.
template <typename Run>
void ForEachRun(const UpdateList& list, const UpdateRange& range,
                const StepBlock& block, Run run) {
  const bool by_param = range.ByParam();
  if (!by_param && !block.has_param_rows()) {
    run(size_t{0}, range.count, block.RowOf(range.group, 0), UpdateSlice());
    return;
  }
  const std::span<const UpdateSlice> slices = list.SlicesOf(range);
  size_t last = 0;
  for (size_t first = 0; first < slices.size(); first = last) {
    const uint32_t row = block.RowOf(range.group, slices[first].position);
    last = first + 1;
    while (!by_param && last < slices.size() &&
           block.RowOf(range.group, slices[last].position) == row) {
      ++last;
    }
    if (row == kNotStepped) continue;
    const size_t begin = slices[first].begin;
    run(begin, slices[last - 1].begin + slices[last - 1].count - begin, row,
        slices[first]);
  }
}

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_UPDATE_LIST_H_
