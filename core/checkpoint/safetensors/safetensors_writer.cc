// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/safetensors/safetensors_writer.h"

#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "core/base/out_of_memory.h"
#include "core/base/strings.h"
#include "core/checkpoint/safetensors/json_events.h"
#include "core/checkpoint/safetensors/safetensors_index.h"

namespace shard {

namespace {

constexpr std::string_view kSuffix = ".safetensors";

// Returns a number as five digits: "00007".
std::string FiveDigits(size_t number) {
  std::string digits = StrCat(number);
  return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
}

StatusOr<std::string> TemporaryName(const std::string& name) {
  uint64_t nonce = 0;
  if (::getrandom(&nonce, sizeof(nonce), 0) != sizeof(nonce)) {
    return ErrnoStatus("getrandom", errno);
  }
  return StrCat(name, ".tmp-", FormatHex(nonce).substr(2));
}

Status RenameFailed(const Directory& folder, const std::string& from,
                    const std::string& to, int result) {
  return ErrnoStatus(
      StrCat("renaming '", folder.PathOf(from), "' to '", to, "'"), -result);
}

// Divides tensors, in the order given, into files.
std::vector<std::vector<size_t>> Divide(std::span<const uint64_t> bytes,
                                        uint64_t max_shard_bytes) {
  std::vector<std::vector<size_t>> shards(1);
  uint64_t in_shard = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (max_shard_bytes != 0 && !shards.back().empty() &&
        (in_shard > max_shard_bytes || bytes[i] > max_shard_bytes - in_shard)) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(i);
    in_shard += bytes[i];
  }
  return shards;
}

}  // namespace

StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    FileEnv* env, const std::string& path,
    std::vector<SafetensorsTensor> tensors,
    const SafetensorsWriteOptions& options) {
  const size_t slash = path.rfind('/');
  const std::string name =
      slash == std::string::npos ? path : path.substr(slash + 1);
  if (!name.ends_with(kSuffix) || name.size() == kSuffix.size()) {
    return InvalidArgument("the name of a safetensors file ends in '", kSuffix,
                           "', and '", path, "' does not");
  }
  const std::string stem = name.substr(0, name.size() - kSuffix.size());

  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter);
  writer->path_ = path;
  writer->tensors_ = std::move(tensors);
  SHARD_ASSIGN_OR_RETURN(
      writer->folder_,
      Directory::Open(env, slash == std::string::npos
                               ? "."
                               : path.substr(0, std::max<size_t>(slash, 1))));

  // Errors are returned before anything is written.
  SHARD_ASSIGN_OR_RETURN(const std::vector<uint64_t> bytes,
                         CheckSafetensors(writer->tensors_));
  uint64_t total = 0;
  for (const uint64_t size : bytes) {
    writer->targets_.emplace_back().bytes = size;
    total += size;
  }
  const std::vector<std::vector<size_t>> shards =
      Divide(bytes, options.max_shard_bytes);
  const bool has_index = shards.size() > 1;
  if (has_index) writer->index_name_ = StrCat(name, ".index.json");

  std::vector<std::string> names;
  for (size_t i = 0; i < shards.size(); ++i) {
    names.push_back(has_index ? StrCat(stem, "-", FiveDigits(i + 1), "-of-",
                                       FiveDigits(shards.size()), kSuffix)
                              : name);
  }
  if (has_index) names.push_back(writer->index_name_);
  for (const std::string& wanted : names) {
    SHARD_ASSIGN_OR_RETURN(const auto found, writer->folder_.Stat(wanted));
    if (!found.has_value()) continue;
    const std::string there = writer->folder_.PathOf(wanted);
    if (!options.replace) {
      return Status(StatusCode::kAlreadyExists,
                    StrCat("'", there,
                           "' is there already: choose another name, or set "
                           "overwrite"));
    }
    // A rename would replace a device or a link itself.
    if (!S_ISREG(found->st_mode)) {
      return FailedPrecondition("'", there,
                                "' is not a regular file and is not replaced: "
                                "choose another name");
    }
  }
  writer->outputs_.reserve(names.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    SHARD_RETURN_IF_ERROR(writer->CreateShard(names[i], shards[i], options));
  }
  if (has_index) {
    std::vector<std::pair<std::string, std::string>> keys;
    for (size_t i = 0; i < shards.size(); ++i) {
      for (const size_t tensor : shards[i]) {
        keys.emplace_back(writer->tensors_[tensor].key, names[i]);
      }
    }
    const std::string index = EncodeSafetensorsIndex(total, std::move(keys));
    SHARD_RETURN_IF_ERROR(writer->CreateOutput(names.back(), index.size()));
    SHARD_RETURN_IF_ERROR(writer->outputs_.back().file.WriteExactly(
        0, std::as_bytes(std::span(index))));
    writer->path_ = writer->folder_.PathOf(names.back());
  }
  return writer;
}

Status SafetensorsWriter::CreateOutput(const std::string& name,
                                       uint64_t bytes) {
  SHARD_ASSIGN_OR_RETURN(std::string temporary, TemporaryName(name));
  std::string wanted = name;
  StatusOr<PooledFile> file =
      PooledFile::Open(folder_, temporary, File::Mode::kCreate);
  if (!file.ok()) {
    // The file may have been created before the failure.
    (void)folder_.Unlink(temporary);
    return file.status();
  }
  // Takes no memory, without which the file would stay: Create has made room.
  outputs_.push_back({.name = std::move(wanted),
                      .temporary = std::move(temporary),
                      .file = *std::move(file)});
  // Finds a full disk now, not after hours.
  return outputs_.back().file.Allocate(bytes);
}

Status SafetensorsWriter::CreateShard(const std::string& name,
                                      std::span<const size_t> members,
                                      const SafetensorsWriteOptions& options) {
  std::vector<SafetensorsTensor> tensors;
  tensors.reserve(members.size());
  for (const size_t member : members) tensors.push_back(tensors_[member]);
  SHARD_ASSIGN_OR_RETURN(const SafetensorsLayout layout,
                         LayOutSafetensors(tensors, options.metadata));
  SHARD_RETURN_IF_ERROR(CreateOutput(name, layout.file_bytes));
  for (size_t i = 0; i < members.size(); ++i) {
    targets_[members[i]].output = outputs_.size() - 1;
    targets_[members[i]].begin = layout.begin[i];
  }
  return outputs_.back().file.WriteExactly(
      0, std::as_bytes(std::span(layout.header)));
}

SafetensorsWriter::~SafetensorsWriter() {
  if (finished_) return;
  // Memory may have run out: then temporary files stay.
  try {
    Retract();
  } catch (...) {  // NOLINT: a destructor lets nothing out
  }
}

bool SafetensorsWriter::Unpublish(Output* output) {
  const std::string& name = output->name;
  switch (output->state) {
    case Output::State::kTemporary:
    case Output::State::kNew:
      if (!output->aside.empty()) {
        // The old file replaces the new one.
        if (folder_.Rename(output->aside, name, 0) != 0) return false;
        if (output->state == Output::State::kNew) output->temporary.clear();
        return true;
      }
      return output->state == Output::State::kTemporary ||
             folder_.Rename(name, output->temporary, 0) == 0;
    case Output::State::kExchanged:
      if (folder_.Rename(output->temporary, name, RENAME_EXCHANGE) == 0) {
        return true;
      }
      output->temporary.clear();  // The old file, which may be moved back.
      return false;
    case Output::State::kReplaced:
      output->temporary.clear();
      return false;
  }
  return false;
}

void SafetensorsWriter::Retract() {
  // The new index is deleted first, so that it names no missing file; the old
  // index gets its name back last, after the files that it names.
  std::reverse(outputs_.begin(), outputs_.end());
  bool changed = !old_index_.empty();
  bool mixed = false;  // A file that the old index names is not there.
  // Memory may have run out: closing a file and syncing need some.
  for (Output& output : outputs_) {
    changed |=
        output.state != Output::State::kTemporary || !output.aside.empty();
    const bool undone = Unpublish(&output);
    // The new files stay, all of them, while the new index names them.
    if (!undone && output.name == index_name_) return;
    const bool replaced =
        output.state != Output::State::kNew || !output.aside.empty();
    mixed |= !undone && replaced;
  }
  if (!old_index_.empty() && !mixed &&
      folder_.Rename(old_index_, index_name_, 0) == 0) {
    old_index_.clear();
  }
  for (Output& output : outputs_) (void)output.file.Close().ok();
  // The old files must have their names again, durably, before the new ones are
  // deleted. Otherwise the new ones stay under their temporary names.
  if (changed && !folder_.Sync().ok()) return;
  for (const Output& output : outputs_) {
    if (output.temporary.empty()) continue;
    (void)folder_.Unlink(output.temporary).ok();
  }
  if (mixed && !old_index_.empty()) (void)folder_.Unlink(old_index_).ok();
}

Status SafetensorsWriter::Write(size_t tensor, uint64_t offset,
                                std::span<const std::byte> bytes) {
  if (tensor >= targets_.size()) {
    return OutOfRange("there is no tensor ", tensor, "; there are ",
                      targets_.size());
  }
  Target& target = targets_[tensor];
  if (offset > target.bytes || bytes.size() > target.bytes - offset) {
    return OutOfRange("tensor ", QuoteForMessage(tensors_[tensor].key), " has ",
                      target.bytes, " bytes, and ", bytes.size(), " from ",
                      offset, " are to be written");
  }
  SHARD_RETURN_IF_ERROR(
      outputs_[target.output].file.WriteExactly(target.begin + offset, bytes));
  target.written.fetch_add(bytes.size());
  return Status();
}

Status SafetensorsWriter::CheckComplete() const {
  for (size_t i = 0; i < targets_.size(); ++i) {
    const uint64_t written = targets_[i].written.load();
    if (written == targets_[i].bytes) continue;
    return Status(StatusCode::kFailedPrecondition,
                  StrCat("tensor ", QuoteForMessage(tensors_[i].key), " has ",
                         targets_[i].bytes, " bytes, and ", written,
                         " were written; every byte is to be written once"));
  }
  return Status();
}

Status SafetensorsWriter::MoveAside(const std::string& name,
                                    std::string* aside) {
  SHARD_ASSIGN_OR_RETURN(std::string temporary, TemporaryName(name));
  const int result = folder_.Rename(name, temporary, 0);
  if (result == -ENOENT) return Status();
  if (result < 0) return RenameFailed(folder_, name, temporary, result);
  *aside = std::move(temporary);
  return Status();
}

Status SafetensorsWriter::Publish(Output* output) {
  SHARD_ASSIGN_OR_RETURN(const auto found, folder_.Stat(output->name));
  // A folder cannot be replaced, but it could be exchanged.
  const bool exists = found.has_value() && !S_ISDIR(found->st_mode);
  int result = -ENOENT;
  if (exists) {
    result = folder_.Rename(output->temporary, output->name, RENAME_EXCHANGE);
    if (result == 0) output->state = Output::State::kExchanged;
  }
  if (result == -EINVAL || result == -ENOSYS) {
    // A file of a set may be missing for a moment, because the index is missing
    // too; a single file is replaced in one step, and lost.
    if (!index_name_.empty()) {
      SHARD_RETURN_IF_ERROR(MoveAside(output->name, &output->aside));
      result = -ENOENT;
    } else {
      result = folder_.Rename(output->temporary, output->name, 0);
      if (result == 0) output->state = Output::State::kReplaced;
    }
  }
  if (result == -ENOENT) {
    result = folder_.Rename(output->temporary, output->name, 0);
    if (result == 0) output->state = Output::State::kNew;
  }
  if (result == 0) return Status();
  return RenameFailed(folder_, output->temporary, output->name, result);
}

Status SafetensorsWriter::Finish() {
  SHARD_RETURN_IF_ERROR(CheckComplete());
  for (Output& output : outputs_) {
    SHARD_RETURN_IF_ERROR(output.file.Sync());
    SHARD_RETURN_IF_ERROR(output.file.Close());
  }
  // Files of an old set must not be read with some of the new one.
  if (!index_name_.empty()) {
    SHARD_RETURN_IF_ERROR(MoveAside(index_name_, &old_index_));
    if (!old_index_.empty()) SHARD_RETURN_IF_ERROR(folder_.Sync());
  }
  for (Output& output : outputs_) {
    // The files must be durable before the index names them.
    if (output.name == index_name_) {
      SHARD_RETURN_IF_ERROR(folder_.Sync());
    }
    SHARD_RETURN_IF_ERROR(Publish(&output));
  }
  SHARD_RETURN_IF_ERROR(folder_.Sync());
  finished_ = true;
  // The new files are complete: an error in deleting old ones is not an error.
  (void)CatchOutOfMemory([&] {
    for (const Output& output : outputs_) {
      if (output.state == Output::State::kExchanged) {
        (void)folder_.Unlink(output.temporary).ok();
      }
      if (!output.aside.empty()) (void)folder_.Unlink(output.aside).ok();
    }
    if (!old_index_.empty()) (void)folder_.Unlink(old_index_).ok();
    return Status();
  }).ok();
  return Status();
}

}  // namespace shard
