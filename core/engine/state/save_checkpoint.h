// SPDX-License-Identifier: Apache-2.0
//
// CheckpointSave: one save of an engine's state, by all ranks together.
//
// Each rank writes the elements that it owns into a file of its own; rank 0
// makes the folder, gathers the checksums, writes the manifest and commits. For
// a save in the background, Start copies the engine's memory into a snapshot,
// and training may go on as soon as Start returns; without a snapshot, Finish
// reads the engine's memory, and training may go on after Finish.
//
// An error of one rank is the error of all, and leaves nothing behind but files
// that the next save deletes.

#ifndef SHARD_CORE_ENGINE_STATE_SAVE_CHECKPOINT_H_
#define SHARD_CORE_ENGINE_STATE_SAVE_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/file_env.h"
#include "core/base/mapping.h"
#include "core/base/status.h"
#include "core/checkpoint/data/data_layout.h"
#include "core/checkpoint/data/data_writer.h"
#include "core/checkpoint/folder/pending.h"
#include "core/checkpoint/manifest/manifest.h"
#include "core/checkpoint/store/progress.h"
#include "core/comm/communicator.h"
#include "core/device/host_access.h"
#include "core/engine/memory/buffers.h"
#include "core/engine/state/local_state.h"
#include "core/engine/state/work_deadline.h"
#include "core/flat/plan.h"
#include "core/optim/optimizer.h"
#include "core/state/state_entries.h"

namespace shard {

struct SaveOptions {
  StateOptions state;
  // Return as soon as the state is copied, and write in the background.
  bool async = false;
  // Replace a checkpoint of the same step instead of failing.
  bool overwrite = false;
  // Checkpoints to keep after the save: the last `keep_last`, and those whose
  // step is a multiple of `keep_every`. 0: all are kept.
  int64_t keep_last = 0;
  int64_t keep_every = 0;
  int threads = 4;         // Writing threads per rank.
  double timeout = 1800;   // Seconds, of the whole save.
  Progress progress;       // In this rank's bytes. Cancelling fails all ranks.
  FileEnv* env = nullptr;  // For tests; null: the kernel's files.
};

// Data of the host, such as its data loader's position or the state of its
// random numbers.
struct HostBlob {
  std::string name;
  BlobRule rule = BlobRule::kPerRank;
  std::vector<std::byte> content;
};

// The state to save. With a snapshot, the save reads no tensor after Start.
struct SavedState {
  std::shared_ptr<const Plan> plan;
  const EngineMemory* memory;
  std::unique_ptr<HostAccess> access;  // To the tensors in `memory`.
  TrainingNumbers numbers;
  // By GroupId; an optimizer says what its states mean.
  std::vector<Optimizer> optimizers;
  // In the order of their names; names and rules are the same on all ranks.
  std::vector<HostBlob> blobs;
};

class CheckpointSave {
 public:
  // Starts a save. COLLECTIVE. `deadline` is that of the whole save, of which
  // options.timeout may be spent in part. `comm`, which this save alone uses,
  // and `room`, which receives the snapshot, must outlive the result. REQUIRES:
  // the ranks have agreed on the options.
  static StatusOr<std::unique_ptr<CheckpointSave>> Start(
      SavedState state, const std::string& root, const SaveOptions& options,
      const WorkDeadline& deadline, Communicator* comm, Mapping* room);

  // Writes and commits the checkpoint, once. COLLECTIVE; on any thread. Nothing
  // is open afterwards.
  Status Finish();

  const WorkDeadline& deadline() const { return deadline_; }
  // Returns the path of the checkpoint: "ckpt/step-000042".
  const std::string& path() const { return path_; }
  // Returns the bytes that this rank writes.
  uint64_t bytes() const { return writer_->file_bytes(); }

 private:
  CheckpointSave(SavedState state, const SaveOptions& options,
                 const WorkDeadline& deadline, Communicator* comm);

  Status CheckBlobs();
  Status ListTensors();
  Status OpenDirectory(const std::string& root);
  // Lists this rank's slices and their sources.
  void PlaceOwn();
  // Copies tensors that the writer cannot read in place.
  Status Fetch(std::span<const DataFetch> fetches) const;
  // Returns what the events of this save say.
  EventArguments About() const;
  Status WriteData();
  Status WriteAndCommit();
  // Returns the facts of this rank's data file that rank 0 needs.
  std::vector<std::byte> EncodeRecords() const;
  Status CommitAsRank0(const std::vector<std::vector<std::byte>>& gathered);
  // Deletes the remains of crashed saves, and checkpoints that are not to be
  // kept.
  void DeleteOlder() const;
  // Returns the contents of the manifest. Moves keys and shapes out of
  // entries_.
  StatusOr<ManifestContents> Contents(
      const std::vector<std::vector<std::byte>>& gathered);

  SavedState state_;
  const SaveOptions options_;
  Communicator* const comm_;
  const WorkDeadline deadline_;
  FileEnv* const env_;
  std::vector<StateEntry> entries_;
  uint64_t slice_bytes_ = 0;
  std::string root_;
  std::string path_;
  std::optional<PendingCheckpoint> pending_;  // Rank 0's.
  Directory folder_;                          // The other ranks'.
  // By source of the writer, the tensors that it cannot read in place.
  std::vector<std::span<const std::byte>> fetched_;
  std::optional<DataWriter> writer_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_SAVE_CHECKPOINT_H_
