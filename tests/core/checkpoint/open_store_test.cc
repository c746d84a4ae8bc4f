// SPDX-License-Identifier: Apache-2.0
//
// The paths that OpenTensorStore accepts, and the places of bytes in the files
// of both formats.

#include "core/checkpoint/open_store.h"

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "core/checkpoint/safetensors/safetensors_export.h"
#include "core/checkpoint/verify.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/fault_env.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/checkpoint/sample_checkpoint.h"

namespace shard::testing::open_store_test {
namespace {

StatusOr<OpenedStore> Open(const std::string& path) {
  return OpenTensorStore(FileEnv::Posix(), path);
}

// Writes the sample's parameters into safetensors files of at most
// `max_shard_bytes`.
void Export(const FileStore& from, const std::string& path,
            uint64_t max_shard_bytes = 0) {
  std::vector<size_t> params;
  for (size_t t = 0; t < from.num_tensors(); ++t) {
    if (from.tensor(t).role == TensorRole::kParam) params.push_back(t);
  }
  const SafetensorsExportOptions options = {
      .write = {.max_shard_bytes = max_shard_bytes}};
  ASSERT_OK(ExportSafetensors(FileEnv::Posix(), from, params, path, options));
}

class OpenStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(SampleBuilder().Write(FileEnv::Posix(), folder_ / "sample"));
    sample_ = OpenStore(folder_ / "sample");
    ASSERT_NE(sample_, nullptr);
  }

  TempFolder folder_;
  std::shared_ptr<const FileStore> sample_;
};

TEST_F(OpenStoreTest, OpensACheckpointOrTheRootOfOne) {
  const auto root = Open(folder_ / "sample");
  ASSERT_OK(root);
  EXPECT_EQ(root->name, "step-000042");
  EXPECT_EQ(root->note, "");
  EXPECT_EQ(root->store->path(), folder_ / "sample/step-000042");
  const auto itself = Open(folder_ / "sample/step-000042");
  ASSERT_OK(itself);
  EXPECT_EQ(itself->name, "");
  EXPECT_EQ(itself->store->path(), folder_ / "sample/step-000042");
  EXPECT_NE(itself->store->manifest(), nullptr);
  std::filesystem::remove(folder_ / "sample/LATEST");
  const auto without = Open(folder_ / "sample");
  ASSERT_OK(without);
  EXPECT_NE(without->note, "");
}

TEST_F(OpenStoreTest, OpensSafetensorsFilesAndFoldersOfThem) {
  std::filesystem::create_directory(folder_ / "one");
  Export(*sample_, folder_ / "one/weights.safetensors");
  for (const char* path : {"one/weights.safetensors", "one"}) {
    const auto opened = Open(folder_ / path);
    ASSERT_OK(opened);
    EXPECT_EQ(opened->store->path(), folder_ / "one/weights.safetensors");
    EXPECT_EQ(opened->store->num_files(), 1u);
    EXPECT_EQ(opened->store->manifest(), nullptr);
    EXPECT_EQ(opened->name,
              std::string(path) == "one" ? "weights.safetensors" : "");
  }
  Export(*sample_, folder_ / "one/other.safetensors");
  ExpectError(Open(folder_ / "one"), StatusCode::kNotFound,
              {"2 safetensors files", "give the path"});
  std::filesystem::create_directory(folder_ / "many");
  Export(*sample_, folder_ / "many/model.safetensors", 1 << 20);
  for (const char* path : {"many/model.safetensors.index.json", "many"}) {
    const auto opened = Open(folder_ / path);
    ASSERT_OK(opened);
    EXPECT_GT(opened->store->num_files(), 1u);
    EXPECT_EQ(opened->store->index_bytes(),
              std::filesystem::file_size(folder_ /
                                         "many/model.safetensors.index.json"));
  }
}

TEST_F(OpenStoreTest, RefusesAnyOtherPath) {
  std::filesystem::create_directory(folder_ / "empty");
  WriteText(folder_ / "notes.txt", "text");
  WriteText(folder_ / "bad.safetensors", "text");
  ExpectError(Open(folder_ / "empty"), StatusCode::kNotFound,
              {"no checkpoint in", "model.safetensors.index.json"});
  ExpectError(Open(folder_ / "none"), StatusCode::kNotFound, {"none"});
  ExpectError(Open(folder_ / "none.safetensors"), StatusCode::kNotFound,
              {"none.safetensors"});
  ExpectError(Open(folder_ / "notes.txt"), StatusCode::kNotFound,
              {"neither a folder", ".safetensors"});
  ExpectError(Open(folder_ / "bad.safetensors"), StatusCode::kCorrupt,
              {"bad.safetensors"});
  ExpectError(Open(""), StatusCode::kNotFound, {});
}

// Slices are where the store says, in both formats.
TEST_F(OpenStoreTest, SlicesAreBytesOfFiles) {
  std::filesystem::create_directory(folder_ / "many");
  Export(*sample_, folder_ / "many/model.safetensors", 1 << 20);
  for (const char* path : {"sample/step-000042", "many"}) {
    SCOPED_TRACE(path);
    const auto store = OpenStore(folder_ / path);
    ASSERT_NE(store, nullptr);
    std::vector<std::string> files;
    for (size_t f = 0; f < store->num_files(); ++f) {
      files.push_back(
          ReadText(StrCat(folder_ / path, "/", store->file_name(f))));
      EXPECT_EQ(files.back().size(), store->file_bytes(f));
    }
    for (size_t t = 0; t < store->num_tensors(); ++t) {
      const TensorInfo info = store->tensor(t);
      std::string bytes;
      int64_t next = 0;
      for (size_t s = 0; s < store->num_slices(t); ++s) {
        const Slice slice = store->slice(t, s);
        EXPECT_EQ(slice.begin, next);
        next += slice.numel;
        bytes += files[slice.extent.file].substr(slice.extent.offset,
                                                 slice.extent.bytes);
      }
      EXPECT_EQ(next, StoredNumel(info));
      EXPECT_TRUE(bytes == BytesOf(*store, t)) << info.key;
    }
  }
}

TEST_F(OpenStoreTest, VerifyNamesAllThatIsDamaged) {
  EXPECT_OK(VerifyStore(*sample_, {}));
  const std::string data = folder_ / "sample/step-000042/data-00000.bin";
  std::string bytes = ReadText(data);
  for (const char* key :
       {"frozen", "count", "phase", "state.small.0.exp_avg"}) {
    const auto tensor = static_cast<size_t>(sample_->Find(key));
    bytes[sample_->slice(tensor, 0).extent.offset] ^= 1;
  }
  WriteText(data, bytes);
  const Status status = VerifyStore(*OpenStore(folder_ / "sample"), {});
  ExpectError(status, StatusCode::kCorrupt, {"'frozen'", "and 3 more"});
  const auto detail = nlohmann::json::parse(status.detail());
  ASSERT_EQ(detail["problems"].size(), 4u);
  const std::string all = detail.dump();
  for (const char* key :
       {"'frozen'", "'count'", "'phase'", "'state.small.0.exp_avg'"}) {
    EXPECT_NE(all.find(key), std::string::npos) << all;
  }
}

TEST_F(OpenStoreTest, VerifyFindsAFileThatWasCutMeanwhile) {
  Export(*sample_, folder_ / "model.safetensors");
  for (const char* path : {"sample/step-000042", "model.safetensors"}) {
    const auto store = OpenStore(folder_ / path);
    const std::string file = path == std::string("model.safetensors")
                                 ? folder_ / path
                                 : folder_ / path + "/data-00000.bin";
    std::filesystem::resize_file(file, 8192);
    const Status status = VerifyStore(*store, {});
    ExpectError(status, StatusCode::kCorrupt, {path});
    EXPECT_EQ(nlohmann::json::parse(status.detail())["problems"].size(), 1u);
  }
}

TEST_F(OpenStoreTest, LeavesNothingOpenWhateverFails) {
  std::filesystem::create_directory(folder_ / "many");
  Export(*sample_, folder_ / "many/model.safetensors", 1 << 20);
  for (const char* path : {"sample", "many"}) {
    bool done = false;
    for (int64_t k = 0; !done; ++k) {
      FaultEnv env;
      env.Set({.at = k});
      auto opened = OpenTensorStore(&env, folder_ / path);
      done = env.faults() == 0;
      EXPECT_TRUE(!done || opened.ok());
      opened = NotFound("closed");
      EXPECT_EQ(env.open_descriptors(), 0) << path << " " << k;
    }
  }
}

}  // namespace
}  // namespace shard::testing::open_store_test
