// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/meeting_options.h"

#include <stdlib.h>
#include <unistd.h>

#include <utility>

#include "core/base/spec.h"
#include "core/base/strings.h"

namespace shard::network {

namespace {

std::string MachineName() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

}  // namespace

StatusOr<MeetingOptions> ReadMeetingOptions(const std::string& url,
                                            int world_size,
                                            const Deadline& deadline) {
  SHARD_ASSIGN_OR_RETURN(Spec spec, Spec::Parse(url));
  MeetingOptions options;
  if (spec.name() == "file") {
    options.folder = spec.body();
  } else {
    std::string where = spec.body();
    if (where.substr(0, 2) == "//") where.erase(0, 2);
    SHARD_ASSIGN_OR_RETURN(const HostAndPort point, ParseHostAndPort(where));
    options.host = point.host;
    options.port = point.port;
  }
  options.identity.job_id = spec.TakeString("job", "");
  SHARD_ASSIGN_OR_RETURN(const int64_t restart, spec.TakeInt("restart", 0));
  options.identity.restart = static_cast<uint32_t>(restart);
  options.world_size = world_size;
  options.deadline = deadline;
  options.host_name = spec.TakeString("host", MachineName());
  const std::string trust = spec.TakeString("trust", "");
  if (!trust.empty() && trust != "network") {
    return InvalidArgument("trust='", trust, "' is not known; known: network");
  }
  options.trust_network = trust == "network";
  options.local.interface = spec.TakeString("interface", "");
  options.local.address = spec.TakeString("address", "");
  SHARD_ASSIGN_OR_RETURN(
      options.identity.secret,
      ReadSecret(::getenv("SHARD_TOKEN"), spec.TakeString("secret_file", "")));
  SHARD_RETURN_IF_ERROR(spec.CheckAllTaken());
  return options;
}

}  // namespace shard::network
