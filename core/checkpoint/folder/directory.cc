// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/folder/directory.h"

#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <span>
#include <utility>

#include "core/base/strings.h"
#include "core/checkpoint/manifest/manifest.h"

namespace shard {

namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr size_t kStepDigits = 6;
constexpr std::string_view kTemporaryMark = ".tmp-";
constexpr size_t kNonceDigits = 16;
// The most bytes that are read of LATEST: more than any name it can hold.
constexpr size_t kMaxLatestBytes = 64;

StatusOr<uint64_t> Nonce() {
  uint64_t nonce = 0;
  for (;;) {
    const ssize_t bytes = ::getrandom(&nonce, sizeof(nonce), 0);
    if (bytes == sizeof(nonce)) return nonce;
    if (bytes < 0 && errno != EINTR) {
      return ErrnoStatus("drawing a random name", errno);
    }
  }
}

StatusOr<bool> HasManifest(const Directory& checkpoint) {
  SHARD_ASSIGN_OR_RETURN(const auto found, checkpoint.Stat(kManifestName));
  return found.has_value() && S_ISREG(found->st_mode);
}

// Opens a checkpoint if it is complete; nullopt if it is not, or is gone.
StatusOr<std::optional<Directory>> OpenComplete(const Directory& root,
                                                const std::string& name) {
  StatusOr<Directory> directory = root.OpenDirectory(name);
  if (!directory.ok()) {
    const StatusCode code = directory.status().code();
    // kFailedPrecondition: a file or a symbolic link.
    if (code == StatusCode::kNotFound ||
        code == StatusCode::kFailedPrecondition) {
      return std::optional<Directory>();
    }
    return directory.status();
  }
  SHARD_ASSIGN_OR_RETURN(const bool complete, HasManifest(*directory));
  if (!complete) return std::optional<Directory>();
  return std::optional<Directory>(*std::move(directory));
}

}  // namespace

std::string LastPart(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? path
                                                     : path.substr(slash + 1));
}

std::string CheckpointName(int64_t step) {
  std::string digits = StrCat(step);
  if (digits.size() < kStepDigits) {
    digits.insert(0, kStepDigits - digits.size(), '0');
  }
  return StrCat(kStepPrefix, digits);
}

std::optional<int64_t> ParseCheckpointName(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const auto step = ParseInt(name.substr(kStepPrefix.size()));
  if (!step || *step < 0 || CheckpointName(*step) != name) return std::nullopt;
  return step;
}

StatusOr<std::string> TemporaryName(std::string_view base) {
  SHARD_ASSIGN_OR_RETURN(const uint64_t nonce, Nonce());
  return StrCat(base, kTemporaryMark, FormatHex(nonce).substr(2));
}

std::optional<std::string_view> ParseTemporaryName(std::string_view name) {
  constexpr size_t kSuffix = kTemporaryMark.size() + kNonceDigits;
  if (name.size() <= kSuffix) return std::nullopt;
  const std::string_view base = name.substr(0, name.size() - kSuffix);
  const std::string_view suffix = name.substr(base.size());
  const std::string_view nonce = suffix.substr(kTemporaryMark.size());
  if (!suffix.starts_with(kTemporaryMark) ||
      nonce.find_first_not_of("0123456789abcdef") != std::string_view::npos) {
    return std::nullopt;
  }
  if (base != kLatestName && !ParseCheckpointName(base)) return std::nullopt;
  return base;
}

StatusOr<bool> IsCheckpoint(const Directory& root, const std::string& name) {
  SHARD_ASSIGN_OR_RETURN(const auto opened, OpenComplete(root, name));
  return opened.has_value();
}

StatusOr<std::optional<int64_t>> ReadLatest(const Directory& root) {
  constexpr std::optional<int64_t> kNone;
  StatusOr<File> file = File::Open(root, kLatestName, File::Mode::kRead);
  if (!file.ok()) {
    const StatusCode code = file.status().code();
    if (code == StatusCode::kNotFound ||
        code == StatusCode::kFailedPrecondition) {
      return kNone;
    }
    return file.status();
  }
  SHARD_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
  if (size > kMaxLatestBytes) return kNone;
  std::array<char, kMaxLatestBytes> text;
  const std::span<char> read(text.data(), size);
  const Status status = file->ReadExactly(0, std::as_writable_bytes(read));
  if (status.code() == StatusCode::kCorrupt) return kNone;
  SHARD_RETURN_IF_ERROR(status);
  std::string_view name(read.data(), read.size());
  if (name.ends_with('\n')) name.remove_suffix(1);
  return ParseCheckpointName(name);
}

StatusOr<std::vector<int64_t>> ListCheckpoints(const Directory& root) {
  SHARD_ASSIGN_OR_RETURN(const auto names, root.List());
  std::vector<int64_t> steps;
  for (const std::string& name : names) {
    const auto step = ParseCheckpointName(name);
    if (!step) continue;
    SHARD_ASSIGN_OR_RETURN(const bool complete, IsCheckpoint(root, name));
    if (complete) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

StatusOr<OpenCheckpoint> ResolveCheckpoint(FileEnv* env,
                                           const std::string& path) {
  SHARD_ASSIGN_OR_RETURN(Directory root, Directory::Open(env, path));
  SHARD_ASSIGN_OR_RETURN(const bool is_checkpoint, HasManifest(root));
  if (is_checkpoint) {
    std::string name = LastPart(path);
    if (ParseTemporaryName(name)) {
      return FailedPrecondition(
          "'", path,
          "' was not completed, or is being deleted; give another, or the "
          "folder above");
    }
    return OpenCheckpoint{std::move(root), std::move(name), ""};
  }

  SHARD_ASSIGN_OR_RETURN(const auto latest, ReadLatest(root));
  std::string note = StrCat("'", root.PathOf(kLatestName),
                            "' is missing or does not name a checkpoint");
  if (latest) {
    std::string name = CheckpointName(*latest);
    SHARD_ASSIGN_OR_RETURN(auto opened, OpenComplete(root, name));
    if (opened) return OpenCheckpoint{*std::move(opened), std::move(name), ""};
    note = StrCat("'", root.PathOf(kLatestName), "' names '", name,
                  "', which is not there or not complete");
  }
  // If one is deleted meanwhile, the next one is opened.
  SHARD_ASSIGN_OR_RETURN(const auto steps, ListCheckpoints(root));
  for (size_t i = steps.size(); i-- > 0;) {
    std::string name = CheckpointName(steps[i]);
    SHARD_ASSIGN_OR_RETURN(auto opened, OpenComplete(root, name));
    if (!opened) continue;
    StrAppend(&note, "; taking '", name, "', the highest step");
    return OpenCheckpoint{*std::move(opened), std::move(name), std::move(note)};
  }
  return NotFound("no checkpoint in '", path, "': it has no '", kManifestName,
                  "', ", note, ", and no folder '", CheckpointName(0),
                  "' of any step has a manifest");
}

}  // namespace shard
