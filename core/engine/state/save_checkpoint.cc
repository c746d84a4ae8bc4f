// SPDX-License-Identifier: Apache-2.0

#include "core/engine/state/save_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "core/base/strings.h"
#include "core/checkpoint/folder/cleanup.h"
#include "core/checkpoint/folder/commit.h"
#include "core/checkpoint/folder/directory.h"
#include "core/checkpoint/manifest/checksum.h"
#include "core/comm/check_agreement.h"
#include "core/comm/gather.h"
#include "core/observe/observer.h"

namespace shard {

namespace {

constexpr const char* kPhase = "save checkpoint";

// The facts that a rank sends of each slice, then of each blob, in their order.
struct SliceRecord {
  Checksum checksum;
};
struct BlobRecord {
  uint64_t bytes;
  Checksum checksum;
};

const char* BlobRuleName(BlobRule rule) {
  switch (rule) {
    case BlobRule::kPerRank:
      return "per rank";
    case BlobRule::kReplicated:
      return "replicated";
    case BlobRule::kSummed:
      return "summed";
  }
  return "unknown";
}

// Returns whether `rank` stores its blob: equal blobs are stored once.
bool StoresBlob(const HostBlob& blob, int rank) {
  return blob.rule != BlobRule::kReplicated || rank == 0;
}

// Reads records one after the other.
class RecordReader {
 public:
  explicit RecordReader(std::span<const std::byte> records)
      : records_(records) {}

  template <typename Record>
  StatusOr<Record> Next() {
    if (records_.size() < sizeof(Record)) {
      return Internal("a rank told of fewer slices than it has");
    }
    Record record;
    std::memcpy(&record, records_.data(), sizeof(record));
    records_ = records_.subspan(sizeof(record));
    return record;
  }

 private:
  std::span<const std::byte> records_;
};

template <typename Record>
void AppendRecord(const Record& record, std::vector<std::byte>* records) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&record);
  records->insert(records->end(), bytes, bytes + sizeof(record));
}

}  // namespace

CheckpointSave::CheckpointSave(SavedState state, const SaveOptions& options,
                               const WorkDeadline& deadline, Communicator* comm)
    : state_(std::move(state)),
      options_(options),
      comm_(comm),
      deadline_(deadline),
      env_(options.env == nullptr ? FileEnv::Posix() : options.env) {}

StatusOr<std::unique_ptr<CheckpointSave>> CheckpointSave::Start(
    SavedState state, const std::string& root, const SaveOptions& options,
    const WorkDeadline& deadline, Communicator* comm, Mapping* room) {
  std::unique_ptr<CheckpointSave> save(
      new CheckpointSave(std::move(state), options, deadline, comm));
  SHARD_RETURN_IF_ERROR(save->CheckBlobs());
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(comm, kPhase, save->ListTensors(), deadline.Exchange()));
  SHARD_RETURN_IF_ERROR(save->OpenDirectory(root));
  save->PlaceOwn();
  if (options.async) {
    const Status copied =
        Observe(comm->observer(), EventId::kSnapshot, save->About(),
                [&] { return save->writer_->Snapshot(room); });
    SHARD_RETURN_IF_ERROR(AgreeOnStatus(comm, kPhase, copied, deadline.Work()));
    save->state_.memory = nullptr;
    save->state_.access = nullptr;
  }
  return save;
}

Status CheckpointSave::CheckBlobs() {
  // Checksums are computed once, however often facts are asked for: they take
  // time in proportion to the content.
  std::vector<Checksum> checksums(state_.blobs.size());
  for (size_t b = 0; b < checksums.size(); ++b) {
    const HostBlob& blob = state_.blobs[b];
    if (blob.rule != BlobRule::kReplicated) continue;
    checksums[b] = ChecksumOf(blob.content.data(), blob.content.size());
  }
  const auto describe = [&](FactSink* sink) {
    for (size_t b = 0; b < checksums.size(); ++b) {
      const HostBlob& blob = state_.blobs[b];
      const std::string subject = StrCat("blob '", blob.name, "'");
      sink->Add("", StrCat("blob ", b), StrCat("'", blob.name, "'"));
      sink->Add(subject, "rule", BlobRuleName(blob.rule));
      if (blob.rule == BlobRule::kPerRank) continue;
      sink->Add(subject, "bytes", blob.content.size());
      if (blob.rule != BlobRule::kReplicated) continue;
      sink->Add(subject, "checksum",
                StrCat(FormatHex(checksums[b].high),
                       FormatHex(checksums[b].low).substr(2)));
    }
    sink->Add("", StrCat("blob ", checksums.size()), "none");
  };
  return CheckAgreement(comm_, "the host's blobs", describe,
                        deadline_.Exchange());
}

Status CheckpointSave::ListTensors() {
  SHARD_ASSIGN_OR_RETURN(entries_,
                         ListStateEntries(*state_.plan, options_.state));
  uint64_t total = 0;
  for (const StateEntry& entry : entries_) {
    if (entry.alias_of < 0) total += EntryBytes(entry, entry.numel);
  }
  slice_bytes_ = SliceBytes(total);
  return Status();
}

Status CheckpointSave::OpenDirectory(const std::string& root) {
  root_ = root;
  path_ = StrCat(root, "/", CheckpointName(state_.numbers.step));
  Status local;
  if (comm_->rank() == 0) {
    auto pending = PendingCheckpoint::Begin(env_, root, state_.numbers.step,
                                            options_.overwrite);
    local = pending.status();
    if (pending.ok()) pending_.emplace(*std::move(pending));
  }
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(comm_, kPhase, local, deadline_.Work()));
  SHARD_ASSIGN_OR_RETURN(
      const std::string name,
      BroadcastText(comm_, kPhase, pending_ ? pending_->name() : "",
                    deadline_.Exchange()));
  if (comm_->rank() != 0) {
    auto folder = OpenPending(env_, root, name);
    local = folder.status();
    if (folder.ok()) folder_ = *std::move(folder);
  }
  return AgreeOnStatus(comm_, kPhase, local, deadline_.Work());
}

void CheckpointSave::PlaceOwn() {
  const Plan& plan = *state_.plan;
  const int rank = comm_->rank();
  const bool in_place = state_.access->in_place();
  DataLayout layout;
  std::vector<DataSource> sources;
  std::vector<Slice> slices;
  for (const StateEntry& entry : entries_) {
    if (entry.alias_of >= 0) continue;
    const OwnedElements owned = OwnedBy(plan, entry, rank);
    if (owned.numel == 0) continue;
    slices.clear();
    PlaceElements(owned.begin, owned.numel, ElementSize(entry.type),
                  static_cast<uint32_t>(rank), slice_bytes_, &layout, &slices);
    const std::byte* data = LocalData(plan, *state_.memory, entry, owned, rank);
    for (const Slice& slice : slices) {
      const uint64_t bytes = slice.extent.bytes;
      sources.push_back(
          {in_place ? data : nullptr, slice.extent.offset, bytes});
      if (!in_place) fetched_.push_back({data, bytes});
      data += bytes;
    }
  }
  for (const HostBlob& blob : state_.blobs) {
    if (!StoresBlob(blob, rank) || blob.content.empty()) continue;
    const uint64_t bytes = blob.content.size();
    sources.push_back({blob.content.data(), layout.Add(bytes), bytes});
  }
  FetchData fetch;
  if (!fetched_.empty()) {
    fetch = [this](std::span<const DataFetch> fetches) {
      return Fetch(fetches);
    };
  }
  writer_.emplace(std::move(sources), layout.file_bytes(), std::move(fetch));
}

Status CheckpointSave::Fetch(std::span<const DataFetch> fetches) const {
  std::vector<HostCopy> copies;
  copies.reserve(fetches.size());
  for (const DataFetch& fetch : fetches) {
    const std::span<const std::byte> tensor = fetched_[fetch.source];
    copies.push_back({fetch.to, tensor.data(), tensor.size()});
  }
  return state_.access->Fetch(copies, deadline_.Work());
}

EventArguments CheckpointSave::About() const {
  return {.what = path_,
          .step = state_.numbers.step,
          .bytes = static_cast<int64_t>(bytes())};
}

Status CheckpointSave::WriteData() {
  const Directory& folder = pending_ ? pending_->directory() : folder_;
  SHARD_ASSIGN_OR_RETURN(
      File file,
      File::Open(folder, DataFileName(static_cast<uint32_t>(comm_->rank())),
                 File::Mode::kCreate, File::Cache::kDirect));
  ProgressMeter progress(options_.progress, writer_->file_bytes());
  SHARD_RETURN_IF_ERROR(writer_->Write(&file, options_.threads, &progress));
  SHARD_RETURN_IF_ERROR(file.Sync());
  return file.Close();
}

Status CheckpointSave::Finish() {
  const Status status = WriteAndCommit();
  // Deletes an uncommitted checkpoint, now that no rank writes into it.
  pending_.reset();
  folder_ = Directory();
  return status;
}

Status CheckpointSave::WriteAndCommit() {
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(comm_, "save checkpoint: data",
                    Observe(comm_->observer(), EventId::kWrite, About(),
                            [&] { return WriteData(); }),
                    deadline_.Work()));
  SHARD_ASSIGN_OR_RETURN(const auto gathered,
                         GatherBytes(comm_, "save checkpoint: checksums",
                                     EncodeRecords(), deadline_.Exchange()));
  Status local;
  if (comm_->rank() == 0) {
    local = Observe(comm_->observer(), EventId::kCommit, About(),
                    [&] { return CommitAsRank0(gathered); });
  }
  return AgreeOnStatus(comm_, "save checkpoint: commit", local,
                       deadline_.Work());
}

std::vector<std::byte> CheckpointSave::EncodeRecords() const {
  const std::vector<Checksum>& checksums = writer_->checksums();
  std::vector<std::byte> records;
  size_t next = 0;
  // Blobs come last.
  size_t num_slices = checksums.size();
  for (const HostBlob& blob : state_.blobs) {
    if (StoresBlob(blob, comm_->rank()) && !blob.content.empty()) --num_slices;
  }
  while (next < num_slices)
    AppendRecord(SliceRecord{checksums[next++]}, &records);
  for (const HostBlob& blob : state_.blobs) {
    if (!StoresBlob(blob, comm_->rank())) continue;
    BlobRecord record = {blob.content.size(), ChecksumOf(nullptr, 0)};
    if (record.bytes > 0) record.checksum = checksums[next++];
    AppendRecord(record, &records);
  }
  return records;
}

StatusOr<ManifestContents> CheckpointSave::Contents(
    const std::vector<std::vector<std::byte>>& gathered) {
  const Plan& plan = *state_.plan;
  const auto world_size = static_cast<size_t>(comm_->world_size());
  ManifestContents contents;
  contents.writer = "libshard";
  contents.step = state_.numbers.step;
  contents.world_size = comm_->world_size();
  contents.groups = state_.numbers.groups;
  if (const auto& scale = state_.numbers.loss_scale; scale) {
    contents.scalars = {
        {std::string(kLossScaleKey), scale->scale},
        {std::string(kGoodStepsKey), static_cast<double>(scale->good_steps)}};
  }

  // Every rank has placed its slices in this order, so the layouts are equal.
  std::vector<DataLayout> layouts(world_size);
  std::vector<RecordReader> records;
  for (const auto& bytes : gathered) records.emplace_back(bytes);
  contents.tensors.reserve(entries_.size());
  for (StateEntry& entry : entries_) {
    auto& tensor = contents.tensors.emplace_back();
    tensor.key = std::move(entry.key);
    tensor.type = entry.type;
    tensor.role = entry.role;
    tensor.shape = std::move(entry.shape);
    tensor.alias_of = entry.alias_of;
    if (entry.alias_of >= 0) continue;
    if (!entry.is_host_tensor()) {
      const Model::Param& param =
          plan.model().params()[static_cast<size_t>(entry.param)];
      tensor.trainable = param.trainable;
      // States have the group too: the checkpoint may hold no other tensor of
      // their parameter.
      tensor.group = param.group;
      if (param.trainable) {
        tensor.step = state_.numbers.StepOf(plan, entry.param);
      }
      tensor.codebook = CodebookOf(plan, state_.optimizers, entry);
    }
    for (const int rank : OwnersOf(plan, entry)) {
      const OwnedElements owned = OwnedBy(plan, entry, rank);
      const auto r = static_cast<size_t>(rank);
      size_t s = tensor.slices.size();
      PlaceElements(owned.begin, owned.numel, ElementSize(entry.type),
                    static_cast<uint32_t>(rank), slice_bytes_, &layouts[r],
                    &tensor.slices);
      for (; s < tensor.slices.size(); ++s) {
        SHARD_ASSIGN_OR_RETURN(const SliceRecord record,
                               records[r].Next<SliceRecord>());
        tensor.slices[s].extent.checksum = record.checksum;
      }
    }
  }
  for (size_t r = 0; r < world_size; ++r) {
    for (const HostBlob& blob : state_.blobs) {
      if (!StoresBlob(blob, static_cast<int>(r))) continue;
      SHARD_ASSIGN_OR_RETURN(const BlobRecord record,
                             records[r].Next<BlobRecord>());
      Extent extent;
      extent.checksum = record.checksum;
      extent.bytes = record.bytes;
      if (record.bytes > 0) {
        extent.file = static_cast<uint32_t>(r);
        extent.offset = layouts[r].Add(record.bytes);
      }
      contents.blobs.push_back(
          {blob.name, blob.rule, static_cast<int32_t>(r), extent});
    }
    contents.files.push_back(
        {DataFileName(static_cast<uint32_t>(r)), layouts[r].file_bytes()});
  }
  return contents;
}

Status CheckpointSave::CommitAsRank0(
    const std::vector<std::vector<std::byte>>& gathered) {
  SHARD_ASSIGN_OR_RETURN(const ManifestContents contents, Contents(gathered));
  SHARD_RETURN_IF_ERROR(CommitCheckpoint(contents, &*pending_));

  // The checkpoint is complete: an error in deleting older ones is not an error
  // of this save.
  try {
    DeleteOlder();
  } catch (const std::bad_alloc&) {  // NOLINT: nor is there memory to say so
  }
  return Status();
}

void CheckpointSave::DeleteOlder() const {
  const auto warn = [&](const Status& status) {
    if (status.ok()) return;
    comm_->observer()->Log(EventId::kCheckpointWarning, path_, ": ",
                           status.message());
  };
  const auto root = Directory::Open(env_, root_);
  warn(root.status());
  if (!root.ok()) return;
  warn(CleanStale(*root).status());
  if (options_.keep_last > 0) {
    warn(RetainCheckpoints(*root, {options_.keep_last, options_.keep_every})
             .status());
  }
}

}  // namespace shard
