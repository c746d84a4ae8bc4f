// SPDX-License-Identifier: Apache-2.0
//
// The entry points of the fake for groups.

#include "tests/fake_nccl/group.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/fake_nccl/entry.h"
#include "tests/fake_nccl/launch.h"

namespace shard::testing::fake_nccl {

Group* TheGroup() {
  thread_local Group group;
  const uint64_t generation = TheState()->generation;
  if (group.generation != generation) {
    group = {};
    group.generation = generation;
  }
  return &group;
}

namespace {

// The operations of a group on one communicator.
struct Fused {
  std::shared_ptr<Comm> comm;
  std::vector<Work> works;
  std::vector<cuda::CuStream> streams;
};

std::vector<Fused> Fuse(const std::vector<Group::PendingWork>& pending) {
  std::vector<Fused> all;
  for (const Group::PendingWork& it : pending) {
    auto found = std::find_if(all.begin(), all.end(), [&](const Fused& fused) {
      return fused.comm == it.comm;
    });
    if (found == all.end()) {
      all.push_back({it.comm, {}, {}});
      found = all.end() - 1;
    }
    found->works.push_back(it.work);
    found->streams.push_back(it.stream);
  }
  return all;
}

// A rank that sends to itself receives that in the same group.
Result CheckSelf(Entry* entry, const Fused& fused) {
  int sends = 0;
  int receives = 0;
  for (const Work& work : fused.works) {
    if (work.peer != fused.comm->rank) continue;
    sends += work.kind == WorkKind::kSend ? 1 : 0;
    receives += work.kind == WorkKind::kRecv ? 1 : 0;
  }
  if (sends == receives) return Result::kSuccess;
  return entry->Fail(Result::kInvalidUsage,
                     sends > receives
                         ? "Trying to send to self without a matching recv"
                         : "Trying to recv to self without a matching send");
}

Result EndJobs(Entry* entry, std::vector<Group::PendingJob> pending) {
  std::vector<std::shared_ptr<Comm>> blocking;
  std::vector<Job> jobs;
  Result result = Result::kSuccess;
  for (Group::PendingJob& it : pending) {
    if (it.comm->is_blocking) {
      blocking.push_back(it.comm);
      jobs.push_back(std::move(it.job));
    } else {
      const Result begun = entry->BeginNow(it.comm, it.polls, it.job);
      if (result == Result::kSuccess) result = begun;
    }
  }
  if (jobs.empty()) return result;
  const Result waited = entry->Wait(blocking, std::move(jobs));
  return waited == Result::kSuccess ? result : waited;
}

Result EndGroup(Entry* entry, Group group) {
  if (group.error != Result::kSuccess) return group.error;
  const std::vector<Fused> all = Fuse(group.works);
  for (const Fused& it : all) entry->Uses(it.comm);
  for (const Group::PendingJob& it : group.jobs) entry->Uses(it.comm);
  for (const Fused& it : all) {
    if (const Result wrong = CheckSelf(entry, it); wrong != Result::kSuccess) {
      return wrong;
    }
  }
  Result result = EndJobs(entry, std::move(group.jobs));
  for (const Fused& it : all) {
    const Result launched = LaunchWorks(entry, it.comm, it.works, it.streams,
                                        entry->options().polls.group);
    if (result == Result::kSuccess) result = launched;
  }
  return result;
}

}  // namespace

Result ncclGroupStart() {
  SHARD_FAKE_NCCL_ENTER_FREE(ncclGroupStart);
  ++TheGroup()->depth;
  return entry.Return(Result::kSuccess);
}

Result ncclGroupEnd() {
  Entry entry("ncclGroupEnd", nullptr, false, 0);
  Group* const group = TheGroup();
  if (group->depth == 0) {
    return entry.Fail(Result::kInvalidUsage,
                      "ncclGroupEnd: not in a group call.");
  }
  if (--group->depth > 0) return entry.result();
  Group ended = std::exchange(*group, {});
  group->generation = ended.generation;
  entry.EndUses(&ended);
  if (!entry.ok()) return entry.result();
  return entry.Return(EndGroup(&entry, std::move(ended)));
}

}  // namespace shard::testing::fake_nccl
