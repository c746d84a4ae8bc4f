// SPDX-License-Identifier: Apache-2.0
//
// CheckpointSave: one save of an engine's state, by all ranks together.
//
// Each rank writes what it owns into a file of its own; rank 0 makes the
// folder, gathers the checksums, writes the manifest and commits. Start reads
// the engine's memory where it must (a snapshot, when the save goes on in the
// background) and Finish does the rest; in between, or without a snapshot after
// Finish, the engine may go on.
//
// An error of one rank is the error of all, and leaves nothing behind but what
// the next save cleans up.

#ifndef SHARD_CORE_ENGINE_STATE_SAVE_CHECKPOINT_H_
#define SHARD_CORE_ENGINE_STATE_SAVE_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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
#include "core/engine/memory/buffers.h"
#include "core/engine/state/local_state.h"
#include "core/engine/state/work_deadline.h"
#include "core/flat/plan.h"
#include "core/optim/optimizer.h"
#include "core/state/state_entries.h"

namespace shard {

struct SaveOptions {
  StateOptions state;
  // Return as soon as the state was copied; the rest happens in the background.
  bool async = false;
  // Replace a checkpoint of the same step instead of failing.
  bool overwrite = false;
  // After it: only the last so many stay, and those whose step is a multiple.
  // 0: all stay.
  int64_t keep_last = 0;
  int64_t keep_every = 0;
  int threads = 4;         // That write, per rank.
  double timeout = 1800;   // Seconds, of the whole save.
  Progress progress;       // Of this rank's bytes. Cancelling fails all ranks.
  FileEnv* env = nullptr;  // For tests; null: the kernel's.
};

// Of the host: its data loader's position, its random numbers.
struct HostBlob {
  std::string name;
  BlobRule rule = BlobRule::kPerRank;
  std::vector<std::byte> content;
};

// What is saved. Start reads it, and keeps none of it but `plan`.
struct SavedState {
  std::shared_ptr<const Plan> plan;
  const EngineMemory* memory;
  TrainingNumbers numbers;
  // By GroupId, for what their states mean.
  std::vector<Optimizer> optimizers;
  // In the order of their names; names and rules are the same on all ranks.
  std::vector<HostBlob> blobs;
};

class CheckpointSave {
 public:
  // COLLECTIVE. `deadline` is that of the whole save, of which options.timeout
  // may be spent in part. `comm` is for this save alone and outlives the
  // result; so does `room`, where a snapshot goes. Options that are wrong on
  // one rank were agreed upon before.
  static StatusOr<std::unique_ptr<CheckpointSave>> Start(
      SavedState state, const std::string& root, const SaveOptions& options,
      const WorkDeadline& deadline, Communicator* comm, Mapping* room);

  // COLLECTIVE, and on any thread. Once; nothing is open afterwards.
  Status Finish();

  const WorkDeadline& deadline() const { return deadline_; }
  // "ckpt/step-000042"
  const std::string& path() const { return path_; }
  // That this rank writes.
  uint64_t bytes() const { return writer_->file_bytes(); }

 private:
  CheckpointSave(SavedState state, const SaveOptions& options,
                 const WorkDeadline& deadline, Communicator* comm);

  Status CheckBlobs();
  Status ListTensors();
  Status OpenDirectory(const std::string& root);
  // This rank's slices, and where they come from.
  void PlaceOwn();
  Status WriteData();
  Status WriteAndCommit();
  // What rank 0 has to know of this rank's data file.
  std::vector<std::byte> Notes() const;
  Status CommitAsRank0(const std::vector<std::vector<std::byte>>& gathered);
  // Deletes what crashes left, and checkpoints that are not to be kept.
  void DeleteOlder() const;
  // Takes keys and shapes from entries_.
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
  std::optional<DataWriter> writer_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_SAVE_CHECKPOINT_H_
