// SPDX-License-Identifier: Apache-2.0
//
// Communicators of ranks that are processes (tests/ranks).

#ifndef SHARD_TESTS_API_RANK_PROCESSES_H_
#define SHARD_TESTS_API_RANK_PROCESSES_H_

#include <string>

#include "tests/api/api_testing.h"
#include "tests/ranks/ranks.h"

namespace shard_api_testing {

// Returns the communicator of `me`. Returns NULL, and fails the test, when it
// does not open.
inline shard_comm* OpenAs(const shard::testing::Rank& me,
                          const std::string& url) {
  shard_comm_options options = SHARD_COMM_OPTIONS_INIT;
  options.rank = me.rank();
  options.world_size = me.world_size();
  options.timeout = 30;
  shard_comm* comm = nullptr;
  EXPECT_OK(shard_comm_open(url.c_str(), &options, &comm));
  return comm;
}

}  // namespace shard_api_testing

#endif  // SHARD_TESTS_API_RANK_PROCESSES_H_
