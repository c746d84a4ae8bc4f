// SPDX-License-Identifier: Apache-2.0
//
// Opens the device that a spec names.

#include <cstdint>
#include <memory>
#include <string_view>

#include "core/base/spec.h"
#include "core/device/cpu/cpu_device.h"
#include "core/device/device.h"

namespace shard {

namespace {

// The longest pause that finds errors: a longer one only makes tests wait.
constexpr double kLongestDelay = 1;

StatusOr<std::shared_ptr<Device>> OpenCpu(std::string_view text, Spec spec) {
  SHARD_RETURN_IF_ERROR(spec.CheckAllTaken());
  if (spec.has_colon()) {
    return InvalidArgument("'", text, "': cpu has no ':'");
  }
  return cpu::OpenDevice();
}

StatusOr<std::shared_ptr<Device>> OpenCpuAsync(std::string_view text,
                                               Spec spec) {
  cpu::Pauses pauses;
  SHARD_ASSIGN_OR_RETURN(pauses.longest, spec.TakeDouble("max_delay", 200e-6));
  SHARD_ASSIGN_OR_RETURN(const int64_t seed, spec.TakeInt("seed", 0));
  SHARD_RETURN_IF_ERROR(spec.CheckAllTaken());
  if (spec.has_colon()) {
    return InvalidArgument("'", text, "': cpu-async has no ':'");
  }
  if (!(pauses.longest >= 0 && pauses.longest <= kLongestDelay)) {
    return InvalidArgument("'", text, "': max_delay=", pauses.longest,
                           " is out of range; allowed: 0 to ", kLongestDelay,
                           " seconds");
  }
  pauses.seed = static_cast<uint64_t>(seed);
  return cpu::OpenAsyncDevice(pauses);
}

}  // namespace

StatusOr<std::shared_ptr<Device>> OpenDevice(std::string_view text) {
  if (text.empty()) text = "cpu";
  SHARD_ASSIGN_OR_RETURN(Spec spec, Spec::Parse(text));
  if (spec.name() == "cpu") return OpenCpu(text, std::move(spec));
  if (spec.name() == "cpu-async") return OpenCpuAsync(text, std::move(spec));
  return InvalidArgument("'", text,
                         "' names no device; known: cpu, "
                         "cpu-async?max_delay=SECONDS&seed=N");
}

}  // namespace shard
