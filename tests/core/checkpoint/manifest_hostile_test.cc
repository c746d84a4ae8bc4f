// SPDX-License-Identifier: Apache-2.0
//
// Files made to harm. For any contents, Parse takes memory of at most the
// file's size, a third more and 16 MiB, and time in proportion to the size. A
// file of the wrong size is not even read. With SHARD_TEST_LONG, files of
// version 2 are nearly the largest, too.

#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <new>

#include "core/base/strings.h"
#include "core/checkpoint/open_store.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/checkpoint/raw_manifest.h"
#include "tests/core/checkpoint/read_manifest.h"

namespace {

std::atomic<size_t> live{0};
std::atomic<size_t> peak{0};

}  // namespace

void* operator new(size_t bytes) {
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  const size_t now = live += malloc_usable_size(memory);
  size_t old = peak;
  while (now > old && !peak.compare_exchange_weak(old, now)) {
  }
  return memory;
}

void operator delete(void* memory) noexcept {
  live -= malloc_usable_size(memory);
  std::free(memory);
}

void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace shard {
namespace {

using Builder = flatbuffers::FlatBufferBuilder;
template <typename T>
using Offsets = std::vector<flatbuffers::Offset<T>>;

constexpr size_t kMiB = size_t{1} << 20;

// Takes the version of the files as its parameter.
class HostileManifest : public ::testing::TestWithParam<uint32_t> {
 protected:
  static uint32_t version() { return GetParam(); }
  static bool is_long() { return std::getenv("SHARD_TEST_LONG") != nullptr; }
  // Returns the bytes of a file. In version 1 the file is nearly the largest,
  // so that time and memory show; in version 2 it is larger than version 1
  // allows.
  static size_t most() {
    if (version() == 1) return 60 * kMiB;
    return is_long() ? 960 * kMiB : 72 * kMiB;
  }
  // Returns nearly as many tensors as the version allows.
  static size_t most_tensors() {
    return LimitsOf(version()).tensors / (version() == 1 || is_long() ? 1 : 7);
  }
};

INSTANTIATE_TEST_SUITE_P(Version, HostileManifest, ::testing::Values(1, 2),
                         ::testing::PrintToStringParamName());

StatusOr<std::shared_ptr<const Manifest>> ParseWithinLimits(
    const std::vector<std::byte>& file) {
  const size_t before = live;
  peak = before;
  const auto start = std::chrono::steady_clock::now();
  auto parsed = Manifest::Parse(file);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  const double mib = static_cast<double>(file.size()) / kMiB;
  const double extra =
      (static_cast<double>(peak - before) - static_cast<double>(file.size())) /
      kMiB;
  std::cout << ::testing::UnitTest::GetInstance()->current_test_info()->name()
            << ": " << mib << " MiB, " << seconds << " s, " << extra
            << " MiB more, "
            << (parsed.ok() ? "accepted" : parsed.status().message()) << "\n";
  EXPECT_LE(extra, 16 + mib / 3);
  EXPECT_LT(seconds, 1 + mib);
  return parsed;
}

TEST_P(HostileManifest, TheCounterCounts) {
  const size_t before = live;
  const std::vector<std::byte> memory(kMiB);
  EXPECT_GE(live - before, kMiB);
}

TEST_P(HostileManifest, OneTableSharedByMillions) {
  Builder fbb;
  const auto name = fbb.CreateString("a");
  const auto tensor = schema::CreateTensor(
      fbb, name, 0, schema::ElementType::f32, schema::TensorRole::param);
  const auto list =
      fbb.CreateVector(Offsets<schema::Tensor>(most() / 4, tensor));
  const auto file =
      Finish(&fbb, schema::CreateManifest(fbb, 0, 0, 1, 0, list), version());
  EXPECT_FALSE(ParseWithinLimits(file).ok());
}

// The string has half of the file, and the other half has as many tables that
// share it as the verifier accepts.
TEST_P(HostileManifest, OneStringSharedByMillions) {
  Builder fbb;
  const auto name = fbb.CreateString(std::string(most() / 2, 'x'));
  Offsets<schema::Group> groups;
  for (size_t i = 0; i < most() / 2 / 12; ++i) {
    groups.push_back(schema::CreateGroup(fbb, name));
  }
  const auto list = fbb.CreateVector(groups);
  const auto file = Finish(
      &fbb, schema::CreateManifest(fbb, 0, 0, 1, 0, 0, 0, list), version());
  EXPECT_FALSE(ParseWithinLimits(file).ok());
}

// Returns a file of correct tensors of few bytes each.
std::vector<std::byte> OfTensors(size_t count, const std::string& prefix,
                                 uint32_t version) {
  Builder fbb;
  Offsets<schema::Tensor> tensors;
  const std::vector<int64_t> shape = {0};
  for (size_t i = 0; i < count; ++i) {
    const auto key = fbb.CreateString(prefix + StrCat(i));
    const auto dims = fbb.CreateVector(shape);
    tensors.push_back(schema::CreateTensor(
        fbb, key, dims, schema::ElementType::i8, schema::TensorRole::buffer));
  }
  const auto list = fbb.CreateVector(tensors);
  return Finish(&fbb, schema::CreateManifest(fbb, 0, 0, 1, 0, list), version);
}

TEST_P(HostileManifest, TooManyTensors) {
  if (version() != 1 && !is_long()) {
    GTEST_SKIP() << "2^23 tensors take a GiB: SHARD_TEST_LONG";
  }
  const size_t count = LimitsOf(version()).tensors + 1;
  ExpectError(ParseWithinLimits(OfTensors(count, "", version())),
              StatusCode::kCorrupt, {StrCat(count, " tensors")});
}

// The file is accepted, so that everything is checked and the index is the
// largest.
TEST_P(HostileManifest, MostTensors) {
  EXPECT_OK(ParseWithinLimits(OfTensors(most_tensors(), "", version())));
}

TEST_P(HostileManifest, LongKeysThatDifferAtTheirEnds) {
  EXPECT_OK(ParseWithinLimits(
      OfTensors(most() / 65000, std::string(64900, 'k'), version())));
}

TEST(HostileOpaqueTensors, ALongNameOfAType) {
  RawManifest raw = RawManifest::OpaqueSample();
  raw.tensors[6].opaque_type = std::string(60 * kMiB, 'T');
  ExpectError(ParseWithinLimits(raw.Build(3)), StatusCode::kCorrupt,
              {"opaque_type"});
}

TEST(HostileOpaqueTensors, AreCheckedInTime) {
  RawManifest raw = RawManifest::OpaqueSample();
  constexpr size_t kMany = 400'000;
  for (size_t i = 0; i < kMany; ++i) {
    raw.tensors.push_back({.key = StrCat("k", i),
                           .shape = {1, 1, 1, 1, 1, 1, 1, 0},
                           .type = 32,
                           .opaque_type = std::string(32, 'T')});
  }
  EXPECT_OK(ParseWithinLimits(raw.Build(3)));
}

// All slices have the same place, or they are in reverse order, so that a sort
// has all its work to do.
TEST_P(HostileManifest, MostSlices) {
  for (const bool valid : {true, false}) {
    const auto count = static_cast<int64_t>(most() / sizeof(schema::Slice));
    Builder fbb;
    const auto key = fbb.CreateString("k");
    const auto shape = fbb.CreateVector(std::vector<int64_t>{count});
    const auto tensor = schema::CreateTensor(
        fbb, key, shape, schema::ElementType::i8, schema::TensorRole::buffer, 0,
        static_cast<uint32_t>(count));
    const auto tensors = fbb.CreateVector(Offsets<schema::Tensor>{tensor});
    const auto bytes = (static_cast<uint64_t>(count) * 64 + 4095) / 4096 * 4096;
    const auto name = fbb.CreateString("f");
    const auto files = fbb.CreateVector(
        Offsets<schema::File>{schema::CreateFile(fbb, name, bytes)});
    std::vector<schema::Slice> slices;
    for (int64_t i = 0; i < count; ++i) {
      slices.emplace_back(
          i, valid ? static_cast<uint64_t>(count - 1 - i) * 64 : 0, 0, 0, 0, 0);
    }
    const auto list = fbb.CreateVectorOfStructs(slices);
    const auto file =
        Finish(&fbb, schema::CreateManifest(fbb, 0, 0, 1, files, tensors, list),
               version());
    EXPECT_EQ(ParseWithinLimits(file).ok(), valid);
  }
}

// Long names that differ at their ends make sorting expensive.
TEST_P(HostileManifest, LongNamesOfBlobs) {
  RawManifest raw = RawManifest::Sample();
  for (size_t i = 0; i < most() / 65000; ++i) {
    raw.blobs.push_back(
        {std::string(64900, 'n') + StrCat(1000000 - i), 1, 0, 0, 0, 0});
  }
  EXPECT_OK(ParseWithinLimits(raw.Build(version())));
}

TEST_P(HostileManifest, MostBlobs) {
  RawManifest raw = RawManifest::Sample();
  for (size_t i = 0; i < most() / 100; ++i) {
    raw.blobs.push_back({StrCat("b", 1000000 - i), 1, 0, 0, 0, 0});
  }
  EXPECT_OK(ParseWithinLimits(raw.Build(version())));
}

TEST_P(HostileManifest, MostFiles) {
  RawManifest raw = RawManifest::Sample();
  for (size_t i = 0; i < most() / 40; ++i) {
    raw.files.push_back({StrCat(10000000 - i), 0});
  }
  EXPECT_OK(ParseWithinLimits(raw.Build(version())));
}

TEST_P(HostileManifest, LengthsOfFourGigabytes) {
  for (const uint8_t fill : {0x00, 0x7F, 0x80, 0xFF}) {
    std::vector<std::byte> body(most(), std::byte{fill});
    EXPECT_FALSE(ParseWithinLimits(Seal(body, version())).ok());
  }
}

TEST_P(HostileManifest, OneByteTooMany) {
  if (version() != 1 && !is_long()) {
    GTEST_SKIP() << "the file has a GiB: SHARD_TEST_LONG";
  }
  const uint64_t limit = LimitsOf(version()).bytes;
  std::vector<std::byte> body(limit + 1 - kManifestHeaderBytes);
  ExpectError(ParseWithinLimits(Seal(body, version())), StatusCode::kCorrupt,
              {StrCat(limit + 1, " bytes"), StrCat("at most ", limit, " are")});
}

// The files have a header and no contents; bytes behind the header are not
// read.
TEST_P(HostileManifest, OpeningReadsNoMoreThanTheHeader) {
  std::vector<std::byte> header = Seal({}, version());
  std::vector<std::byte> other = header;
  other[0] = std::byte{'l'};
  std::vector<std::byte> newer = header;
  newer[8] = std::byte{kManifestVersion + 1};
  newer[12] = ~newer[8];
  const uint64_t limit = LimitsOf(version()).bytes;
  const testing::TempFolder folder(testing::kMemoryFolder);
  const std::string path = folder / kManifestName;
  const auto expect = [&](const std::vector<std::byte>& begin, uint64_t bytes,
                          StatusCode code, const std::string& message) {
    testing::WriteText(
        path, {reinterpret_cast<const char*>(begin.data()), begin.size()});
    std::filesystem::resize_file(path, bytes);
    const size_t before = live;
    peak = before;
    ExpectError(OpenTensorStore(FileEnv::Posix(), folder.path()), code,
                {path, message});
    EXPECT_LT(peak - before, kMiB);
  };
  expect(header, limit, StatusCode::kCorrupt, "says that 0 bytes follow");
  expect(header, limit + 1, StatusCode::kCorrupt, "are allowed in version");
  expect(header, uint64_t{1} << 60, StatusCode::kCorrupt, "are allowed in");
  expect(other, limit, StatusCode::kCorrupt, "not a manifest");
  expect({}, limit, StatusCode::kCorrupt, "not a manifest");
  expect(newer, uint64_t{1} << 40, StatusCode::kUnimplemented, "newer one");
  expect(header, 39, StatusCode::kCorrupt, "less than its header");
  expect(header, 3, StatusCode::kCorrupt, "less than its header");
}

}  // namespace
}  // namespace shard
