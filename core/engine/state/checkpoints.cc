// SPDX-License-Identifier: Apache-2.0

#include "core/engine/state/checkpoints.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "core/base/host_memory.h"
#include "core/base/out_of_memory.h"
#include "core/base/strings.h"
#include "core/checkpoint/open_store.h"
#include "core/comm/check_agreement.h"
#include "core/comm/gather.h"
#include "core/engine/state/describe.h"
#include "core/model/names.h"
#include "core/observe/observer.h"
#include "core/state/manifest_bound.h"

namespace shard {

namespace {

// Limit of a blob that a host sets, which is copied into the engine and into
// each save in the background. A load takes blobs of any size that memory
// holds: an older version may have saved larger ones.
constexpr uint64_t kMaxBlobBytes = uint64_t{1} << 30;

// Adds int64 numbers, wrapping around as unsigned ones do.
void AddNumbers(const std::vector<std::byte>& from,
                std::vector<std::byte>* to) {
  if (to->size() < from.size()) to->resize(from.size());
  for (size_t at = 0; at + sizeof(uint64_t) <= from.size();
       at += sizeof(uint64_t)) {
    uint64_t sum;
    uint64_t term;
    std::memcpy(&sum, to->data() + at, sizeof(sum));
    std::memcpy(&term, from.data() + at, sizeof(term));
    sum += term;
    std::memcpy(to->data() + at, &sum, sizeof(sum));
  }
}

// Returns the bytes that the names of the ranks' blobs take in a manifest.
uint64_t ManifestBytes(const Checkpoints::Blobs& blobs, int world_size) {
  uint64_t bytes = 0;
  for (const auto& [name, blob] : blobs) {
    bytes += BlobManifestBytes(name, world_size);
  }
  return bytes;
}

Status CheckRoom(uint64_t bytes, int world_size) {
  if (bytes <= kBlobManifestBytes) return Status();
  return ResourceExhausted(
      "the names of the blobs of ", world_size, " ranks would take ", bytes,
      " bytes of each checkpoint's manifest; at most ", kBlobManifestBytes,
      " are possible: use fewer blobs or shorter names");
}

// Writes the facts that identify a checkpoint; for safetensors, its tensors.
void Describe(const FileStore& store, FactSink* sink) {
  if (store.manifest() == nullptr) return DescribeTensors(store, sink);
  // The path is left out: each rank may have another one.
  sink->Add("", "id", FormatHex(store.manifest()->id().low), store.describe());
}

// Returns whether `rank` of `world_size` takes the blob that `saved` stored.
bool IsBlobFor(BlobRule rule, int saved, int saved_world_size, int rank,
               int world_size) {
  if (rule == BlobRule::kReplicated) return true;
  if (saved_world_size == world_size) return saved == rank;
  return rule == BlobRule::kSummed && saved % world_size == rank;
}

}  // namespace

StatusOr<std::shared_ptr<AsyncSave>> AsyncSave::Create(
    Device* device, std::unique_ptr<CheckpointSave> save,
    std::shared_ptr<Communicator> comm, std::shared_ptr<Mapping> room,
    std::shared_ptr<HostCalls> progress) {
  std::shared_ptr<AsyncSave> async(
      new AsyncSave(save->deadline().Work(), std::move(progress)));
  SHARD_ASSIGN_OR_RETURN(async->stream_,
                         device->CreateStream(StreamKind::kCommunication));
  async->path_ = save->path();
  async->held_ = std::make_shared<Held>(
      Held{std::move(comm), std::move(room), std::move(save)});
  return async;
}

void AsyncSave::Begin() {
  stream_->Call("save checkpoint", [held = std::move(held_)] {
    const auto finish = [&]() -> Status {
      try {
        return held->save->Finish();
      } catch (...) {
        // The other ranks are in a collective, and would wait for this one.
        held->comm->Abort(OutOfMemoryStatus());
        return OutOfMemoryStatus();
      }
    };
    Status status = finish();
    *held = Held();
    return status;
  });
  done_ = stream_->Record();
}

Status AsyncSave::Wait(const Deadline& deadline) {
  Status status = done_.Synchronize(deadline);
  if (!done_.IsDone()) return status;
  // The save may have ended just after the deadline.
  if (status.code() == StatusCode::kDeadlineExceeded) {
    status = done_.Synchronize(deadline);
  }
  reported_ = true;
  return status;
}

void Checkpoints::WaitForSave() {
  if (last_ == nullptr) return;
  try {
    const Status status = FinishSave(last_->deadline());
    if (!status.ok()) {
      comm_->observer()->Log(EventId::kCheckpointWarning, "rank ",
                             comm_->rank(), ": ", status.message());
    }
  } catch (...) {  // NOLINT: it was waited for; there is no memory to say more
  }
  if (last_ != nullptr) last_->EndProgress();
}

Status Checkpoints::SetBlob(std::string_view name, BlobRule rule,
                            const void* data, size_t bytes) {
  SHARD_RETURN_IF_ERROR(CheckName("blob name", name, kMaxKeyBytes));
  const auto value = static_cast<int32_t>(rule);
  if (value < 1 || value > 3) {
    return InvalidArgument("blob '", name, "': rule ", value,
                           " is unknown; allowed: 1 (per rank), 2 "
                           "(replicated), 3 (summed)");
  }
  if (rule == BlobRule::kSummed && bytes % sizeof(int64_t) != 0) {
    return InvalidArgument("blob '", name, "': ", bytes,
                           " bytes are no whole int64 numbers, which are what "
                           "can be summed");
  }
  if (bytes > kMaxBlobBytes) {
    return InvalidArgument("blob '", name, "' has ", bytes, " bytes; at most ",
                           kMaxBlobBytes,
                           " are allowed: keep what is larger in a file");
  }
  uint64_t manifest_bytes = manifest_bytes_;
  if (!blobs_.contains(name)) {
    manifest_bytes += BlobManifestBytes(name, world_size_);
    SHARD_RETURN_IF_ERROR(
        CheckRoom(manifest_bytes, world_size_).WithContext(QuoteName(name)));
  }
  const auto* const begin = static_cast<const std::byte*>(data);
  blobs_.insert_or_assign(
      std::string(name),
      HostBlob{std::string(name), rule, {begin, begin + bytes}});
  manifest_bytes_ = manifest_bytes;
  return Status();
}

void Checkpoints::ReplaceBlobs(Blobs blobs) {
  blobs_ = std::move(blobs);
  manifest_bytes_ = ManifestBytes(blobs_, world_size_);
}

const HostBlob* Checkpoints::FindBlob(std::string_view name) const {
  const auto found = blobs_.find(name);
  return found == blobs_.end() ? nullptr : &found->second;
}

Status Checkpoints::FinishSave(const Deadline& deadline) {
  if (last_ == nullptr) return Status();
  const bool reported = last_->reported();
  const Status status = last_->Wait(deadline);
  if (!last_->reported())
    return status.WithContext("waiting for the save before");
  const std::string path = last_->path();
  last_ = nullptr;
  if (reported || status.ok()) return Status();
  return status.WithContext(
      StrCat("the asynchronous save of '", path, "' failed"));
}

StatusOr<std::shared_ptr<AsyncSave>> Checkpoints::Save(
    SavedState state, const std::string& root, const SaveOptions& options,
    const WorkDeadline& deadline, Communicator* engine_comm, Device* device) {
  if (comm_ == nullptr) {
    SHARD_ASSIGN_OR_RETURN(
        comm_, engine_comm->Duplicate("checkpoints", /*direct=*/true,
                                      deadline.Exchange()));
  }
  for (const auto& [name, blob] : blobs_) state.blobs.push_back(blob);
  SaveOptions guarded = options;
  const auto progress = std::make_shared<HostCalls>();
  if (options.async && options.progress) {
    guarded.progress = [progress, host = options.progress](uint64_t done,
                                                           uint64_t total) {
      const HostCalls::Call call(progress.get());
      return !call.is_open() || host(done, total);
    };
  }
  SHARD_ASSIGN_OR_RETURN(
      auto save, CheckpointSave::Start(std::move(state), root, guarded,
                                       deadline, comm_.get(), room_.get()));
  if (!options.async) {
    SHARD_RETURN_IF_ERROR(save->Finish());
    return std::shared_ptr<AsyncSave>();
  }
  auto async =
      AsyncSave::Create(device, std::move(save), comm_, room_, progress);
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(engine_comm, "save checkpoint",
                                      async.status(), deadline.Exchange()));
  (*async)->Begin();
  last_ = *async;
  return last_;
}

StatusOr<std::shared_ptr<const FileStore>> Checkpoints::Open(
    const std::string& path, FileEnv* env, Communicator* comm,
    const WorkDeadline& deadline) {
  constexpr const char* kWhat = "load checkpoint: open";
  // Rank 0 chooses the checkpoint, so that all ranks load the same one while
  // another program saves; each rank opens it by its own path.
  std::string name;
  Status local;
  std::shared_ptr<const FileStore> store;
  const auto open = [&](const std::string& from) -> Status {
    SHARD_ASSIGN_OR_RETURN(OpenedStore opened, OpenTensorStore(env, from));
    if (!opened.note.empty()) {
      comm->observer()->Log(EventId::kCheckpointWarning, opened.note);
    }
    name = opened.name;
    store = std::move(opened.store);
    return Status();
  };
  if (comm->rank() == 0) local = open(path);
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(comm, kWhat, local, deadline.Work()));
  SHARD_ASSIGN_OR_RETURN(const std::string chosen,
                         BroadcastText(comm, kWhat, name, deadline.Exchange()));
  if (comm->rank() != 0) {
    local = open(chosen.empty() ? path : StrCat(path, "/", chosen));
  }
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(comm, kWhat, local, deadline.Work()));
  SHARD_RETURN_IF_ERROR(CheckAgreement(
      comm, "the checkpoint", [&](FactSink* sink) { Describe(*store, sink); },
      deadline.Exchange()));
  return store;
}

StatusOr<Checkpoints::Blobs> Checkpoints::ReadBlobs(const FileStore& store,
                                                    int rank, int world_size) {
  const Manifest& manifest = *store.manifest();
  // Counts the bytes of all blobs before the first is read.
  uint64_t bytes = 0;
  // Saturates: a file may say any number.
  const auto count = [&bytes](uint64_t more) {
    bytes += std::min(more, UINT64_MAX - bytes);
  };
  // A SUMMED blob takes room for the sum and for the blob that is being added.
  std::set<std::string_view> sums;
  uint64_t largest_sum = 0;
  for (size_t b = 0; b < manifest.num_blobs(); ++b) {
    const BlobInfo info = manifest.blob(b);
    if (info.rule == BlobRule::kSummed) {
      largest_sum = std::max(largest_sum, info.extent.bytes);
      if (!sums.insert(info.name).second) continue;
    } else if (!IsBlobFor(info.rule, info.rank, manifest.world_size(), rank,
                          world_size)) {
      continue;
    }
    count(info.extent.bytes);
  }
  count(largest_sum);
  SHARD_RETURN_IF_ERROR(CheckHostMemory(bytes).WithContext(
      StrCat("reading the blobs of ", store.describe())));
  Blobs loaded;
  for (size_t b = 0; b < manifest.num_blobs(); ++b) {
    const BlobInfo info = manifest.blob(b);
    const bool summed = info.rule == BlobRule::kSummed;
    const bool takes = IsBlobFor(info.rule, info.rank, manifest.world_size(),
                                 rank, world_size);
    if (!takes && !summed) continue;
    SHARD_ASSIGN_OR_RETURN(std::vector<std::byte> content, store.ReadBlob(b));
    // A rank that takes no sum has zeros.
    if (!takes) content.assign(content.size(), std::byte{0});
    HostBlob& blob = loaded[std::string(info.name)];
    blob.name = info.name;
    blob.rule = info.rule;
    if (summed) {
      AddNumbers(content, &blob.content);
    } else {
      blob.content = std::move(content);
    }
  }
  // The engine saves these blobs again, so they must fit into a manifest.
  SHARD_RETURN_IF_ERROR(CheckRoom(ManifestBytes(loaded, world_size), world_size)
                            .WithContext(store.describe()));
  return loaded;
}

}  // namespace shard
