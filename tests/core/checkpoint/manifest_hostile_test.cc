// SPDX-License-Identifier: Apache-2.0
//
// Files made to harm: whatever is in them, Parse takes memory of at most their
// size and 16 MiB, and a time in proportion to their size.

#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <new>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
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

// Nearly the largest file of version 1, where time and memory show.
constexpr size_t kMost = 60 * kMiB;

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
  std::cout << testing::UnitTest::GetInstance()->current_test_info()->name()
            << ": " << mib << " MiB, " << seconds << " s, " << extra
            << " MiB more, "
            << (parsed.ok() ? "accepted" : parsed.status().message()) << "\n";
  EXPECT_LE(file.size(), LimitsOf(1).bytes + 1);
  EXPECT_LE(extra, 16);
  EXPECT_LT(seconds, 1 + mib);
  return parsed;
}

TEST(HostileManifest, TheCounterCounts) {
  const size_t before = live;
  const std::vector<std::byte> memory(kMiB);
  EXPECT_GE(live - before, kMiB);
}

TEST(HostileManifest, OneTableSharedByMillions) {
  Builder fbb;
  const auto name = fbb.CreateString("a");
  const auto tensor = schema::CreateTensor(
      fbb, name, 0, schema::ElementType::f32, schema::TensorRole::param);
  const auto list =
      fbb.CreateVector(Offsets<schema::Tensor>(kMost / 4, tensor));
  const auto file = Finish(&fbb, schema::CreateManifest(fbb, 0, 0, 1, 0, list));
  EXPECT_FALSE(ParseWithinLimits(file).ok());
}

// As many tables as the verifier accepts, in one string that holds them all.
TEST(HostileManifest, OneStringSharedByMillions) {
  Builder fbb;
  const auto name = fbb.CreateString(std::string(30 * kMiB, 'x'));
  Offsets<schema::Group> groups;
  for (size_t i = 0; i < 30 * kMiB / 12; ++i) {
    groups.push_back(schema::CreateGroup(fbb, name));
  }
  const auto list = fbb.CreateVector(groups);
  const auto file =
      Finish(&fbb, schema::CreateManifest(fbb, 0, 0, 1, 0, 0, 0, list));
  EXPECT_FALSE(ParseWithinLimits(file).ok());
}

// Tensors of few bytes each, with nothing wrong.
std::vector<std::byte> OfTensors(size_t count, const std::string& prefix) {
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
  return Finish(&fbb, schema::CreateManifest(fbb, 0, 0, 1, 0, list));
}

TEST(HostileManifest, TooManyTensors) {
  ExpectError(ParseWithinLimits(OfTensors(LimitsOf(1).tensors + 1, "")),
              StatusCode::kCorrupt, {"1048577 tensors"});
}

// Accepted, so that everything is checked, and the index is the largest.
TEST(HostileManifest, MostTensors) {
  EXPECT_OK(ParseWithinLimits(OfTensors(LimitsOf(1).tensors, "")));
}

TEST(HostileManifest, LongKeysThatDifferAtTheirEnds) {
  EXPECT_OK(
      ParseWithinLimits(OfTensors(kMost / 65000, std::string(64900, 'k'))));
}

// The same place for all, the first last: nothing for the sort to like.
TEST(HostileManifest, MostSlices) {
  for (const bool valid : {true, false}) {
    const auto count = static_cast<int64_t>(kMost / sizeof(schema::Slice));
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
    const auto file = Finish(
        &fbb, schema::CreateManifest(fbb, 0, 0, 1, files, tensors, list));
    EXPECT_EQ(ParseWithinLimits(file).ok(), valid);
  }
}

// Long names that differ at their ends, to be sorted.
TEST(HostileManifest, LongNamesOfBlobs) {
  RawManifest raw = RawManifest::Sample();
  for (size_t i = 0; i < kMost / 65000; ++i) {
    raw.blobs.push_back(
        {std::string(64900, 'n') + StrCat(1000000 - i), 1, 0, 0, 0, 0});
  }
  EXPECT_OK(ParseWithinLimits(raw.Build()));
}

TEST(HostileManifest, MostBlobs) {
  RawManifest raw = RawManifest::Sample();
  for (size_t i = 0; i < kMost / 100; ++i) {
    raw.blobs.push_back({StrCat("b", 1000000 - i), 1, 0, 0, 0, 0});
  }
  EXPECT_OK(ParseWithinLimits(raw.Build()));
}

TEST(HostileManifest, MostFiles) {
  RawManifest raw = RawManifest::Sample();
  for (size_t i = 0; i < kMost / 40; ++i) {
    raw.files.push_back({StrCat(10000000 - i), 0});
  }
  EXPECT_OK(ParseWithinLimits(raw.Build()));
}

TEST(HostileManifest, LengthsOfFourGigabytes) {
  for (const uint8_t fill : {0x00, 0x7F, 0x80, 0xFF}) {
    std::vector<std::byte> body(kMost, std::byte{fill});
    EXPECT_FALSE(ParseWithinLimits(Seal(body)).ok());
  }
}

TEST(HostileManifest, OneByteTooMany) {
  std::vector<std::byte> body(LimitsOf(1).bytes + 1 - kManifestHeaderBytes);
  ExpectError(ParseWithinLimits(Seal(body)), StatusCode::kCorrupt,
              {"67108865 bytes", "67108864"});
}

}  // namespace
}  // namespace shard
