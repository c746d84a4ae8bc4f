// SPDX-License-Identifier: Apache-2.0
//
// Opens the device that a spec names.

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/base/spec.h"
#include "core/device/cpu/cpu_device.h"
#include "core/device/cuda/device_name.h"
#include "core/device/device.h"
#include "core/device/plugin/plugin.h"

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
  Pauses pauses;
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

constexpr std::string_view kCudaPlugin = "libshard_cuda.so";

Status CheckCuda(std::string_view text, const Spec& spec) {
  SHARD_RETURN_IF_ERROR(spec.CheckAllTaken());
  if (!spec.body().empty()) return cuda::ParseDeviceName(spec.body()).status();
  return InvalidArgument("'", text,
                         "' says not which; use an ordinal, cuda:0, or a UUID, "
                         "cuda:GPU-...");
}

StatusOr<std::shared_ptr<Device>> OpenCuda(std::string_view text,
                                           const Spec& spec) {
  SHARD_RETURN_IF_ERROR(CheckCuda(text, spec));
  SHARD_ASSIGN_OR_RETURN(const Plugin* const plugin, LoadPlugin(kCudaPlugin));
  return plugin->open_device(spec.body());
}

}  // namespace

StatusOr<std::shared_ptr<Device>> OpenDevice(std::string_view text) {
  if (text.empty()) text = "cpu";
  SHARD_ASSIGN_OR_RETURN(Spec spec, Spec::Parse(text));
  if (spec.name() == "cpu") return OpenCpu(text, std::move(spec));
  if (spec.name() == "cpu-async") return OpenCpuAsync(text, std::move(spec));
  if (spec.name() == "cuda") return OpenCuda(text, spec);
  return InvalidArgument("'", text,
                         "' names no device; known: cpu, "
                         "cpu-async?max_delay=SECONDS&seed=N, cuda:N");
}

StatusOr<DeviceId::Kind> KindOfDevice(std::string_view text) {
  const StatusOr<Spec> spec = Spec::Parse(text.empty() ? "cpu" : text);
  if (spec.ok() && spec->name() == "cuda") {
    SHARD_RETURN_IF_ERROR(CheckCuda(text, *spec));
    return DeviceId::Kind::kCuda;
  }
  SHARD_RETURN_IF_ERROR(OpenDevice(text).status());
  return DeviceId::Kind::kCpu;
}

std::string DescribeDevices() {
  const StatusOr<const Plugin*> cuda = LoadPlugin(kCudaPlugin);
  const nlohmann::ordered_json described =
      cuda.ok() ? nlohmann::ordered_json::parse((*cuda)->describe())
                : nlohmann::ordered_json{{"driver", ""},
                                         {"error", cuda.status().message()},
                                         {"devices", nullptr},
                                         {"nccl", nullptr},
                                         {"cublas", nullptr}};
  return nlohmann::ordered_json{{"cuda", described}}.dump();
}

}  // namespace shard
