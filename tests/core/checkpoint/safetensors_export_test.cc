// SPDX-License-Identifier: Apache-2.0
//
// The export of tensors of any store as safetensors.

#include "core/checkpoint/safetensors/safetensors_export.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/checkpoint/store/converting_store.h"
#include "core/checkpoint/verify.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/checkpoint/allocation_meter.h"
#include "tests/core/checkpoint/safetensors_files.h"

namespace shard::safetensors_export_test {

namespace {

using testing::Bytes;
using testing::CreateWriter;
using testing::NamesIn;
using testing::OpenSafetensors;
using testing::ReadTensor;
using testing::TempFolder;

using Names = std::set<std::string>;

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
    const auto store = OpenSafetensors(path);
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
  EXPECT_EQ(ReadTensor(*OpenSafetensors(path), "a"), "\1\1\2\2");
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
TEST(ExportSafetensors, ReadsTheBytesThatItWrote) {
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
  const auto writer = CreateWriter(folder / "m.safetensors", tensors);
  ASSERT_OK(writer);
  for (size_t i = 0; i < tensors.size(); ++i) {
    ASSERT_OK((*writer)->Write(i, 0, Bytes(data[i])));
  }
  ASSERT_OK((*writer)->Finish());
  const auto one = OpenSafetensors((*writer)->path());
  std::vector<size_t> all(tensors.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  const SafetensorsExportOptions options = {.write = {.max_shard_bytes = 300}};
  ASSERT_OK(Export(*one, all, folder / "n.safetensors", options));
  const auto several = OpenSafetensors(folder / "n.safetensors.index.json");
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
  const auto writer = CreateWriter(folder / "m.safetensors", tensors);
  ASSERT_OK(writer);
  for (size_t i = 0; i < tensors.size(); ++i) {
    ASSERT_OK((*writer)->Write(i, 0, Bytes(data[i])));
  }
  ASSERT_OK((*writer)->Finish());
  const auto from = OpenSafetensors(folder / "m.safetensors");
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
  const auto to = OpenSafetensors(folder / "n.safetensors.index.json");
  EXPECT_GT(to->num_files(), 1u);
  for (size_t i = 0; i < 4; ++i) {
    const auto at = static_cast<size_t>(to->Find(tensors[i].key));
    const TensorInfo info = to->tensor(at);
    EXPECT_EQ(info.type, ElementType::kOpaque);
    EXPECT_EQ(info.opaque_type, tensors[i].opaque_type);
    EXPECT_EQ(std::vector<int64_t>(info.shape.begin(), info.shape.end()),
              tensors[i].shape);
    EXPECT_EQ(ReadTensor(*to, tensors[i].key), data[i]);
  }
  EXPECT_EQ(to->tensor(static_cast<size_t>(to->Find("w"))).type,
            ElementType::kBF16);
}

TEST(ExportSafetensors, MemoryDoesNotDependOnTheTensors) {
  const TempFolder folder;
  constexpr int64_t kBytes = int64_t{160} << 20;
  const auto writer = CreateWriter(folder / "m.safetensors",
                                   {{"a", ElementType::kU8, {kBytes}}});
  ASSERT_OK(writer);
  const std::string piece(1 << 20, 'x');
  for (int64_t at = 0; at < kBytes; at += int64_t{1} << 20) {
    ASSERT_OK((*writer)->Write(0, static_cast<uint64_t>(at), Bytes(piece)));
  }
  ASSERT_OK((*writer)->Finish());
  const SafetensorsExportOptions options = {.threads = 100};
  ResetAllocatedPeak();
  const int64_t before = AllocatedBytes();
  const auto store = OpenSafetensors((*writer)->path());
  ASSERT_OK(Export(*store, {0}, folder / "n.safetensors", options));
  EXPECT_LE(AllocatedPeak() - before, int64_t{64} << 20);
  EXPECT_GT(AllocatedPeak() - before, int64_t{1} << 20);
}

}  // namespace

}  // namespace shard::safetensors_export_test
