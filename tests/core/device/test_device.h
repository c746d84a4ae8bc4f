// SPDX-License-Identifier: Apache-2.0
//
// Devices of tests: those that hosts open, and one on which the host's own work
// is late, as on an accelerator. There the host's stream has a thread, and a
// test enqueues on it whatever a host would; an edge that is missing then shows
// as a wrong result, or as a data race under a sanitizer.

#ifndef SHARD_TESTS_CORE_DEVICE_TEST_DEVICE_H_
#define SHARD_TESTS_CORE_DEVICE_TEST_DEVICE_H_

#include <memory>
#include <string_view>

#include "core/base/status.h"
#include "core/device/device.h"

namespace shard::testing {

// Opens a device as OpenDevice does, which knows no host=async:
//   cpu-async?host=async   The host's stream has a thread, too; with the other
//                          parameters of cpu-async as well.
StatusOr<std::shared_ptr<Device>> OpenTestDevice(std::string_view spec);

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_DEVICE_TEST_DEVICE_H_
