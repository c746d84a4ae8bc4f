// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sdk/cli/commands/machine.h"
#include "sdk/cli/commands/section.h"
#include "sdk/cli/handles.h"
#include "sdk/cli/text.h"
#include "shard/shard.h"

namespace shardctl {

Json DescribeGpus() {
  // Room for most machines, because each call opens each GPU.
  std::string text(1 << 16, '\0');
  size_t length = 0;
  // The text may grow between two calls.
  do {
    text.resize(std::max(text.size(), length + 1));
    Check(shard_devices_json(text.data(), text.size(), &length));
  } while (length >= text.size());
  text.resize(length);
  return Json::parse(text)["cuda"];
}

void LookAtGpus(const Json& cuda, std::vector<Finding>* findings) {
  Section section("gpus", findings);
  const std::string version = cuda["driver"];
  const std::string known = version.empty() ? "" : "for CUDA " + version;
  if (const std::string error = cuda["error"]; !error.empty()) {
    // A machine without GPUs is fit, too.
    section.Info("driver", known.empty() ? error : known + "; " + error);
  } else {
    section.Ok("driver", known);
    if (cuda["devices"].empty()) section.Info("devices", "none");
  }
  for (const Json& device : cuda["devices"]) {
    const std::string error = device["error"];
    const std::string name = device["spec"];
    if (error.empty()) {
      section.Ok(name, device["name"].get<std::string>() +
                           ", compute capability " +
                           device["compute_capability"].get<std::string>() +
                           ", " + BytesText(device["free_bytes"]) +
                           " free of " + BytesText(device["memory_bytes"]) +
                           ", " + device["uuid"].get<std::string>());
    } else {
      section.Warn(name, error,
                   "see the message; docs/gpu.md has what it needs");
    }
  }
  // Nothing but `use` needs the library: a machine without it is fit, too.
  struct OptionalLibrary {
    const char* name;
    const char* use;
  };
  for (const auto& [library, use] :
       {OptionalLibrary{"nccl", "collectives=nccl"},
        OptionalLibrary{"cublas", "the optimizer muon on GPUs"}}) {
    const Json& found = cuda[library];
    if (found.is_null()) {
      section.Info(library, "not looked for without libshard_cuda.so");
    } else if (found["error"] == "") {
      section.Ok(library, found["library"].get<std::string>() + " " +
                              found["version"].get<std::string>());
    } else {
      section.Info(library, found["error"].get<std::string>() + "; " + use +
                                " alone needs it");
    }
  }
}

}  // namespace shardctl
