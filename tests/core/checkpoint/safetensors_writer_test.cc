// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/safetensors/safetensors_writer.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/fault_env.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/base/unsynced_env.h"
#include "tests/core/checkpoint/safetensors_files.h"

namespace shard::safetensors_writer_test {

namespace {

using testing::Bytes;
using testing::CreateWriter;
using testing::NamesIn;
using testing::OpenSafetensors;
using testing::ReadTensor;
using testing::ReadText;
using testing::TempFolder;

std::string Write(const TempFolder& folder, std::string_view name,
                  std::string_view bytes) {
  testing::WriteText(folder / name, bytes);
  return folder / name;
}

using Names = std::set<std::string>;

TEST(SafetensorsWriter, WritesTheFormatsBytes) {
  const TempFolder folder;
  const auto writer = CreateWriter(folder / "m.safetensors",
                                   {{"b", ElementType::kU8, {3}},
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
        CreateWriter(folder / "m.safetensors", {{"b", ElementType::kU8, {3}}});
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
    ExpectInvalid(CreateWriter(folder / name, one), {"'.safetensors'"});
  }
  ExpectError(CreateWriter(folder / "none/m.safetensors", one),
              StatusCode::kNotFound, {"none"});
  ExpectInvalid(CreateWriter(path, {{"q", ElementType::kQ8, {256}}}),
                {"'q'", "q8", "load it as f32 first"});
  EXPECT_EQ(NamesIn(folder.path()), Names{});
  const auto writer = CreateWriter(path, one);
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
  ExpectError(CreateWriter(path, one), StatusCode::kAlreadyExists,
              {"m.safetensors", "set overwrite"});
  const auto writer = CreateWriter(path, one, {.replace = true});
  ASSERT_OK(writer);
  EXPECT_EQ(ReadText(folder / "m.safetensors"), "old");
  EXPECT_OK((*writer)->Write(0, 0, Bytes("x")));
  EXPECT_OK((*writer)->Finish());
  EXPECT_EQ(ReadTensor(*OpenSafetensors(path), "b"), "x");

  Write(folder, "n.safetensors.index.json", "old");
  const std::vector<SafetensorsTensor> two = {{"a", ElementType::kU8, {1}},
                                              {"b", ElementType::kU8, {1}}};
  const std::string n = folder / "n.safetensors";
  ExpectError(CreateWriter(n, two, {.max_shard_bytes = 1}),
              StatusCode::kAlreadyExists, {"n.safetensors.index.json"});
  const auto several =
      CreateWriter(n, two, {.max_shard_bytes = 1, .replace = true});
  ASSERT_OK(several);
  EXPECT_OK((*several)->Write(0, 0, Bytes("A")));
  EXPECT_OK((*several)->Write(1, 0, Bytes("B")));
  EXPECT_OK((*several)->Finish());
  EXPECT_EQ(ReadTensor(*OpenSafetensors((*several)->path()), "b"), "B");
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
    ExpectError(CreateWriter(path, one, {.replace = true}),
                StatusCode::kFailedPrecondition, {path, "not a regular file"});
  }
  EXPECT_EQ(NamesIn(folder.path()).size(), 3u);
}

TEST(SafetensorsWriter, DividesByBytes) {
  const TempFolder folder;
  const auto writer = CreateWriter(folder / "m.safetensors",
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
  const auto store = OpenSafetensors((*writer)->path());
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
        const auto store = OpenSafetensors(path + name);
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

}  // namespace

}  // namespace shard::safetensors_writer_test
