// SPDX-License-Identifier: Apache-2.0
//
// The calls of a thread between ncclGroupStart and ncclGroupEnd.

#ifndef SHARD_TESTS_FAKE_NCCL_GROUP_H_
#define SHARD_TESTS_FAKE_NCCL_GROUP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/fake_nccl/comm.h"
#include "tests/fake_nccl/work.h"

namespace shard::testing::fake_nccl {

struct Group {
  struct PendingJob {
    std::shared_ptr<Comm> comm;
    int polls;
    Job job;
  };
  struct PendingWork {
    std::shared_ptr<Comm> comm;
    Work work;
    cuda::CuStream stream;
  };

  uint64_t generation = 0;
  int depth = 0;
  // The first error of a call in it, which its end returns, too.
  Result error = Result::kSuccess;
  std::vector<PendingJob> jobs;
  std::vector<PendingWork> works;
  // The communicators of its calls, which the thread uses until its end.
  std::vector<std::shared_ptr<Comm>> used;
};

// Returns the group of the calling thread.
Group* TheGroup();

}  // namespace shard::testing::fake_nccl

#endif  // SHARD_TESTS_FAKE_NCCL_GROUP_H_
