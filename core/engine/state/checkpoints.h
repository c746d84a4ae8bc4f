// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints: the state that an engine keeps between its saves and loads: the
// save in progress, its error until it is reported, the memory of snapshots,
// and the blobs that the host stores beside the tensors.
//
// A background save has a communicator and a thread of its own, so that the
// host may train, and use its own communicator, meanwhile. One save runs at a
// time: the next save or load waits for it.
//
// Thread-compatible, as the engine. An AsyncSave is thread-safe.

#ifndef SHARD_CORE_ENGINE_STATE_CHECKPOINTS_H_
#define SHARD_CORE_ENGINE_STATE_CHECKPOINTS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/file_env.h"
#include "core/base/host_calls.h"
#include "core/base/mapping.h"
#include "core/base/status.h"
#include "core/checkpoint/data/file_store.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/engine/state/save_checkpoint.h"
#include "core/engine/state/work_deadline.h"
#include "core/state/match.h"
#include "core/state/state_entries.h"

namespace shard {

struct LoadOptions {
  StateOptions state;
  LoadRules rules;
  // Compare the bytes that are read with their checksums.
  bool verify = true;
  // For a state dict: load rank 0's alone, which is sent to the other ranks.
  bool from_rank0 = false;
  int threads = 4;         // Reading threads per rank.
  double timeout = 1800;   // Seconds, of the whole load.
  Progress progress;       // In this rank's bytes. Cancelling fails all ranks.
  FileEnv* env = nullptr;  // For tests; null: the kernel's files.
};

struct LoadReport {
  std::string path;  // The loaded checkpoint: "ckpt/step-000042".
  int64_t step = 0;  // The step of the checkpoint.
  int saved_world_size = 0;
  MatchReport match;
};

// A save in the background.
class AsyncSave {
 public:
  // Makes a save that Begin starts, once, after all ranks have made theirs:
  // other ranks must not wait for a save that one rank cannot start. `comm` and
  // `room` are used by the save alone until it is done. `progress` has the
  // calls of the host's progress function.
  static StatusOr<std::shared_ptr<AsyncSave>> Create(
      Device* device, std::unique_ptr<CheckpointSave> save,
      std::shared_ptr<Communicator> comm, std::shared_ptr<Mapping> room,
      std::shared_ptr<HostCalls> progress);
  void Begin();

  // Returns whether the save has ended. Does not block.
  bool IsDone() const { return done_.IsDone(); }
  // Waits for the end of the save and returns its status; kDeadlineExceeded
  // where the save has not ended by `deadline`.
  Status Wait(const Deadline& deadline);
  const std::string& path() const { return path_; }
  // Returns the deadline of the whole save.
  const Deadline& deadline() const { return deadline_; }

  // Returns whether Wait has returned the status of the save.
  bool reported() const { return reported_; }

  // Ends the calls of the host's progress function; the save goes on.
  void EndProgress() { progress_->Close(); }

 private:
  AsyncSave(const Deadline& deadline, std::shared_ptr<HostCalls> progress)
      : deadline_(deadline), progress_(std::move(progress)) {}

  const Deadline deadline_;
  const std::shared_ptr<HostCalls> progress_;
  std::string path_;
  // Resources of the thread, which frees them when the save ends: a handle that
  // the host keeps holds neither memory nor the connection of the ranks.
  struct Held {
    std::shared_ptr<Communicator> comm;
    std::shared_ptr<Mapping> room;
    std::unique_ptr<CheckpointSave> save;  // Destroyed first.
  };
  std::shared_ptr<Held> held_;
  std::atomic<bool> reported_{false};
  Event done_;
  std::unique_ptr<Stream> stream_;  // Destroyed first.
};

class Checkpoints {
 public:
  explicit Checkpoints(int world_size) : world_size_(world_size) {}

  // Waits for a save in progress, at most for its timeout, before the engine is
  // destroyed. A save that goes on calls no function of the host. Local.
  void WaitForSave();

  // Sets a blob, which is stored with every save from here on. Local.
  // kInvalidArgument for a name that is not plain text (core/model/names.h), an
  // unknown rule, and numbers to be summed that are not whole int64;
  // kResourceExhausted for more names than a manifest has room for.
  Status SetBlob(std::string_view name, BlobRule rule, const void* data,
                 size_t bytes);
  // Returns the blob that was set or loaded under `name`, or null.
  const HostBlob* FindBlob(std::string_view name) const;

  // Waits for a save in progress. Local. Returns its error, unless the error
  // was reported before.
  Status FinishSave(const Deadline& deadline);

  // Save and Open are COLLECTIVE, in an engine that is idle. The options are
  // agreed upon before.
  //
  // Saves `state`. Returns null when the save was not asynchronous, and is
  // done. `deadline` is that of the whole save, also in the background.
  // `engine_comm` is the engine's.
  StatusOr<std::shared_ptr<AsyncSave>> Save(
      SavedState state, const std::string& root, const SaveOptions& options,
      const WorkDeadline& deadline, Communicator* engine_comm, Device* device);
  // Opens the checkpoint or safetensors file that `path` is or holds, the same
  // one on all ranks.
  static StatusOr<std::shared_ptr<const FileStore>> Open(
      const std::string& path, FileEnv* env, Communicator* comm,
      const WorkDeadline& deadline);
  using Blobs = std::map<std::string, HostBlob, std::less<>>;
  // Returns the blobs of a checkpoint that are for this rank. Local. Blobs that
  // each rank has of its own are returned at the same world size only.
  // REQUIRES: a store with a manifest.
  static StatusOr<Blobs> ReadBlobs(const FileStore& store, int rank,
                                   int world_size);
  // Replaces the blobs that were set.
  void ReplaceBlobs(Blobs blobs);

 private:
  const int world_size_;
  Blobs blobs_;
  // Bytes that the names of blobs_ take in a manifest.
  uint64_t manifest_bytes_ = 0;
  std::shared_ptr<Communicator> comm_;
  std::shared_ptr<Mapping> room_ = std::make_shared<Mapping>();
  std::shared_ptr<AsyncSave> last_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_CHECKPOINTS_H_
