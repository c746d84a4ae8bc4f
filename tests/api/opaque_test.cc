// SPDX-License-Identifier: Apache-2.0
//
// Tensors of types that libshard does not read pass through every path from
// safetensors to safetensors, byte by byte, and are in nobody's way.

#include <cstdint>
#include <string>
#include <vector>

#include "tests/api/api_testing.h"
#include "tests/core/base/temp_folder.h"

namespace shard_api_testing::opaque_test {
namespace {

using shard::testing::ReadText;
using shard::testing::TempFolder;
using shard::testing::WriteText;

struct Entry {
  const char* key;
  const char* type;  // As in the file.
  std::vector<int64_t> shape;
  uint64_t bytes;
};

const std::vector<Entry>& Entries() {
  static const std::vector<Entry> entries = {
      {"complex", "C64", {1001, 3}, 24024},
      {"exponents", "F8_E8M0", {9000}, 9000},
      {"signs", "F8_E4M3FNUZ", {2, 2}, 4},
      {"scalar", "F8_E5M2FNUZ", {}, 1},
      {"none", "C64", {0, 5}, 0},
      {"tomorrow", "INT3", {100, 100}, 3751},
      {"w", "F32", {4}, 16},
  };
  return entries;
}

Checkpoint Open(const std::string& path) {
  shard_checkpoint* checkpoint = nullptr;
  EXPECT_OK(shard_checkpoint_open(path.c_str(), &checkpoint));
  return Checkpoint(checkpoint);
}

int64_t Find(const Checkpoint& checkpoint, const char* key) {
  int64_t tensor = -1;
  EXPECT_OK(shard_checkpoint_find(checkpoint.get(), key, &tensor));
  return tensor;
}

shard_tensor_info InfoOf(const Checkpoint& checkpoint, const char* key) {
  shard_tensor_info info = SHARD_TENSOR_INFO_INIT;
  EXPECT_OK(
      shard_checkpoint_tensor(checkpoint.get(), Find(checkpoint, key), &info));
  return info;
}

class OpaqueTest : public ::testing::Test {
 protected:
  // Writes the entries as another program would, and exports the file, so that
  // the tensors are in the order of exports.
  void SetUp() override {
    std::string json = "{";
    std::string data;
    for (const Entry& entry : Entries()) {
      std::string shape;
      for (const int64_t dim : entry.shape) {
        shape += (shape.empty() ? "" : ",") + std::to_string(dim);
      }
      json += (json.size() > 1 ? ",\"" : "\"") + std::string(entry.key) +
              R"(":{"dtype":")" + entry.type + R"(","shape":[)" + shape +
              R"(],"data_offsets":[)" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + entry.bytes) + "]}";
      for (uint64_t i = 0; i < entry.bytes; ++i) {
        data.push_back(static_cast<char>(data.size() * 2654435761u >> 13));
      }
    }
    json += "}";
    std::string file(8, '\0');
    file[0] = static_cast<char>(json.size() & 0xff);
    file[1] = static_cast<char>(json.size() >> 8);
    WriteText(folder_ / "other.safetensors", file + json + data);
    original_ = Export("other.safetensors", "original.safetensors");
    ASSERT_GT(original_.size(), data.size());
  }

  // Returns the bytes of the new file.
  std::string Export(const std::string& from, const std::string& to) {
    const std::string path = folder_ / to;
    EXPECT_OK(shard_checkpoint_export(Open(folder_ / from).get(), path.c_str(),
                                      nullptr));
    return ReadText(path);
  }

  // Writes a checkpoint.
  void Convert(const std::string& from, const std::string& to, int32_t ranks) {
    shard_convert_options options = SHARD_CONVERT_OPTIONS_INIT;
    options.world_size = ranks;
    options.dtype = SHARD_F32;  // Concerns none of these types.
    EXPECT_OK(shard_checkpoint_convert(Open(folder_ / from).get(),
                                       (folder_ / to).c_str(), &options));
  }

  TempFolder folder_;
  std::string original_;
};

TEST_F(OpaqueTest, PassesThroughEveryPath) {
  std::string from = "original.safetensors";
  for (const int32_t ranks : {3, 1, 4, 2}) {
    SCOPED_TRACE(ranks);
    const std::string to = "of-" + std::to_string(ranks);
    Convert(from, to, ranks);
    const Checkpoint checkpoint = Open(folder_ / to);
    EXPECT_OK(shard_checkpoint_verify(checkpoint.get(), nullptr));
    EXPECT_TRUE(Export(to, to + ".safetensors") == original_);
    from = to;
  }
  // Several files, and back.
  shard_convert_options several = SHARD_CONVERT_OPTIONS_INIT;
  several.max_shard_bytes = 10000;
  EXPECT_OK(shard_checkpoint_export(Open(folder_ / from).get(),
                                    (folder_ / "m.safetensors").c_str(),
                                    &several));
  Convert("m.safetensors.index.json", "again", 5);
  EXPECT_TRUE(Export("again", "last.safetensors") == original_);
}

TEST_F(OpaqueTest, HasItsNameShapeAndSizeInEitherFormat) {
  Convert("original.safetensors", "ckpt", 3);
  for (const char* path : {"original.safetensors", "ckpt"}) {
    SCOPED_TRACE(path);
    const Checkpoint checkpoint = Open(folder_ / path);
    for (const Entry& entry : Entries()) {
      SCOPED_TRACE(entry.key);
      const shard_tensor_info info = InfoOf(checkpoint, entry.key);
      const int64_t tensor = Find(checkpoint, entry.key);
      EXPECT_EQ(info.bytes, entry.bytes);
      EXPECT_EQ(std::vector<int64_t>(info.shape, info.shape + info.ndim),
                entry.shape);
      int64_t numel = 1;
      for (const int64_t dim : entry.shape) numel *= dim;
      EXPECT_EQ(info.numel, numel);
      if (std::string(entry.key) == "w") continue;
      EXPECT_EQ(info.dtype, SHARD_OPAQUE);
      EXPECT_EQ(TextOf(shard_checkpoint_tensor_type, checkpoint.get(), tensor),
                entry.type);
      uint64_t next = 0;
      for (int32_t s = 0; s < info.num_slices; ++s) {
        shard_tensor_slice slice = SHARD_TENSOR_SLICE_INIT;
        EXPECT_OK(shard_checkpoint_slice(checkpoint.get(), tensor, s, &slice));
        EXPECT_EQ(slice.begin, static_cast<int64_t>(next));
        EXPECT_EQ(slice.numel, static_cast<int64_t>(slice.bytes));
        next += slice.bytes;
      }
      EXPECT_EQ(next, entry.bytes);
    }
  }
}

TEST_F(OpaqueTest, IsReadAsBytes) {
  Convert("original.safetensors", "ckpt", 3);
  for (const char* path : {"original.safetensors", "ckpt"}) {
    SCOPED_TRACE(path);
    const Checkpoint checkpoint = Open(folder_ / path);
    const int64_t tensor = Find(checkpoint, "complex");
    const auto read = [&](int64_t begin, int64_t numel, std::string* bytes) {
      return shard_checkpoint_read(checkpoint.get(), tensor, begin, numel,
                                   bytes->data(), bytes->size());
    };
    std::string whole(24024, '\0');
    ASSERT_OK(read(0, 24024, &whole));
    EXPECT_NE(original_.find(whole), std::string::npos);
    std::string part(1000, '\0');
    ASSERT_OK(read(8005, 1000, &part));  // Parts of two slices.
    EXPECT_EQ(part, whole.substr(8005, 1000));
    EXPECT_FAILS(read(23025, 1000, &part), SHARD_OUT_OF_RANGE, "bytes 23025",
                 "'complex'", "24024");
    EXPECT_FAILS(read(0, 125, &part), SHARD_INVALID_ARGUMENT, "bytes is 1000",
                 "125");
  }
}

TEST_F(OpaqueTest, DamageIsFoundAndNotCopied) {
  Convert("original.safetensors", "ckpt", 2);
  const Checkpoint checkpoint = Open(folder_ / "ckpt");
  shard_tensor_slice slice = SHARD_TENSOR_SLICE_INIT;
  ASSERT_OK(shard_checkpoint_slice(checkpoint.get(),
                                   Find(checkpoint, "complex"), 1, &slice));
  const std::string file = folder_ / "ckpt/step-000000/data-00001.bin";
  std::string bytes = ReadText(file);
  bytes[slice.offset + 5] ^= 1;
  WriteText(file, bytes);
  EXPECT_FAILS(shard_checkpoint_verify(checkpoint.get(), nullptr),
               SHARD_CORRUPT, "'complex'", "data-00001.bin");
  EXPECT_FAILS(shard_checkpoint_convert(checkpoint.get(),
                                        (folder_ / "to").c_str(), nullptr),
               SHARD_CORRUPT, "'complex'");
  EXPECT_FAILS(
      shard_checkpoint_export(checkpoint.get(),
                              (folder_ / "to.safetensors").c_str(), nullptr),
      SHARD_CORRUPT, "'complex'");
}

// A load reads the others, as an engine has no parameters of such types.
TEST_F(OpaqueTest, IsAnUnexpectedTensorOfALoad) {
  Convert("original.safetensors", "ckpt", 2);
  const Comm comm = OpenLocal();
  const auto load = [&](const char* name, const std::vector<int64_t>& shape,
                        const std::string& path, bool allow_mismatch) {
    const Model model = EmptyModel();
    const int32_t param = AddParam(model.get(), name, shape);
    const Engine engine =
        MakeEngine(MakePlan(model.get(), PlanOptions(1)).get(), comm.get());
    shard_load_options options = SHARD_LOAD_OPTIONS_INIT;
    options.filter.content = SHARD_CONTENT_MODEL;
    options.allow_mismatch = allow_mismatch ? 1 : 0;
    shard_load_report report = SHARD_LOAD_REPORT_INIT;
    const Outcome outcome = Take(
        shard_checkpoint_load(engine.get(), path.c_str(), &options, &report));
    if (outcome.code == SHARD_OK) {
      EXPECT_EQ(report.loaded, 1);
      EXPECT_EQ(report.unexpected, 6);
      const void* data = nullptr;
      int64_t numel = 0;
      EXPECT_OK(shard_engine_param(engine.get(), param, &data, &numel));
      const std::string values(static_cast<const char*>(data), 16);
      EXPECT_NE(original_.find(values), std::string::npos);
    }
    return outcome;
  };
  for (const char* name : {"original.safetensors", "ckpt"}) {
    SCOPED_TRACE(name);
    const std::string path = folder_ / name;
    ExpectError(load("w", {4}, path, false), SHARD_FAILED_PRECONDITION,
                {"6 unexpected", "complex", "allow_mismatch"});
    ExpectError(load("w", {4}, path, true), SHARD_OK, {});
    ExpectError(load("signs", {2, 2}, path, true), SHARD_UNIMPLEMENTED,
                {"'signs' is F8_E4M3FNUZ"});
  }
}

}  // namespace
}  // namespace shard_api_testing::opaque_test
