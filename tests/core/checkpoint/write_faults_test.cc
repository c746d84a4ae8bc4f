// SPDX-License-Identifier: Apache-2.0
//
// Faults of a device, or a full device, while files are replaced. Any call that
// creates, writes, renames or syncs fails, once or from then on. After an error
// a reader finds the old contents, and the next write works. Where the old
// contents cannot be kept, because undoing fails as well, the message says so.

#include <gtest/gtest.h>
#include <stdio.h>

#include <cerrno>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/checkpoint/folder/cleanup.h"
#include "core/checkpoint/folder/directory.h"
#include "core/checkpoint/open_store.h"
#include "core/checkpoint/safetensors/safetensors_export.h"
#include "core/checkpoint/verify.h"
#include "core/checkpoint/write_checkpoint.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/fault_env.h"
#include "tests/core/base/forwarding_env.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/checkpoint/sample_checkpoint.h"
#include "tests/core/checkpoint/test_checkpoint.h"

namespace shard::testing {
namespace {

// The things that a reader finds, by name, with their contents.
using Found = std::map<std::string, std::string>;

// An operation that replaces the contents of a folder.
struct Replacement {
  std::string name;
  std::function<Status(FileEnv* env, const std::string& folder)> prepare;
  std::function<Status(FileEnv* env, const std::string& folder)> replace;
  std::function<Found(const std::string& folder)> read;
  // The environment below the injected faults.
  FileEnv* env = NoSyncEnv::Get();
  // Whether it deletes what is old at its end, whose errors are none.
  bool cleans = false;
};

// A file system without the flags of renameat2, such as NFS. Calls `watch`
// after each rename and deletion.
class PlainRenames final : public ForwardingEnv {
 public:
  explicit PlainRenames(std::function<void()> watch = nullptr)
      : ForwardingEnv(NoSyncEnv::Get()), watch_(std::move(watch)) {}

  int Rename(int from_dir, const char* from, int to_dir, const char* to,
             unsigned flags) override {
    if (flags != 0) {
      return (flags & RENAME_EXCHANGE) != 0 ? -EINVAL : -ENOSYS;
    }
    const int result = base()->Rename(from_dir, from, to_dir, to, flags);
    if (watch_) watch_();
    return result;
  }
  int Unlink(int dir, const char* path, int flags) override {
    const int result = base()->Unlink(dir, path, flags);
    if (watch_) watch_();
    return result;
  }

  // Returns one without `watch`, which lives forever.
  static PlainRenames* Get() {
    static PlainRenames* const env = new PlainRenames;
    return env;
  }

 private:
  const std::function<void()> watch_;
};

// --- Checkpoints, by the protocol alone ------------------------------------

Status PrepareGenerations(FileEnv* env, const std::string& root) {
  SHARD_RETURN_IF_ERROR(SaveGeneration(env, root, 1, 10));
  SHARD_RETURN_IF_ERROR(SaveGeneration(env, root, 3, 30));
  return SaveGeneration(env, root, 2, 20);
}

Found ReadGenerations(const std::string& root) {
  Found found = {{"resolved", StrCat(ResolvedGeneration(root))}};
  const auto directory = Directory::Open(FileEnv::Posix(), root);
  EXPECT_OK(directory);
  const auto steps = ListCheckpoints(*directory);
  EXPECT_OK(steps);
  for (const int64_t step : *steps) {
    found[CheckpointName(step)] =
        StrCat(GenerationIn(root + "/" + CheckpointName(step)));
  }
  return found;
}

Replacement OfGeneration(const char* name, int64_t step, bool retain) {
  const auto replace = [=](FileEnv* env, const std::string& root) -> Status {
    SHARD_RETURN_IF_ERROR(SaveGeneration(env, root, step, 40, true));
    // As in a save, errors of cleaning up are not errors of the save.
    const auto opened = Directory::Open(env, root);
    if (!retain || !opened.ok()) return Status();
    (void)CleanStale(*opened).ok();
    (void)RetainCheckpoints(*opened, {.keep_last = 1}).ok();
    return Status();
  };
  return {name,  PrepareGenerations, replace, ReadGenerations, NoSyncEnv::Get(),
          retain};
}

// --- Checkpoints and files made from others --------------------------------

// Returns a store of three tensors and a blob. Both versions have the same
// keys, so that files of one fit those of the other, and different values.
std::shared_ptr<const FileStore> Source(int version) {
  const TempFolder folder;
  CheckpointBuilder source;
  source.contents().world_size = 2;
  for (int i = 0; i < 3; ++i) {
    source.Add(StrCat("t", (i + version) % 3), ElementType::kF32,
               TensorRole::kParam, {700});
  }
  source.AddBlob("loader", BlobRule::kPerRank, 1, StrCat(version));
  EXPECT_OK(source.Write(NoSyncEnv::Get(), folder.path()));
  return OpenStore(folder.path());
}

Status Reshard(FileEnv* env, const FileStore& from, const std::string& root) {
  const WriteCheckpointOptions options = {
      .world_size = 2, .overwrite = true, .threads = 1};
  return WriteCheckpoint(env, from, root, options);
}

Status Export(FileEnv* env, const FileStore& from, const std::string& folder,
              uint64_t max_shard_bytes) {
  std::vector<size_t> all(from.num_tensors());
  std::iota(all.begin(), all.end(), size_t{0});
  const SafetensorsExportOptions options = {
      .write = {.max_shard_bytes = max_shard_bytes, .replace = true},
      .threads = 1};
  return ExportSafetensors(env, from, all, folder + "/model.safetensors",
                           options);
}

Found ReadStore(const std::string& path) {
  const auto store = OpenStore(path);
  if (store == nullptr) return {};
  EXPECT_OK(VerifyStore(*store, {}));
  return TensorsOf(*store);
}

const FileStore& Old() {
  static const auto* const source = new auto(Source(0));
  return **source;
}
const FileStore& Fresh() {
  static const auto* const source = new auto(Source(1));
  return **source;
}

// The most bytes of a file, with which a set has three files.
constexpr uint64_t kShardBytes = 3000;

std::vector<Replacement> AllReplacements() {
  std::vector<Replacement> all = {
      OfGeneration("NewStep", 4, false),
      OfGeneration("NewStepWithRetention", 4, true),
      OfGeneration("OverwritesTheLatest", 2, false),
      OfGeneration("OverwritesAnother", 1, false),
      OfGeneration("OverwritesWithRetention", 1, true),
      {"Reshard",
       [](FileEnv* env, const std::string& f) {
         return Reshard(env, Old(), f);
       },
       [](FileEnv* env, const std::string& f) {
         return Reshard(env, Fresh(), f);
       },
       ReadStore}};
  all.push_back(OfGeneration("NewStepByPlainRenames", 4, true));
  all.back().env = PlainRenames::Get();
  for (const uint64_t max_shard_bytes : {uint64_t{0}, kShardBytes}) {
    const auto export_from = [=](const FileStore& from) {
      return [&from, max_shard_bytes](FileEnv* env, const std::string& folder) {
        return Export(env, from, folder, max_shard_bytes);
      };
    };
    const std::string name = max_shard_bytes == 0
                                 ? "model.safetensors"
                                 : "model.safetensors.index.json";
    all.push_back({max_shard_bytes == 0 ? "ExportFile" : "ExportSet",
                   export_from(Old()), export_from(Fresh()),
                   [name](const std::string& folder) {
                     const std::string path = folder + "/" + name;
                     return Exists(path) ? ReadStore(path) : Found();
                   }});
    all.push_back(all.back());
    all.back().name += "ByPlainRenames";
    all.back().env = PlainRenames::Get();
  }
  return all;
}

// ---------------------------------------------------------------------------

class WriteFaultsTest : public ::testing::TestWithParam<Replacement> {
 protected:
  // Runs the replacement with a fault at each call in turn: that call alone
  // fails, or with `for_good` that call and all after it.
  void Run(int error, bool for_good);

  // Returns what a reader finds after the replacement without a fault.
  static Found Replaced();
  // A fault that is no error has left all of it done.
  static void ExpectReplaced(const Found& after, const Found& replaced);

  static std::set<std::string> WithoutTemporary(std::set<std::string> names) {
    std::erase_if(names, [](const std::string& name) {
      return name.find(".tmp-") != std::string::npos;
    });
    return names;
  }
};

INSTANTIATE_TEST_SUITE_P(Of, WriteFaultsTest,
                         ::testing::ValuesIn(AllReplacements()),
                         [](const auto& info) { return info.param.name; });

Found WriteFaultsTest::Replaced() {
  const Replacement& what = GetParam();
  const TempFolder parent(kMemoryFolder);
  const std::string folder = parent / "root";
  EXPECT_TRUE(std::filesystem::create_directory(folder));
  EXPECT_OK(what.prepare(what.env, folder));
  EXPECT_OK(what.replace(what.env, folder));
  return what.read(folder);
}

void WriteFaultsTest::ExpectReplaced(const Found& after,
                                     const Found& replaced) {
  if (!GetParam().cleans) {
    EXPECT_EQ(after, replaced);
    return;
  }
  // Beside it may be what is old.
  for (const auto& [name, contents] : replaced) {
    const auto found = after.find(name);
    ASSERT_NE(found, after.end()) << name;
    EXPECT_EQ(found->second, contents) << name;
  }
}

void WriteFaultsTest::Run(int error, bool for_good) {
  const Replacement& what = GetParam();
  const Found replaced = Replaced();
  int failed = 0;
  int not_undone = 0;
  bool done = false;
  for (int64_t k = 0; !done; ++k) {
    SCOPED_TRACE(
        StrCat("call ", k, for_good ? " and after" : "", ", errno ", error));
    const TempFolder parent(kMemoryFolder);
    const std::string folder = parent / "root";
    ASSERT_TRUE(std::filesystem::create_directory(folder));
    ASSERT_OK(what.prepare(what.env, folder));
    const Found before = what.read(folder);
    const auto names = NamesIn(folder);
    FaultEnv env(what.env);
    env.Set(
        {.at = k, .and_after = for_good, .changes_only = true, .error = error});
    const Status status = what.replace(&env, folder);
    done = env.faults() == 0;
    env.Set({});
    EXPECT_EQ(env.open_descriptors(), 0);
    EXPECT_EQ(env.wrong_closes(), 0);
    const Found after = what.read(folder);
    if (done) EXPECT_OK(status);
    if (status.ok()) {
      ExpectReplaced(after, replaced);
    } else {
      ++failed;
      ExpectError(status, ErrnoStatus("", error).code(), {folder});
      if (after != before) {
        ++not_undone;
        EXPECT_TRUE(for_good || what.name == "ExportFileByPlainRenames" ||
                    status.message().find("is complete") != std::string::npos)
            << status.ToString();
      } else if (!for_good) {
        EXPECT_EQ(NamesIn(folder), names);
      }
    }
    ASSERT_OK(what.replace(NoSyncEnv::Get(), folder));
    EXPECT_NE(what.read(folder), before);
    const auto root = Directory::Open(FileEnv::Posix(), folder);
    ASSERT_OK(root);
    ASSERT_OK(CleanStale(*root));
    if (!for_good && what.name.find("Export") == std::string::npos) {
      EXPECT_EQ(WithoutTemporary(NamesIn(folder)), NamesIn(folder));
    }
  }
  EXPECT_GT(failed, 5);
  // With one fault, only the last sync cannot be undone: it makes durable that
  // LATEST was replaced, or a file where the file system cannot exchange files.
  // With faults from a call on, nothing from the first rename on can be undone,
  // and a set of files cannot be read then.
  const bool is_set = what.name.starts_with("ExportSet");
  EXPECT_LE(not_undone, !for_good ? 1 : is_set ? 13 : 3);
}

// A reader that looks while files are replaced finds one of the two sets or
// none, never files of both or a part of one.
TEST(WritingSets, AreNeverReadMixed) {
  for (const bool replaces : {false, true}) {
    const TempFolder parent(kMemoryFolder);
    const std::string folder = parent / "set";
    ASSERT_TRUE(std::filesystem::create_directory(folder));
    if (replaces) {
      ASSERT_OK(Export(NoSyncEnv::Get(), Old(), folder, kShardBytes));
    }
    const Found old = TensorsOf(Old());
    const Found fresh = TensorsOf(Fresh());
    int looks = 0;
    PlainRenames env([&] {
      ++looks;
      const auto opened = OpenTensorStore(FileEnv::Posix(), folder);
      if (!opened.ok()) {
        ExpectError(opened, StatusCode::kNotFound, {"index.json"});
        return;
      }
      const Found found = TensorsOf(*opened->store);
      EXPECT_TRUE(found == fresh || (replaces && found == old));
    });
    ASSERT_OK(Export(&env, Fresh(), folder, kShardBytes));
    EXPECT_EQ(looks, replaces ? 12 : 5);
    EXPECT_EQ(TensorsOf(*OpenStore(folder)), fresh);
  }
}

TEST_P(WriteFaultsTest, SurvivesAFullDeviceOnce) { Run(ENOSPC, false); }
TEST_P(WriteFaultsTest, SurvivesAFullDeviceForGood) { Run(ENOSPC, true); }
TEST_P(WriteFaultsTest, SurvivesAnExceededQuotaForGood) { Run(EDQUOT, true); }
TEST_P(WriteFaultsTest, SurvivesADeviceErrorOnce) { Run(EIO, false); }
TEST_P(WriteFaultsTest, SurvivesADeviceErrorForGood) { Run(EIO, true); }

}  // namespace
}  // namespace shard::testing
