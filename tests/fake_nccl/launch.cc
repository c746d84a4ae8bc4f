// SPDX-License-Identifier: Apache-2.0

#include "tests/fake_nccl/launch.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_nccl/kernel.h"

namespace shard::testing::fake_nccl {

namespace {

std::vector<fake_cuda::Access> AccessesOf(const std::vector<Work>& works,
                                          const Comm& comm) {
  std::vector<fake_cuda::Access> accesses;
  const auto add = [&](const void* memory, size_t bytes, bool writes) {
    if (bytes != 0) accesses.push_back({memory, bytes, writes});
  };
  for (const Work& work : works) {
    const size_t bytes = work.bytes();
    const size_t all = bytes * static_cast<size_t>(comm.size);
    const bool is_leaf =
        work.kind == WorkKind::kBroadcast && work.peer != comm.rank;
    if (work.send != nullptr && !is_leaf) {
      add(work.send, work.kind == WorkKind::kReduceScatter ? all : bytes,
          false);
    }
    // The root of a broadcast in place only reads.
    if (work.recv != nullptr && (work.kind != WorkKind::kBroadcast ||
                                 work.recv != work.send || is_leaf)) {
      add(work.recv, work.kind == WorkKind::kAllGather ? all : bytes, true);
    }
  }
  return accesses;
}

// Gives a kernel its place: called by the driver, for each replay of a graph.
std::function<fake_cuda::Progress()> BeginKernel(
    const std::shared_ptr<Comm>& comm, const std::vector<Work>& works,
    const Options& options) {
  State* const state = TheState();
  bool is_stuck = false;
  for (size_t i = 0; i < works.size(); ++i) {
    is_stuck |= state->Meets(FaultKind::kStuck, comm.get()).has_value();
    if (const auto fault = state->Meets(FaultKind::kAsync, comm.get())) {
      is_stuck = true;
      comm->async_error = fault->result;
    }
  }
  state->CountLaunch(*comm);
  const auto kernel =
      std::make_shared<Kernel>(comm, comm->begun++, works, options, is_stuck);
  return [kernel] { return kernel->Attempt(); };
}

}  // namespace

Result LaunchWorks(Entry* entry, const std::shared_ptr<Comm>& comm,
                   std::vector<Work> works,
                   const std::vector<cuda::CuStream>& streams, int polls) {
  polls = entry->PollsOf(*comm, polls);
  fake_cuda::WaitingKernel kernel;
  kernel.name = works.size() == 1 ? works[0].symbol() : "ncclGroup";
  kernel.context = comm->context;
  for (const cuda::CuStream stream : streams) {
    if (std::find(kernel.streams.begin(), kernel.streams.end(), stream) ==
        kernel.streams.end()) {
      kernel.streams.push_back(stream);
    }
  }
  kernel.accesses = AccessesOf(works, *comm);
  kernel.begin = [comm, works = std::move(works), options = entry->options()] {
    return BeginKernel(comm, works, options);
  };
  const Job launch = [kernel] {
    if (fake_cuda::LaunchWaiting(kernel) == cuda::CuResult::kSuccess) {
      return Result::kSuccess;
    }
    TheState()->SetLastError("Cuda failure in a launch of " + kernel.name);
    return Result::kUnhandledCudaError;
  };
  const Job launch_in_order = [comm, launch] {
    if (TheState()->Meets(FaultKind::kSwap, comm.get())) {
      comm->held_launch = launch;
      return Result::kSuccess;
    }
    const Result result = launch();
    if (const auto held = std::exchange(comm->held_launch, nullptr)) held();
    return result;
  };
  if (comm->is_blocking || polls == 0) return entry->Return(launch_in_order());
  // Nothing of it is in the stream before that: a caller that does not wait
  // records its events too early.
  comm->job = launch_in_order;
  comm->polls = polls;
  comm->result = Result::kInProgress;
  return entry->Return(Result::kInProgress);
}

}  // namespace shard::testing::fake_nccl
