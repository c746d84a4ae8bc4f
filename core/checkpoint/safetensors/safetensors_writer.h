// SPDX-License-Identifier: Apache-2.0
//
// SafetensorsWriter: writes a safetensors file, or several and their index,
// from pieces in any order. The files have temporary names until Finish: a file
// of the final name is always whole.
//
// Write may be called from several threads, with different bytes.

#ifndef SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_WRITER_H_
#define SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_WRITER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/file.h"
#include "core/base/pooled_file.h"
#include "core/base/status.h"
#include "core/checkpoint/safetensors/safetensors_header.h"

namespace shard {

struct SafetensorsWriteOptions {
  // The most bytes of tensors in a file; more tensors are written to several
  // files. A single larger tensor has a file of its own. 0: one file.
  uint64_t max_shard_bytes = 0;
  // Whether existing files of these names are replaced.
  bool replace = false;
  // Other programs expect the framework that wrote the file.
  std::vector<std::pair<std::string, std::string>> metadata = {
      {"format", "pt"}};
};

class SafetensorsWriter {
 public:
  // Creates the files. `path` ends in ".safetensors". Several files are named
  // after it: "model.safetensors" makes model-00001-of-00002.safetensors and so
  // on, and model.safetensors.index.json. Errors: those of LayOutSafetensors;
  // kAlreadyExists; errors of creating files.
  static StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      FileEnv* env, const std::string& path,
      std::vector<SafetensorsTensor> tensors,
      const SafetensorsWriteOptions& options);

  // Deletes unfinished files.
  ~SafetensorsWriter();

  // Writes `bytes` of tensor number `tensor` from its byte `offset` on. Every
  // byte must be written once. Errors: kOutOfRange; errors of writing.
  Status Write(size_t tensor, uint64_t offset,
               std::span<const std::byte> bytes);

  // Makes the files durable and gives them their names, the index last. Errors:
  // kFailedPrecondition when bytes are missing; errors of calls on files. After
  // an error, once the writer is destroyed, the previous files have their names
  // again and the new ones are deleted, unless the file system fails to undo
  // the changes, too. A new file that is not one of a set also stays where the
  // file system cannot exchange two files (RENAME_EXCHANGE) and then fails to
  // sync. In either case every file with its final name is whole, and a mixed
  // set of files has no index. REQUIRES: no Write is running; nothing is called
  // afterwards.
  Status Finish();

  // Returns the path of the file, or of the index.
  const std::string& path() const { return path_; }

 private:
  struct Output {
    std::string name;
    // The temporary name of this file until it is published, then that of a
    // file to delete.
    std::string temporary;
    // The temporary name of the file that this one replaces, where two files
    // cannot be exchanged. Empty: the replaced file has its name, or does not
    // exist.
    std::string aside;
    PooledFile file;
    enum class State {
      kTemporary,  // Not published.
      kNew,        // Published where there was no file of its name.
      kExchanged,  // Published; the file that was there has the temporary name.
      kReplaced,   // Published; the file that was there is gone.
    };
    State state = State::kTemporary;
  };
  struct Target {
    size_t output = 0;
    uint64_t begin = 0;
    uint64_t bytes = 0;
    std::atomic<uint64_t> written{0};
  };

  SafetensorsWriter() = default;

  Status CreateOutput(const std::string& name, uint64_t bytes);
  Status CreateShard(const std::string& name, std::span<const size_t> members,
                     const SafetensorsWriteOptions& options);
  Status CheckComplete() const;
  // Gives a file its final name.
  Status Publish(Output* output);
  // Renames the file of that name, if there is one, to a temporary name, which
  // is put into `*aside`.
  Status MoveAside(const std::string& name, std::string* aside);
  // Undoes Publish. Allocates no memory. Returns whether that was possible: the
  // previous file, if there was one, has its name again.
  bool Unpublish(Output* output);
  // Undoes Finish, and deletes the new files.
  void Retract();

  Directory folder_;
  std::string path_;
  std::vector<SafetensorsTensor> tensors_;
  std::deque<Target> targets_;  // By tensor.
  std::vector<Output> outputs_;
  std::string index_name_;  // The name of the last output; empty: no index.
  // The temporary name of the previous index; empty: there was none.
  std::string old_index_;
  bool finished_ = false;
};

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_WRITER_H_
