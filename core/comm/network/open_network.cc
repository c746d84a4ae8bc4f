// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/open_network.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/direct/hosts.h"
#include "core/comm/direct/liveness.h"
#include "core/comm/network/helper_path.h"
#include "core/comm/network/helper_regions.h"
#include "core/comm/network/meet_helper.h"
#include "core/comm/network/network_communicator.h"
#include "core/comm/network/start_helper.h"

namespace shard::network {

namespace {

// The time for the helper to take a message that needs no answer.
constexpr double kTakeSeconds = 1;

class ConnectionKeeper final : public RegionKeeper {
 public:
  explicit ConnectionKeeper(std::shared_ptr<HelperConnection> connection)
      : connection_(std::move(connection)) {}

  StatusOr<Mapping> Request(std::string_view key,
                            const direct::RegionRequest& request,
                            std::string_view block,
                            const Deadline& deadline) override {
    // A rank that is alone on its host has nobody to share its memory with. It
    // is committed as it is used, as that of gradients and states is.
    if (request.of_host && connection_->world().ranks == 1) {
      return Mapping::Anonymous(request.bytes);
    }
    RegionLayout layout;
    if (request.ring != nullptr) {
      layout.kind = RegionKind::kBlock;
      layout.cells = request.ring->count;
      layout.payload_bytes = request.ring->payload_bytes;
    } else {
      layout.kind =
          request.of_host ? RegionKind::kOfHost : RegionKind::kTensors;
      layout.block = block;
    }
    // The helper commits blocks, and staging is committed as it is used.
    const CommitRange commit =
        request.of_host
            ? CommitRange{request.commit_begin, request.commit_bytes}
            : CommitRange{};
    return connection_->RequestRegion(key, layout, request.bytes, deadline,
                                      commit);
  }
  // A helper that is gone has freed it.
  void Release(std::string_view key) override {
    (void)connection_->ReleaseRegion(key, Deadline::After(kTakeSeconds));
  }

 private:
  const std::shared_ptr<HelperConnection> connection_;
};

// The helper tells which ranks have died (direct::Presence). Without it none
// can be reached: this host is then lost, as it is to the other hosts.
class HelperLiveness final : public direct::Liveness {
 public:
  explicit HelperLiveness(std::shared_ptr<const HelperConnection> connection)
      : connection_(std::move(connection)) {}

  bool IsDead(int rank) const override {
    return rank != connection_->rank() && connection_->HelperIsGone();
  }
  int NamedForDead(int) const override {
    return HostOf(connection_->rank()).first_rank;
  }
  std::string HowDead(int) const override {
    return StrCat(" cannot be reached: the network helper (process ",
                  connection_->helper(), ") of this host died");
  }
  std::string Name(int rank) const override {
    return StrCat("rank ", rank, " (host ", HostOf(rank).name, ")");
  }
  int FirstOfHost(int rank) const override { return HostOf(rank).first_rank; }

 private:
  const HostRanks& HostOf(int rank) const {
    const std::vector<HostRanks>& hosts = connection_->world().hosts;
    return *std::find_if(hosts.begin(), hosts.end() - 1,
                         [rank](const HostRanks& host) {
                           return rank < host.first_rank + host.ranks;
                         });
  }

  const std::shared_ptr<const HelperConnection> connection_;
};

// Takes parameters, and returns them as the tail of a URL.
std::string TakeKeys(std::initializer_list<const char*> keys, Spec* spec) {
  std::string tail;
  for (const char* const key : keys) {
    const std::string value = spec->TakeString(key, "");
    if (!value.empty()) StrAppend(&tail, "&", key, "=", value);
  }
  return tail;
}

// Takes those that say how this host takes part, which its helper reads.
std::string TakeHelperKeys(Spec* spec) {
  return TakeKeys({"trust", "interface", "address", "secret_file"}, spec);
}

StatusOr<direct::HostSums> TakeSums(std::string_view url, Spec* spec) {
  const std::string name = spec->TakeString("sums", "");
  for (const auto sums :
       {direct::HostSums::kFewestBytes, direct::HostSums::kDirect,
        direct::HostSums::kChain}) {
    if (name == direct::HostSumsName(sums)) return sums;
  }
  return InvalidArgument("'", url, "': sums='", name,
                         "' is not known; known: direct, chain; without it "
                         "the hosts use the one that sends fewer bytes");
}

direct::Hosts HostsOf(const World& world) {
  std::vector<int> begins = {0};
  for (const HostRanks& host : world.hosts) {
    begins.push_back(host.first_rank + host.ranks);
  }
  return direct::Hosts(std::move(begins));
}

}  // namespace

std::string TakePassedKeys(Spec* spec) {
  return TakeHelperKeys(spec) + TakeKeys({"sums"}, spec);
}

StatusOr<NetworkOptions> TakeNetworkOptions(std::string_view url, Spec* spec) {
  NetworkOptions network;
  const std::string& body = spec->body();
  const bool is_file = spec->name() == "file";
  if (is_file ? body.substr(0, 1) != "/"
              : body.substr(0, 2) != "//" || body.size() == 2) {
    return InvalidArgument(
        "'", url, "' does not say where the ranks meet; the form is ",
        is_file ? "file:/path/of/a/shared/folder" : "tcp://host:port");
  }
  network.where = StrCat(spec->name(), ":", body);
  network.job = spec->TakeString("job", "");
  SHARD_ASSIGN_OR_RETURN(network.restart, spec->TakeInt("restart", 0));
  if (network.restart < 0 || network.restart > INT32_MAX) {
    return ValueOutOfRange(url, "restart", network.restart, "0 to 2147483647");
  }
  SHARD_ASSIGN_OR_RETURN(network.meet, spec->TakeDouble("meet", network.meet));
  if (!(network.meet > 0) || !std::isfinite(network.meet)) {
    return ValueOutOfRange(url, "meet", network.meet, "above 0 seconds");
  }
  network.host = spec->TakeString("host", "");
  SHARD_ASSIGN_OR_RETURN(const int64_t isolate, spec->TakeInt("isolate", 1));
  if (isolate != 0 && isolate != 1) {
    return ValueOutOfRange(url, "isolate", isolate, "0 or 1");
  }
  network.isolate = isolate == 1;
  network.helper_url = StrCat(network.where, "?restart=", network.restart);
  if (!network.job.empty())
    StrAppend(&network.helper_url, "&job=", network.job);
  if (!network.host.empty()) {
    StrAppend(&network.helper_url, "&host=", network.host);
  }
  network.helper_url += TakeHelperKeys(spec);
  SHARD_ASSIGN_OR_RETURN(network.sums, TakeSums(url, spec));
  return network;
}

StatusOr<std::shared_ptr<Communicator>> Open(const NetworkOptions& network,
                                             const std::string& description,
                                             const CommOptions& options) {
  MeetOptions meet;
  meet.key = StrCat(network.where, "\n", network.job, "\n", network.restart,
                    "\n", network.host);
  meet.isolate = network.isolate;
  if (meet.isolate) {
    SHARD_ASSIGN_OR_RETURN(meet.program, HelperPath());
  }
  meet.keep_stderr = LogsToStderr();
  meet.rank = options.rank;
  meet.world_size = options.world_size;
  meet.options = network.helper_url;
  meet.deadline = Deadline::After(network.meet);
  meet.timeout = options.timeout;
  meet.phase_hook = options.phase_hook;
  auto met = MeetHelper(meet);
  if (!met.ok()) return met.status().WithContext(description);
  const std::shared_ptr<HelperConnection> connection = *std::move(met);
  auto keeper = std::make_shared<ConnectionKeeper>(connection);
  return MakeNetworkCommunicator(
      {HostsOf(connection->world()), connection->control(),
       direct::Membership(connection->block(), options.rank),
       connection->bell(), std::move(keeper),
       std::make_shared<const HelperLiveness>(connection), network.sums},
      description, options);
}

}  // namespace shard::network
