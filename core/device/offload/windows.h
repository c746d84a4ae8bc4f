// SPDX-License-Identifier: Apache-2.0
//
// Windows: the pieces of an UpdateRange that the host updates at a time. Pure.

#ifndef SHARD_CORE_DEVICE_OFFLOAD_WINDOWS_H_
#define SHARD_CORE_DEVICE_OFFLOAD_WINDOWS_H_

#include <cstddef>
#include <vector>

#include "core/device/update_list.h"

namespace shard {

// Elements [begin, begin + count) of a range.
struct Window {
  size_t begin;
  size_t count;
};

// Cuts a range into windows of at most `most` elements. Windows of a tensor
// formula hold whole parameters, so one that holds a single parameter may be
// larger. Padding may be in no window. REQUIRES: `most` is a multiple of
// kQ8Block.
std::vector<Window> WindowsOf(const UpdateList& list, const UpdateRange& range,
                              size_t most);

// Adds to `to` a range that is the window of `range`, one of `from`. Its
// states and master are the range's, its gradients and parameters lie at
// `grads` and `param`.
void AddWindow(const UpdateList& from, const UpdateRange& range,
               const Window& window, void* grads, void* param, UpdateList* to);

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_OFFLOAD_WINDOWS_H_
