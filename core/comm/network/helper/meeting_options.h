// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_MEETING_OPTIONS_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_MEETING_OPTIONS_H_

#include <string>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/network/helper/rendezvous.h"

namespace shard::network {

// Reads the options of a meeting from the URL that the ranks gave their helper
// (NetworkOptions::helper_url), and the job's secret from the file that it
// names or from SHARD_TOKEN.
StatusOr<MeetingOptions> ReadMeetingOptions(const std::string& url,
                                            int world_size,
                                            const Deadline& deadline);

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_MEETING_OPTIONS_H_
