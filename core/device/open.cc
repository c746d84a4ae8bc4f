// SPDX-License-Identifier: Apache-2.0
//
// Opens the device that a spec names.

#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/offload.h"
#include "core/base/spec.h"
#include "core/base/strings.h"
#include "core/device/cpu/cpu_device.h"
#include "core/device/cuda/device_name.h"
#include "core/device/device.h"
#include "core/device/offload/offloading_device.h"
#include "core/device/plugin/plugin.h"

namespace shard {

namespace {

// The longest pause that finds errors: a longer one only makes tests wait.
constexpr double kLongestDelay = 1;

StatusOr<std::shared_ptr<Device>> OpenCpu(std::string_view text,
                                          const Spec& spec) {
  SHARD_RETURN_IF_ERROR(spec.CheckAllTaken());
  if (spec.has_colon()) {
    return InvalidArgument("'", text, "': cpu has no ':'");
  }
  return cpu::OpenDevice();
}

StatusOr<std::shared_ptr<Device>> OpenCpuAsync(std::string_view text,
                                               Spec* spec) {
  Pauses pauses;
  SHARD_ASSIGN_OR_RETURN(pauses.longest, spec->TakeDouble("max_delay", 200e-6));
  SHARD_ASSIGN_OR_RETURN(const int64_t seed, spec->TakeInt("seed", 0));
  SHARD_RETURN_IF_ERROR(spec->CheckAllTaken());
  if (spec->has_colon()) {
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

// Opens the device that the rest of a spec names.
StatusOr<std::shared_ptr<Device>> OpenPlain(std::string_view text, Spec* spec) {
  if (spec->name() == "cpu") return OpenCpu(text, *spec);
  if (spec->name() == "cpu-async") return OpenCpuAsync(text, spec);
  if (spec->name() == "cuda") return OpenCuda(text, *spec);
  return InvalidArgument("'", text,
                         "' names no device; known: cpu, "
                         "cpu-async?max_delay=SECONDS&seed=N, cuda:N");
}

// Takes the keys of offload out of a spec. Returns nothing where states stay on
// the device.
StatusOr<std::optional<Offload>> TakeOffload(std::string_view text,
                                             Spec* spec) {
  if (spec->name() != "cuda") return std::optional<Offload>();
  constexpr int64_t kMostThreads = 256;
  constexpr int64_t kNotGiven = std::numeric_limits<int64_t>::min();
  const std::string what = spec->TakeString("offload", "none");
  SHARD_ASSIGN_OR_RETURN(const int64_t threads,
                         spec->TakeInt("offload_threads", kNotGiven));
  if (what != "none" && what != "states") {
    return InvalidArgument("'", text, "': offload='", what,
                           "' is unknown; known: states, the optimizer's in "
                           "the host's memory, and none");
  }
  if (what == "none") {
    if (threads == kNotGiven) return std::optional<Offload>();
    return InvalidArgument("'", text, "': offload_threads=", threads,
                           " step offloaded states; add offload=states");
  }
  Offload offload;
  if (threads == kNotGiven) return std::optional<Offload>(offload);
  if (threads < 1 || threads > kMostThreads) {
    return ValueOutOfRange(StrCat("'", text, "'"), "offload_threads", threads,
                           StrCat("1 to ", kMostThreads));
  }
  offload.threads = static_cast<int>(threads);
  return std::optional<Offload>(offload);
}

// Takes the key of collectives out of a spec.
StatusOr<Transport> TakeTransport(std::string_view text, Spec* spec) {
  if (spec->name() != "cuda") return Transport::kStaged;
  const std::string name =
      spec->TakeString("collectives", TransportName(Transport::kStaged));
  for (const Transport transport :
       {Transport::kStaged, Transport::kNccl, Transport::kAuto}) {
    if (name == TransportName(transport)) return transport;
  }
  return InvalidArgument("'", text, "': collectives='", name,
                         "' is unknown; known: auto, nccl, and staged, through "
                         "the host's memory");
}

// Takes the key of steps out of a spec. Returns whether they are one kernel.
StatusOr<bool> TakeStep(std::string_view text, Spec* spec) {
  if (spec->name() != "cuda") return false;
  const std::string name = spec->TakeString("step", "parts");
  if (name == "one_kernel") return true;
  if (name == "parts") return false;
  return InvalidArgument("'", text, "': step='", name,
                         "' is unknown; known: one_kernel, of several ranks "
                         "whose GPUs reach each other's memory, and parts");
}

}  // namespace

StatusOr<std::shared_ptr<Device>> OpenDevice(std::string_view text) {
  if (text.empty()) text = "cpu";
  SHARD_ASSIGN_OR_RETURN(Spec spec, Spec::Parse(text));
  SHARD_ASSIGN_OR_RETURN(const std::optional<Offload> offload,
                         TakeOffload(text, &spec));
  SHARD_RETURN_IF_ERROR(TakeTransport(text, &spec).status());
  SHARD_RETURN_IF_ERROR(TakeStep(text, &spec).status());
  SHARD_ASSIGN_OR_RETURN(auto device, OpenPlain(text, &spec));
  if (!offload) return device;
  SHARD_ASSIGN_OR_RETURN(auto host, cpu::OpenDevice());
  return OffloadStates(std::move(device), std::move(host), *offload);
}

StatusOr<DeviceChoice> ReadDeviceSpec(std::string_view text) {
  if (text.empty()) text = "cpu";
  SHARD_ASSIGN_OR_RETURN(Spec spec, Spec::Parse(text));
  DeviceChoice choice;
  SHARD_ASSIGN_OR_RETURN(choice.offload, TakeOffload(text, &spec));
  SHARD_ASSIGN_OR_RETURN(choice.transport, TakeTransport(text, &spec));
  SHARD_ASSIGN_OR_RETURN(choice.one_kernel, TakeStep(text, &spec));
  if (spec.name() == "cuda") {
    SHARD_RETURN_IF_ERROR(CheckCuda(text, spec));
    choice.kind = DeviceId::Kind::kCuda;
  } else {
    SHARD_RETURN_IF_ERROR(OpenPlain(text, &spec).status());
  }
  return choice;
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
