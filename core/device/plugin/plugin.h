// SPDX-License-Identifier: Apache-2.0
//
// The border between libshard.so and a library with a device, such as
// libshard_cuda.so: a process loads the latter only when it opens that device.
// C++ interfaces cross it, so both are of one build, which they compare first.
// A library's objects may live as long as the process: it is never closed.

#ifndef SHARD_CORE_DEVICE_PLUGIN_PLUGIN_H_
#define SHARD_CORE_DEVICE_PLUGIN_PLUGIN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/device/device.h"

namespace shard {

struct Plugin {
  // Opens a device by what follows the colon in its spec.
  StatusOr<std::shared_ptr<Device>> (*open_device)(std::string_view id);
  // Describes the devices of the machine, as a JSON document.
  std::string (*describe)();
  // Checks the collectives of the device that open_device names by `id`, as
  // CollectivesCheck::Run, in the caller's thread. COLLECTIVE.
  Status (*check_collectives)(std::string_view id, Communicator* control,
                              const Deadline& deadline);
};

// The library of GPUs.
inline constexpr std::string_view kCudaPlugin = "libshard_cuda.so";

// The function that a library exports as "shard_plugin". Returns null where
// `build_id` is not that of the library.
using GetPlugin = const Plugin* (*)(uint64_t build_id);
inline constexpr char kGetPlugin[] = "shard_plugin";

// Loads the library `file`, which lies beside this one. Errors:
// kBackendUnavailable, which says what is wrong with which file. Thread-safe.
StatusOr<const Plugin*> LoadPlugin(std::string_view file);

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_PLUGIN_PLUGIN_H_
