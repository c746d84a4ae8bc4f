// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of more files than a process may have open.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/checkpoint/open_store.h"
#include "core/checkpoint/safetensors/safetensors_export.h"
#include "core/checkpoint/verify.h"
#include "core/checkpoint/write_checkpoint.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/forwarding_env.h"
#include "tests/core/base/in_child.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/checkpoint/sample_checkpoint.h"

namespace shard::testing {
namespace {

// More files than the pool keeps open. With ulimit -n 1024 it has 256
// descriptors.
constexpr int kFiles = 600;

Status Reshard(const FileStore& from, const std::string& root, int files) {
  const WriteCheckpointOptions options = {.world_size = files, .threads = 3};
  return WriteCheckpoint(NoSyncEnv::Get(), from, root, options);
}

class ManyFilesTest : public ::testing::TestWithParam<rlim_t> {};

INSTANTIATE_TEST_SUITE_P(Limit, ManyFilesTest, ::testing::Values(1024, 64),
                         ::testing::PrintToStringParamName());

TEST_P(ManyFilesTest, ReadsAndWritesACheckpoint) {
  InChild([] {
    LowerLimit(RLIMIT_NOFILE, GetParam());
    const TempFolder folder(kMemoryFolder);
    CheckpointBuilder sample;
    sample.Add("wide", ElementType::kF32, TensorRole::kParam, {kFiles, 1500});
    sample.Add("small", ElementType::kF32, TensorRole::kParam, {10});
    sample.AddBlob("loader", BlobRule::kPerRank, 0, "here");
    ASSERT_OK(sample.Write(NoSyncEnv::Get(), folder / "one"));
    const auto one = OpenStore(folder / "one");
    ASSERT_NE(one, nullptr);
    const auto expected = TensorsOf(*one);
    ASSERT_OK(Reshard(*one, folder / "many", kFiles));

    const auto many = OpenStore(folder / "many");
    ASSERT_NE(many, nullptr);
    EXPECT_EQ(many->num_files(), static_cast<size_t>(kFiles));
    EXPECT_EQ(TensorsOf(*many), expected);
    EXPECT_OK(VerifyStore(*many, {}));
    ASSERT_OK(Reshard(*many, folder / "few", 3));
    EXPECT_EQ(TensorsOf(*OpenStore(folder / "few")), expected);

    // The host takes all descriptors that are left.
    std::vector<int> taken;
    while ((taken.emplace_back(::dup(0))) >= 0) {
    }
    EXPECT_EQ(TensorsOf(*many), expected);
    for (const int fd : taken) ::close(fd);

    // Two stores of the same files are open at once. After the files are
    // deleted, a read is an error, and never finds the files of another
    // checkpoint.
    const auto again = OpenStore(folder / "many");
    ASSERT_NE(again, nullptr);
    EXPECT_EQ(TensorsOf(*again), expected);
    EXPECT_EQ(TensorsOf(*many), expected);
    std::filesystem::remove_all(folder / "many");
    ExpectError(VerifyStore(*many, {}), StatusCode::kNotFound,
                {"deleted while", "ulimit -n"});
  });
}

TEST_P(ManyFilesTest, ReadsAndWritesASetOfSafetensors) {
  InChild([] {
    LowerLimit(RLIMIT_NOFILE, GetParam());
    const TempFolder folder(kMemoryFolder);
    CheckpointBuilder sample;
    for (int i = 0; i < kFiles; ++i) {
      sample.Add(StrCat("t", i), ElementType::kF32, TensorRole::kParam, {50});
    }
    ASSERT_OK(sample.Write(NoSyncEnv::Get(), folder / "one"));
    const auto one = OpenStore(folder / "one");
    ASSERT_NE(one, nullptr);
    std::vector<size_t> all(one->num_tensors());
    std::iota(all.begin(), all.end(), size_t{0});
    const SafetensorsExportOptions options = {.write = {.max_shard_bytes = 1}};
    ASSERT_OK(ExportSafetensors(NoSyncEnv::Get(), *one, all,
                                folder / "model.safetensors", options));
    const auto set = OpenStore(folder / "model.safetensors.index.json");
    ASSERT_NE(set, nullptr);
    EXPECT_EQ(set->num_files(), static_cast<size_t>(kFiles));
    EXPECT_EQ(TensorsOf(*set), TensorsOf(*one));
    EXPECT_OK(VerifyStore(*set, {}));
  });
}

// A handle keeps the descriptor of its folder, so that it finds its own files
// after another checkpoint took the name. There are therefore fewer handles
// than descriptors. All handles can be read, down to the last descriptor.
TEST_P(ManyFilesTest, HandlesAreManyOrAnError) {
  InChild([] {
    LowerLimit(RLIMIT_NOFILE, GetParam());
    const TempFolder folder(kMemoryFolder);
    CheckpointBuilder sample;
    sample.Add("t", ElementType::kF32, TensorRole::kParam, {50});
    ASSERT_OK(sample.Write(NoSyncEnv::Get(), folder / "one"));
    std::vector<std::shared_ptr<const FileStore>> handles;
    Status status;
    while (status.ok() && handles.size() < GetParam()) {
      auto opened = OpenTensorStore(FileEnv::Posix(), folder / "one");
      status = opened.status();
      if (opened.ok()) handles.push_back(opened->store);
    }
    ExpectError(status, StatusCode::kResourceExhausted, {"one", "ulimit -n"});
    EXPECT_GT(handles.size(), GetParam() * 3 / 4);
    const auto expected = TensorsOf(*handles[0]);
    for (const auto& handle : handles) EXPECT_EQ(TensorsOf(*handle), expected);
    handles.resize(handles.size() / 2);
    EXPECT_EQ(TensorsOf(*OpenStore(folder / "one")), expected);
  });
}

}  // namespace
}  // namespace shard::testing
