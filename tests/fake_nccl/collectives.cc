// SPDX-License-Identifier: Apache-2.0
//
// The entry points of the fake for operations on tensors.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_nccl/entry.h"
#include "tests/fake_nccl/group.h"
#include "tests/fake_nccl/launch.h"

namespace shard::testing::fake_nccl {

namespace {

// Returns the bytes that a rank reads at `send`, and writes at `recv`.
std::pair<size_t, size_t> ExtentsOf(const Work& work, const Comm& comm) {
  const size_t bytes = work.bytes();
  const size_t all = bytes * static_cast<size_t>(comm.size);
  switch (work.kind) {
    case WorkKind::kReduceScatter:
      return {all, bytes};
    case WorkKind::kAllReduce:
      return {bytes, bytes};
    case WorkKind::kAllGather:
      return {bytes, all};
    case WorkKind::kBroadcast:
      return {work.peer == comm.rank ? bytes : 0, bytes};
    case WorkKind::kSend:
      return {bytes, 0};
    case WorkKind::kRecv:
      return {0, bytes};
  }
  return {0, 0};
}

// Returns why memory is none of the communicator's device, "" where it is.
std::string WrongMemory(const Comm& comm, const void* memory, size_t bytes) {
  if (bytes == 0) return "";
  fake_cuda::Memory found = {};
  if (!fake_cuda::FindMemory(memory, &found)) return "no memory of a device";
  if (found.is_pinned) return "pinned memory of the host";
  if (found.device != comm.device) {
    return "memory of device " + std::to_string(found.device);
  }
  const size_t offset =
      static_cast<size_t>(static_cast<const std::byte*>(memory) -
                          static_cast<const std::byte*>(found.begin));
  if (found.bytes - offset >= bytes) return "";
  return "memory that has " + std::to_string(found.bytes - offset) +
         " bytes of " + std::to_string(bytes);
}

// Fails unless a rank of device `comm.device` can use the memory.
Result CheckMemory(Entry* entry, const Work& work, const Comm& comm) {
  const auto [send_bytes, recv_bytes] = ExtentsOf(work, comm);
  for (const auto& [memory, bytes] :
       {std::pair<const void*, size_t>{work.send, send_bytes},
        {work.recv, recv_bytes}}) {
    const std::string wrong = WrongMemory(comm, memory, bytes);
    if (wrong.empty()) continue;
    const std::string text = std::string(work.symbol()) + " of " +
                             comm.Describe() + " on device " +
                             std::to_string(comm.device) + " is given " + wrong;
    entry->state()->Add(ViolationKind::kNotDeviceMemory, text);
    return entry->Fail(Result::kInvalidArgument, text);
  }
  return Result::kSuccess;
}

Result CheckArguments(Entry* entry, const Work& work, const Comm& comm) {
  const std::string symbol = work.symbol();
  const bool sums = work.kind == WorkKind::kReduceScatter ||
                    work.kind == WorkKind::kAllReduce;
  if (SizeOf(work.type) == 0) {
    return entry->Fail(Result::kInvalidArgument,
                       symbol + " : invalid type " +
                           std::to_string(static_cast<int>(work.type)));
  }
  if (sums && (static_cast<int>(work.op) < 0 || work.op > RedOp::kAvg)) {
    return entry->Fail(Result::kInvalidArgument,
                       symbol + " : invalid reduction operation " +
                           std::to_string(static_cast<int>(work.op)));
  }
  // NCCL has them.
  if (sums && (work.op != RedOp::kSum || !HasSums(work.type))) {
    return entry->Fail(Result::kInvalidUsage,
                       symbol + " : the fake has sums alone, and none of " +
                           "floats of 8 bits");
  }
  const bool has_peer = !sums && work.kind != WorkKind::kAllGather;
  if (has_peer && (work.peer < 0 || work.peer >= comm.size)) {
    return entry->Fail(Result::kInvalidArgument,
                       symbol + " : invalid root " + std::to_string(work.peer) +
                           " (root should be in the 0.." +
                           std::to_string(comm.size) + " range)");
  }
  return CheckMemory(entry, work, comm);
}

bool IsRegistered(const Comm& comm, const std::byte* memory, size_t bytes) {
  return std::any_of(comm.registrations.begin(), comm.registrations.end(),
                     [&](const auto& it) {
                       const auto& [begin, size] = it.second;
                       const auto* const from =
                           static_cast<const std::byte*>(begin);
                       return from <= memory && memory + bytes <= from + size;
                     });
}

// Finds the window that NCCL's kernels would use.
void FindWindow(const Comm& comm, Work* work) {
  if (work->kind != WorkKind::kReduceScatter &&
      work->kind != WorkKind::kAllGather) {
    return;
  }
  const std::byte* const memory =
      work->kind == WorkKind::kAllGather ? work->recv : work->send;
  for (const auto& [handle, window] : comm.windows) {
    if (memory < window.memory || memory >= window.memory + window.bytes) {
      continue;
    }
    work->window = window.round;
    work->window_offset = static_cast<uint64_t>(memory - window.memory);
  }
}

Result CallWith(Entry* entry, Work work, cuda::CuStream stream) {
  const std::shared_ptr<Comm>& comm = entry->comm();
  CallRecord* const record = entry->record();
  record->send = work.send;
  record->recv = work.recv;
  record->count = work.count;
  record->type = work.type;
  record->peer = work.peer;
  record->stream = stream;
  entry->CountBytes(work.bytes());
  if (entry->CheckReady() != Result::kSuccess) return entry->result();
  if (comm->is_finalized || comm->is_revoked) {
    const std::string text =
        std::string(work.symbol()) + " of " + comm->Describe() +
        " is called after " +
        (comm->is_revoked ? "ncclCommRevoke" : "ncclCommFinalize");
    entry->state()->Add(ViolationKind::kAfterEnd, text);
    return entry->Fail(Result::kInvalidUsage, text);
  }
  entry->CheckContext(*comm);
  if (const Result wrong = CheckArguments(entry, work, *comm);
      wrong != Result::kSuccess) {
    return wrong;
  }
  const auto [send_bytes, recv_bytes] = ExtentsOf(work, *comm);
  work.send_is_registered = IsRegistered(*comm, work.send, send_bytes);
  work.recv_is_registered = IsRegistered(*comm, work.recv, recv_bytes);
  FindWindow(*comm, &work);
  // NCCL drops collectives of nothing, but has sends of nothing.
  if (work.count == 0 && work.is_collective()) return Result::kSuccess;
  Group* const group = TheGroup();
  if (group->depth > 0) {
    group->works.push_back({comm, work, stream});
    return Result::kSuccess;
  }
  return LaunchWorks(entry, comm, {work}, {stream},
                     entry->options().polls.collective);
}

Result Call(Entry* entry, const Work& work, cuda::CuStream stream) {
  const Result result =
      entry->ok() ? CallWith(entry, work, stream) : entry->result();
  Group* const group = TheGroup();
  if (group->depth > 0 && group->error == Result::kSuccess) {
    group->error = result;
  }
  return entry->Return(result);
}

const std::byte* Bytes(const void* memory) {
  return static_cast<const std::byte*>(memory);
}
std::byte* Bytes(void* memory) { return static_cast<std::byte*>(memory); }

}  // namespace

Result ncclReduceScatter(const void* send, void* recv, size_t count,
                         DataType type, RedOp op, Comm* comm,
                         cuda::CuStream stream) {
  Entry entry("ncclReduceScatter", comm, true, 0);
  return Call(
      &entry,
      {WorkKind::kReduceScatter, Bytes(send), Bytes(recv), count, type, op},
      stream);
}

Result ncclAllReduce(const void* send, void* recv, size_t count, DataType type,
                     RedOp op, Comm* comm, cuda::CuStream stream) {
  Entry entry("ncclAllReduce", comm, true, 0);
  return Call(&entry,
              {WorkKind::kAllReduce, Bytes(send), Bytes(recv), count, type, op},
              stream);
}

Result ncclAllGather(const void* send, void* recv, size_t count, DataType type,
                     Comm* comm, cuda::CuStream stream) {
  Entry entry("ncclAllGather", comm, true, 0);
  return Call(&entry,
              {WorkKind::kAllGather, Bytes(send), Bytes(recv), count, type},
              stream);
}

Result ncclBroadcast(const void* send, void* recv, size_t count, DataType type,
                     int root, Comm* comm, cuda::CuStream stream) {
  Entry entry("ncclBroadcast", comm, true, 0);
  return Call(&entry,
              {WorkKind::kBroadcast, Bytes(send), Bytes(recv), count, type,
               RedOp::kSum, root},
              stream);
}

Result ncclSend(const void* send, size_t count, DataType type, int peer,
                Comm* comm, cuda::CuStream stream) {
  Entry entry("ncclSend", comm, true, 0);
  return Call(
      &entry,
      {WorkKind::kSend, Bytes(send), nullptr, count, type, RedOp::kSum, peer},
      stream);
}

Result ncclRecv(void* recv, size_t count, DataType type, int peer, Comm* comm,
                cuda::CuStream stream) {
  Entry entry("ncclRecv", comm, true, 0);
  return Call(
      &entry,
      {WorkKind::kRecv, nullptr, Bytes(recv), count, type, RedOp::kSum, peer},
      stream);
}

}  // namespace shard::testing::fake_nccl
