// SPDX-License-Identifier: Apache-2.0

#include "core/comm/env/environment.h"

#include <optional>
#include <string_view>
#include <vector>

#include "core/base/strings.h"

namespace shard::env {

namespace {

// Names of groups go into socket addresses: see shm/rendezvous.h.
constexpr size_t kMaxName = 80;

// The port at which several hosts meet, where no variable says one.
constexpr int kDefaultPort = 29400;

class Variables {
 public:
  explicit Variables(const Getenv& getenv) : getenv_(getenv) {}

  // An empty variable counts as unset: that is how scripts clear one.
  std::optional<std::string> Get(const char* name) const {
    const char* value = getenv_(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  }

  bool Has(const char* name) const { return Get(name).has_value(); }

  bool HasAny(const std::vector<const char*>& names) const {
    for (const char* name : names) {
      if (Has(name)) return true;
    }
    return false;
  }

  // Returns the first of the variables that is set.
  std::optional<std::string> First(
      const std::vector<const char*>& names) const {
    for (const char* name : names) {
      if (auto value = Get(name)) return value;
    }
    return std::nullopt;
  }

  // Returns OK when all are set; the error names the set and the missing ones.
  Status RequireAll(std::string_view launcher,
                    const std::vector<const char*>& names) const {
    std::string there;
    std::string missing;
    for (const char* name : names) {
      const auto value = Get(name);
      std::string& list = value ? there : missing;
      StrAppend(&list, list.empty() ? "" : ", ", name);
      if (value) StrAppend(&list, "=", *value);
    }
    if (missing.empty()) return Status();
    return InvalidArgument("env: a group of variables (", launcher,
                           ") is half set: ", there, " but not ", missing,
                           "; set all of them or none");
  }

  StatusOr<int> Int(const char* name, int smallest) const {
    const std::string text = Get(name).value_or("");
    const auto value = ParseInt(text);
    if (!value || *value < smallest || *value > INT32_MAX) {
      return InvalidArgument("env: ", name, "='", text,
                             "' is not an integer of at least ", smallest);
    }
    return static_cast<int>(*value);
  }

 private:
  const Getenv& getenv_;
};

// Where the ranks of several hosts meet.
struct MeetingPlace {
  std::string host;
  int port;
  std::string job;
  std::string restart = "0";
};

// The port of a meeting, beside those of others that may be taken: SHARD_PORT,
// or else `port`.
StatusOr<int> PortOf(const Variables& vars, int port) {
  return vars.Has("SHARD_PORT") ? vars.Int("SHARD_PORT", 1) : port;
}

// Names of jobs go into URLs.
std::string UrlText(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte >= 0x7F || c == '?' || c == '&' || c == '=') {
      c = '_';
    }
  }
  return text;
}

std::string TcpUrl(const MeetingPlace& place) {
  const bool is_ipv6 = place.host.find(':') != std::string::npos;
  return StrCat("tcp://", is_ipv6 ? "[" : "", place.host, is_ipv6 ? "]" : "",
                ":", place.port, "?job=", UrlText(place.job),
                "&restart=", UrlText(place.restart));
}

// Reads rank and world size, and whether all ranks are on this host.
StatusOr<Placement> Place(const Variables& vars, std::string_view source,
                          const char* rank_name, const char* size_name,
                          const char* local_size_name, bool* on_several_hosts) {
  *on_several_hosts = false;
  Placement placement;
  placement.source = source;
  SHARD_ASSIGN_OR_RETURN(placement.world_size, vars.Int(size_name, 1));
  SHARD_ASSIGN_OR_RETURN(placement.rank, vars.Int(rank_name, 0));
  if (placement.rank >= placement.world_size) {
    return InvalidArgument("env: ", rank_name, "=", placement.rank,
                           " is not below ", size_name, "=",
                           placement.world_size);
  }
  if (local_size_name != nullptr && vars.Has(local_size_name)) {
    SHARD_ASSIGN_OR_RETURN(const int local, vars.Int(local_size_name, 1));
    if (local > placement.world_size) {
      return InvalidArgument("env: ", local_size_name, "=", local,
                             " is more than ", size_name, "=",
                             placement.world_size);
    }
    *on_several_hosts = local != placement.world_size;
  }
  return placement;
}

// Returns a rendezvous made of a text that is unique to this job.
std::string NameUrl(std::string name) {
  for (char& c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte >= 0x7F || c == '?') c = '_';
  }
  if (name.size() > kMaxName) {
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
    for (const char c : name) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    }
    name = StrCat(name.substr(0, kMaxName - 20), "-", FormatHex(hash));
  }
  return StrCat("shm:", name);
}

// Returns the meeting place that MASTER_ADDR names; the error says how to give
// it.
StatusOr<std::string> GivenPlace(const Variables& vars, std::string_view source,
                                 const std::string& job, std::string_view how,
                                 const std::string& restart = "0") {
  const auto host = vars.Get("MASTER_ADDR");
  if (!host) {
    return InvalidArgument("env: ", source,
                           " has ranks on several hosts, and does not say "
                           "where they can meet; set MASTER_ADDR, as by ",
                           how);
  }
  int port = kDefaultPort;
  if (vars.Has("MASTER_PORT")) {
    SHARD_ASSIGN_OR_RETURN(port, vars.Int("MASTER_PORT", 1));
  }
  SHARD_ASSIGN_OR_RETURN(port, PortOf(vars, port));
  return TcpUrl({*host, port, job, restart});
}

// Returns the first host of a list as Slurm writes it: "node-1,node-2",
// "gpu[01-04,07]", "rack[1-2]n[3-4]".
std::string FirstHost(std::string_view list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const size_t end = list.find_first_of(",-]", i + 1);
    host += list.substr(i + 1, end - i - 1);
    i = list.find(']', i);
    if (i == std::string_view::npos) break;
  }
  return host;
}

// The ranks of Slurm meet on the first host of the step, at a port that differs
// between jobs.
StatusOr<std::string> SlurmPlace(const Variables& vars, const std::string& job,
                                 const std::string& restart) {
  const auto list = vars.First(
      {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  if (vars.Has("MASTER_ADDR") || !list) {
    return GivenPlace(vars, "Slurm", job,
                      "export MASTER_ADDR=<the first host of the step>",
                      restart);
  }
  constexpr int kPorts = 10000;
  SHARD_ASSIGN_OR_RETURN(const int number, vars.Int("SLURM_JOB_ID", 0));
  SHARD_ASSIGN_OR_RETURN(const int step, vars.Int("SLURM_STEP_ID", 0));
  SHARD_ASSIGN_OR_RETURN(
      const int port,
      PortOf(vars, kDefaultPort + (number % kPorts + step) % kPorts));
  return TcpUrl({FirstHost(*list), port, job, restart});
}

StatusOr<Placement> FromShard(const Variables& vars) {
  constexpr const char* kSource = "SHARD_* variables";
  SHARD_RETURN_IF_ERROR(vars.RequireAll(
      kSource, {"SHARD_RANK", "SHARD_WORLD_SIZE", "SHARD_RENDEZVOUS"}));
  bool on_several_hosts = false;
  SHARD_ASSIGN_OR_RETURN(Placement placement,
                         Place(vars, kSource, "SHARD_RANK", "SHARD_WORLD_SIZE",
                               "SHARD_LOCAL_WORLD_SIZE", &on_several_hosts));
  const std::string where = *vars.Get("SHARD_RENDEZVOUS");
  const bool is_url = where.find(':') != std::string::npos;
  if (where.rfind("env", 0) == 0 && is_url) {
    return InvalidArgument("env: SHARD_RENDEZVOUS='", where,
                           "' does not say where to meet; give a name, or a "
                           "URL such as shm:NAME");
  }
  placement.url = is_url ? where : NameUrl(where);
  if (on_several_hosts && placement.url.rfind("tcp:", 0) != 0 &&
      placement.url.rfind("file:", 0) != 0) {
    return InvalidArgument(
        "env: SHARD_RENDEZVOUS='", where, "' is a name on one host, but only ",
        vars.Get("SHARD_LOCAL_WORLD_SIZE").value_or(""), " of ",
        placement.world_size,
        " ranks are on this one (SHARD_LOCAL_WORLD_SIZE); give a host and a "
        "port, as tcp://node-1:29500");
  }
  return placement;
}

StatusOr<Placement> FromTorchrun(const Variables& vars) {
  SHARD_RETURN_IF_ERROR(vars.RequireAll(
      "torchrun", {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}));
  bool on_several_hosts = false;
  SHARD_ASSIGN_OR_RETURN(Placement placement,
                         Place(vars, "torchrun", "RANK", "WORLD_SIZE",
                               "LOCAL_WORLD_SIZE", &on_several_hosts));
  const std::string job = vars.Get("TORCHELASTIC_RUN_ID").value_or("none");
  const std::string restart =
      vars.Get("TORCHELASTIC_RESTART_COUNT").value_or("0");
  if (on_several_hosts) {
    // torchrun's own store has the port where its agents keep it.
    SHARD_ASSIGN_OR_RETURN(const int port, vars.Int("MASTER_PORT", 1));
    const bool is_taken =
        vars.Get("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
    SHARD_ASSIGN_OR_RETURN(const int ours,
                           PortOf(vars, is_taken ? port + 1 : port));
    placement.url = TcpUrl({*vars.Get("MASTER_ADDR"), ours, job, restart});
    return placement;
  }
  // A restart is another group: remaining ranks of the last one must not meet
  // it.
  placement.url =
      NameUrl(StrCat("torchrun-", *vars.Get("MASTER_ADDR"), "-",
                     *vars.Get("MASTER_PORT"), "-", job, "-", restart));
  return placement;
}

StatusOr<Placement> FromOpenMpi(const Variables& vars) {
  SHARD_RETURN_IF_ERROR(vars.RequireAll(
      "Open MPI", {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}));
  const auto job = vars.First({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  if (!job) {
    return InvalidArgument(
        "env: a group of variables (Open MPI) is half set: "
        "OMPI_COMM_WORLD_RANK "
        "but neither PMIX_NAMESPACE nor OMPI_MCA_ess_base_jobid, which tell "
        "one job from another");
  }
  bool on_several_hosts = false;
  SHARD_ASSIGN_OR_RETURN(
      Placement placement,
      Place(vars, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_SIZE", &on_several_hosts));
  if (on_several_hosts) {
    SHARD_ASSIGN_OR_RETURN(
        placement.url, GivenPlace(vars, "Open MPI", StrCat("ompi-", *job),
                                  "mpirun -x MASTER_ADDR=<the first host>"));
    return placement;
  }
  placement.url = NameUrl(StrCat("ompi-", *job));
  return placement;
}

StatusOr<Placement> FromSlurm(const Variables& vars) {
  SHARD_RETURN_IF_ERROR(vars.RequireAll(
      "Slurm",
      {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_NTASKS", "SLURM_JOB_ID"}));
  bool on_several_hosts = false;
  SHARD_ASSIGN_OR_RETURN(Placement placement,
                         Place(vars, "Slurm", "SLURM_PROCID", "SLURM_NTASKS",
                               nullptr, &on_several_hosts));
  const std::string name = StrCat("slurm-", *vars.Get("SLURM_JOB_ID"), "-",
                                  *vars.Get("SLURM_STEP_ID"));
  // A job that Slurm has requeued has its number again, and its steps have
  // theirs; the first start has no count.
  const std::string restart = vars.Get("SLURM_RESTART_COUNT").value_or("0");
  // Variables of the step come first: a step may use one node of several.
  for (const char* const variable :
       {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"}) {
    if (!vars.Has(variable)) continue;
    SHARD_ASSIGN_OR_RETURN(const int nodes, vars.Int(variable, 1));
    if (nodes == 1) break;
    SHARD_ASSIGN_OR_RETURN(placement.url, SlurmPlace(vars, name, restart));
    return placement;
  }
  placement.url = NameUrl(
      StrCat(name, restart == "0" ? "" : "-", restart == "0" ? "" : restart));
  return placement;
}

StatusOr<Placement> FromLauncher(const Variables& vars) {
  if (vars.HasAny({"SHARD_RANK", "SHARD_WORLD_SIZE", "SHARD_RENDEZVOUS",
                   "SHARD_LOCAL_WORLD_SIZE"})) {
    return FromShard(vars);
  }
  // MASTER_ADDR and MASTER_PORT alone are set by many job scripts.
  if (vars.HasAny({"RANK", "WORLD_SIZE"})) return FromTorchrun(vars);
  if (vars.HasAny({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"})) {
    return FromOpenMpi(vars);
  }
  // A batch script or an allocation's shell has SLURM_JOB_ID, the former even
  // SLURM_PROCID=0, but is no task of a step.
  if (vars.Has("SLURM_PROCID") && vars.Has("SLURM_STEP_ID")) {
    return FromSlurm(vars);
  }
  return Placement();
}

}  // namespace

StatusOr<Placement> ReadPlacement(const Getenv& getenv) {
  auto placement = FromLauncher(Variables(getenv));
  // A single rank has no peers to meet.
  if (placement.ok() && placement->world_size == 1) placement->url = "local:";
  return placement;
}

}  // namespace shard::env
