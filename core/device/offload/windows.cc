// SPDX-License-Identifier: Apache-2.0

#include "core/device/offload/windows.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/base/dtype.h"
#include "core/base/element_type.h"

namespace shard {

namespace {

std::vector<Window> WindowsOfElements(size_t count, size_t most) {
  std::vector<Window> windows;
  for (size_t begin = 0; begin < count; begin += most) {
    windows.push_back({begin, std::min(most, count - begin)});
  }
  return windows;
}

std::vector<Window> WindowsOfTensors(std::span<const UpdateSlice> slices,
                                     size_t most) {
  std::vector<Window> tensors;
  for (const UpdateSlice& slice : slices) {
    tensors.push_back({slice.begin, slice.count});
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const Window& a, const Window& b) { return a.begin < b.begin; });
  std::vector<Window> windows;
  for (const Window& tensor : tensors) {
    const size_t end = tensor.begin + tensor.count;
    if (!windows.empty() && end - windows.back().begin <= most) {
      windows.back().count = end - windows.back().begin;
    } else {
      windows.push_back(tensor);
    }
  }
  return windows;
}

// Moves the pointers to where the window's elements have theirs.
void PlaceElements(const Window& window, UpdateRange* range) {
  const size_t size = DTypeSize(range->state_dtype);
  for (size_t s = 0; s < range->num_states; ++s) {
    range->states[s] =
        static_cast<std::byte*>(range->states[s]) + window.begin * size;
    if (IsQuantized(range->state_dtype)) {
      range->scales[s] += window.begin / static_cast<size_t>(kQ8Block);
    }
  }
}

}  // namespace

std::vector<Window> WindowsOf(const UpdateList& list, const UpdateRange& range,
                              size_t most) {
  return range.is_tensor ? WindowsOfTensors(list.SlicesOf(range), most)
                         : WindowsOfElements(range.count, most);
}

void AddWindow(const UpdateList& from, const UpdateRange& range,
               const Window& window, void* grads, void* param, UpdateList* to) {
  UpdateRange added = range;
  added.count = window.count;
  added.first_source = to->sources.size();
  added.num_sources = 1;
  to->sources.push_back(grads);
  added.own_grads = grads;
  added.param = param;
  if (added.master != nullptr) added.master += window.begin;
  // A tensor formula's slices say where their states are.
  if (!range.is_tensor) PlaceElements(window, &added);
  added.first_slice = to->slices.size();
  added.first_tensor = to->tensors.size();
  const std::span<const UpdateSlice> slices = from.SlicesOf(range);
  const size_t end = window.begin + window.count;
  for (size_t i = 0; i < slices.size(); ++i) {
    const UpdateSlice& slice = slices[i];
    const size_t first = std::max(slice.begin, window.begin);
    const size_t last = std::min(slice.begin + slice.count, end);
    if (first >= last) continue;
    to->slices.push_back(
        {first - window.begin, last - first,
         slice.param_begin + static_cast<int64_t>(first - slice.begin),
         slice.position});
    if (!range.is_tensor) continue;
    TensorSlice tensor = from.tensors[range.first_tensor + i];
    const std::span<const int64_t> shape = from.ShapeOf(tensor);
    tensor.shape = to->sizes.size();
    to->sizes.insert(to->sizes.end(), shape.begin(), shape.end());
    to->tensors.push_back(tensor);
  }
  added.num_slices = to->slices.size() - added.first_slice;
  to->ranges.push_back(added);
}

}  // namespace shard
