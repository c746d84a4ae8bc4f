// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints: what an engine keeps between its saves and loads: the save that
// is going on, its error until somebody hears of it, the memory of snapshots,
// and what the host stores beside the tensors.
//
// A background save has a communicator and a thread of its own, so that the
// host may train, and use its own communicator, meanwhile. There is one at a
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
  // Compare what is read with its checksums.
  bool verify = true;
  // Of a state dict: rank 0's alone, which is sent to the others.
  bool from_rank0 = false;
  int threads = 4;         // That read, per rank.
  double timeout = 1800;   // Seconds, of the whole load.
  Progress progress;       // Of this rank's bytes. Cancelling fails all ranks.
  FileEnv* env = nullptr;  // For tests; null: the kernel's.
};

struct LoadReport {
  std::string path;  // What was loaded: "ckpt/step-000042".
  int64_t step = 0;  // Of the checkpoint.
  int saved_world_size = 0;
  MatchReport match;
};

// A save in the background.
class AsyncSave {
 public:
  // `comm` and `room` are the save's until it is done. It begins with Begin,
  // once, after all ranks have theirs: what one of them cannot start, the
  // others must not wait for.
  static StatusOr<std::shared_ptr<AsyncSave>> Create(
      Device* device, std::unique_ptr<CheckpointSave> save,
      std::shared_ptr<Communicator> comm, std::shared_ptr<Mapping> room);
  void Begin();

  // Does not block.
  bool Done() const { return done_.Done(); }
  // How it ended; kDeadlineExceeded while it has not.
  Status Wait(const Deadline& deadline);
  const std::string& path() const { return path_; }
  // Of the save.
  const Deadline& deadline() const { return deadline_; }

  // Whether Wait has returned how it ended.
  bool heard() const { return heard_; }

 private:
  explicit AsyncSave(const Deadline& deadline) : deadline_(deadline) {}

  const Deadline deadline_;
  std::string path_;
  // The thread's, which gives it up when it is through: a handle that the host
  // keeps holds neither memory nor the ranks together.
  struct Held {
    std::shared_ptr<Communicator> comm;
    std::shared_ptr<Mapping> room;
    std::unique_ptr<CheckpointSave> save;  // First to go.
  };
  std::shared_ptr<Held> held_;
  std::atomic<bool> heard_{false};
  Event done_;
  std::unique_ptr<Stream> stream_;  // First to end.
};

class Checkpoints {
 public:
  explicit Checkpoints(int world_size) : world_size_(world_size) {}

  // Local. Before the engine goes: a save that is going on goes through, which
  // takes at most its timeout.
  void WaitForSave();

  // Local. Stored with every save from here on. kInvalidArgument for a name
  // that is no plain text (core/model/names.h), an unknown rule, and numbers to
  // be summed that are not whole int64; kResourceExhausted for more names than
  // a manifest has room for.
  Status SetBlob(std::string_view name, BlobRule rule, const void* data,
                 size_t bytes);
  // What was set or loaded; null: none of that name.
  const HostBlob* FindBlob(std::string_view name) const;

  // Local. Until a save that is going on is through; its error, unless somebody
  // has heard of it.
  Status Settle(const Deadline& deadline);

  // COLLECTIVE, both, in an engine that is idle; the options are agreed upon.
  //
  // Null: it was not asynchronous, and is done. `deadline` is that of the whole
  // save, also in the background. `engine_comm` is the engine's.
  StatusOr<std::shared_ptr<AsyncSave>> Save(
      SavedState state, const std::string& root, const SaveOptions& options,
      const WorkDeadline& deadline, Communicator* engine_comm, Device* device);
  // The store of what `path` is, or holds, opened on all ranks and the same.
  static StatusOr<std::shared_ptr<const FileStore>> Open(
      const std::string& path, FileEnv* env, Communicator* comm,
      const WorkDeadline& deadline);
  using Blobs = std::map<std::string, HostBlob, std::less<>>;
  // Local. What a checkpoint has for this rank; of each rank's blobs, something
  // at the same world size only. REQUIRES: a store with a manifest.
  static StatusOr<Blobs> ReadBlobs(const FileStore& store, int rank,
                                   int world_size);
  // Takes them in place of what was set.
  void TakeBlobs(Blobs blobs);

 private:
  const int world_size_;
  Blobs blobs_;
  // Of a manifest, what the names of these take.
  uint64_t manifest_bytes_ = 0;
  std::shared_ptr<Communicator> comm_;
  std::shared_ptr<Mapping> room_ = std::make_shared<Mapping>();
  std::shared_ptr<AsyncSave> last_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_CHECKPOINTS_H_
