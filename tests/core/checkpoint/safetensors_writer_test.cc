// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/safetensors/safetensors_writer.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/checkpoint/safetensors/safetensors_export.h"
#include "core/checkpoint/safetensors/safetensors_store.h"
#include "core/checkpoint/store/converting_store.h"
#include "core/checkpoint/verify.h"
#include "core/checkpoint/write_checkpoint.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/fault_env.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/base/unsynced_env.h"
#include "tests/core/checkpoint/allocation_meter.h"

namespace shard::safetensors_writer_test {

namespace {

using testing::NamesIn;
using testing::ReadText;
using testing::TempFolder;

std::string Write(const TempFolder& folder, std::string_view name,
                  std::string_view bytes) {
  testing::WriteText(folder / name, bytes);
  return folder / name;
}

using Names = std::set<std::string>;

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

auto Create(const std::string& path, std::vector<SafetensorsTensor> tensors,
            const SafetensorsWriteOptions& options = {}) {
  return SafetensorsWriter::Create(FileEnv::Posix(), path, std::move(tensors),
                                   options);
}

std::unique_ptr<SafetensorsStore> Open(const std::string& path) {
  auto store = SafetensorsStore::Open(FileEnv::Posix(), path);
  EXPECT_OK(store);
  return store.ok() ? *std::move(store) : nullptr;
}

std::string ReadTensor(const TensorStore& store, std::string_view key) {
  const int64_t index = store.Find(key);
  if (index < 0) return "(none)";
  const TensorInfo info = store.tensor(static_cast<size_t>(index));
  const size_t size = ElementSize(info.type);
  std::string result(static_cast<size_t>(info.numel) * size, '?');
  const ReadRequest request = {static_cast<size_t>(index), 0, info.numel};
  EXPECT_OK(store.Read(
      std::span(&request, 1), {},
      [&](size_t, int64_t begin, int64_t numel, const std::byte* data) {
        std::memcpy(result.data() + static_cast<size_t>(begin) * size, data,
                    static_cast<size_t>(numel) * size);
        return Status();
      }));
  return result;
}

TEST(SafetensorsWriter, WritesTheFormatsBytes) {
  const TempFolder folder;
  const auto writer =
      Create(folder / "m.safetensors", {{"b", ElementType::kU8, {3}},
                                        {"w", ElementType::kI16, {2, 1}},
                                        {"none", ElementType::kF32, {0}}});
  ASSERT_OK(writer);
  EXPECT_OK((*writer)->Write(0, 1, Bytes("yz")));
  EXPECT_OK((*writer)->Write(1, 0, Bytes("AaBb")));
  EXPECT_OK((*writer)->Write(0, 0, Bytes("x")));
  // The file does not have its name yet.
  EXPECT_EQ(NamesIn(folder.path()).size(), 1u);
  EXPECT_NE(*NamesIn(folder.path()).begin(), "m.safetensors");
  ASSERT_OK((*writer)->Finish());
  EXPECT_EQ(NamesIn(folder.path()), Names{"m.safetensors"});
  EXPECT_EQ(ReadText(folder / "m.safetensors"),
            std::string("\xc8\0\0\0\0\0\0\0", 8) +
                "{\"__metadata__\":{\"format\":\"pt\"},"
                "\"none\":{\"dtype\":\"F32\",\"shape\":[0],"
                "\"data_offsets\":[0,0]},"
                "\"w\":{\"dtype\":\"I16\",\"shape\":[2,1],"
                "\"data_offsets\":[0,4]},"
                "\"b\":{\"dtype\":\"U8\",\"shape\":[3],"
                "\"data_offsets\":[4,7]}}     "
                "AaBbxyz");
}

TEST(SafetensorsWriter, DeletesWhatIsNotFinished) {
  const TempFolder folder;
  {
    const auto writer =
        Create(folder / "m.safetensors", {{"b", ElementType::kU8, {3}}});
    ASSERT_OK(writer);
    EXPECT_OK((*writer)->Write(0, 0, Bytes("xy")));
    EXPECT_EQ(NamesIn(folder.path()).size(), 1u);
    ExpectError((*writer)->Finish(), StatusCode::kFailedPrecondition,
                {"'b'", "3 bytes", "2 were written"});
  }
  EXPECT_EQ(NamesIn(folder.path()), Names{});
}

TEST(SafetensorsWriter, RefusesWhatIsWrong) {
  const TempFolder folder;
  const std::vector<SafetensorsTensor> one = {{"b", ElementType::kU8, {3}}};
  const std::string path = folder / "m.safetensors";
  for (const char* name : {"m", "m.bin", ".safetensors", ""}) {
    ExpectInvalid(Create(folder / name, one), {"'.safetensors'"});
  }
  ExpectError(Create(folder / "none/m.safetensors", one), StatusCode::kNotFound,
              {"none"});
  ExpectInvalid(Create(path, {{"q", ElementType::kQ8, {256}}}),
                {"'q'", "q8", "load it as f32 first"});
  EXPECT_EQ(NamesIn(folder.path()), Names{});
  const auto writer = Create(path, one);
  ASSERT_OK(writer);
  for (const auto& [tensor, offset, bytes] :
       std::vector<std::tuple<size_t, uint64_t, const char*>>{
           {0, 0, "1234"}, {0, 3, "1"}, {0, ~uint64_t{0}, "12"}, {1, 0, ""}}) {
    ExpectError((*writer)->Write(tensor, offset, Bytes(bytes)),
                StatusCode::kOutOfRange, {});
  }
  EXPECT_OK((*writer)->Write(0, 3, {}));
}

TEST(SafetensorsWriter, ReplacesOnlyWhenAllowed) {
  const TempFolder folder;
  const std::string path = Write(folder, "m.safetensors", "old");
  const std::vector<SafetensorsTensor> one = {{"b", ElementType::kU8, {1}}};
  ExpectError(Create(path, one), StatusCode::kAlreadyExists,
              {"m.safetensors", "replaced"});
  const auto writer = Create(path, one, {.replace = true});
  ASSERT_OK(writer);
  EXPECT_EQ(ReadText(folder / "m.safetensors"), "old");
  EXPECT_OK((*writer)->Write(0, 0, Bytes("x")));
  EXPECT_OK((*writer)->Finish());
  EXPECT_EQ(ReadTensor(*Open(path), "b"), "x");

  Write(folder, "n.safetensors.index.json", "old");
  const std::vector<SafetensorsTensor> two = {{"a", ElementType::kU8, {1}},
                                              {"b", ElementType::kU8, {1}}};
  const std::string n = folder / "n.safetensors";
  ExpectError(Create(n, two, {.max_shard_bytes = 1}),
              StatusCode::kAlreadyExists, {"n.safetensors.index.json"});
  const auto several = Create(n, two, {.max_shard_bytes = 1, .replace = true});
  ASSERT_OK(several);
  EXPECT_OK((*several)->Write(0, 0, Bytes("A")));
  EXPECT_OK((*several)->Write(1, 0, Bytes("B")));
  EXPECT_OK((*several)->Finish());
  EXPECT_EQ(ReadTensor(*Open((*several)->path()), "b"), "B");
}

// A rename would replace a device by a file.
TEST(SafetensorsWriter, ReplacesOnlyRegularFiles) {
  const TempFolder folder;
  const std::vector<SafetensorsTensor> one = {{"b", ElementType::kU8, {1}}};
  const std::string fifo = folder / "fifo.safetensors";
  const std::string link = folder / "link.safetensors";
  const std::string directory = folder / "directory.safetensors";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  ASSERT_EQ(::symlink("nowhere", link.c_str()), 0);
  ASSERT_EQ(::mkdir(directory.c_str(), 0700), 0);
  for (const std::string& path : {fifo, link, directory}) {
    ExpectError(Create(path, one, {.replace = true}),
                StatusCode::kFailedPrecondition, {path, "not a regular file"});
  }
  EXPECT_EQ(NamesIn(folder.path()).size(), 3u);
}

TEST(SafetensorsWriter, DividesByBytes) {
  const TempFolder folder;
  const auto writer = Create(folder / "m.safetensors",
                             {{"c", ElementType::kU8, {9}},
                              {"e", ElementType::kU8, {2}},
                              {"d", ElementType::kU8, {2}},
                              {"b", ElementType::kU8, {1}},
                              {"a", ElementType::kU8, {0}}},
                             {.max_shard_bytes = 4});
  ASSERT_OK(writer);
  const char* data[] = {"ccccccccc", "ee", "dd", "b", ""};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_OK((*writer)->Write(i, 0, Bytes(data[i])));
  }
  ASSERT_OK((*writer)->Finish());
  EXPECT_EQ(
      NamesIn(folder.path()),
      (Names{"m-00001-of-00003.safetensors", "m-00002-of-00003.safetensors",
             "m-00003-of-00003.safetensors", "m.safetensors.index.json"}));
  EXPECT_EQ(ReadText(folder / "m.safetensors.index.json"),
            "{\n  \"metadata\": {\n    \"total_size\": 14\n  },\n"
            "  \"weight_map\": {\n"
            "    \"a\": \"m-00003-of-00003.safetensors\",\n"
            "    \"b\": \"m-00003-of-00003.safetensors\",\n"
            "    \"c\": \"m-00001-of-00003.safetensors\",\n"
            "    \"d\": \"m-00002-of-00003.safetensors\",\n"
            "    \"e\": \"m-00002-of-00003.safetensors\"\n  }\n}\n");
  const auto store = Open((*writer)->path());
  for (const char* text : data) {
    if (*text != '\0') {
      EXPECT_EQ(ReadTensor(*store, std::string(1, *text)), text);
    }
  }
  EXPECT_EQ(ReadTensor(*store, "a"), "");
}

// Writes two tensors of `fill`, into one file or into two.
Status Save(FileEnv* env, const std::string& path, uint64_t max_shard_bytes,
            char fill) {
  SHARD_ASSIGN_OR_RETURN(
      const auto writer,
      SafetensorsWriter::Create(
          env, path,
          {{"a", ElementType::kU8, {3}}, {"b", ElementType::kU8, {3}}},
          {.max_shard_bytes = max_shard_bytes, .replace = true}));
  const std::string data(3, fill);
  SHARD_RETURN_IF_ERROR(writer->Write(0, 0, Bytes(data)));
  SHARD_RETURN_IF_ERROR(writer->Write(1, 0, Bytes(data)));
  return writer->Finish();
}

TEST(SafetensorsWriter, AnyCallMayFail) {
  for (const uint64_t max_shard_bytes : {0, 3}) {
    bool succeeded = false;
    for (int64_t k = 0;; ++k) {
      const TempFolder folder;
      testing::FaultEnv env;
      env.Set({.at = k});
      const Status status =
          Save(&env, folder / "m.safetensors", max_shard_bytes, 'x');
      EXPECT_EQ(env.open_descriptors(), 0);
      EXPECT_EQ(env.wrong_closes(), 0);
      if (!status.ok()) {
        EXPECT_EQ(NamesIn(folder.path()), Names{}) << status.ToString();
      }
      if (env.calls() > k) continue;
      succeeded = status.ok();
      break;
    }
    EXPECT_TRUE(succeeded);
  }
}

// After a power cut while files are replaced, a reader finds the old contents
// or the new ones.
TEST(SafetensorsWriter, ThePowerMayGoAtAnyTime) {
  using testing::PowerCut;
  for (const auto& [max_shard_bytes, name] :
       std::vector<std::pair<uint64_t, std::string>>{
           {0, "/m.safetensors"}, {3, "/m.safetensors.index.json"}}) {
    const TempFolder folder;
    const TempFolder copies;
    ASSERT_OK(
        Save(FileEnv::Posix(), folder / "m.safetensors", max_shard_bytes, 'x'));
    testing::UnsyncedEnv env(folder.path());
    std::set<std::string> read;
    int copy = 0;
    const auto cut = [&, &name = name, &max_shard_bytes = max_shard_bytes] {
      for (const PowerCut kind :
           {PowerCut::kLost, PowerCut::kKept, PowerCut::kNamesKept,
            PowerCut::kTruncated, PowerCut::kEntriesLost, PowerCut::kRandom,
            PowerCut::kRandom, PowerCut::kRandom}) {
        ++copy;
        const std::string path = copies / StrCat(copy);
        env.AfterPowerCut(kind, static_cast<uint64_t>(copy), path);
        if (!NamesIn(path).contains(name.substr(1))) {
          // A set cannot be read while its files change; a single file always
          // can.
          EXPECT_EQ(max_shard_bytes, 3u);
          read.insert("(none)");
          continue;
        }
        const auto store = Open(path + name);
        ASSERT_NE(store, nullptr);
        const std::string a = ReadTensor(*store, "a");
        EXPECT_EQ(a, ReadTensor(*store, "b"));
        read.insert(a);
      }
    };
    env.AtEachCall(cut);
    ASSERT_OK(Save(&env, folder / "m.safetensors", max_shard_bytes, 'y'));
    EXPECT_TRUE(read.contains("xxx"));
    read.clear();
    cut();
    EXPECT_EQ(read, std::set<std::string>{"yyy"});
  }
}

// Tensors in memory. All bytes of element i of tensor t are t + i.
class FakeStore final : public TensorStore {
 public:
  explicit FakeStore(std::vector<TensorInfo> tensors)
      : tensors_(std::move(tensors)) {}

  std::string_view describe() const override { return "fake"; }
  size_t num_tensors() const override { return tensors_.size(); }
  TensorInfo tensor(size_t index) const override { return tensors_[index]; }
  int64_t Find(std::string_view) const override { return -1; }
  Status Read(std::span<const ReadRequest> requests, const ReadOptions& options,
              const PieceSink& sink) const override {
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto [tensor, begin, numel] = requests[i];
      const int64_t alias_of = tensors_[tensor].alias_of;
      const size_t from = alias_of < 0 ? tensor : static_cast<size_t>(alias_of);
      const size_t size = ElementSize(tensors_[tensor].type);
      for (int64_t e = begin; e < begin + numel; ++e) {
        const std::vector<std::byte> bytes(
            size, static_cast<std::byte>(static_cast<int64_t>(from) + e));
        SHARD_RETURN_IF_ERROR(sink(i, e, 1, bytes.data()));
      }
      if (options.progress != nullptr && !options.progress(i, 0)) {
        return Cancelled("cancelled");
      }
    }
    return Status();
  }

 private:
  std::vector<TensorInfo> tensors_;
};

Status Export(const TensorStore& from, const std::vector<size_t>& tensors,
              const std::string& path,
              const SafetensorsExportOptions& options = {}) {
  return ExportSafetensors(FileEnv::Posix(), from, tensors, path, options);
}

std::vector<TensorInfo> FourTensors() {
  static constexpr int64_t kShape[] = {2};
  const auto info = [](std::string_view key, int64_t alias_of) {
    return TensorInfo{.key = key,
                      .type = ElementType::kI16,
                      .shape = kShape,
                      .numel = 2,
                      .alias_of = alias_of};
  };
  return {info("m.tied", 1), info("m.a", -1), info("m.tied2", 1),
          info("b", -1)};
}

TEST(ExportSafetensors, AliasesAreLeftOutOrCopies) {
  const TempFolder folder;
  const FakeStore from(FourTensors());
  const std::string path = folder / "m.safetensors";
  SafetensorsExportOptions options;
  options.write.replace = true;
  const auto keys = [&](const std::vector<size_t>& tensors) {
    EXPECT_OK(Export(from, tensors, path, options));
    const auto store = Open(path);
    Names names;
    for (size_t i = 0; i < store->num_tensors(); ++i) {
      const std::string key(store->tensor(i).key);
      names.insert(key);
      EXPECT_EQ(ReadTensor(*store, key),
                key == "b" ? std::string("\3\3\4\4") : std::string("\1\1\2\2"));
    }
    return names;
  };
  EXPECT_EQ(keys({0, 1, 2, 3}), (Names{"b", "m.a"}));
  // The target's elements are not written, so one of its aliases is.
  EXPECT_EQ(keys({2, 0, 3}), (Names{"b", "m.tied2"}));
  EXPECT_EQ(keys({3}), Names{"b"});
  EXPECT_EQ(keys({}), Names{});
  options.expand_aliases = true;
  EXPECT_EQ(keys({0, 1, 2, 3}), (Names{"b", "m.a", "m.tied", "m.tied2"}));
}

TEST(ExportSafetensors, Renames) {
  const TempFolder folder;
  const FakeStore from(FourTensors());
  const std::string path = folder / "m.safetensors";
  SafetensorsExportOptions options;
  options.rename = [](std::string_view key) {
    return std::string(key.starts_with("m.") ? key.substr(2) : key);
  };
  ASSERT_OK(Export(from, {1, 3}, path, options));
  EXPECT_EQ(ReadTensor(*Open(path), "a"), "\1\1\2\2");
  options.write.replace = true;
  options.rename = [](std::string_view) { return "same"; };
  ExpectInvalid(Export(from, {1, 3}, path, options), {"'same'", "twice"});
  ExpectInvalid(Export(from, {1, 1}, path, {.write = {.replace = true}}),
                {"'m.a'", "twice"});
}

TEST(ExportSafetensors, LeavesNothingBehindAfterAnError) {
  const TempFolder folder;
  const FakeStore from(FourTensors());
  const std::string path = folder / "m.safetensors";
  SafetensorsExportOptions options;
  options.write.max_shard_bytes = 4;
  options.progress = [](uint64_t, uint64_t) { return false; };
  ExpectError(Export(from, {1, 3}, path, options), StatusCode::kCancelled, {});
  ExpectError(Export(from, {4}, path), StatusCode::kOutOfRange, {"tensor 4"});
  EXPECT_EQ(NamesIn(folder.path()), Names{});
}

// Writes every type, in one file and in several, and compares all bytes.
TEST(ExportSafetensors, WhatIsReadIsWhatWasWritten) {
  const TempFolder folder;
  std::vector<SafetensorsTensor> tensors;
  std::vector<std::string> data;
  for (int32_t type = 0; type < 32; ++type) {
    if (!IsElementType(type) || type == static_cast<int32_t>(ElementType::kQ8))
      continue;
    tensors.push_back(
        {StrCat("t\"\n", type), static_cast<ElementType>(type), {type, 3}});
    data.emplace_back(
        static_cast<size_t>(type) * 3 * ElementSize(tensors.back().type),
        static_cast<char>(type));
  }
  ASSERT_EQ(tensors.size(), 15u);
  const auto writer = Create(folder / "m.safetensors", tensors);
  ASSERT_OK(writer);
  for (size_t i = 0; i < tensors.size(); ++i) {
    ASSERT_OK((*writer)->Write(i, 0, Bytes(data[i])));
  }
  ASSERT_OK((*writer)->Finish());
  const auto one = Open((*writer)->path());
  std::vector<size_t> all(tensors.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  const SafetensorsExportOptions options = {.write = {.max_shard_bytes = 300}};
  ASSERT_OK(Export(*one, all, folder / "n.safetensors", options));
  const auto several = Open(folder / "n.safetensors.index.json");
  EXPECT_GT(several->num_files(), 3u);
  ASSERT_EQ(several->num_tensors(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(ReadTensor(*one, tensors[i].key), data[i]);
    EXPECT_EQ(ReadTensor(*several, tensors[i].key), data[i]);
    const auto index = static_cast<size_t>(several->Find(tensors[i].key));
    EXPECT_EQ(several->tensor(index).type, tensors[i].type);
    EXPECT_EQ(several->tensor(index).shape[0],
              static_cast<int64_t>(tensors[i].type));
  }
}

// Writes tensors of types that libshard only copies, and one that it reads.
TEST(ExportSafetensors, CarriesOtherTypes) {
  const TempFolder folder;
  const std::vector<SafetensorsTensor> tensors = {
      {"c", ElementType::kOpaque, {2, 3}, "C64", 48},
      {"e", ElementType::kOpaque, {3}, "F8_E8M0", 3},
      {"t", ElementType::kOpaque, {3, 3}, "TOMORROW", 7},
      {"z", ElementType::kOpaque, {0, 3}, "F8_E5M2FNUZ", 0},
      {"w", ElementType::kF32, {2}},
  };
  const std::vector<std::string> data = {std::string(48, 'c'), "exp", "tomorro",
                                         "", "wwwwWWWW"};
  const auto writer = Create(folder / "m.safetensors", tensors);
  ASSERT_OK(writer);
  for (size_t i = 0; i < tensors.size(); ++i) {
    ASSERT_OK((*writer)->Write(i, 0, Bytes(data[i])));
  }
  ASSERT_OK((*writer)->Finish());
  const auto from = Open(folder / "m.safetensors");
  EXPECT_EQ(ReadTensor(*from, "w"), data[4]);

  // Values of such a type cannot be read. Its bytes are copied, also by a store
  // that converts.
  const auto index = static_cast<size_t>(from->Find("c"));
  EXPECT_EQ(from->tensor(index).numel, 6);
  EXPECT_EQ(TensorBytes(from->tensor(index)), 48u);
  const ReadRequest request = {index, 0, 6};
  const auto look = [](size_t, int64_t, int64_t, const std::byte*) {
    return Status();
  };
  ExpectError(from->Read({&request, 1}, {}, look), StatusCode::kUnimplemented,
              {"'c'", "C64", "cannot read"});
  EXPECT_OK(VerifyStore(*from, {}));
  const ConversionOptions bf16 = {.dtype = DType::kBF16};
  const ConvertingStore converting(*from, bf16);
  const SafetensorsExportOptions several = {.write = {.max_shard_bytes = 40}};
  ASSERT_OK(
      Export(converting, {0, 1, 2, 3, 4}, folder / "n.safetensors", several));
  const auto to = Open(folder / "n.safetensors.index.json");
  EXPECT_GT(to->num_files(), 1u);
  for (size_t i = 0; i < 4; ++i) {
    const auto at = static_cast<size_t>(to->Find(tensors[i].key));
    const TensorInfo info = to->tensor(at);
    EXPECT_EQ(info.type, ElementType::kOpaque);
    EXPECT_EQ(info.opaque_type, tensors[i].opaque_type);
    EXPECT_EQ(std::vector<int64_t>(info.shape.begin(), info.shape.end()),
              tensors[i].shape);
    std::string bytes(info.opaque_bytes, '?');
    const ReadOptions as_bytes = {.opaque_as_bytes = true};
    const ReadRequest all = {at, 0, static_cast<int64_t>(bytes.size())};
    ASSERT_OK(to->Read(
        {&all, 1}, as_bytes,
        [&](size_t, int64_t begin, int64_t numel, const std::byte* piece) {
          std::memcpy(bytes.data() + begin, piece, static_cast<size_t>(numel));
          return Status();
        }));
    EXPECT_EQ(bytes, data[i]);
  }
  EXPECT_EQ(to->tensor(static_cast<size_t>(to->Find("w"))).type,
            ElementType::kBF16);

  ExpectError(WriteCheckpoint(FileEnv::Posix(), *from, folder / "ckpt", {}),
              StatusCode::kUnimplemented, {"cannot hold", "safetensors"});
  EXPECT_FALSE(NamesIn(folder.path()).contains("ckpt"));
}

TEST(ExportSafetensors, MemoryDoesNotDependOnTheTensors) {
  const TempFolder folder;
  constexpr int64_t kBytes = int64_t{160} << 20;
  const auto writer =
      Create(folder / "m.safetensors", {{"a", ElementType::kU8, {kBytes}}});
  ASSERT_OK(writer);
  const std::string piece(1 << 20, 'x');
  for (int64_t at = 0; at < kBytes; at += int64_t{1} << 20) {
    ASSERT_OK((*writer)->Write(0, static_cast<uint64_t>(at), Bytes(piece)));
  }
  ASSERT_OK((*writer)->Finish());
  const SafetensorsExportOptions options = {.threads = 100};
  ResetAllocatedPeak();
  const int64_t before = AllocatedBytes();
  const auto store = Open((*writer)->path());
  ASSERT_OK(Export(*store, {0}, folder / "n.safetensors", options));
  EXPECT_LE(AllocatedPeak() - before, int64_t{64} << 20);
  EXPECT_GT(AllocatedPeak() - before, int64_t{1} << 20);
}

}  // namespace

}  // namespace shard::safetensors_writer_test
