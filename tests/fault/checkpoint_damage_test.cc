// SPDX-License-Identifier: Apache-2.0
//
// Every byte of every file of a checkpoint is flipped, every file cut, removed
// or exchanged. The damage is found, and a load that succeeds loads every bit
// right.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/checkpoint/data/shard_store.h"
#include "core/checkpoint/folder/directory.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/fault_env.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/checkpoint/raw_manifest.h"
#include "tests/core/engine/whole_state.h"
#include "tests/core/engine/worlds.h"
#include "tests/fault/whole_checkpoint.h"

namespace shard {
namespace {

using testing::NamesIn;
using testing::NoSyncEnv;
using testing::OpenWhole;
using testing::ReadText;
using testing::TempFolder;
using testing::WriteText;

namespace fs = std::filesystem;

// The state is so small that each of its bytes can be tried.
UnitTraining SmallTraining(int world_size) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Root");
  const ParamId weight =
      *training.model->AddParam(kRootModule, "weight", DType::kF32, {9, 5});
  const ModuleId head = *training.model->AddModule(kRootModule, "head", "Head");
  EXPECT_OK(training.model->Tie(head, "weight", weight));
  EXPECT_OK(training.model->AddParam(head, "bias", DType::kF32, {300}));
  training.wrap = "";
  training.optimizer = "adamw?states=q8";
  training.plan.world_size = world_size;
  return training;
}

class DamageTest : public ::testing::Test {
 protected:
  DamageTest() {
    Save(root_, 1);
    Save(root_, 2);
    Save(other_, 2, 0.5);
    folder_ = root_ + "/step-000002";
    const auto comm = OpenCommunicator("local:", Alone());
    EXPECT_OK(comm);
    auto engine = Engine::Create(*PlanOf(SmallTraining(1)), *comm);
    EXPECT_OK(engine);
    engine_ = *std::move(engine);
    EXPECT_OK(Load(root_));
    good_.Add(*engine_);
  }

  static CommOptions Alone() {
    CommOptions options;
    options.rank = 0;
    options.world_size = 1;
    return options;
  }

  // Saves a state that depends on the step and `lr`.
  void Save(const std::string& root, int steps, double lr = 0.01) {
    RunWorld(SmallTraining(2), 0, [&](Engine* engine, UnitTrainer* trainer) {
      trainer->Fill();
      ASSERT_OK(engine->SetHyper(0, "lr", lr));
      TrainSteps(1, steps, engine, trainer);
      const std::string position = "position";
      ASSERT_OK(engine->checkpoints().SetBlob(
          "loader", BlobRule::kReplicated, position.data(), position.size()));
      SaveOptions options;
      options.env = NoSyncEnv::Get();
      ASSERT_OK(engine->Save(root, options));
    });
  }

  // Loads into memory that holds nothing of an earlier load.
  Status Load(const std::string& path) {
    for (const EngineBuffer& buffer : engine_->memory().buffers()) {
      std::memset(buffer.params, 0xEE,
                  DTypeBytes(buffer.plan->dtype, buffer.held_numel));
      for (size_t s = 0; s < buffer.states.size(); ++s) {
        const DType dtype = buffer.plan->states[s].tensor.dtype;
        std::memset(
            buffer.states[s], 0xEE,
            DTypeBytes(dtype, buffer.plan->StateLayout(s).shard_numel()));
      }
    }
    LoadOptions options;
    options.threads = 1;
    LoadReport report;
    return engine_->Load(path, options, &report);
  }

  // Returns whether a load of `path` succeeds. It gives all the right bits, or
  // an error.
  bool LoadsRightOrNot(const std::string& path, const std::string& when) {
    const Status status = Load(path);
    if (!status.ok()) return false;
    WholeState loaded;
    loaded.Add(*engine_);
    EXPECT_TRUE(loaded == good_) << when << ": " << good_.Differences(loaded);
    return true;
  }

  // Expects to find damage in opening the checkpoint, or else in reading all of
  // it.
  void ExpectFound(const std::string& folder, const std::string& when,
                   const std::string& file) {
    const auto in = Directory::Open(FileEnv::Posix(), folder);
    ASSERT_OK(in);
    const auto store = ShardStore::Open(*in);
    if (!store.ok()) {
      EXPECT_NE(store.status().message().find(file), std::string::npos)
          << when << ": " << store.status().ToString();
      return;
    }
    std::vector<std::string> problems;
    EXPECT_OK((*store)->Verify({.threads = 1}, &problems));
    ASSERT_EQ(problems.size(), 1u) << when;
    EXPECT_NE(problems[0].find(file), std::string::npos) << problems[0];
    EXPECT_TRUE(problems[0].find("tensor '") != std::string::npos ||
                problems[0].find("blob 'loader'") != std::string::npos ||
                problems[0].find("padding") != std::string::npos)
        << problems[0];
  }

  std::set<std::string> Files() const { return NamesIn(folder_); }

  const TempFolder place_;
  const std::string root_ = place_ / "ckpt";
  const std::string other_ = place_ / "other";
  std::string folder_;
  std::unique_ptr<Engine> engine_;
  WholeState good_;
};

TEST_F(DamageTest, EveryByte) {
  ASSERT_EQ(Files().size(), 3u);
  // Every byte; with a sanitizer, every fifth.
  const size_t stride = kSanitized ? 5 : 1;
  size_t loaded = 0;
  size_t refused = 0;
  for (const std::string& name : Files()) {
    const std::string path = folder_ + "/" + name;
    const std::string text = ReadText(path);
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    for (size_t i = 0; i < text.size() && !HasFailure(); i += stride) {
      const std::string when = StrCat("byte ", i, " of ", name);
      // Each byte has another bit flipped.
      const char flipped = static_cast<char>(text[i] ^ (1 << i % 8));
      ASSERT_EQ(::pwrite(fd, &flipped, 1, static_cast<off_t>(i)), 1);
      ExpectFound(folder_, when, name);
      ++(LoadsRightOrNot(folder_, when) ? loaded : refused);
      ASSERT_EQ(::pwrite(fd, &text[i], 1, static_cast<off_t>(i)), 1);
    }
    ::close(fd);
  }
  // Only damaged padding is not noticed by a load.
  EXPECT_GT(loaded, 100 / stride);
  EXPECT_GT(refused, 2000 / stride);
  EXPECT_TRUE(LoadsRightOrNot(folder_, "whole again"));
}

TEST_F(DamageTest, EveryByteOfLatest) {
  const std::string text = ReadText(root_ + "/LATEST");
  for (size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = text;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      WriteText(root_ + "/LATEST", flipped);
      const std::string when = StrCat("bit ", bit, " of byte ", i);
      // The damaged LATEST may name another checkpoint that exists, which is no
      // damage.
      const auto found = ResolveCheckpoint(FileEnv::Posix(), root_);
      ASSERT_OK(found);
      if (found->name == "step-000002") {
        EXPECT_TRUE(LoadsRightOrNot(root_, when)) << when;
      }
    }
  }
  for (size_t length = 0; length < text.size(); ++length) {
    WriteText(root_ + "/LATEST", text.substr(0, length));
    EXPECT_TRUE(LoadsRightOrNot(root_, "a shorter LATEST"));
  }
}

TEST_F(DamageTest, EveryLength) {
  for (const std::string& name : Files()) {
    const std::string path = folder_ + "/" + name;
    const std::string text = ReadText(path);
    const size_t few = kSanitized ? 7 : 1;
    const size_t stride = name == kManifestName ? few : 4096;
    std::set<size_t> lengths;
    for (size_t i = 0; i <= text.size(); i += stride) {
      for (const size_t j : {i, i + 1, i - 1}) lengths.insert(j);
    }
    for (const size_t length : lengths) {
      if (length == text.size() || length > text.size() + 1) continue;
      std::string cut = text;
      cut.resize(length);
      WriteText(path, cut);
      const std::string when = StrCat(name, " of ", length);
      const auto in = Directory::Open(FileEnv::Posix(), folder_);
      ExpectError(ShardStore::Open(*in), StatusCode::kCorrupt, {name});
      EXPECT_FALSE(LoadsRightOrNot(folder_, when)) << when;
    }
    WriteText(path, text);
  }
  EXPECT_TRUE(LoadsRightOrNot(folder_, "whole again"));
}

TEST_F(DamageTest, FilesMissingOrOfAnother) {
  const std::set<std::string> files = Files();
  for (const std::string& name : files) {
    const std::string path = folder_ + "/" + name;
    const std::string text = ReadText(path);
    fs::remove(path);
    const Status gone = Load(folder_);
    EXPECT_FALSE(gone.ok());
    EXPECT_NE(gone.message().find(name == kManifestName ? folder_ : name),
              std::string::npos)
        << gone.ToString();
    // The file of an older step takes its place, then that of another run's
    // same step.
    for (const std::string& from :
         {root_ + "/step-000001", other_ + "/step-000002"}) {
      WriteText(path, ReadText(from + "/" + name));
      const auto in = Directory::Open(FileEnv::Posix(), folder_);
      const auto store = ShardStore::Open(*in);
      std::vector<std::string> problems;
      const bool found = !store.ok() || !(*store)->Verify({}, &problems).ok() ||
                         !problems.empty();
      EXPECT_TRUE(found) << name << " of " << from;
      EXPECT_FALSE(Load(folder_).ok()) << name << " of " << from;
    }
    WriteText(path, text);
  }
  // Two files of the same checkpoint change places.
  const std::string first = ReadText(folder_ + "/data-00000.bin");
  const std::string second = ReadText(folder_ + "/data-00001.bin");
  ASSERT_NE(first, second);
  WriteText(folder_ + "/data-00000.bin", second);
  WriteText(folder_ + "/data-00001.bin", first);
  ExpectError(Load(folder_), StatusCode::kCorrupt, {"data-0000"});
  WriteText(folder_ + "/data-00000.bin", first);
  WriteText(folder_ + "/data-00001.bin", second);
  EXPECT_TRUE(LoadsRightOrNot(folder_, "whole again"));
}

// Links below the path that the host gave are not followed.
TEST_F(DamageTest, LinksAreNotFollowed) {
  for (const std::string& name : Files()) {
    const std::string path = folder_ + "/" + name;
    const std::string aside = place_ / "aside";
    fs::rename(path, aside);
    fs::create_symlink(aside, path);
    EXPECT_FALSE(Load(folder_).ok()) << name;
    fs::remove(path);
    fs::create_directory(path);
    EXPECT_FALSE(Load(folder_).ok()) << name;
    fs::remove(path);
    fs::rename(aside, path);
  }
  EXPECT_TRUE(LoadsRightOrNot(folder_, "whole again"));
  // The path itself may be a link.
  fs::create_directory_symlink(root_, place_ / "link");
  EXPECT_TRUE(LoadsRightOrNot(place_ / "link", "by a link"));
  // A step in the root may not be a link, and LATEST may not lead out of the
  // root.
  fs::create_directory_symlink(other_ + "/step-000002", root_ + "/step-000009");
  EXPECT_TRUE(LoadsRightOrNot(root_, "beside a link"));
  for (const std::string& latest :
       {std::string("step-000009\n"), std::string("../other/step-000002\n"),
        other_ + "/step-000002\n", std::string("/etc/passwd\n"),
        std::string(1 << 20, 'x')}) {
    WriteText(root_ + "/LATEST", latest);
    EXPECT_TRUE(LoadsRightOrNot(root_, latest.substr(0, 40)));
  }
}

// A manifest with a correct checksum has other names, which all lead to the
// very same bytes.
TEST_F(DamageTest, NamesThatLeadElsewhere) {
  const std::string path = folder_ + "/" + std::string(kManifestName);
  const std::string body = ReadText(path).substr(kManifestHeaderBytes);
  const std::string name = "data-00000.bin";
  const auto load_with = [&](const std::string& other) {
    std::string text = body;
    text.replace(text.find(name), name.size(), other);
    const std::vector<std::byte> file = Seal(std::as_bytes(std::span(text)));
    WriteText(path, {reinterpret_cast<const char*>(file.data()), file.size()});
    return Load(folder_);
  };
  ASSERT_OK(load_with(name));
  fs::copy(folder_ + "/" + name, place_ / "same.bin");
  fs::copy(folder_ + "/" + name, folder_ + "/data-000.bin");
  fs::create_symlink(name, folder_ + "/link-00000.bin");
  for (const std::string other :
       {"../../same.bin", "./data-000.bin", "link-00000.bin"}) {
    ASSERT_EQ(ReadText(folder_ + "/" + other), ReadText(folder_ + "/" + name));
    const Status status = load_with(other);
    EXPECT_FALSE(status.ok()) << other;
    EXPECT_NE(status.message().find(other), std::string::npos)
        << status.ToString();
  }
}

// Two writers save one step at once. One checkpoint stays and is whole; without
// overwrite the other writer gets an error.
TEST_F(DamageTest, TwoWritersOfOneStep) {
  for (const bool overwrite : {false, true}) {
    for (int round = 0; round < 10; ++round) {
      const TempFolder folder;
      std::atomic<int> saved{0};
      const auto save = [&](int world_size) {
        RunWorld(
            SmallTraining(world_size), 1, [&](Engine* engine, UnitTrainer*) {
              SaveOptions options;
              options.env = NoSyncEnv::Get();
              options.overwrite = overwrite;
              const auto result = engine->Save(folder.path(), options);
              if (!result.ok()) {
                EXPECT_EQ(result.status().code(), StatusCode::kAlreadyExists)
                    << result.status().ToString();
              }
              if (engine->comm()->rank() == 0) saved += result.ok();
            });
      };
      std::thread one([&] { save(1); });
      std::thread two([&] { save(3); });
      one.join();
      two.join();
      EXPECT_EQ(saved, overwrite ? 2 : 1);
      EXPECT_NE(OpenWhole(folder.path(), "two writers"), nullptr);
      // One of two writers at once may leave the other's temporary files.
      if (overwrite) save(2);
      EXPECT_EQ(testing::CountTemporary(folder.path()), 0);
    }
  }
}

}  // namespace
}  // namespace shard
