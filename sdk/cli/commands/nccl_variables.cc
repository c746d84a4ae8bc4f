// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/nccl_variables.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/collectives/nccl/conf_files.h"

namespace shardctl {

namespace {

constexpr const char kHarmless[] = "harmless";
constexpr const char kNetwork[] = "chooses the network, and so changes speed";
constexpr const char kSpeed[] =
    "changes speed, and the order of sums that NCCL makes";

struct Known {
  std::string_view name;  // With '*' at the end: all that begin so.
  const char* effect;
  const char* remedy;  // Or null.
};

// The first that fits holds.
constexpr Known kKnown[] = {
    {"NCCL_COMM_ID",
     "gives all communicators of the job one address: those of two engines "
     "take each other's ranks",
     "unset it: libshard sends an address of its own to the ranks"},
    {"NCCL_DEBUG*", "harmless: NCCL writes a log", nullptr},
    {"NCCL_CONF_FILE", "harmless: names a file of such variables", nullptr},
    {"NCCL_RAS_*", kHarmless, nullptr},
    {"NCCL_PROFILER_*", kHarmless, nullptr},
    {"NCCL_SET_THREAD_NAME", kHarmless, nullptr},
    {"NCCL_GRAPH_DUMP_*", kHarmless, nullptr},
    {"NCCL_TOPO_DUMP_*", kHarmless, nullptr},
    {"NCCL_ASYNC_ERROR_HANDLING", "harmless: PyTorch's, not NCCL's", nullptr},
    {"NCCL_BLOCKING_WAIT", "harmless: PyTorch's, not NCCL's", nullptr},
    {"NCCL_DESYNC_DEBUG", "harmless: PyTorch's, not NCCL's", nullptr},
    {"NCCL_CHECK_POINTERS", "checks pointers: each call takes longer", nullptr},
    {"NCCL_P2P_DISABLE", "GPUs do not reach each other: much slower", nullptr},
    {"NCCL_SHM_DISABLE",
     "GPUs of a host that do not reach each other use the network: slower",
     nullptr},
    {"NCCL_IB_DISABLE", "without InfiniBand: slower between hosts", nullptr},
    {"NCCL_SOCKET_*", kNetwork, nullptr},
    {"NCCL_IB_*", kNetwork, nullptr},
    {"NCCL_NET*", kNetwork, nullptr},
    {"NCCL_OOB_*", kNetwork, nullptr},
    {"NCCL_CROSS_NIC", kNetwork, nullptr},
    {"NCCL_NSOCKS_PERTHREAD", kNetwork, nullptr},
    {"NCCL_HOSTID", "says which ranks are on one host, and so changes speed",
     nullptr},
    {"NCCL_ALGO",
     "changes speed, and the order of sums that NCCL makes; an algorithm that "
     "a call does not have is an "
     "error of NCCL",
     nullptr},
    {"NCCL_PROTO", kSpeed, nullptr},
    {"NCCL_NTHREADS", kSpeed, nullptr},
    {"NCCL_BUFFSIZE", kSpeed, nullptr},
    {"NCCL_MIN_*", kSpeed, nullptr},
    {"NCCL_MAX_*", kSpeed, nullptr},
    {"NCCL_CTA_POLICY", kSpeed, nullptr},
    {"NCCL_CGA_CLUSTER_SIZE", kSpeed, nullptr},
    {"NCCL_NVLS_*", kSpeed, nullptr},
    {"NCCL_P2P_*", kSpeed, nullptr},
    {"NCCL_SHM_*", kSpeed, nullptr},
    {"NCCL_PXN_*", kSpeed, nullptr},
    {"NCCL_COLLNET_*", kSpeed, nullptr},
    {"NCCL_LOCAL_REGISTER", "slower where 0: memory is not registered",
     nullptr},
    {"NCCL_WIN_*", kSpeed, nullptr},
    {"NCCL_SYM_*", kSpeed, nullptr},
    {"NCCL_CUMEM_*", "chooses how NCCL allocates its memory", nullptr},
    {"NCCL_TOPO_FILE", kSpeed, nullptr},
    {"NCCL_GRAPH_FILE", kSpeed, nullptr},
    {"NCCL_LAUNCH_*", kSpeed, nullptr},
    {"NCCL_TUNER_*", kSpeed, nullptr},
    {"NCCL_IGNORE_CPU_AFFINITY", kSpeed, nullptr},
};

bool Fits(std::string_view pattern, std::string_view name) {
  if (!pattern.ends_with('*')) return pattern == name;
  pattern.remove_suffix(1);
  return name.starts_with(pattern);
}

bool IsName(std::string_view text) { return text.starts_with("NCCL_"); }

// Adds the variables of a file of lines such as "NCCL_DEBUG=WARN".
void ReadFile(const std::string& path, std::vector<NcclVariable>* variables) {
  // Another kind of file may never end.
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t equals = line.find('=');
    if (!IsName(line) || equals == std::string::npos) continue;
    const std::string name = line.substr(0, equals);
    // An earlier value holds.
    const bool is_set =
        std::any_of(variables->begin(), variables->end(),
                    [&](const NcclVariable& it) { return it.name == name; });
    if (!is_set) variables->push_back({name, line.substr(equals + 1), path});
  }
}

NcclEffect EffectOfBlocking(const NcclVariable& variable) {
  if (variable.value.empty() || variable.value == "0") return {kHarmless, ""};
  return {
      "refused: NCCL's calls would wait for ever",
      variable.file.empty() ? "unset it" : "remove it from " + variable.file};
}

}  // namespace

std::vector<NcclVariable> FindNcclVariables() {
  std::vector<NcclVariable> variables;
  for (char** it = environ; *it != nullptr; ++it) {
    const std::string_view text = *it;
    const size_t equals = text.find('=');
    if (!IsName(text) || equals == std::string_view::npos) continue;
    variables.push_back({std::string(text.substr(0, equals)),
                         std::string(text.substr(equals + 1)), ""});
  }
  // The order of NCCL, which does not replace what is set.
  for (const std::string& file : shard::nccl::ConfFiles()) {
    ReadFile(file, &variables);
  }
  std::stable_sort(variables.begin(), variables.end(),
                   [](const NcclVariable& a, const NcclVariable& b) {
                     return a.name < b.name;
                   });
  return variables;
}

NcclEffect EffectOf(const NcclVariable& variable) {
  if (variable.name == "NCCL_COMM_BLOCKING") return EffectOfBlocking(variable);
  for (const Known& known : kKnown) {
    if (!Fits(known.name, variable.name)) continue;
    return {known.effect, known.remedy == nullptr ? "" : known.remedy};
  }
  return {"not known to shardctl; NCCL's documentation may have it", ""};
}

std::vector<std::string> NamedInterfaces(
    const std::string& value, const std::vector<std::string>& interfaces) {
  std::string_view text = value;
  const bool others = text.starts_with('^');
  if (others) text.remove_prefix(1);
  const bool exact = text.starts_with('=');
  if (exact) text.remove_prefix(1);
  std::vector<std::string> names;
  std::istringstream list{std::string(text)};
  for (std::string name; std::getline(list, name, ',');) {
    if (!name.empty()) names.push_back(name);
  }
  std::vector<std::string> found;
  for (const std::string& interface : interfaces) {
    const bool listed =
        std::any_of(names.begin(), names.end(), [&](const std::string& name) {
          return exact ? interface == name : interface.starts_with(name);
        });
    if (listed != others) found.push_back(interface);
  }
  return found;
}

}  // namespace shardctl
