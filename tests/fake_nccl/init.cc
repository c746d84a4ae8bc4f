// SPDX-License-Identifier: Apache-2.0
//
// The entry points of the fake that make communicators.

#include "tests/fake_nccl/init.h"

#include <sys/random.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_nccl/interfaces.h"

namespace shard::testing::fake_nccl {

namespace {

constexpr int kSharesGpus = 23000;  // Versions take two ranks of one GPU.

// Returns a device's address on the bus, as NCCL's messages have it.
int64_t BusId(int device) { return (int64_t{device} + 1) << 12; }

}  // namespace

Result ReadConfig(Entry* entry, const Config* config, bool* is_blocking) {
  if (config == nullptr) return Result::kSuccess;
  Config known;
  std::memcpy(&known, config, std::min(config->size, sizeof(known)));
  if (known.magic != kConfigMagic) {
    return entry->Fail(
        Result::kInvalidArgument,
        "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
  }
  if (known.blocking != kUndefined && known.blocking != 0 &&
      known.blocking != 1) {
    return entry->Fail(Result::kInvalidArgument,
                       "Invalid config blocking attribute value " +
                           std::to_string(known.blocking));
  }
  if (known.blocking != kUndefined) *is_blocking = known.blocking == 1;
  return Result::kSuccess;
}

Result CheckDevices(Comm* comm, const std::vector<Part>& parts) {
  State* const state = TheState();
  Options options;
  {
    const std::lock_guard<std::mutex> lock(state->records_mutex);
    options = state->options;
  }
  if (VersionOf(options) >= kSharesGpus) return Result::kSuccess;
  for (int rank = 0; rank < comm->size; ++rank) {
    const int64_t bus = parts[static_cast<size_t>(rank)].values[0];
    if (rank == comm->rank || bus != BusId(comm->device)) continue;
    char text[160];
    std::snprintf(
        text, sizeof(text),
        "Duplicate GPU detected : rank %d and rank %d both on CUDA device %llx",
        comm->rank, rank, static_cast<unsigned long long>(bus));
    state->SetLastError(text);
    comm->error_text = text;
    return Result::kInvalidUsage;
  }
  return Result::kSuccess;
}

Job MeetJob(const std::shared_ptr<Comm>& comm) {
  return [comm, begun = std::make_shared<bool>(false)]() {
    State* const state = TheState();
    if (!*begun) {
      if (state->IsDead(*comm)) return Result::kInProgress;
      *begun = true;
      comm->segment = Segment::Open(comm->name);
      if (comm->segment == nullptr) {
        state->SetLastError("no shared memory");
        return Result::kSystemError;
      }
      if (!comm->segment->AgreeOnRanks(comm->size)) {
        state->Add(ViolationKind::kMismatch,
                   comm->Describe() +
                       " meets ranks that expect another number of ranks");
        return Result::kInvalidArgument;
      }
      comm->segment->Announce(
          ++comm->rounds, comm->rank,
          {RoundKind::kInit, {BusId(comm->device), comm->world_rank}});
      return Result::kInProgress;
    }
    const std::vector<Part> parts =
        comm->segment->Round(comm->rounds, comm->size);
    if (parts.empty()) return Result::kInProgress;
    comm->segment->Unlink();
    state->used_ids.insert({comm->name, comm->rank});
    return CheckDevices(comm.get(), parts);
  };
}

std::vector<Part> AwaitRound(Comm* comm, RoundKind kind) {
  static constexpr const char* kCalls[] = {"ncclCommInitRank", "ncclCommSplit",
                                           "ncclCommFinalize",
                                           "ncclCommWindowRegister"};
  if (comm->is_mismatched) return {};
  const std::vector<Part> parts =
      comm->segment->Round(comm->rounds, comm->size);
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank].kind == kind) continue;
    comm->is_mismatched = true;
    TheState()->Add(ViolationKind::kMismatch,
                    comm->Describe() + " is in " +
                        kCalls[static_cast<size_t>(kind)] + ", but rank " +
                        std::to_string(rank) + " in " +
                        kCalls[static_cast<size_t>(parts[rank].kind)]);
    return {};
  }
  return parts;
}

namespace {

Result Init(Entry* entry, Comm** made, int nranks, const UniqueId& id, int rank,
            const Config* config) {
  if (made == nullptr) {
    return entry->Fail(Result::kInvalidArgument,
                       "CommInitRank : comm argument is NULL");
  }
  *made = nullptr;
  if (!HasInterface()) return entry->Fail(Result::kInvalidUsage, kNoInterface);
  if (nranks < 1 || rank < 0 || rank >= nranks) {
    return entry->Fail(Result::kInvalidArgument,
                       "Invalid rank requested : " + std::to_string(rank) +
                           "/" + std::to_string(nranks));
  }
  if (nranks > Segment::kMaxRanks) {
    return entry->Fail(Result::kInternalError,
                       "the fake has at most " +
                           std::to_string(Segment::kMaxRanks) + " ranks");
  }
  if (std::memchr(id.internal, '\0', sizeof(id.internal)) == nullptr ||
      id.internal[0] != '/') {
    return entry->Fail(Result::kInvalidArgument,
                       "CommInitRank : commId is none of ncclGetUniqueId");
  }
  if (entry->state()->used_ids.count({id.internal, rank}) != 0) {
    entry->state()->Add(ViolationKind::kAfterEnd,
                        "rank " + std::to_string(rank) + " of " +
                            std::to_string(nranks) + " uses a unique id again");
    return entry->Fail(Result::kInvalidUsage, "the unique id was used before");
  }
  int device = -1;
  const cuda::CuContext context = fake_cuda::CurrentContext(&device);
  if (context == nullptr) {
    return entry->Fail(Result::kUnhandledCudaError,
                       "Cuda failure 'invalid device context'");
  }
  bool is_blocking = true;
  if (const Result wrong = ReadConfig(entry, config, &is_blocking);
      wrong != Result::kSuccess) {
    return wrong;
  }
  const std::shared_ptr<Comm> comm = MakeComm(entry->state());
  comm->name = id.internal;
  comm->rank = rank;
  comm->world_rank = rank;
  comm->size = nranks;
  comm->device = device;
  comm->context = context;
  comm->is_blocking = is_blocking;
  Publish(entry->state(), comm);
  CallRecord* const record = entry->record();
  record->comm = comm->id;
  record->rank = rank;
  record->size = nranks;
  *made = comm.get();
  const Result result =
      entry->Begin(comm, entry->options().polls.init, MeetJob(comm));
  if (result == Result::kSuccess || result == Result::kInProgress) {
    return result;
  }
  // A caller that is told of the failure has nothing to destroy.
  Stop(comm.get());
  End(comm.get(), "an ncclCommInitRank that has failed");
  *made = nullptr;
  return entry->Return(result);
}

}  // namespace

Result ncclGetVersion(int* version) {
  SHARD_FAKE_NCCL_ENTER_FREE(ncclGetVersion);
  if (version == nullptr) return entry.Return(Result::kInvalidArgument);
  *version = VersionOf(entry.options());
  return entry.Return(Result::kSuccess);
}

Result ncclGetUniqueId(UniqueId* id) {
  SHARD_FAKE_NCCL_ENTER_FREE(ncclGetUniqueId);
  if (!HasInterface()) return entry.Fail(Result::kInvalidUsage, kNoInterface);
  if (id == nullptr) return entry.Return(Result::kInvalidArgument);
  unsigned long long word = 0;
  if (getrandom(&word, sizeof(word), 0) != sizeof(word)) {
    return entry.Return(Result::kSystemError);
  }
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->internal, sizeof(id->internal), "/shard_fake_nccl.%016llx",
                word);
  return entry.Return(Result::kSuccess);
}

Result ncclCommInitRank(Comm** comm, int nranks, UniqueId id, int rank) {
  SHARD_FAKE_NCCL_ENTER_FREE(ncclCommInitRank);
  return Init(&entry, comm, nranks, id, rank, nullptr);
}

Result ncclCommInitRankConfig(Comm** comm, int nranks, UniqueId id, int rank,
                              Config* config) {
  SHARD_FAKE_NCCL_ENTER_FREE(ncclCommInitRankConfig);
  return Init(&entry, comm, nranks, id, rank, config);
}

}  // namespace shard::testing::fake_nccl
