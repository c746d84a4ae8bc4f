// SPDX-License-Identifier: Apache-2.0
//
// SafetensorsWriter: writes a safetensors file, or several and their index, in
// pieces as they come. What is written has another name until Finish: a file
// of the asked name is always whole.
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
  // Several files when the tensors have more bytes than this, none of which has
  // more, unless it holds a single tensor. 0: one file.
  uint64_t max_shard_bytes = 0;
  // Whether files of these names may be there already.
  bool replace = false;
  // Other programs want to know who may read it.
  std::vector<std::pair<std::string, std::string>> metadata = {
      {"format", "pt"}};
};

class SafetensorsWriter {
 public:
  // `path` ends in ".safetensors". Several files are named after it:
  // "model.safetensors" makes model-00001-of-00002.safetensors and so on, and
  // model.safetensors.index.json. Errors: those of LayOutSafetensors;
  // kAlreadyExists; what creating files returns.
  static StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      FileEnv* env, const std::string& path,
      std::vector<SafetensorsTensor> tensors,
      const SafetensorsWriteOptions& options);

  // Deletes what is not finished.
  ~SafetensorsWriter();

  // `bytes` of tensor number `tensor` from its byte `offset` on. Every byte is
  // to be written once. Errors: kOutOfRange; what the write returned.
  Status Write(size_t tensor, uint64_t offset,
               std::span<const std::byte> bytes);

  // Makes the files durable and gives them their names, the index last. Errors:
  // kFailedPrecondition when bytes are missing; what a call on files returned.
  // After an error the files that were there before have their names again, as
  // soon as the writer is gone, and nothing is left of the new ones, unless the
  // file system fails the undoing, too. A new file that is not one of a set
  // also stays where the file system cannot exchange two files
  // (RENAME_EXCHANGE) and then fails to sync. Every file that has its name is
  // whole in either case, and of a set of files that is mixed there is no
  // index. REQUIRES: no Write is running; nothing is called afterwards.
  Status Finish();

  // What is written: the file, or the index.
  const std::string& path() const { return path_; }

 private:
  struct Output {
    std::string name;
    // Of this file until it is published, and then of one to delete.
    std::string temporary;
    // The temporary name of the file that it replaces, where two files cannot
    // be exchanged. Empty: that has its name, or does not exist.
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
  // Gives a file its name.
  Status Publish(Output* output);
  // Gives the file of that name, if there is one, a temporary one, which is put
  // into `*aside`.
  Status MoveAside(const std::string& name, std::string* aside);
  // Undoes Publish. Needs no memory. Whether it was possible: the file that was
  // there, if there was one, has its name again.
  bool Unpublish(Output* output);
  // Undoes Finish, and deletes the new files.
  void Retract();

  Directory folder_;
  std::string path_;
  std::vector<SafetensorsTensor> tensors_;
  std::deque<Target> targets_;  // By tensor.
  std::vector<Output> outputs_;
  std::string index_name_;  // Of the last output; empty: there is no index.
  // The temporary name of the index that there was; empty: there was none.
  std::string old_index_;
  bool finished_ = false;
};

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_WRITER_H_
