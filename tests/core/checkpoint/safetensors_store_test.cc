// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/safetensors/safetensors_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/checkpoint/store/piece_reader.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"

namespace shard::safetensors_store_test {

namespace {

using testing::TempFolder;

std::string Write(const TempFolder& folder, std::string_view name,
                  std::string_view bytes) {
  testing::WriteText(folder / name, bytes);
  return folder / name;
}

// Returns a file of the format, made by hand.
std::string FileOf(const std::string& json, std::string_view data) {
  std::string file(8, '\0');
  file[0] = static_cast<char>(json.size());
  file[1] = static_cast<char>(json.size() >> 8);
  return file + json + std::string(data);
}

std::string Tensor(std::string_view key, std::string_view type,
                   std::string_view shape, uint64_t begin, uint64_t end) {
  return StrCat("\"", key, "\":{\"dtype\":\"", type, "\",\"shape\":[", shape,
                "],\"data_offsets\":[", begin, ",", end, "]}");
}

std::string OneTensor(std::string_view key) {
  return FileOf(StrCat("{", Tensor(key, "U8", "3", 0, 3), "}"), "abc");
}

auto Open(const std::string& path) {
  return SafetensorsStore::Open(FileEnv::Posix(), path);
}

// Returns the bytes of each request, put together from pieces.
StatusOr<std::vector<std::string>> ReadAll(
    const TensorStore& store, const std::vector<ReadRequest>& requests,
    const ReadOptions& options = {}) {
  std::vector<std::string> result;
  std::vector<size_t> size;
  for (const ReadRequest& request : requests) {
    size.push_back(ElementSize(store.tensor(request.tensor).type));
    result.emplace_back(static_cast<size_t>(request.numel) * size.back(), '?');
  }
  std::atomic<int64_t> bytes = 0;
  const Status status = store.Read(
      requests, options,
      [&](size_t request, int64_t begin, int64_t numel, const std::byte* data) {
        const auto at = static_cast<size_t>(begin - requests[request].begin) *
                        size[request];
        const size_t n = static_cast<size_t>(numel) * size[request];
        bytes += static_cast<int64_t>(n);
        std::memcpy(result[request].data() + at, data, n);
        return Status();
      });
  if (!status.ok()) return status;
  int64_t expected = 0;
  for (const std::string& text : result) {
    expected += static_cast<int64_t>(text.size());
  }
  EXPECT_EQ(bytes, expected);
  return result;
}

TEST(SafetensorsStore, ReadsAFileWrittenByHand) {
  const TempFolder folder;
  const std::string path =
      Write(folder, "m.safetensors",
            FileOf(StrCat("{\"__metadata__\":{\"format\":\"pt\"},",
                          Tensor("w", "I16", "2,3", 2, 14), ",",
                          Tensor("s", "U8", "", 1, 2), ",",
                          Tensor("z", "F32", "0", 1, 1), ",",
                          Tensor("b", "BOOL", "1", 0, 1), "}  "),
                   "bsAaBbCcDdEeFf"));
  const auto store = Open(path);
  ASSERT_OK(store);
  const SafetensorsStore& file = **store;
  EXPECT_EQ(file.describe(), StrCat("safetensors file '", path, "'"));
  ASSERT_EQ(file.num_tensors(), 4u);
  ASSERT_EQ(file.Find("w"), 3);
  EXPECT_EQ(file.Find("x"), -1);
  const TensorInfo info = file.tensor(3);
  EXPECT_EQ(info.key, "w");
  EXPECT_EQ(info.type, ElementType::kI16);
  EXPECT_EQ(info.role, TensorRole::kParam);
  EXPECT_EQ(info.numel, 6);
  EXPECT_EQ(info.alias_of, -1);
  EXPECT_EQ(info.shape.size(), 2u);
  const auto read = ReadAll(
      file, {{3, 0, 6}, {3, 2, 3}, {0, 0, 1}, {1, 0, 0}, {2, 0, 1}, {3, 6, 0}});
  ASSERT_OK(read);
  EXPECT_EQ(*read, (std::vector<std::string>{"AaBbCcDdEeFf", "CcDdEe", "b", "",
                                             "s", ""}));
}

TEST(SafetensorsStore, RefusesElementsThatAreNotThere) {
  const TempFolder folder;
  const auto store = Open(Write(folder, "m.safetensors", OneTensor("a")));
  ASSERT_OK(store);
  for (const ReadRequest& request : std::vector<ReadRequest>{{0, -1, 1},
                                                             {0, 0, 4},
                                                             {0, 3, 1},
                                                             {0, 1, -1},
                                                             {0, 4, 0},
                                                             {0, 1, INT64_MAX},
                                                             {1, 0, 0}}) {
    ExpectError((*store)->Read(std::span(&request, 1), {}, nullptr),
                StatusCode::kOutOfRange, {"m.safetensors"});
  }
}

TEST(SafetensorsStore, NamesTheFileThatIsWrong) {
  const TempFolder folder;
  ExpectError(Open(folder / "none"), StatusCode::kNotFound, {"none"});
  const std::string whole = OneTensor("a");
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    ExpectError(Open(Write(folder, "cut", whole.substr(0, bytes))),
                StatusCode::kCorrupt, {"/cut'"});
  }
  ExpectError(Open(Write(folder, "long", whole + "x")), StatusCode::kCorrupt,
              {"/long'", "1 bytes after"});
  std::string large = whole;
  large[7] = 1;
  ExpectError(Open(Write(folder, "large", large)), StatusCode::kCorrupt,
              {"/large'", "72057594037927", "100000000"});
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  ExpectError(Open(folder / "fifo"), StatusCode::kFailedPrecondition, {"fifo"});
}

TEST(SafetensorsStore, AFileThatShrinksIsAnError) {
  const TempFolder folder;
  const std::string path = Write(folder, "m.safetensors", OneTensor("a"));
  const auto store = Open(path);
  ASSERT_OK(store);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  ExpectError(ReadAll(**store, {{0, 0, 3}}), StatusCode::kCorrupt,
              {"'a'", "m.safetensors"});
}

TEST(SafetensorsStore, ReadsSeveralFilesThroughLinksAndAfterTheyAreGone) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "blobs");
  std::filesystem::create_directory(folder / "snapshot");
  Write(folder, "blobs/1", OneTensor("b"));
  Write(folder, "blobs/2",
        FileOf(StrCat("{", Tensor("a", "U8", "2", 0, 2), ",",
                      Tensor("c", "U8", "2", 2, 4), "}"),
               "AACC"));
  Write(folder, "blobs/3",
        "{\"metadata\":{},\"weight_map\":{\"a\":\"2.safetensors\","
        "\"b\":\"1.safetensors\",\"c\":\"2.safetensors\"}}");
  for (const auto& [to, name] :
       std::vector<std::pair<std::string, std::string>>{
           {"1", "1.safetensors"},
           {"2", "2.safetensors"},
           {"3", "model.safetensors.index.json"}}) {
    std::filesystem::create_symlink("../blobs/" + to,
                                    folder / ("snapshot/" + name));
  }
  const std::string path = folder / "snapshot/model.safetensors.index.json";
  const auto store = Open(path);
  ASSERT_OK(store);
  std::filesystem::remove_all(folder / "blobs");
  EXPECT_EQ((*store)->describe(), StrCat("safetensors index '", path, "'"));
  EXPECT_EQ((*store)->num_files(), 2u);
  ASSERT_EQ((*store)->num_tensors(), 3u);
  std::vector<ReadRequest> requests;
  for (const char* key : {"a", "b", "c"}) {
    const int64_t index = (*store)->Find(key);
    ASSERT_GE(index, 0);
    const TensorInfo info = (*store)->tensor(static_cast<size_t>(index));
    EXPECT_EQ(info.key, key);
    requests.push_back({static_cast<size_t>(index), 0, info.numel});
  }
  EXPECT_EQ((*store)->Find("d"), -1);
  const auto read = ReadAll(**store, requests);
  ASSERT_OK(read);
  EXPECT_EQ(*read, (std::vector<std::string>{"AA", "abc", "CC"}));
}

TEST(SafetensorsStore, AnIndexAndItsFilesMustAgree) {
  const TempFolder folder;
  Write(folder, "1.safetensors", OneTensor("a"));
  Write(folder, "2.safetensors", OneTensor("b"));
  const auto open = [&](std::string_view map) {
    return Open(
        Write(folder, "index.json", StrCat("{\"weight_map\":{", map, "}}")));
  };
  EXPECT_OK(open("\"a\":\"1.safetensors\",\"b\":\"2.safetensors\""));
  ExpectError(open("\"a\":\"3.safetensors\""), StatusCode::kNotFound,
              {"index.json'", "3.safetensors"});
  ExpectError(open("\"a\":\"2.safetensors\",\"b\":\"1.safetensors\""),
              StatusCode::kCorrupt, {"index.json'", "2 tensors", "'a', 'b'"});
  ExpectError(open("\"a\":\"../1.safetensors\""), StatusCode::kCorrupt,
              {"plain name"});
  ExpectError(open("\"a\":1"), StatusCode::kCorrupt, {"index.json'", "'a'"});
  std::string missing = "\"a\":\"1.safetensors\"";
  for (int i = 0; i < 8; ++i) {
    StrAppend(&missing, ",\"x", i, "\":\"1.safetensors\"");
  }
  ExpectError(open(missing), StatusCode::kCorrupt,
              {"8 tensors", "'x0'", "'x4' and 3 more"});
  // The file has more tensors than the index gives it: one that the index has
  // in another file, and one that it does not have.
  Write(folder, "2.safetensors",
        FileOf(StrCat("{", Tensor("b", "U8", "1", 0, 1), ",",
                      Tensor("a", "U8", "1", 1, 2), ",",
                      Tensor("c", "U8", "1", 2, 3), "}"),
               "xyz"));
  ExpectError(open("\"a\":\"1.safetensors\",\"b\":\"2.safetensors\""),
              StatusCode::kCorrupt, {"2 tensors", "'a', 'c'"});
  Write(folder, "2.safetensors", "cut");
  ExpectError(open("\"b\":\"2.safetensors\""), StatusCode::kCorrupt,
              {"index.json'", "2.safetensors'", "cut off"});
}

// A file of three pieces and a bit.
class LargeFile : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 3 * PieceReader::kPieceBytes + 4;

  void SetUp() override {
    data_.resize(kBytes);
    uint32_t random = 1;
    for (char& c : data_) {
      random = random * 1664525 + 1013904223;
      c = static_cast<char>(random >> 24);
    }
    auto store = Open(Write(
        folder_, "m.safetensors",
        FileOf(
            StrCat("{", Tensor("a", "F32", StrCat(kBytes / 4), 0, kBytes), "}"),
            data_)));
    ASSERT_OK(store);
    store_ = *std::move(store);
  }

  TempFolder folder_;
  std::string data_;
  std::unique_ptr<SafetensorsStore> store_;
};

TEST_F(LargeFile, PiecesAreThoseOfTheTensor) {
  const auto numel = static_cast<int64_t>(kBytes / 4);
  for (const int threads : {-1, 1, 3, 100}) {
    uint64_t last = 0;
    ReadOptions options;
    options.threads = threads;
    options.progress = [&](uint64_t done, uint64_t total) {
      EXPECT_GT(done, last);
      EXPECT_EQ(total, 2 * kBytes - 12);
      last = done;
      return true;
    };
    const auto read = ReadAll(
        *store_, {{0, 0, numel}, {0, 0, 0}, {0, 3, numel - 3}}, options);
    ASSERT_OK(read);
    EXPECT_EQ(last, 2 * kBytes - 12);
    EXPECT_TRUE((*read)[0] == data_);
    EXPECT_TRUE((*read)[2] == data_.substr(12));
  }
}

TEST_F(LargeFile, TheSinksErrorEndsIt) {
  const ReadRequest request = {0, 0, static_cast<int64_t>(kBytes / 4)};
  for (const int threads : {1, 4}) {
    const ReadOptions options = {.threads = threads};
    std::atomic<int> calls = 0;
    const Status status =
        store_->Read(std::span(&request, 1), options,
                     [&](size_t, int64_t, int64_t, const std::byte*) -> Status {
                       ++calls;
                       return ResourceExhausted("the sink is full");
                     });
    ExpectError(status, StatusCode::kResourceExhausted, {"the sink is full"});
    EXPECT_LE(calls, threads);
  }
}

TEST_F(LargeFile, ProgressCancels) {
  const ReadRequest request = {0, 0, static_cast<int64_t>(kBytes / 4)};
  for (const int threads : {1, 4}) {
    ReadOptions options;
    options.threads = threads;
    int calls = 0;
    options.progress = [&](uint64_t, uint64_t) { return ++calls < 2; };
    // Every thread gets a piece, and is done with it only after all others got
    // one.
    std::mutex mutex;
    std::condition_variable all_there;
    int there = 0;
    const Status status = store_->Read(
        std::span(&request, 1), options,
        [&](size_t, int64_t, int64_t, const std::byte*) {
          std::unique_lock lock(mutex);
          ++there;
          all_there.notify_all();
          EXPECT_TRUE(all_there.wait_for(lock, std::chrono::seconds(60),
                                         [&] { return there >= threads; }));
          return Status();
        });
    ExpectError(status, StatusCode::kCancelled, {"of 12582916 bytes"});
    EXPECT_EQ(calls, 2);
  }
}

}  // namespace

}  // namespace shard::safetensors_store_test
