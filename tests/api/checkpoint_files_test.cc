// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints and safetensors files without an engine: the questions that a
// host can ask about them, and the files that it can make of them.

#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/api/api_testing.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/checkpoint/sample_checkpoint.h"

namespace shard_api_testing {
namespace {

using shard::testing::NamesIn;
using shard::testing::ReadText;
using shard::testing::SampleBuilder;
using shard::testing::TempFolder;
using shard::testing::WriteText;

Checkpoint Open(const std::string& path) {
  shard_checkpoint* checkpoint = Garbage<shard_checkpoint>();
  EXPECT_OK(shard_checkpoint_open(path.c_str(), &checkpoint));
  return Checkpoint(checkpoint);
}

shard_checkpoint_info InfoOf(const shard_checkpoint* checkpoint) {
  shard_checkpoint_info info = SHARD_CHECKPOINT_INFO_INIT;
  EXPECT_OK(shard_checkpoint_get_info(checkpoint, &info));
  return info;
}

int64_t Find(const shard_checkpoint* checkpoint, const char* key) {
  int64_t tensor = -1;
  EXPECT_OK(shard_checkpoint_find(checkpoint, key, &tensor));
  return tensor;
}

shard_tensor_info TensorOf(const shard_checkpoint* checkpoint,
                           const char* key) {
  shard_tensor_info info = SHARD_TENSOR_INFO_INIT;
  EXPECT_OK(shard_checkpoint_tensor(checkpoint, Find(checkpoint, key), &info));
  return info;
}

std::vector<char> BytesOf(const shard_checkpoint* checkpoint, const char* key) {
  const shard_tensor_info info = TensorOf(checkpoint, key);
  std::vector<char> bytes(info.bytes);
  EXPECT_OK(shard_checkpoint_read(checkpoint, Find(checkpoint, key), 0,
                                  info.numel, bytes.data(), bytes.size()));
  return bytes;
}

class CheckpointFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto status = SampleBuilder().Write(shard::FileEnv::Posix(), root());
    ASSERT_TRUE(status.ok()) << status.ToString();
    sample_ = Open(root());
    ASSERT_NE(sample_, nullptr);
  }

  std::string root() const { return folder_ / "sample"; }
  const shard_checkpoint* sample() const { return sample_.get(); }

  TempFolder folder_;
  Checkpoint sample_;
};

TEST_F(CheckpointFilesTest, TellsWhatItHas) {
  const shard_checkpoint_info info = InfoOf(sample());
  EXPECT_EQ(info.format, SHARD_FORMAT_CHECKPOINT);
  EXPECT_EQ(info.version, 3);
  EXPECT_EQ(info.step, 42);
  EXPECT_EQ(info.world_size, 3);
  EXPECT_EQ(info.num_files, 1);
  EXPECT_EQ(info.num_groups, 2);
  EXPECT_EQ(info.num_scalars, 2);
  EXPECT_EQ(info.num_blobs, 7);
  EXPECT_NE(info.id_low, 0u);
  EXPECT_EQ(TextOf(shard_checkpoint_path, sample()), root() + "/step-000042");
  const char* name = nullptr;
  uint64_t bytes = 0;
  EXPECT_OK(shard_checkpoint_file(sample(), 0, &name, &bytes));
  EXPECT_STREQ(name, "data-00000.bin");
  EXPECT_EQ(info.file_bytes,
            bytes + std::filesystem::file_size(root() +
                                               "/step-000042/manifest.shard"));
  uint64_t sum = 0;
  for (int64_t t = 0; t < info.num_tensors; ++t) {
    shard_tensor_info tensor = SHARD_TENSOR_INFO_INIT;
    ASSERT_OK(shard_checkpoint_tensor(sample(), t, &tensor));
    if (tensor.alias_of < 0) sum += tensor.bytes;
    const std::string key = TextOf(shard_checkpoint_tensor_key, sample(), t);
    EXPECT_EQ(Find(sample(), key.c_str()), t);
    const std::string type = TextOf(shard_checkpoint_tensor_type, sample(), t);
    EXPECT_EQ(type == "f32", tensor.dtype == SHARD_F32) << type;
    EXPECT_EQ(type == "q8", tensor.dtype == SHARD_Q8) << type;
    EXPECT_EQ(type == "C64", key.starts_with("phase")) << type;
  }
  EXPECT_EQ(info.tensor_bytes, sum);
  EXPECT_EQ(TextOf(shard_checkpoint_group, sample(), 1), "sgd?lr=0.5");
  double value = 0;
  EXPECT_OK(shard_checkpoint_scalar(sample(), 0, &name, &value));
  EXPECT_STREQ(name, "loss_scale.scale");
  EXPECT_EQ(value, 1024);
  // The host may leave out each of several outputs.
  EXPECT_OK(shard_checkpoint_file(sample(), 0, nullptr, nullptr));
  EXPECT_OK(shard_checkpoint_scalar(sample(), 0, nullptr, nullptr));
  EXPECT_OK(shard_checkpoint_blob_info(sample(), 0, nullptr, nullptr, nullptr));
}

TEST_F(CheckpointFilesTest, TellsWhatTensorsAre) {
  const shard_tensor_info embed = TensorOf(sample(), "embed");
  EXPECT_EQ(embed.dtype, SHARD_F32);
  EXPECT_EQ(embed.role, SHARD_ROLE_PARAM);
  EXPECT_EQ(embed.alias_of, -1);
  EXPECT_EQ(embed.numel, 700000);
  EXPECT_EQ(embed.bytes, 2800000u);
  EXPECT_EQ(embed.ndim, 2);
  EXPECT_EQ(embed.shape[1], 1000);
  EXPECT_EQ(embed.trainable, 1);
  EXPECT_EQ(embed.group, 0);
  EXPECT_EQ(embed.step, 42);
  EXPECT_GT(embed.num_slices, 1);
  EXPECT_EQ(TensorOf(sample(), "head").alias_of, Find(sample(), "embed"));
  EXPECT_EQ(TensorOf(sample(), "layer.weight").step, 40);
  EXPECT_EQ(TensorOf(sample(), "frozen").trainable, 0);
  const shard_tensor_info state = TensorOf(sample(), "state.embed.exp_avg");
  EXPECT_EQ(state.role, SHARD_ROLE_STATE);
  EXPECT_EQ(state.group, -1);
  EXPECT_EQ(state.step, -1);
  EXPECT_EQ(TensorOf(sample(), "state.layer.weight.exp_avg").dtype, SHARD_Q8);
  EXPECT_EQ(TensorOf(sample(), "count").role, SHARD_ROLE_BUFFER);
  EXPECT_EQ(TensorOf(sample(), "count").dtype, SHARD_I64);
  EXPECT_EQ(TensorOf(sample(), "scalar").ndim, 0);
  const shard_tensor_info phase = TensorOf(sample(), "phase");
  EXPECT_EQ(phase.dtype, SHARD_OPAQUE);
  EXPECT_EQ(phase.numel, 301 * 41);
  EXPECT_EQ(phase.bytes, 301u * 41 * 8);
  EXPECT_EQ(phase.shape[1], 41);
  EXPECT_EQ(TensorOf(sample(), "phase.tied").bytes, phase.bytes);
  EXPECT_EQ(TensorOf(sample(), "empty").num_slices, 0);
}

TEST_F(CheckpointFilesTest, SlicesAndReadsAgree) {
  const std::string file = ReadText(root() + "/step-000042/data-00000.bin");
  const std::vector<char> bytes = BytesOf(sample(), "embed");
  const int64_t embed = Find(sample(), "embed");
  const int32_t slices = TensorOf(sample(), "embed").num_slices;
  int64_t next = 0;
  for (int32_t s = 0; s < slices; ++s) {
    shard_tensor_slice slice = SHARD_TENSOR_SLICE_INIT;
    ASSERT_OK(shard_checkpoint_slice(sample(), embed, s, &slice));
    EXPECT_EQ(slice.begin, next);
    EXPECT_EQ(slice.file, 0);
    EXPECT_EQ(slice.has_checksum, 1);
    EXPECT_NE(slice.checksum_low, 0u);
    EXPECT_EQ(std::memcmp(file.data() + slice.offset,
                          bytes.data() + slice.begin * 4, slice.bytes),
              0);
    next += slice.numel;
  }
  EXPECT_EQ(next, 700000);
  std::vector<char> some(40);
  ASSERT_OK(shard_checkpoint_read(sample(), embed, 262140, 10, some.data(),
                                  some.size()));
  EXPECT_EQ(std::memcmp(some.data(), bytes.data() + 262140 * 4, 40), 0);
  EXPECT_OK(shard_checkpoint_read(sample(), embed, 700000, 0, nullptr, 0));
}

TEST_F(CheckpointFilesTest, HandsOutBlobs) {
  int32_t rule = 0;
  int32_t rank = 0;
  const char* name = nullptr;
  EXPECT_OK(shard_checkpoint_blob_info(sample(), 2, &name, &rule, &rank));
  EXPECT_STREQ(name, "loader");
  EXPECT_EQ(rule, SHARD_BLOB_PER_RANK);
  EXPECT_EQ(rank, 1);
  size_t length = 0;
  ASSERT_OK(shard_checkpoint_blob(sample(), 2, nullptr, 0, &length));
  EXPECT_EQ(length, std::strlen("position of rank 1"));
  std::string text(length + 2, '?');
  ASSERT_OK(shard_checkpoint_blob(sample(), 2, text.data(), 8, &length));
  EXPECT_EQ(text.substr(0, 9), "position?");
  ASSERT_OK(
      shard_checkpoint_blob(sample(), 2, text.data(), text.size(), &length));
  EXPECT_EQ(text, "position of rank 1??");
}

TEST_F(CheckpointFilesTest, ConvertsAndConvertsBack) {
  const std::string two = folder_ / "two";
  shard_convert_options options = SHARD_CONVERT_OPTIONS_INIT;
  options.world_size = 2;
  ASSERT_OK(shard_checkpoint_convert(sample(), two.c_str(), &options));
  const Checkpoint written = Open(two);
  EXPECT_EQ(InfoOf(written.get()).num_files, 2);
  EXPECT_EQ(InfoOf(written.get()).step, 42);
  const std::string path = folder_ / "model.safetensors";
  ASSERT_OK(shard_checkpoint_export(written.get(), path.c_str(), nullptr));
  const Checkpoint file = Open(path);
  const shard_checkpoint_info info = InfoOf(file.get());
  EXPECT_EQ(info.format, SHARD_FORMAT_SAFETENSORS);
  EXPECT_EQ(info.version, 0);
  EXPECT_EQ(info.step, -1);
  EXPECT_EQ(info.world_size, 0);
  EXPECT_EQ(info.num_blobs, 0);
  EXPECT_EQ(info.id_low, 0u);
  EXPECT_EQ(info.file_bytes, std::filesystem::file_size(path));
  EXPECT_EQ(TensorOf(file.get(), "state.layer.weight.exp_avg").dtype,
            SHARD_F32);
  EXPECT_OK(shard_checkpoint_verify(file.get(), nullptr));
  shard_tensor_slice slice = SHARD_TENSOR_SLICE_INIT;
  ASSERT_OK(
      shard_checkpoint_slice(file.get(), Find(file.get(), "embed"), 0, &slice));
  EXPECT_EQ(slice.has_checksum, 0);
  EXPECT_EQ(
      ReadText(path).compare(slice.offset, slice.bytes,
                             BytesOf(sample(), "embed").data(), slice.bytes),
      0);
  const std::string back = folder_ / "back";
  ASSERT_OK(shard_checkpoint_convert(file.get(), back.c_str(), nullptr));
  const Checkpoint again = Open(back);
  EXPECT_EQ(InfoOf(again.get()).step, 0);
  EXPECT_OK(shard_checkpoint_verify(again.get(), nullptr));
  for (const char* key : {"embed", "layer.weight", "count", "frozen"}) {
    EXPECT_TRUE(BytesOf(again.get(), key) == BytesOf(sample(), key)) << key;
  }
}

TEST_F(CheckpointFilesTest, ExportsWhatIsAskedFor) {
  std::filesystem::create_directory(folder_ / "many");
  const std::string path = folder_ / "many/model.safetensors";
  shard_convert_options options = SHARD_CONVERT_OPTIONS_INIT;
  options.content = SHARD_CONTENT_MODEL;
  options.dtype = SHARD_F16;
  options.expand_aliases = 1;
  options.max_shard_bytes = 1 << 20;
  ASSERT_OK(shard_checkpoint_export(sample(), path.c_str(), &options));
  const Checkpoint file = Open(folder_ / "many");
  EXPECT_GT(InfoOf(file.get()).num_files, 1);
  EXPECT_EQ(TensorOf(file.get(), "head").dtype, SHARD_F16);
  EXPECT_TRUE(BytesOf(file.get(), "head") == BytesOf(file.get(), "embed"));
  int64_t tensor = 5;
  EXPECT_FAILS(
      shard_checkpoint_find(file.get(), "state.embed.exp_avg", &tensor),
      SHARD_NOT_FOUND, "state.embed.exp_avg");
  EXPECT_EQ(tensor, 0);
  EXPECT_FAILS(shard_checkpoint_export(sample(), path.c_str(), &options),
               SHARD_ALREADY_EXISTS, "model");
  options.overwrite = 1;
  EXPECT_OK(shard_checkpoint_export(sample(), path.c_str(), &options));
}

TEST_F(CheckpointFilesTest, VerifyListsAllDamageAndCancels) {
  shard_verify_options verify = SHARD_VERIFY_OPTIONS_INIT;
  EXPECT_OK(shard_checkpoint_verify(sample(), &verify));
  const auto cancel = [](uint64_t, uint64_t, void* calls) -> int32_t {
    ++*static_cast<int*>(calls);
    return 1;
  };
  int calls = 0;
  verify.threads = 1;
  verify.progress = cancel;
  verify.progress_user_data = &calls;
  EXPECT_FAILS(shard_checkpoint_verify(sample(), &verify), SHARD_CANCELLED,
               "cancelled");
  EXPECT_EQ(calls, 1);
  shard_convert_options options = SHARD_CONVERT_OPTIONS_INIT;
  options.progress = cancel;
  options.progress_user_data = &calls;
  const std::string to = folder_ / "to";
  EXPECT_FAILS(shard_checkpoint_convert(sample(), to.c_str(), &options),
               SHARD_CANCELLED, "cancelled");
  EXPECT_FALSE(NamesIn(folder_.path()).contains("to"));

  const std::string data = root() + "/step-000042/data-00000.bin";
  std::string bytes = ReadText(data);
  for (const char* key : {"frozen", "count"}) {
    shard_tensor_slice slice = SHARD_TENSOR_SLICE_INIT;
    ASSERT_OK(shard_checkpoint_slice(sample(), Find(sample(), key), 0, &slice));
    bytes[slice.offset] ^= 1;
  }
  WriteText(data, bytes);
  shard_error* const error = shard_checkpoint_verify(sample(), nullptr);
  EXPECT_THAT(shard_error_detail(error), ::testing::HasSubstr("'frozen'"));
  EXPECT_THAT(shard_error_detail(error), ::testing::HasSubstr("'count'"));
  ExpectError(Take(error), SHARD_CORRUPT, {"damaged", "1 more"});
  std::vector<char> room(60);
  EXPECT_FAILS(shard_checkpoint_read(sample(), Find(sample(), "frozen"), 0, 15,
                                     room.data(), room.size()),
               SHARD_CORRUPT, "'frozen'", "data-00000.bin");
}

TEST_F(CheckpointFilesTest, NumbersThatDoNotExist) {
  const shard_checkpoint_info info = InfoOf(sample());
  size_t length = 0;
  for (const int32_t number : {-1, 10000}) {
    const std::string said = std::to_string(number);
    shard_tensor_info tensor = SHARD_TENSOR_INFO_INIT;
    EXPECT_FAILS(shard_checkpoint_tensor(sample(), number, &tensor),
                 SHARD_INVALID_ARGUMENT, "tensor " + said);
    const char* text = "stale";
    EXPECT_FAILS(shard_checkpoint_tensor_key(sample(), number, &text),
                 SHARD_INVALID_ARGUMENT, "tensor " + said);
    EXPECT_EQ(text, nullptr);
    shard_tensor_slice slice = SHARD_TENSOR_SLICE_INIT;
    EXPECT_FAILS(shard_checkpoint_slice(sample(), number, 0, &slice),
                 SHARD_INVALID_ARGUMENT, "tensor " + said);
    EXPECT_FAILS(shard_checkpoint_slice(sample(), 0, number, &slice),
                 SHARD_INVALID_ARGUMENT, "slice " + said);
    EXPECT_FAILS(shard_checkpoint_file(sample(), number, &text, nullptr),
                 SHARD_INVALID_ARGUMENT, "file " + said);
    EXPECT_FAILS(shard_checkpoint_group(sample(), number, &text),
                 SHARD_INVALID_ARGUMENT, "group " + said);
    EXPECT_FAILS(shard_checkpoint_scalar(sample(), number, &text, nullptr),
                 SHARD_INVALID_ARGUMENT, "scalar " + said);
    EXPECT_FAILS(
        shard_checkpoint_blob_info(sample(), number, &text, nullptr, nullptr),
        SHARD_INVALID_ARGUMENT, "blob " + said);
    EXPECT_FAILS(shard_checkpoint_blob(sample(), number, nullptr, 0, &length),
                 SHARD_INVALID_ARGUMENT, "blob " + said);
    char byte = 0;
    EXPECT_FAILS(shard_checkpoint_read(sample(), number, 0, 1, &byte, 1),
                 SHARD_INVALID_ARGUMENT, "tensor " + said);
  }
  char room[8];
  EXPECT_FAILS(shard_checkpoint_read(sample(), 0, -1, 1, room, 4),
               SHARD_OUT_OF_RANGE, "-1");
  EXPECT_FAILS(shard_checkpoint_read(sample(), 0, 0, -1, room, 4),
               SHARD_OUT_OF_RANGE, "-1");
  EXPECT_FAILS(shard_checkpoint_read(sample(), 0, 700000, 1, room, 4),
               SHARD_OUT_OF_RANGE, "700000");
  EXPECT_FAILS(shard_checkpoint_read(sample(), 0, 0, 1, room, 8),
               SHARD_INVALID_ARGUMENT, "bytes is 8");
  shard_verify_options verify = SHARD_VERIFY_OPTIONS_INIT;
  verify.threads = 257;
  EXPECT_FAILS(shard_checkpoint_verify(sample(), &verify),
               SHARD_INVALID_ARGUMENT, "threads is 257");
  EXPECT_EQ(info.num_tensors, InfoOf(sample()).num_tensors);
}

TEST_F(CheckpointFilesTest, WrongOptions) {
  const std::string root = folder_ / "to";
  const std::string path = folder_ / "to.safetensors";
  struct Case {
    std::function<void(shard_convert_options*)> set;
    std::string said;
    bool write = true;
    bool convert = true;
  };
  const Case cases[] = {
      {[](auto* o) { o->content = 3; }, "content is 3"},
      {[](auto* o) { o->content = -1; }, "content is -1"},
      {[](auto* o) { o->overwrite = 2; }, "overwrite is 2"},
      {[](auto* o) { o->threads = -1; }, "threads is -1"},
      {[](auto* o) { o->threads = 257; }, "threads is 257"},
      {[](auto* o) { o->dtype = SHARD_Q8; }, "dtype is 5"},
      {[](auto* o) { o->dtype = -1; }, "dtype is -1"},
      {[](auto* o) { o->struct_size = 3; }, "struct_size is 3"},
      {[](auto* o) { o->world_size = -1; }, "world_size"},
      {[](auto* o) { o->world_size = 2; }, "world_size", false},
      {[](auto* o) { o->expand_aliases = 2; }, "expand_aliases"},
      {[](auto* o) { o->expand_aliases = 1; }, "expand_aliases", true, false},
      {[](auto* o) { o->max_shard_bytes = 1; }, "max_shard_bytes", true, false},
  };
  for (const Case& wrong : cases) {
    SCOPED_TRACE(wrong.said);
    shard_convert_options options = SHARD_CONVERT_OPTIONS_INIT;
    wrong.set(&options);
    if (wrong.write) {
      EXPECT_FAILS(shard_checkpoint_convert(sample(), root.c_str(), &options),
                   SHARD_INVALID_ARGUMENT, wrong.said);
    }
    if (wrong.convert) {
      EXPECT_FAILS(shard_checkpoint_export(sample(), path.c_str(), &options),
                   SHARD_INVALID_ARGUMENT, wrong.said);
    }
  }
  EXPECT_FAILS(shard_checkpoint_export(sample(), root.c_str(), nullptr),
               SHARD_INVALID_ARGUMENT, ".safetensors");
  EXPECT_EQ(NamesIn(folder_.path()), std::set<std::string>{"sample"});
}

TEST_F(CheckpointFilesTest, OpenSaysWhatItLookedFor) {
  shard_checkpoint* checkpoint = Garbage<shard_checkpoint>();
  const std::string none = folder_ / "none";
  EXPECT_FAILS(shard_checkpoint_open(none.c_str(), &checkpoint),
               SHARD_NOT_FOUND, "none");
  EXPECT_EQ(checkpoint, nullptr);
  WriteText(folder_ / "bad.safetensors", "text");
  checkpoint = Garbage<shard_checkpoint>();
  EXPECT_FAILS(
      shard_checkpoint_open((folder_ / "bad.safetensors").c_str(), &checkpoint),
      SHARD_CORRUPT, "bad.safetensors");
  EXPECT_EQ(checkpoint, nullptr);
}

TEST_F(CheckpointFilesTest, MoreDimensionsThanAreDescribed) {
  const std::string json = R"({"t":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],)"
                           R"("data_offsets":[0,4]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(json.size());
  WriteText(folder_ / "deep.safetensors", file + json + "abcd");
  const Checkpoint deep = Open(folder_ / "deep.safetensors");
  shard_tensor_info info = SHARD_TENSOR_INFO_INIT;
  EXPECT_FAILS(shard_checkpoint_tensor(deep.get(), 0, &info),
               SHARD_UNIMPLEMENTED, "'t' has 9 dimensions");
  const std::string root = folder_ / "to";
  EXPECT_FAILS(shard_checkpoint_convert(deep.get(), root.c_str(), nullptr),
               SHARD_INVALID_ARGUMENT, "at most 8");
  EXPECT_FALSE(std::filesystem::exists(root));
}

TEST_F(CheckpointFilesTest, NullForEveryPointer) {
  shard_checkpoint* out = nullptr;
  size_t length = 0;
  int64_t tensor = 0;
  char room[4];
  shard_checkpoint_info info = SHARD_CHECKPOINT_INFO_INIT;
  shard_tensor_info tensor_info = SHARD_TENSOR_INFO_INIT;
  shard_tensor_slice slice = SHARD_TENSOR_SLICE_INIT;
  const auto fails = [](shard_error* error, const char* name) {
    ExpectError(Take(error), SHARD_INVALID_ARGUMENT,
                {std::string(name) + " is NULL"});
  };
  fails(shard_checkpoint_open(nullptr, &out), "path");
  fails(shard_checkpoint_open("x", nullptr), "checkpoint");
  fails(shard_checkpoint_get_info(nullptr, &info), "checkpoint");
  fails(shard_checkpoint_get_info(sample(), nullptr), "info");
  fails(shard_checkpoint_tensor(nullptr, 0, &tensor_info), "checkpoint");
  fails(shard_checkpoint_tensor(sample(), 0, nullptr), "info");
  fails(shard_checkpoint_find(nullptr, "x", &tensor), "checkpoint");
  fails(shard_checkpoint_find(sample(), nullptr, &tensor), "key");
  fails(shard_checkpoint_find(sample(), "x", nullptr), "tensor");
  fails(shard_checkpoint_slice(nullptr, 0, 0, &slice), "checkpoint");
  fails(shard_checkpoint_slice(sample(), 0, 0, nullptr), "slice");
  fails(shard_checkpoint_read(nullptr, 0, 0, 1, room, 4), "checkpoint");
  fails(shard_checkpoint_read(sample(), 0, 0, 1, nullptr, 4), "buffer");
  fails(shard_checkpoint_verify(nullptr, nullptr), "checkpoint");
  fails(shard_checkpoint_convert(nullptr, "x", nullptr), "checkpoint");
  fails(shard_checkpoint_convert(sample(), nullptr, nullptr), "root");
  fails(shard_checkpoint_export(nullptr, "x", nullptr), "checkpoint");
  fails(shard_checkpoint_export(sample(), nullptr, nullptr), "path");

  using TextCall =
      std::function<shard_error*(const shard_checkpoint*, const char**)>;
  const std::pair<const char*, TextCall> texts[] = {
      {"path", shard_checkpoint_path},
      {"key",
       [](auto* h, auto** t) { return shard_checkpoint_tensor_key(h, 0, t); }},
      {"type",
       [](auto* h, auto** t) { return shard_checkpoint_tensor_type(h, 0, t); }},
      {"optimizer",
       [](auto* h, auto** t) { return shard_checkpoint_group(h, 0, t); }},
      {"", [](auto* h,
              auto** t) { return shard_checkpoint_file(h, 0, t, nullptr); }},
      {"", [](auto* h,
              auto** t) { return shard_checkpoint_scalar(h, 0, t, nullptr); }},
      {"",
       [](auto* h, auto** t) {
         return shard_checkpoint_blob_info(h, 0, t, nullptr, nullptr);
       }},
  };
  for (const auto& [output, text] : texts) {
    const char* out_text = "stale";
    fails(text(nullptr, &out_text), "checkpoint");
    EXPECT_EQ(out_text, nullptr);
    EXPECT_OK(text(sample(), &out_text));
    const char* again = nullptr;
    EXPECT_OK(text(sample(), &again));
    EXPECT_EQ(out_text, again);
    if (*output != '\0') fails(text(sample(), nullptr), output);
  }
  length = 77;
  fails(shard_checkpoint_blob(nullptr, 0, room, 4, &length), "checkpoint");
  EXPECT_EQ(length, 0u);
  fails(shard_checkpoint_blob(sample(), 0, nullptr, 4, &length), "buffer");
  fails(shard_checkpoint_blob(sample(), 0, room, 4, nullptr), "length");
  shard_checkpoint_free(nullptr);
}

}  // namespace
}  // namespace shard_api_testing
