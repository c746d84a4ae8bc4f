// SPDX-License-Identifier: Apache-2.0
//
// Opens the backend that a URL names.

#include <stdlib.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/out_of_memory.h"
#include "core/base/spec.h"
#include "core/base/strings.h"
#include "core/comm/check_agreement.h"
#include "core/comm/communicator.h"
#include "core/comm/direct/control_block.h"
#include "core/comm/direct/host_chain.h"
#include "core/comm/direct/link.h"
#include "core/comm/env/environment.h"
#include "core/comm/network/open_network.h"
#include "core/comm/observed.h"
#include "core/comm/shm/shm_communicator.h"
#include "core/comm/thread/thread_communicator.h"
#include "core/observe/host_log.h"
#include "core/observe/observer.h"

namespace shard {

namespace {

const char* HostVariable(const char* name) { return std::getenv(name); }

// Null in a program that has more rights than its user: such a user must not
// name the files that the program writes.
const char* SafeHostVariable(const char* name) { return ::secure_getenv(name); }

StatusOr<env::Placement> HostEnvironment() {
  return env::ReadPlacement(HostVariable);
}

using Opened = StatusOr<std::shared_ptr<Communicator>>;

// Opens the trace and the metrics of ranks that have met: rank 0 first, whose
// trace the others join. `mine` is this rank's error so far. An error of one
// rank is the error of all.
Status StartObservers(Communicator* comm, Status mine,
                      const Deadline& deadline) {
  int trace = 0;
  const auto start = [&] {
    if (!mine.ok()) return;
    mine = CatchOutOfMemory([&] { return comm->observer()->Start(&trace); });
  };
  if (comm->rank() == 0) start();
  // Where rank 0 has begun no trace, the others would join that of an earlier
  // run.
  constexpr int kNone = -1;
  if (!mine.ok()) trace = kNone;
  std::vector<int> traces(static_cast<size_t>(comm->world_size()));
  SHARD_RETURN_IF_ERROR(comm->AllGather("open: trace", &trace, sizeof(trace),
                                        traces.data(), deadline));
  trace = traces[0];
  if (comm->rank() != 0 && trace != kNone) start();
  return AgreeOnStatus(comm, "open: files", mine, deadline);
}

// Makes the observer of this rank, then opens the backend by `open`. A rank
// whose files cannot be opened meets the others all the same: they are told,
// and need not wait for a rank that does not come.
template <typename Open>
Opened OpenObserved(const std::string& description, CommOptions* options,
                    const Open& open) {
  // The log lives as long as the observer that calls it.
  struct Observed {
    explicit Observed(const CommOptions& options)
        : log(options.logger),
          observer(log.logger(), options.rank, options.world_size) {}
    HostLog log;
    Observer observer;
  };
  const auto observed = std::make_shared<Observed>(*options);
  options->observer = {observed, &observed->observer};
  const Status files = CatchOutOfMemory([&]() -> Status {
    ObserverSettings settings = options->observe;
    SHARD_RETURN_IF_ERROR(ReadSettings(SafeHostVariable, &settings));
    return observed->observer.Open(settings);
  });
  const auto meet = [&]() -> Opened {
    Opened opened = open();
    if (!opened.ok()) return files.ok() ? opened.status() : files;
    SHARD_RETURN_IF_ERROR(StartObservers(opened->get(), files,
                                         Deadline::After(options->timeout)));
    return opened;
  };
  SHARD_ASSIGN_OR_RETURN(auto opened,
                         Observe(&observed->observer, EventId::kOpen,
                                 {.what = description}, meet));
  return std::shared_ptr<Communicator>(std::make_shared<ObservedCommunicator>(
      std::move(opened), std::shared_ptr<HostLog>(observed, &observed->log)));
}

// Sets `in_options` to `in_url` where the options leave the value open; an
// error when both are given and differ.
Status Merge(std::string_view what, std::string_view url, int64_t in_url,
             int64_t unset, int* in_options) {
  if (in_url == unset) return Status();
  if (*in_options != unset && *in_options != in_url) {
    return InvalidArgument(what, " is ", in_url, " in '", url, "' and ",
                           *in_options, " in the options");
  }
  if (in_url < INT32_MIN || in_url > INT32_MAX) {
    return InvalidArgument(what, " ", in_url, " in '", url,
                           "' is out of range");
  }
  *in_options = static_cast<int>(in_url);
  return Status();
}

Status CheckPlace(std::string_view url, const CommOptions& options) {
  if (options.world_size < 1 || options.world_size > direct::kMaxRanks) {
    return InvalidArgument("'", url, "': world_size ", options.world_size,
                           " is not in 1 to ", direct::kMaxRanks);
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    return InvalidArgument("'", url, "': rank ", options.rank,
                           " is not in 0 to ", options.world_size - 1,
                           options.rank == -1 ? " (-1: none was given)" : "");
  }
  return Status();
}

// Reads `link`'s parameters from `spec`; those that `spec` does not have keep
// their values.
Status TakeLink(std::string_view url, Spec* spec, direct::Link* link) {
  SHARD_ASSIGN_OR_RETURN(link->direct, spec->TakeBool("direct", link->direct));
  SHARD_ASSIGN_OR_RETURN(link->delay, spec->TakeDouble("delay", link->delay));
  SHARD_ASSIGN_OR_RETURN(link->bandwidth,
                         spec->TakeDouble("bandwidth", link->bandwidth));
  if (link->delay < 0) {
    return InvalidArgument("'", url, "': a delay of ", link->delay,
                           " seconds; it must not be negative");
  }
  if (link->bandwidth < 0) {
    return InvalidArgument("'", url, "': a bandwidth of ", link->bandwidth,
                           " bytes per second; it must not be negative (0: "
                           "none is simulated)");
  }
  if (link->direct && (link->delay > 0 || link->bandwidth > 0)) {
    return InvalidArgument("'", url,
                           "': ", link->delay > 0 ? "delay" : "bandwidth",
                           " is of a simulated link, which ranks that share "
                           "memory do not have; add direct=0 or leave it out");
  }
  return Status();
}

std::string Describe(std::string_view where, const CommOptions& options,
                     const direct::Link& link, std::string_view origin) {
  return StrCat(where, " rank ", options.rank, " of ", options.world_size,
                link.Describe(), origin);
}

StatusOr<std::shared_ptr<Communicator>> OpenLocal(std::string_view url,
                                                  const Spec& spec,
                                                  CommOptions options,
                                                  const direct::Link& link,
                                                  std::string_view origin) {
  if (!spec.body().empty()) {
    return InvalidArgument("'", url, "': local: is followed by nothing");
  }
  if (options.world_size == 0) options.world_size = 1;
  if (options.rank == -1) options.rank = 0;
  if (options.world_size != 1 || options.rank != 0) {
    return InvalidArgument("'", url, "' is rank 0 of 1, the options say rank ",
                           options.rank, " of ", options.world_size);
  }
  const std::string description = Describe("local:", options, link, origin);
  return OpenObserved(description, &options, [&] {
    return threads::OpenLocal(description, options, link);
  });
}

StatusOr<std::shared_ptr<Communicator>> OpenThreads(
    std::string_view url, const Spec& spec, const std::string& name,
    CommOptions options, const direct::Link& link, std::string_view origin) {
  const auto count = ParseInt(spec.body());
  if (!count || *count < 1) {
    return InvalidArgument("'", url,
                           "' does not say how many threads; the form is "
                           "threads:4");
  }
  SHARD_RETURN_IF_ERROR(
      Merge("world_size", url, *count, 0, &options.world_size));
  SHARD_RETURN_IF_ERROR(CheckPlace(url, options));
  const std::string where = StrCat("threads:", options.world_size,
                                   name.empty() ? "" : "?name=", name);
  const std::string description = Describe(where, options, link, origin);
  return OpenObserved(description, &options, [&] {
    return threads::Open(name, description, options, link);
  });
}

// Sets rank and world size from the environment of a launcher; returns the text
// that says so.
StatusOr<std::string> PlaceByEnvironment(std::string_view url,
                                         CommOptions* options) {
  SHARD_ASSIGN_OR_RETURN(const env::Placement placement, HostEnvironment());
  if (placement.source == env::Placement().source) {
    return InvalidArgument(
        "'", url,
        "': neither the options, nor the URL (?rank=0&world_size=2), nor the "
        "environment of a launcher says which rank this is");
  }
  options->rank = placement.rank;
  options->world_size = placement.world_size;
  return StrCat(" (rank from ", placement.source, ")");
}

StatusOr<std::shared_ptr<Communicator>> OpenShm(std::string_view url,
                                                const Spec& spec,
                                                CommOptions options,
                                                const direct::Link& link,
                                                std::string origin) {
  if (options.rank == -1 && options.world_size == 0) {
    SHARD_ASSIGN_OR_RETURN(origin, PlaceByEnvironment(url, &options));
  }
  SHARD_RETURN_IF_ERROR(CheckPlace(url, options));
  const std::string description =
      Describe(StrCat("shm:", spec.body()), options, link, origin);
  return OpenObserved(description, &options, [&] {
    return shm::Open(spec.body(), description, options, link);
  });
}

StatusOr<std::shared_ptr<Communicator>> OpenNetwork(
    std::string_view url, const network::NetworkOptions& network,
    CommOptions options, const direct::Link& link, std::string origin) {
  if (!link.direct || link.delay > 0 || link.bandwidth > 0) {
    return InvalidArgument("'", url,
                           "': direct=0 is of ranks on one host; those of tcp: "
                           "share no memory as it is");
  }
  if (options.rank == -1 && options.world_size == 0) {
    SHARD_ASSIGN_OR_RETURN(origin, PlaceByEnvironment(url, &options));
  }
  SHARD_RETURN_IF_ERROR(CheckPlace(url, options));
  const std::string_view sums = direct::HostSumsName(network.sums);
  const std::string where =
      StrCat(network.where, sums.empty() ? "" : "?sums=", sums);
  const std::string description =
      Describe(where, options, direct::Link(), origin);
  return OpenObserved(description, &options, [&]() -> Opened {
    SHARD_ASSIGN_OR_RETURN(auto opened,
                           network::Open(network, description, options));
    // Hosts that sum in different ways would wait for each other.
    SHARD_RETURN_IF_ERROR(CheckAgreement(
        opened.get(), "the URL",
        [sums](FactSink* sink) {
          sink->Add("", "sums", sums.empty() ? "not given" : sums);
        },
        Deadline::After(options.timeout)));
    return opened;
  });
}

// Opens any URL but "env:".
StatusOr<std::shared_ptr<Communicator>> OpenNamed(std::string_view url,
                                                  CommOptions options,
                                                  direct::Link link,
                                                  const std::string& origin) {
  SHARD_ASSIGN_OR_RETURN(Spec spec, Spec::Parse(url));
  SHARD_ASSIGN_OR_RETURN(options.timeout,
                         spec.TakeDouble("timeout", options.timeout));
  if (!(options.timeout > 0) || !std::isfinite(options.timeout)) {
    return InvalidArgument("'", url, "': a timeout of ", options.timeout,
                           " seconds; it must be positive and finite");
  }
  SHARD_RETURN_IF_ERROR(TakeLink(url, &spec, &link));
  SHARD_ASSIGN_OR_RETURN(const int64_t rank, spec.TakeInt("rank", -1));
  SHARD_ASSIGN_OR_RETURN(const int64_t world_size,
                         spec.TakeInt("world_size", 0));
  SHARD_RETURN_IF_ERROR(Merge("rank", url, rank, -1, &options.rank));
  SHARD_RETURN_IF_ERROR(
      Merge("world_size", url, world_size, 0, &options.world_size));
  const bool is_threads = spec.name() == "threads";
  const std::string name = is_threads ? spec.TakeString("name", "") : "";
  network::NetworkOptions network;
  const bool is_network = spec.name() == "tcp" || spec.name() == "file";
  if (is_network) {
    SHARD_ASSIGN_OR_RETURN(network, network::TakeNetworkOptions(url, &spec));
  }
  SHARD_RETURN_IF_ERROR(spec.CheckAllTaken());

  if (is_threads) return OpenThreads(url, spec, name, options, link, origin);
  if (spec.name() == "local") {
    return OpenLocal(url, spec, options, link, origin);
  }
  if (spec.name() == "shm") return OpenShm(url, spec, options, link, origin);
  if (is_network) {
    return OpenNetwork(url, network, options, link, origin);
  }
  return InvalidArgument("'", url,
                         "' names no communicator; known: local:, "
                         "threads:N, shm:NAME, tcp://HOST:PORT, "
                         "file:/FOLDER, env:");
}

// Appends the parameters `keys`, "&interface=eth1", to the URL of a rendezvous,
// if it is one of several hosts.
std::string WithPassedKeys(const std::string& url, const std::string& keys) {
  const bool is_network =
      url.rfind("tcp:", 0) == 0 || url.rfind("file:", 0) == 0;
  if (!is_network || keys.empty()) return url;
  if (url.find('?') != std::string::npos) return StrCat(url, keys);
  return StrCat(url, "?", keys.substr(1));
}

}  // namespace

StatusOr<std::shared_ptr<Communicator>> OpenCommunicator(
    std::string_view url, const CommOptions& options) {
  SHARD_ASSIGN_OR_RETURN(Spec spec, Spec::Parse(url));
  if (spec.name() != "env") return OpenNamed(url, options, direct::Link(), "");

  CommOptions placed = options;
  SHARD_ASSIGN_OR_RETURN(placed.timeout,
                         spec.TakeDouble("timeout", options.timeout));
  direct::Link link;
  SHARD_RETURN_IF_ERROR(TakeLink(url, &spec, &link));
  // Ranks that are all on one host have no use for these.
  const std::string network = network::TakePassedKeys(&spec);
  SHARD_RETURN_IF_ERROR(spec.CheckAllTaken());
  if (!spec.body().empty()) {
    return InvalidArgument("'", url, "': env: is followed by nothing");
  }
  SHARD_ASSIGN_OR_RETURN(const env::Placement placement, HostEnvironment());
  SHARD_RETURN_IF_ERROR(
      Merge("rank", placement.source, placement.rank, -1, &placed.rank));
  SHARD_RETURN_IF_ERROR(Merge("world_size", placement.source,
                              placement.world_size, 0, &placed.world_size));
  return OpenNamed(WithPassedKeys(placement.url, network), placed, link,
                   StrCat(" (from ", placement.source, ")"));
}

}  // namespace shard
