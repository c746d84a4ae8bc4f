// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/open_store.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/file.h"
#include "core/base/strings.h"
#include "core/checkpoint/data/shard_store.h"
#include "core/checkpoint/folder/directory.h"
#include "core/checkpoint/manifest/manifest.h"
#include "core/checkpoint/safetensors/safetensors_store.h"

namespace shard {

namespace {

constexpr std::string_view kFileSuffix = ".safetensors";
constexpr std::string_view kIndexSuffix = ".json";
constexpr std::string_view kOf = "-of-";
constexpr const char* kIndexName = "model.safetensors.index.json";
// Number of attempts: each time, the checkpoint may be deleted while it is
// opened.
constexpr int kAttempts = 8;

bool HasSafetensorsName(std::string_view path) {
  return path.ends_with(kFileSuffix) || path.ends_with(kIndexSuffix);
}

StatusOr<OpenedStore> OpenSafetensors(FileEnv* env, const std::string& path,
                                      std::string name) {
  SHARD_ASSIGN_OR_RETURN(auto store, SafetensorsStore::Open(env, path));
  return OpenedStore{std::move(store), std::move(name), ""};
}

// Returns the number of files in the set of a file, as its name says:
// "model-00001-of-00003.safetensors"; 1 for other names.
int64_t FilesInSet(std::string_view name) {
  name.remove_suffix(kFileSuffix.size());
  const size_t of = name.rfind(kOf);
  if (of == std::string_view::npos) return 1;
  const size_t dash = name.substr(0, of).rfind('-');
  if (dash == std::string_view::npos) return 1;
  const auto number = ParseInt(name.substr(dash + 1, of - dash - 1));
  const auto count = ParseInt(name.substr(of + kOf.size()));
  return number.has_value() && count.has_value() ? *count : 1;
}

// Opens the safetensors store in a folder. `missing`: why the folder is not a
// root of checkpoints.
StatusOr<OpenedStore> OpenFolderOfSafetensors(const Directory& folder,
                                              const Status& missing) {
  SHARD_ASSIGN_OR_RETURN(std::vector<std::string> names, folder.List());
  std::erase_if(names, [](const std::string& name) {
    return name != kIndexName && !name.ends_with(kFileSuffix);
  });
  // The index says which files belong together.
  const bool index = std::count(names.begin(), names.end(), kIndexName) > 0;
  if (!index && names.size() > 1) {
    return NotFound("'", folder.path(), "' has ", names.size(),
                    " safetensors files and no '", kIndexName,
                    "' that says which belong together; give the path of one");
  }
  if (names.empty()) {
    return NotFound(missing.message(), "; nor does it have a '", kIndexName,
                    "' or a file '*", kFileSuffix, "'");
  }
  if (!index && FilesInSet(names[0]) > 1) {
    return NotFound("'", folder.PathOf(names[0]), "' is one of ",
                    FilesInSet(names[0]),
                    " files by its name, and there is no '", kIndexName,
                    "': the set is not complete; give the path of the file to "
                    "read it alone");
  }
  const std::string name = index ? kIndexName : names[0];
  return OpenSafetensors(folder.env(), folder.PathOf(name), name);
}

StatusOr<OpenedStore> OpenCheckpointAt(FileEnv* env, const std::string& path) {
  Status status;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    auto found = ResolveCheckpoint(env, path);
    if (!found.ok()) return found.status();
    auto store = ShardStore::Open(found->directory);
    if (store.ok()) {
      const bool itself = found->directory.path() == path;
      return OpenedStore{*std::move(store),
                         itself ? "" : std::move(found->name),
                         std::move(found->note)};
    }
    status = store.status();
    // A checkpoint that is being deleted loses its manifest first.
    SHARD_ASSIGN_OR_RETURN(const auto manifest,
                           found->directory.Stat(kManifestName));
    if (manifest) return status;
  }
  return status.WithContext(StrCat("'", path, "' was replaced ", kAttempts,
                                   " times while it was opened"));
}

}  // namespace

StatusOr<OpenedStore> OpenTensorStore(FileEnv* env, const std::string& path) {
  auto folder = Directory::Open(env, path);
  if (!folder.ok()) {
    const StatusCode code = folder.status().code();
    if (HasSafetensorsName(path)) return OpenSafetensors(env, path, "");
    if (code != StatusCode::kFailedPrecondition) return folder.status();
    return NotFound("'", path,
                    "' is neither a folder with a checkpoint nor a file whose "
                    "name ends in '",
                    kFileSuffix, "' or '", kIndexSuffix, "'");
  }
  auto opened = OpenCheckpointAt(env, path);
  if (opened.status().code() != StatusCode::kNotFound) return opened;
  return OpenFolderOfSafetensors(*folder, opened.status());
}

}  // namespace shard
