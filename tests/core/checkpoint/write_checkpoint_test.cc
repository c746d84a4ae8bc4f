// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints written from other stores: nothing is lost, however often and
// into however many files they are written, and a failed write leaves nothing
// behind.

#include "core/checkpoint/write_checkpoint.h"

#include <flatbuffers/minireflect.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/manifest/manifest_header.h"
#include "core/checkpoint/safetensors/safetensors_export.h"
#include "core/checkpoint/verify.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/fault_env.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/checkpoint/reflected_manifest_generated.h"
#include "tests/core/checkpoint/sample_checkpoint.h"

namespace shard::testing::write_checkpoint_test {
namespace {

Status WriteTo(const FileStore& from, const std::string& root, int world_size,
               const ConversionOptions& conversion = {}) {
  const WriteCheckpointOptions options = {.conversion = conversion,
                                          .world_size = world_size};
  return WriteCheckpoint(FileEnv::Posix(), from, root, options);
}

class WriteCheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(SampleBuilder().Write(FileEnv::Posix(), folder_ / "sample"));
    sample_ = OpenStore(folder_ / "sample");
    ASSERT_NE(sample_, nullptr);
  }

  TempFolder folder_;
  std::shared_ptr<const FileStore> sample_;
};

TEST_F(WriteCheckpointTest, NothingIsLostInAnyNumberOfFiles) {
  const auto tensors = TensorsOf(*sample_);
  const auto numbers = NumbersOf(*sample_);
  std::shared_ptr<const FileStore> from = sample_;
  for (const int files : {1, 2, 3, 4, 5, 1}) {
    SCOPED_TRACE(files);
    const std::string root =
        folder_ / StrCat("to-", files, "-", from->path().size());
    ASSERT_OK(WriteTo(*from, root, files));
    // Each checkpoint is written from the one before.
    from = OpenStore(root);
    ASSERT_NE(from, nullptr);
    EXPECT_EQ(from->num_files(), static_cast<size_t>(files));
    EXPECT_EQ(TensorsOf(*from), tensors);
    EXPECT_EQ(NumbersOf(*from), numbers);
    EXPECT_EQ(from->manifest()->world_size(), 3) << "blobs are of three ranks";
    EXPECT_OK(VerifyStore(*from, {}));
    uint64_t least = UINT64_MAX;
    uint64_t most = 0;
    for (size_t f = 0; f < from->num_files(); ++f) {
      least = std::min(least, from->file_bytes(f));
      most = std::max(most, from->file_bytes(f));
    }
    EXPECT_LT(most, least + least / 20) << least;
  }
}

// Collects the values of every field of a manifest's schema, by its path, such
// as "tensors.step", and by the key of the tensor that it is in; "" for fields
// outside of tensors. A field that an object does not store is "absent".
class SchemaFields final : public flatbuffers::IterationVisitor {
 public:
  using Values = std::map<std::string, std::vector<std::string>>;

  explicit SchemaFields(const std::string& folder) {
    std::ifstream in(StrCat(folder, "/", kManifestName), std::ios::binary);
    file_.assign(std::istreambuf_iterator<char>(in), {});
    EXPECT_GT(file_.size(), kManifestHeaderBytes);
    flatbuffers::IterateFlatBuffer(
        reinterpret_cast<const uint8_t*>(file_.data()) + kManifestHeaderBytes,
        reflected_schema::ManifestTypeTable(), this);
  }

  const std::map<std::string, Values>& values() const { return values_; }

  void StartSequence() override {
    // Tensors are counted by their keys.
    if (!field_.empty() && field_ != kTensors) Add("an object");
    tables_.push_back(field_);
  }
  void EndSequence() override {
    field_ = tables_.back();
    tables_.pop_back();
    if (field_ == kTensors) key_.clear();
  }
  void Field(size_t, size_t, flatbuffers::ElementaryType, bool,
             const flatbuffers::TypeTable*, const char* name,
             const uint8_t* value) override {
    const std::string& table = tables_.back();
    field_ = table.empty() ? name : StrCat(table, ".", name);
    if (value == nullptr) Add("absent");
  }
  void UType(uint8_t value, const char*) override { Add(value); }
  void Bool(bool value) override { Add(value); }
  void Char(int8_t value, const char*) override { Add(value); }
  void UChar(uint8_t value, const char*) override { Add(value); }
  void Short(int16_t value, const char*) override { Add(value); }
  void UShort(uint16_t value, const char*) override { Add(value); }
  void Int(int32_t value, const char*) override { Add(value); }
  void UInt(uint32_t value, const char*) override { Add(value); }
  void Long(int64_t value) override { Add(value); }
  void ULong(uint64_t value) override { Add(value); }
  void Float(float value) override { Add(value); }
  void Double(double value) override { Add(value); }
  void String(const flatbuffers::String* value) override {
    // The key is the first field of its table.
    if (field_ == StrCat(kTensors, ".key")) key_ = value->str();
    Add(value->str());
  }

 private:
  static constexpr std::string_view kTensors = "tensors";

  template <typename T>
  void Add(const T& value) {
    values_[field_][key_].push_back(StrCat(value));
  }

  std::string file_;
  std::vector<std::string> tables_;  // Paths of the objects around.
  std::string field_;
  std::string key_;  // The key of the tensor around; "" outside.
  std::map<std::string, Values> values_;
};

// A field that is added to the schema fails this test until the sample has a
// value of it and a reshard keeps that value, with its own tensor.
TEST_F(WriteCheckpointTest, EveryFieldOfTheSchemaSurvives) {
  // The fields that say where data lies, and who wrote the file.
  const std::set<std::string> places = {
      "writer",
      "files",
      "files.name",
      "files.bytes",
      "slices",
      "slices.begin",
      "slices.offset",
      "slices.checksum_low",
      "slices.checksum_high",
      "slices.file",
      "slices.reserved",
      "tensors.first_slice",
      "tensors.num_slices",
      "blobs.extent.offset",
      "blobs.extent.file",
  };
  const SchemaFields before(sample_->path());
  for (const auto& [field, values] : before.values()) {
    const bool any =
        std::any_of(values.begin(), values.end(), [](const auto& of_key) {
          return std::any_of(of_key.second.begin(), of_key.second.end(),
                             [](const auto& v) { return v != "absent"; });
        });
    EXPECT_TRUE(any) << field << ": SampleBuilder has no value of this field";
  }
  for (const std::string& place : places) {
    EXPECT_EQ(before.values().count(place), 1u) << place;
  }
  const struct {
    int files;
    ConversionOptions conversion;
    size_t tensors;
  } cases[] = {
      {1, {}, sample_->num_tensors()},
      {3, {}, sample_->num_tensors()},
      // Every tensor that is left has another index.
      {1, {.model = false}, 5},
  };
  for (size_t c = 0; c < std::size(cases); ++c) {
    SCOPED_TRACE(c);
    const std::string root = folder_ / StrCat("fields-", c);
    ASSERT_OK(WriteTo(*sample_, root, cases[c].files, cases[c].conversion));
    const SchemaFields after(OpenStore(root)->path());
    ASSERT_EQ(after.values().count("tensors.key"), 1u);
    EXPECT_EQ(after.values().at("tensors.key").size(), cases[c].tensors);
    EXPECT_EQ(after.values().size(), before.values().size());
    for (const auto& [field, values] : before.values()) {
      if (places.count(field) != 0) continue;
      ASSERT_EQ(after.values().count(field), 1u) << field;
      SchemaFields::Values expected = values;
      const auto& kept = after.values().at("tensors.key");
      std::erase_if(expected, [&kept](const auto& of_key) {
        return !of_key.first.empty() && kept.count(of_key.first) == 0;
      });
      EXPECT_EQ(after.values().at(field), expected) << field;
    }
  }
}

TEST_F(WriteCheckpointTest, CutsQ8AtBlocksOnly) {
  ASSERT_OK(WriteTo(*sample_, folder_ / "three", 3));
  const auto store = OpenStore(folder_ / "three");
  const int64_t found = store->Find("state.layer.weight.exp_avg");
  ASSERT_GE(found, 0);
  const auto tensor = static_cast<size_t>(found);
  EXPECT_EQ(store->num_slices(tensor), 3u);
  for (size_t s = 0; s < store->num_slices(tensor); ++s) {
    EXPECT_EQ(store->slice(tensor, s).begin % kQ8Block, 0);
  }
}

TEST_F(WriteCheckpointTest, TakesAsManyFilesAsThereAre) {
  ASSERT_OK(WriteTo(*sample_, folder_ / "four", 4));
  ASSERT_OK(WriteTo(*OpenStore(folder_ / "four"), folder_ / "again", 0));
  EXPECT_EQ(OpenStore(folder_ / "again")->num_files(), 4u);
}

TEST_F(WriteCheckpointTest, ComesBackFromSafetensors) {
  const ConversionOptions model = {.states = false};
  const ConvertingStore parameters(*sample_, model);
  std::vector<size_t> all(parameters.num_tensors());
  std::iota(all.begin(), all.end(), 0);
  const SafetensorsExportOptions expanded = {.expand_aliases = true};
  ASSERT_OK(ExportSafetensors(FileEnv::Posix(), parameters, all,
                              folder_ / "model.safetensors", expanded));
  const auto file = OpenStore(folder_ / "model.safetensors");
  ASSERT_NE(file, nullptr);
  EXPECT_OK(VerifyStore(*file, {}));
  ASSERT_OK(WriteTo(*file, folder_ / "back", 2));
  const auto back = OpenStore(folder_ / "back");
  ASSERT_NE(back, nullptr);
  EXPECT_EQ(back->manifest()->step(), 0);
  EXPECT_EQ(back->manifest()->world_size(), 2);
  EXPECT_EQ(back->num_tensors(), parameters.num_tensors());
  for (size_t t = 0; t < parameters.num_tensors(); ++t) {
    const TensorInfo info = parameters.tensor(t);
    const int64_t found = back->Find(info.key);
    ASSERT_GE(found, 0) << info.key;
    const auto index = static_cast<size_t>(found);
    EXPECT_EQ(back->tensor(index).type, info.type);
    EXPECT_TRUE(std::ranges::equal(back->tensor(index).shape, info.shape));
    EXPECT_TRUE(BytesOf(*back, index) == BytesOf(parameters, t)) << info.key;
  }
}

// Types that libshard does not read pass through checkpoints of any number of
// files: the safetensors that come back are the same, byte by byte.
TEST_F(WriteCheckpointTest, CarriesOpaqueTypesFromSafetensorsAndBack) {
  const ConversionOptions model = {.states = false};
  const ConvertingStore parameters(*sample_, model);
  const auto write_safetensors = [&](const TensorStore& from,
                                     const std::string& name) {
    std::vector<size_t> all(from.num_tensors());
    std::iota(all.begin(), all.end(), 0);
    const SafetensorsExportOptions expanded = {.expand_aliases = true};
    EXPECT_OK(ExportSafetensors(FileEnv::Posix(), from, all, folder_ / name,
                                expanded));
    return ReadText(folder_ / name);
  };
  const std::string first = write_safetensors(parameters, "0.safetensors");
  for (const char* type : {"C64", "F6_E2M3", "F8_E8M0", "T1"}) {
    EXPECT_NE(first.find(StrCat("\"dtype\":\"", type, "\"")),
              std::string::npos);
  }
  std::shared_ptr<const FileStore> from = OpenStore(folder_ / "0.safetensors");
  for (const int files : {5, 1, 2, 7}) {
    if (kSanitized && files != 5) break;
    SCOPED_TRACE(files);
    const std::string root = folder_ / StrCat("of-", files);
    ASSERT_OK(WriteTo(*from, root, files));
    from = OpenStore(root);
    EXPECT_EQ(from->num_files(), static_cast<size_t>(files));
    EXPECT_OK(VerifyStore(*from, {}));
    EXPECT_TRUE(write_safetensors(*from, StrCat(files, ".safetensors")) ==
                first);
  }
}

// Values are not converted with those of the other tensors.
TEST_F(WriteCheckpointTest, ConversionsLeaveOpaqueTypesAlone) {
  ASSERT_OK(WriteTo(*sample_, folder_ / "half", 3, {.dtype = DType::kBF16}));
  const auto half = OpenStore(folder_ / "half");
  const auto before = TensorsOf(*sample_);
  const auto after = TensorsOf(*half);
  for (const char* key :
       {"phase", "phase.tied", "of tomorrow", "packed", "no bytes"}) {
    EXPECT_EQ(after.at(key), before.at(key));
  }
}

// A manifest without such tensors is of version 1, as before there were any.
TEST_F(WriteCheckpointTest, OnlyOpaqueTypesNeedANewVersion) {
  EXPECT_EQ(sample_->manifest()->version(), 3u);
  ASSERT_OK(WriteTo(*sample_, folder_ / "states", 1, {.model = false}));
  EXPECT_EQ(OpenStore(folder_ / "states")->manifest()->version(), 1u);
}

TEST_F(WriteCheckpointTest, CutsOpaqueTypesAtWholeElements) {
  ASSERT_OK(WriteTo(*sample_, folder_ / "three", 3));
  const auto store = OpenStore(folder_ / "three");
  const auto tensor = static_cast<size_t>(store->Find("phase"));
  ASSERT_EQ(store->num_slices(tensor), 3u);
  int64_t bytes = 0;
  for (size_t s = 0; s < store->num_slices(tensor); ++s) {
    EXPECT_EQ(store->slice(tensor, s).begin, bytes);
    EXPECT_EQ(bytes % 8, 0);
    bytes += store->slice(tensor, s).numel;
  }
  EXPECT_EQ(bytes, 301 * 41 * 8);
}

TEST_F(WriteCheckpointTest, OpaqueValuesAreNotRead) {
  const auto tensor = static_cast<size_t>(sample_->Find("phase"));
  const auto never = [](size_t, int64_t, int64_t, const std::byte*) {
    ADD_FAILURE() << "nothing is to be read";
    return Status();
  };
  const auto read = [&](int64_t begin, int64_t numel, bool as_bytes) {
    const ReadRequest request = {tensor, begin, numel};
    const ReadOptions options = {.opaque_as_bytes = as_bytes};
    return sample_->Read({&request, 1}, options, never);
  };
  ExpectError(read(0, 1, false), StatusCode::kUnimplemented,
              {"'phase'", "sample", "C64", "shard_checkpoint_export"});
  constexpr int64_t kBytes = 301 * 41 * 8;
  EXPECT_OK(read(kBytes, 0, true));
  ExpectError(read(kBytes, 1, true), StatusCode::kOutOfRange,
              {"bytes 98728", "'phase'", "has 98728"});
  ExpectError(read(-1, 1, true), StatusCode::kOutOfRange, {"bytes -1"});
}

TEST_F(WriteCheckpointTest, ConvertsOnTheWay) {
  const ConversionOptions conversion = {.dtype = DType::kF64};
  const ConvertingStore wanted(*sample_, conversion);
  ASSERT_OK(WriteTo(*sample_, folder_ / "wide", 3, conversion));
  const auto wide = OpenStore(folder_ / "wide");
  ASSERT_NE(wide, nullptr);
  EXPECT_EQ(TensorsOf(*wide), TensorsOf(wanted));
  EXPECT_EQ(wide->Find("state.layer.weight.exp_avg.q8_scale"), -1);
  EXPECT_OK(VerifyStore(*wide, {}));
}

TEST_F(WriteCheckpointTest, RefusesWrongOptions) {
  ExpectError(WriteTo(*sample_, folder_ / "x", -1),
              StatusCode::kInvalidArgument, {"world_size is -1"});
  ExpectError(WriteTo(*sample_, folder_ / "x", kMaxWrittenFiles + 1),
              StatusCode::kInvalidArgument, {"world_size is 4097"});
  ConversionOptions model;
  model.states = false;
  ASSERT_OK(WriteTo(*sample_, folder_ / "model", 1, model));
  const ConversionOptions states = {.model = false};
  ExpectError(WriteTo(*OpenStore(folder_ / "model"), folder_ / "x", 1, states),
              StatusCode::kInvalidArgument, {"none of the content"});
  EXPECT_EQ(NamesIn(folder_.path()),
            (std::set<std::string>{"sample", "model"}));
  ExpectError(WriteTo(*sample_, folder_ / "sample", 2),
              StatusCode::kAlreadyExists, {"step-000042"});
}

// Safetensors may have more dimensions than a checkpoint.
TEST_F(WriteCheckpointTest, TooManyDimensionsAreNamed) {
  const std::string header =
      R"({"x":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})";
  std::string size(8, '\0');
  size[0] = static_cast<char>(header.size());
  WriteText(folder_ / "nine.safetensors", size + header + "1");
  const auto nine = OpenStore(folder_ / "nine.safetensors");
  ASSERT_NE(nine, nullptr);
  ExpectInvalid(
      WriteTo(*nine, folder_ / "x", 1),
      {"tensor 'x' of", "nine.safetensors", "has 9 dimensions", "at most 8"});
}

TEST_F(WriteCheckpointTest, DamageIsNotCopied) {
  const std::string data = folder_ / "sample/step-000042/data-00000.bin";
  std::string bytes = ReadText(data);
  bytes[100] ^= 1;
  WriteText(data, bytes);
  ExpectError(WriteTo(*sample_, folder_ / "to", 2), StatusCode::kCorrupt,
              {"tensor 'embed' is damaged"});
  EXPECT_FALSE(NamesIn(folder_.path()).contains("to"));
}

TEST_F(WriteCheckpointTest, ProgressCountsAndCancels) {
  WriteCheckpointOptions options;
  options.world_size = 2;
  uint64_t last = 0;
  uint64_t all = 0;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_GE(done, last);
    last = done;
    all = total;
    return true;
  };
  ASSERT_OK(
      WriteCheckpoint(FileEnv::Posix(), *sample_, folder_ / "a", options));
  const auto written = OpenStore(folder_ / "a");
  EXPECT_EQ(all, written->file_bytes(0) + written->file_bytes(1));
  EXPECT_EQ(last, all);
  options.progress = [](uint64_t, uint64_t) { return false; };
  ExpectError(
      WriteCheckpoint(FileEnv::Posix(), *sample_, folder_ / "b", options),
      StatusCode::kCancelled, {"cancelled"});
  EXPECT_FALSE(NamesIn(folder_.path()).contains("b"));
}

// Small slices reach from one chunk of the writer into the next.
TEST_F(WriteCheckpointTest, WritesManySmallTensors) {
  CheckpointBuilder many;
  for (int i = 0; i < (kSanitized ? 500 : 3000); ++i) {
    many.Add(StrCat("t", i), ElementType::kF32, TensorRole::kParam, {745});
  }
  ASSERT_OK(many.Write(FileEnv::Posix(), folder_ / "many"));
  const auto from = OpenStore(folder_ / "many");
  for (const int files : {1, 3}) {
    const std::string root = folder_ / StrCat("to-", files);
    ASSERT_OK(WriteTo(*from, root, files));
    EXPECT_OK(VerifyStore(*OpenStore(root), {}));
    EXPECT_EQ(TensorsOf(*OpenStore(root)), TensorsOf(*from));
  }
}

// Each system call fails once: the old checkpoint or the new one is whole, and
// no file stays open.
TEST_F(WriteCheckpointTest, AFailedCallLeavesTheOldOneWhole) {
  const std::string root = folder_ / "root";
  CheckpointBuilder old;
  old.Add("old", ElementType::kF32, TensorRole::kParam, {3000});
  ASSERT_OK(old.Write(FileEnv::Posix(), folder_ / "old"));
  const auto before = OpenStore(folder_ / "old");
  CheckpointBuilder fresh;
  fresh.contents().world_size = 2;
  fresh.Add("weight", ElementType::kF32, TensorRole::kParam, {5000});
  fresh.AddBlob("loader", BlobRule::kPerRank, 1, "here");
  ASSERT_OK(fresh.Write(FileEnv::Posix(), folder_ / "fresh"));
  int failed = 0;
  bool done = false;
  // Under a sanitizer, every third call fails.
  const int64_t stride = kSanitized ? 3 : 1;
  for (int64_t k = 0; !done; k += stride) {
    SCOPED_TRACE(k);
    WriteCheckpointOptions options;
    options.world_size = 2;
    options.overwrite = true;  // Both checkpoints are of the same step.
    options.threads = 1;
    ASSERT_OK(WriteCheckpoint(FileEnv::Posix(), *before, root, options));
    FaultEnv env;
    auto from = OpenTensorStore(&env, folder_ / "fresh");
    ASSERT_OK(from.status());
    env.Set({.at = k});
    const Status status = WriteCheckpoint(&env, *from->store, root, options);
    done = env.faults() == 0;
    env.Set({});
    EXPECT_TRUE(!done || status.ok()) << status.ToString();
    failed += status.ok() ? 0 : 1;
    const auto found = OpenStore(root);
    ASSERT_NE(found, nullptr);
    EXPECT_OK(VerifyStore(*found, {}));
    const bool replaced = found->Find("weight") >= 0;
    EXPECT_TRUE(replaced || !status.ok());
    EXPECT_EQ(TensorsOf(*found), TensorsOf(replaced ? *from->store : *before));
    from->store = nullptr;
    EXPECT_EQ(env.open_descriptors(), 0);
    EXPECT_EQ(env.wrong_closes(), 0);
  }
  EXPECT_GT(failed, 20 / stride);
}

}  // namespace
}  // namespace shard::testing::write_checkpoint_test
