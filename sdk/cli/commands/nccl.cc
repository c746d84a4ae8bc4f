// SPDX-License-Identifier: Apache-2.0
//
// The checks of NCCL: which library, its variables, the network and memory
// that it uses, and whether it moves tensors between this machine's GPUs.

#include <ifaddrs.h>
#include <net/if.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sdk/cli/commands/machine.h"
#include "sdk/cli/commands/nccl_variables.h"
#include "sdk/cli/commands/section.h"
#include "sdk/cli/handles.h"
#include "sdk/cli/text.h"
#include "shard/shard.h"

namespace shardctl {

namespace {

using Comm = std::unique_ptr<shard_comm, Freed<shard_comm_free>>;

std::string Join(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) {
    joined += (joined.empty() ? "" : ", ") + text;
  }
  return joined;
}

// Returns whether there is an NCCL that can be used.
bool LookAtNcclLibrary(const Json& cuda, Section* section) {
  const Json& nccl = cuda["nccl"];
  constexpr const char kInstall[] =
      "install NCCL for the CUDA of the driver (Python's nvidia-nccl-cu12 and "
      "nvidia-nccl-cu13 have it, too), and put its folder into "
      "LD_LIBRARY_PATH; without it tensors pass through the host "
      "(collectives=staged)";
  if (nccl.is_null()) {
    section->Warn("library", cuda["error"],
                  "install libshard_cuda.so beside libshard.so");
    return false;
  }
  if (const std::string error = nccl["error"]; !error.empty()) {
    // Without a driver it is not looked for, which is warned of below.
    if (cuda["driver"] == "") {
      section->Info("library", error);
      return false;
    }
    section->Warn("library", error, kInstall);
    return false;
  }
  section->Ok("library", nccl["path"].get<std::string>() + ", version " +
                             nccl["version"].get<std::string>() +
                             " (at least " + nccl["oldest"].get<std::string>() +
                             " is needed), " +
                             (nccl["of_process"] ? "which the process had"
                                                 : "which the loader found"));
  std::vector<std::string> has;
  std::vector<std::string> lacks;
  for (const auto& [name, is_there] : nccl["functions"].items()) {
    (is_there.get<bool>() ? has : lacks).push_back(name);
  }
  section->Info("functions of later versions",
                (has.empty() ? "none" : Join(has)) +
                    (lacks.empty() ? "" : "; it lacks " + Join(lacks)));
  return true;
}

// Returns the specs of the GPUs that can be used.
std::vector<std::string> LookAtRanks(const Json& cuda, Section* section) {
  std::vector<std::string> specs;
  for (const Json& device : cuda["devices"]) {
    if (device["error"] == "") specs.push_back(device["spec"]);
  }
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string shown =
      visible == nullptr ? ""
                         : "; CUDA_VISIBLE_DEVICES=" + std::string(visible);
  if (specs.empty()) {
    const std::string error = cuda["error"];
    section->Warn(
        "ranks",
        (error.empty() ? "there is no GPU that can be used" : error) + shown,
        "install NVIDIA's driver; give a container its GPUs (docker "
        "run --gpus all); look at CUDA_VISIBLE_DEVICES and at the "
        "section gpus");
  } else {
    section->Ok("ranks", "at most " + std::to_string(specs.size()) +
                             " of this host, with a GPU each" + shown);
  }
  return specs;
}

// Returns the network interfaces that are up, without the loopback.
std::vector<std::string> FindInterfaces() {
  std::vector<std::string> names;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return names;
  for (const ifaddrs* it = first; it != nullptr; it = it->ifa_next) {
    const bool is_up = (it->ifa_flags & IFF_UP) != 0;
    const bool is_loopback = (it->ifa_flags & IFF_LOOPBACK) != 0;
    const bool has_address =
        it->ifa_addr != nullptr && (it->ifa_addr->sa_family == AF_INET ||
                                    it->ifa_addr->sa_family == AF_INET6);
    if (!is_up || is_loopback || !has_address) continue;
    if (std::count(names.begin(), names.end(), it->ifa_name) == 0) {
      names.emplace_back(it->ifa_name);
    }
  }
  ::freeifaddrs(first);
  return names;
}

void LookAtVariables(Section* section) {
  const std::vector<std::string> interfaces = FindInterfaces();
  const std::string there =
      interfaces.empty() ? "none but the loopback" : Join(interfaces);
  bool chosen = false;
  for (const NcclVariable& variable : FindNcclVariables()) {
    const std::string value =
        variable.value + (variable.file.empty() ? "" : ", in " + variable.file);
    if (variable.name == "NCCL_SOCKET_IFNAME") {
      chosen = true;
      // "lo" may be named, which is not among them.
      std::vector<std::string> all = interfaces;
      all.emplace_back("lo");
      const auto named = NamedInterfaces(variable.value, all);
      section->Say(
          !named.empty(), variable.name,
          value + ": " +
              (named.empty() ? "no interface that is up" : Join(named)),
          "name one of: " + there + "; or unset it");
      continue;
    }
    const NcclEffect effect = EffectOf(variable);
    if (effect.remedy.empty()) {
      section->Info(variable.name, value + ": " + effect.text);
    } else {
      section->Warn(variable.name, value + ": " + effect.text, effect.remedy);
    }
  }
  if (!chosen) section->Info("network interfaces", there);
}

void LookAtHostMemory(Section* section) {
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0) {
    const auto total = static_cast<uint64_t>(shm.f_blocks) * shm.f_frsize;
    const auto free = static_cast<uint64_t>(shm.f_bavail) * shm.f_frsize;
    // NVIDIA's advice for containers, whose default is 64 MiB.
    section->Say(total >= (uint64_t{1} << 30), "/dev/shm",
                 BytesText(free) + " free of " + BytesText(total),
                 "give the container more: docker run --shm-size=1g. GPUs that "
                 "do not reach each other's memory use it");
  } else {
    section->Warn("/dev/shm", "there is none",
                  "mount a tmpfs there: ranks of one host use it");
  }
  rlimit limit{};
  std::error_code ignored;
  const bool has_infiniband =
      std::filesystem::exists("/sys/class/infiniband", ignored) &&
      !std::filesystem::is_empty("/sys/class/infiniband", ignored);
  if (has_infiniband && ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
    section->Say(limit.rlim_cur == RLIM_INFINITY, "locked memory",
                 limit.rlim_cur == RLIM_INFINITY ? "unlimited"
                                                 : BytesText(limit.rlim_cur),
                 "ulimit -l unlimited (docker run --ulimit memlock=-1): "
                 "InfiniBand locks the memory that it sends");
  }
}

// Checks a GPU as one rank of `url`. Returns "" or the error.
std::string CheckRank(const char* url, int rank, int ranks,
                      const std::string& spec, double seconds) {
  shard_comm_options options = SHARD_COMM_OPTIONS_INIT;
  options.timeout = seconds;
  if (ranks > 1) {
    options.rank = rank;
    options.world_size = ranks;
  }
  shard_comm* opened = nullptr;
  if (const Error error(shard_comm_open(url, &options, &opened)); error) {
    return shard_error_message(error.get());
  }
  const Comm comm(opened);
  if (const Error error(
          shard_comm_check_device(comm.get(), spec.c_str(), seconds));
      error) {
    return shard_error_message(error.get());
  }
  const Error error(shard_comm_shutdown(comm.get(), seconds));
  return error == nullptr ? "" : shard_error_message(error.get());
}

// Checks GPUs together, and returns the first error, or "".
std::string CheckTogether(const std::vector<std::string>& specs,
                          double seconds) {
  const int ranks = static_cast<int>(specs.size());
  const std::string url = "threads:" + std::to_string(ranks);
  std::vector<std::string> errors(specs.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto r = static_cast<size_t>(rank);
      errors[r] = CheckRank(url.c_str(), rank, ranks, specs[r], seconds);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) {
    if (!error.empty()) return error;
  }
  return "";
}

void LookAtCalls(const std::vector<std::string>& specs, double seconds,
                 Section* section) {
  const auto say = [&](const std::string& name, const auto& check) {
    const auto begin = std::chrono::steady_clock::now();
    const std::string error = check();
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - begin;
    section->Say(error.empty(), name,
                 error.empty() ? "all-gather, broadcast, send, receive and "
                                 "reduce-scatter work, in " +
                                     SecondsText(took.count())
                               : error,
                 "run again with NCCL_DEBUG=INFO, whose lines say more; "
                 "docs/operations.md has NCCL's errors");
  };
  for (const std::string& spec : specs) {
    say(spec + " alone",
        [&] { return CheckRank("local:", 0, 1, spec, seconds); });
  }
  if (specs.size() > 1) {
    say("all GPUs", [&] { return CheckTogether(specs, seconds); });
  }
}

}  // namespace

void LookAtNccl(const Json& cuda, double seconds,
                std::vector<Finding>* findings) {
  Section section("nccl", findings);
  const bool has_library = LookAtNcclLibrary(cuda, &section);
  const std::vector<std::string> specs = LookAtRanks(cuda, &section);
  LookAtVariables(&section);
  LookAtHostMemory(&section);
  // Stdout is the result's.
  ::setenv("NCCL_DEBUG_FILE", "/dev/stderr", 0);
  if (has_library) LookAtCalls(specs, seconds, &section);
}

}  // namespace shardctl
