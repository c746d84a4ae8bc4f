// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/data/shard_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/checkpoint/data/data_layout.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/fault_env.h"
#include "tests/core/base/temp_folder.h"

namespace shard::shard_store_test {
namespace {

using testing::Fault;
using testing::FaultEnv;
using testing::ReadText;
using testing::TempFolder;
using testing::WriteText;

// A checkpoint of two files, with slices of at most 8 KiB: "wide" of 9000
// floats, the first 4000 of them in file 1; "small" of 3 floats; "alias" of
// "wide"; "empty"; and two blobs.
class ShardStoreTest : public ::testing::Test {
 protected:
  static constexpr int64_t kWide = 9000;

  ShardStoreTest() {
    wide_.resize(kWide);
    std::iota(wide_.begin(), wide_.end(), 1.0f);
    contents_.world_size = 2;
    contents_.step = 7;
    contents_.tensors.resize(4);
    contents_.tensors[0].key = "wide";
    contents_.tensors[0].shape = {kWide};
    contents_.tensors[1].key = "small";
    contents_.tensors[1].shape = {3};
    contents_.tensors[2].key = "alias";
    contents_.tensors[2].shape = {kWide};
    contents_.tensors[2].alias_of = 0;
    contents_.tensors[3].key = "empty";
    contents_.tensors[3].shape = {0, 2};
    DataLayout layouts[2];
    std::string files[2];
    const auto put = [&](const void* data, Extent* extent) {
      extent->checksum = ChecksumOf(data, extent->bytes);
      std::string& file = files[extent->file];
      file.resize(extent->offset);
      file.append(static_cast<const char*>(data), extent->bytes);
    };
    const auto place = [&](size_t tensor, const float* data, int64_t begin,
                           int64_t numel, uint32_t file) {
      std::vector<Slice>& slices = contents_.tensors[tensor].slices;
      size_t s = slices.size();
      PlaceElements(begin, numel, sizeof(float), file, 8192, &layouts[file],
                    &slices);
      for (; s < slices.size(); ++s) {
        put(data + slices[s].begin, &slices[s].extent);
      }
    };
    place(0, wide_.data(), 0, 4000, 1);
    place(0, wide_.data(), 4000, kWide - 4000, 0);
    place(1, small_, 0, 3, 0);
    Extent blob{0, layouts[0].Add(blob_.size()), blob_.size(), {}};
    put(blob_.data(), &blob);
    contents_.blobs = {{"rng", BlobRule::kPerRank, 0, blob},
                       {"rng", BlobRule::kPerRank, 1,
                        Extent{0, 0, 0, ChecksumOf(nullptr, 0)}}};
    for (uint32_t f = 0; f < 2; ++f) {
      files[f].resize(layouts[f].file_bytes());
      contents_.files.push_back({DataFileName(f), files[f].size()});
      WriteText(folder_ / DataFileName(f), files[f]);
    }
    const auto manifest = EncodeManifest(contents_);
    EXPECT_OK(manifest);
    WriteText(
        folder_ / kManifestName,
        {reinterpret_cast<const char*>(manifest->data()), manifest->size()});
  }

  StatusOr<std::shared_ptr<const ShardStore>> Open(
      FileEnv* env = FileEnv::Posix()) {
    SHARD_ASSIGN_OR_RETURN(const Directory in,
                           Directory::Open(env, folder_.path()));
    return ShardStore::Open(in);
  }

  // Reads the elements of `request`, and expects that the sink gets each of
  // them once.
  static Status Read(const ShardStore& store, const ReadRequest& request,
                     std::vector<float>* values, ReadOptions options = {}) {
    std::mutex mutex;
    std::vector<int> times(static_cast<size_t>(request.numel));
    values->assign(static_cast<size_t>(request.numel), 0);
    SHARD_RETURN_IF_ERROR(store.Read(
        {&request, 1}, options,
        [&](size_t r, int64_t begin, int64_t numel, const std::byte* data) {
          const std::lock_guard<std::mutex> lock(mutex);
          EXPECT_EQ(r, 0u);
          for (int64_t i = 0; i < numel; ++i) {
            const auto at = static_cast<size_t>(begin - request.begin + i);
            ++times.at(at);
            std::memcpy(&(*values)[at], data + i * 4, 4);
          }
          return Status();
        }));
    for (const int count : times) EXPECT_EQ(count, 1);
    return Status();
  }

  void Flip(uint32_t file, uint64_t offset) {
    std::string text = ReadText(folder_ / DataFileName(file));
    text[offset] = static_cast<char>(text[offset] ^ 1);
    WriteText(folder_ / DataFileName(file), text);
  }

  const TempFolder folder_;
  ManifestContents contents_;
  std::vector<float> wide_;
  const float small_[3] = {-1, -2, -3};
  const std::string blob_ = "0123456789";
};

TEST_F(ShardStoreTest, ReadsEveryRange) {
  const auto store = Open();
  ASSERT_OK(store);
  EXPECT_EQ((*store)->num_tensors(), 4u);
  EXPECT_EQ((*store)->Find("small"), 1);
  EXPECT_EQ((*store)->Find("tiny"), -1);
  EXPECT_NE(std::string((*store)->describe()).find(folder_.path()),
            std::string::npos);
  const int64_t places[] = {0, 1, 1023, 2047, 2048, 3999, 4000, 4001, 8999};
  for (const size_t tensor : {0, 2}) {
    for (const bool verify : {false, true}) {
      for (const int64_t begin : places) {
        for (const int64_t end : {begin, begin + 1, int64_t{4000}, kWide}) {
          if (end < begin) continue;
          std::vector<float> values;
          const ReadOptions options = {.threads = 3, .verify = verify};
          ASSERT_OK(
              Read(**store, {tensor, begin, end - begin}, &values, options));
          EXPECT_TRUE(
              std::equal(values.begin(), values.end(), wide_.begin() + begin))
              << begin << " to " << end;
        }
      }
    }
  }
  std::vector<float> values;
  ASSERT_OK(Read(**store, {1, 0, 3}, &values));
  EXPECT_EQ(values, (std::vector<float>{-1, -2, -3}));
  ASSERT_OK(Read(**store, {3, 0, 0}, &values));
}

TEST_F(ShardStoreTest, RefusesElementsThatAreNotThere) {
  const auto store = Open();
  ASSERT_OK(store);
  std::vector<float> values;
  for (const ReadRequest& request :
       {ReadRequest{0, 0, kWide + 1}, ReadRequest{0, kWide, 1},
        ReadRequest{0, -1, 1}, ReadRequest{0, 1, INT64_MAX}}) {
    const auto never = [](size_t, int64_t, int64_t, const std::byte*) {
      ADD_FAILURE() << "it was read";
      return Status();
    };
    ExpectError((*store)->Read({&request, 1}, {}, never),
                StatusCode::kOutOfRange, {"'wide'", "9000"});
  }
  const ReadRequest none = {4, 0, 1};
  ExpectError((*store)->Read({&none, 1}, {}, nullptr), StatusCode::kOutOfRange,
              {"tensor 4"});
  ExpectError((*store)->ReadBlob(2), StatusCode::kOutOfRange, {"blob 2"});
}

TEST_F(ShardStoreTest, ReadsBlobs) {
  const auto store = Open();
  ASSERT_OK(store);
  const auto blob = (*store)->ReadBlob(0);
  ASSERT_OK(blob);
  EXPECT_EQ(
      std::string(reinterpret_cast<const char*>(blob->data()), blob->size()),
      blob_);
  const auto empty = (*store)->ReadBlob(1);
  ASSERT_OK(empty);
  EXPECT_TRUE(empty->empty());
}

// Verify names all damage. Reading a damaged tensor is an error, reading
// another tensor is not.
TEST_F(ShardStoreTest, DamageIsNamed) {
  const Slice slice = contents_.tensors[0].slices[1];
  Flip(slice.extent.file, slice.extent.offset + 5);
  const Slice small = contents_.tensors[1].slices[0];
  Flip(0, small.extent.offset + small.extent.bytes);  // The padding behind it.
  Flip(0, contents_.blobs[0].extent.offset);
  const auto store = Open();
  ASSERT_OK(store);
  std::vector<std::string> problems;
  ASSERT_OK((*store)->Verify({}, &problems));
  ASSERT_EQ(problems.size(), 3u);
  // Problems are in the order of files and offsets.
  EXPECT_NE(problems[0].find("padding"), std::string::npos) << problems[0];
  EXPECT_NE(problems[1].find("blob 'rng' of rank 0"), std::string::npos);
  EXPECT_NE(problems[2].find("tensor 'wide'"), std::string::npos);
  EXPECT_NE(problems[2].find("data-00001.bin"), std::string::npos);
  std::vector<float> values;
  ExpectError(Read(**store, {0, slice.begin, 1}, &values), StatusCode::kCorrupt,
              {"'wide'", "data-00001.bin"});
  // The slice before the damaged one is whole.
  EXPECT_OK(Read(**store, {0, 0, slice.begin}, &values));
  EXPECT_OK(Read(**store, {1, 0, 3}, &values));
  ExpectError((*store)->ReadBlob(0), StatusCode::kCorrupt, {"'rng'"});
  const ReadOptions unchecked = {.verify = false};
  EXPECT_OK(Read(**store, {0, 0, kWide}, &values, unchecked));
}

TEST_F(ShardStoreTest, VerifyFindsNoProblemsInAWholeCheckpoint) {
  const auto store = Open();
  ASSERT_OK(store);
  std::vector<std::string> problems;
  uint64_t last = 0;
  uint64_t all = 0;
  ReadOptions options;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_GT(done, last);
    last = done;
    all = total;
    return true;
  };
  ASSERT_OK((*store)->Verify(options, &problems));
  EXPECT_TRUE(problems.empty()) << problems[0];
  EXPECT_EQ(last, all);
  EXPECT_GE(all, contents_.files[0].bytes);
}

TEST_F(ShardStoreTest, RefusesFilesThatDoNotFit) {
  const std::string text = ReadText(folder_ / "data-00001.bin");
  for (const size_t bytes : {size_t{0}, text.size() - 1, text.size() - 4096}) {
    WriteText(folder_ / "data-00001.bin", text.substr(0, bytes));
    ExpectError(Open(), StatusCode::kCorrupt,
                {"data-00001.bin", StrCat(bytes), StrCat(text.size())});
  }
  WriteText(folder_ / "data-00001.bin", text + "x");
  ExpectError(Open(), StatusCode::kCorrupt, {"data-00001.bin"});
  std::filesystem::remove(folder_ / "data-00001.bin");
  ExpectError(Open(), StatusCode::kCorrupt, {"data-00001.bin", "missing"});
  std::filesystem::remove(folder_ / kManifestName);
  ExpectError(Open(), StatusCode::kNotFound, {kManifestName});
}

// The files stay open, so their names do not matter any more.
TEST_F(ShardStoreTest, OpenFilesStayReadable) {
  const auto store = Open();
  ASSERT_OK(store);
  std::filesystem::remove(folder_ / "data-00000.bin");
  std::filesystem::remove(folder_ / "data-00001.bin");
  std::vector<float> values;
  ASSERT_OK(Read(**store, {0, 0, kWide}, &values));
  EXPECT_EQ(values, wide_);
}

TEST_F(ShardStoreTest, ErrorsOfTheSinkAndTheHostEndIt) {
  const auto store = Open();
  ASSERT_OK(store);
  const ReadRequest request = {0, 0, kWide};
  std::atomic<int> calls{0};
  ExpectError((*store)->Read({&request, 1}, {.threads = 1},
                             [&](size_t, int64_t, int64_t, const std::byte*) {
                               ++calls;
                               return Status(StatusCode::kInternal, "enough");
                             }),
              StatusCode::kInternal, {"enough"});
  EXPECT_EQ(calls, 1);
  std::vector<float> values;
  ReadOptions options;
  options.progress = [](uint64_t, uint64_t) { return false; };
  const auto sink = [](size_t, int64_t, int64_t, const std::byte*) {
    return Status();
  };
  ExpectError((*store)->Read({&request, 1}, options, sink),
              StatusCode::kCancelled, {"cancelled"});
}

TEST_F(ShardStoreTest, EveryCallMayFail) {
  const auto run = [&](FaultEnv* env, std::vector<float>* values) -> Status {
    SHARD_ASSIGN_OR_RETURN(const auto store, Open(env));
    SHARD_RETURN_IF_ERROR(Read(*store, {0, 0, kWide}, values));
    return store->ReadBlob(0).status();
  };
  for (int64_t k = 0;; ++k) {
    FaultEnv env;
    env.Set({.at = k});
    std::vector<float> values;
    const Status status = run(&env, &values);
    EXPECT_EQ(env.open_descriptors(), 0) << k;
    if (status.ok()) {
      EXPECT_EQ(values, wide_) << k;
    }
    if (env.calls() <= k) {
      EXPECT_OK(status);
      EXPECT_GT(k, 8);
      break;
    }
  }
  for (const Fault& fault : {Fault{.every = 2, .error = EINTR},
                             Fault{.every = 1, .kind = Fault::Kind::kShort}}) {
    FaultEnv env;
    env.Set(fault);
    std::vector<float> values;
    EXPECT_OK(run(&env, &values));
    EXPECT_EQ(values, wide_);
    EXPECT_GT(env.faults(), 3);
  }
}

// Opens a checkpoint that is kept beside this file, through a copy in `folder`,
// because links are not followed.
StatusOr<std::shared_ptr<const ShardStore>> OpenKept(const std::string& name,
                                                     const TempFolder& folder) {
  for (const char* const file : {kManifestName, "data-00000.bin"}) {
    std::filesystem::copy_file(
        StrCat("tests/core/checkpoint/", name, "/", file), folder / file);
  }
  SHARD_ASSIGN_OR_RETURN(const Directory directory,
                         Directory::Open(FileEnv::Posix(), folder.path()));
  return ShardStore::Open(directory);
}

// The checkpoint was written by the first version of the format.
TEST(ShardStore, ReadsVersion1) {
  const TempFolder folder;
  const auto store = OpenKept("version_1/step-000007", folder);
  ASSERT_OK(store);
  const Manifest& manifest = *(*store)->manifest();
  EXPECT_EQ(manifest.version(), 1u);
  EXPECT_EQ(manifest.step(), 7);
  EXPECT_EQ(manifest.group_optimizer(0), "sgd?lr=0.1");
  ASSERT_EQ((*store)->num_tensors(), 2u);
  EXPECT_EQ((*store)->tensor(1).alias_of, 0);
  std::vector<float> values(4);
  const ReadRequest all = {static_cast<size_t>((*store)->Find("w")), 0, 4};
  ASSERT_OK((*store)->Read(
      {&all, 1}, {},
      [&](size_t, int64_t begin, int64_t numel, const auto* from) {
        std::memcpy(&values[static_cast<size_t>(begin)], from,
                    static_cast<size_t>(numel) * sizeof(float));
        return Status();
      }));
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3, 4}));
  std::vector<std::string> problems;
  EXPECT_OK((*store)->Verify({}, &problems));
  EXPECT_EQ(problems, std::vector<std::string>());
}

// The checkpoint was imported from safetensors by the first library that knew
// version 3.
TEST(ShardStore, ReadsVersion3) {
  const TempFolder folder;
  const auto store = OpenKept("version_3/step-000000", folder);
  ASSERT_OK(store);
  EXPECT_EQ((*store)->manifest()->version(), 3u);
  const auto expect = [&](const char* key, std::string_view type, int64_t numel,
                          const std::string& bytes) {
    SCOPED_TRACE(key);
    const auto tensor = static_cast<size_t>((*store)->Find(key));
    const TensorInfo info = (*store)->tensor(tensor);
    EXPECT_EQ(TypeNameOf(info), type);
    EXPECT_EQ(info.numel, numel);
    std::string read(TensorBytes(info), '?');
    const ReadRequest all = {tensor, 0, StoredNumel(info)};
    const ReadOptions options = {.opaque_as_bytes = true};
    EXPECT_OK((*store)->Read(
        {&all, 1}, options,
        [&](size_t, int64_t begin, int64_t count, const auto* from) {
          const size_t size = ElementSize(info.type);
          std::memcpy(&read[static_cast<size_t>(begin) * size], from,
                      static_cast<size_t>(count) * size);
          return Status();
        }));
    EXPECT_EQ(read, bytes);
  };
  expect("complex", "C64", 2, "0123456789abcdef");
  expect("tomorrow", "INT3", 5, "xy");
  expect("known", "f32", 1, "FFFF");
  std::vector<std::string> problems;
  EXPECT_OK((*store)->Verify({}, &problems));
  EXPECT_EQ(problems, std::vector<std::string>());
}

}  // namespace
}  // namespace shard::shard_store_test
