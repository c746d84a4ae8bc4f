// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/data/data_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/checkpoint/data/data_layout.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/fault_env.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/base/temp_folder.h"

namespace shard::data_writer_test {
namespace {

using testing::Fault;
using testing::FaultEnv;
using testing::NoSyncEnv;
using testing::TempFolder;

// Returns `size` bytes of a random pattern, from *at on, where the next bytes
// begin. They are never zero like padding, and the pattern's length is a prime,
// so that bytes a whole number of chunks away differ.
std::string NextBytes(size_t size, size_t* at) {
  static const std::string pattern = [] {
    uint32_t random = 7;
    std::string bytes(65521, '\0');
    for (char& byte : bytes) {
      random = random * 1664525 + 1013904223;
      byte = static_cast<char>(random >> 24 | 1);
    }
    return bytes;
  }();
  std::string bytes;
  bytes.reserve(size);
  while (bytes.size() < size) {
    const size_t some = std::min(size - bytes.size(), pattern.size() - *at);
    bytes.append(pattern, *at, some);
    *at = (*at + some) % pattern.size();
  }
  return bytes;
}

// Slices of random bytes, placed by a layout.
struct Content {
  std::vector<std::string> slices;
  std::vector<DataSource> sources;
  uint64_t file_bytes = 0;
  std::string file;  // The expected file.

  explicit Content(const std::vector<uint64_t>& sizes) {
    size_t at = 0;
    DataLayout layout;
    for (const uint64_t size : sizes) {
      const std::string& slice = slices.emplace_back(NextBytes(size, &at));
      const uint64_t offset = layout.Add(size);
      file.resize(offset);
      file += slice;
      sources.push_back({nullptr, offset, size});
    }
    file_bytes = layout.file_bytes();
    file.resize(file_bytes);
    for (size_t i = 0; i < slices.size(); ++i) {
      sources[i].data = reinterpret_cast<const std::byte*>(slices[i].data());
    }
  }
};

Status WriteTo(const TempFolder& folder, FileEnv* env, DataWriter* writer,
               int threads, ProgressMeter* progress) {
  SHARD_ASSIGN_OR_RETURN(const Directory in,
                         Directory::Open(env, folder.path()));
  SHARD_ASSIGN_OR_RETURN(File file, File::Open(in, "data", File::Mode::kCreate,
                                               File::Cache::kDirect));
  SHARD_RETURN_IF_ERROR(writer->Write(&file, threads, progress));
  return file.Close();
}

// Returns the contents of a file of many MiB, read at once.
std::string ReadWhole(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  std::string text(in.good() ? static_cast<size_t>(in.tellg()) : 0, '\0');
  in.seekg(0);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  return text;
}

constexpr uint64_t kChunk = DataWriter::kChunkBytes;

// Returns sizes whose slices lie across, at, before and behind the ends of
// chunks.
std::vector<std::vector<uint64_t>> AwkwardSizes() {
  std::vector<std::vector<uint64_t>> all = {
      {},
      {1},
      {4095, 4096, 4097},
      {kChunk},
      {kChunk - 64, 64, 1},
      {kChunk - 4096 + 64, 4000, 4000, 1},
      {kChunk + 100, 200, 200, 4000, 4000, 10},
      {3 * kChunk + 5, 7, 2 * kChunk},
      {100, kChunk, 100, kChunk - 4096, 100},
  };
  std::vector<uint64_t> small(5000, 4032);
  all.push_back(small);
  std::mt19937 random(3);
  for (int i = 0; i < 4; ++i) {
    std::vector<uint64_t> sizes;
    for (uint64_t sum = 0; sum < 2 * kChunk; sum += sizes.back()) {
      const uint64_t most[] = {64, 4095, 100000, kChunk + 5000};
      sizes.push_back(1 + random() % most[random() % (3 + (i > 1))]);
    }
    all.push_back(std::move(sizes));
  }
  return all;
}

TEST(DataWriterTest, TheFileIsWhatTheLayoutSays) {
  int number = 0;
  for (const auto& sizes : AwkwardSizes()) {
    Content content(sizes);
    for (const bool snapshot : {false, true}) {
      for (const int threads : {1, 4}) {
        // With a sanitizer, a snapshot, which one thread takes, is written by
        // one thread, and four fill chunks at once.
        if (kSanitized && snapshot != (threads == 1)) continue;
        const TempFolder folder;
        DataWriter writer(content.sources, content.file_bytes);
        EXPECT_EQ(writer.file_bytes(), content.file.size());
        Mapping room;
        if (snapshot) ASSERT_OK(writer.Snapshot(&room));
        uint64_t last = 0;
        ProgressMeter progress(
            [&](uint64_t done, uint64_t total) {
              EXPECT_GE(done, last);
              EXPECT_EQ(total, content.file_bytes);
              last = done;
              return true;
            },
            content.file_bytes);
        ASSERT_OK(
            WriteTo(folder, NoSyncEnv::Get(), &writer, threads, &progress));
        EXPECT_EQ(last, content.file_bytes);
        EXPECT_TRUE(ReadWhole(folder / "data") == content.file)
            << "sizes " << number << ", snapshot " << snapshot;
        for (size_t i = 0; i < sizes.size(); ++i) {
          EXPECT_EQ(writer.checksums()[i],
                    ChecksumOf(content.slices[i].data(), sizes[i]))
              << "slice " << i << " of sizes " << number;
        }
      }
    }
    ++number;
  }
}

// A caller may change the sources as soon as Snapshot has returned.
TEST(DataWriterTest, ASnapshotKeepsWhatThereWas) {
  Content content({100, 5000, kChunk, 4000, 4000});
  const TempFolder folder;
  DataWriter writer(content.sources, content.file_bytes);
  Mapping room;
  ASSERT_OK(writer.Snapshot(&room));
  for (std::string& slice : content.slices) {
    std::fill(slice.begin(), slice.end(), '\0');
  }
  ProgressMeter progress(nullptr, content.file_bytes);
  ASSERT_OK(WriteTo(folder, NoSyncEnv::Get(), &writer, 2, &progress));
  EXPECT_TRUE(ReadWhole(folder / "data") == content.file);
}

// The memory of one save is used again by the next one, larger or smaller.
TEST(DataWriterTest, ARoomIsUsedAgain) {
  Mapping room;
  for (const uint64_t bytes : {5000, 100000, 300}) {
    Content content({bytes, 10});
    const TempFolder folder;
    DataWriter writer(content.sources, content.file_bytes);
    ASSERT_OK(writer.Snapshot(&room));
    ProgressMeter progress(nullptr, content.file_bytes);
    ASSERT_OK(WriteTo(folder, NoSyncEnv::Get(), &writer, 1, &progress));
    EXPECT_TRUE(ReadWhole(folder / "data") == content.file) << bytes;
  }
}

TEST(DataWriterTest, CanBeCancelledAfterAnyChunk) {
  Content content({3 * kChunk, kChunk, 10});
  for (uint64_t calls = 1; calls <= 2; ++calls) {
    const TempFolder folder;
    DataWriter writer(content.sources, content.file_bytes);
    uint64_t call = 0;
    ProgressMeter progress([&](uint64_t, uint64_t) { return ++call < calls; },
                           content.file_bytes);
    ExpectError(WriteTo(folder, NoSyncEnv::Get(), &writer, 3, &progress),
                StatusCode::kCancelled,
                {"cancelled", StrCat(content.file_bytes)});
    // Progress is not called again after it has cancelled.
    EXPECT_EQ(call, calls);
  }
}

TEST(DataWriterTest, EveryCallMayFail) {
  Content content({kChunk, 4096, 10, 3000});
  for (const int error : {EIO, ENOSPC}) {
    for (int64_t k = 0;; ++k) {
      const TempFolder folder;
      FaultEnv env(NoSyncEnv::Get());
      env.Set({.at = k, .error = error});
      DataWriter writer(content.sources, content.file_bytes);
      ProgressMeter progress(nullptr, content.file_bytes);
      const Status status = WriteTo(folder, &env, &writer, 2, &progress);
      EXPECT_EQ(env.open_descriptors(), 0);
      if (status.ok()) {
        EXPECT_TRUE(ReadWhole(folder / "data") == content.file) << k;
      }
      if (env.calls() <= k) {
        EXPECT_OK(status);
        EXPECT_GT(k, 5);
        break;
      }
    }
  }
  for (const Fault& fault : {Fault{.every = 2, .error = EINTR},
                             Fault{.every = 2, .kind = Fault::Kind::kShort}}) {
    const TempFolder folder;
    FaultEnv env(NoSyncEnv::Get());
    env.Set(fault);
    DataWriter writer(content.sources, content.file_bytes);
    ProgressMeter progress(nullptr, content.file_bytes);
    EXPECT_OK(WriteTo(folder, &env, &writer, 2, &progress));
    EXPECT_GT(env.faults(), 0);
    EXPECT_TRUE(ReadWhole(folder / "data") == content.file);
  }
}

}  // namespace
}  // namespace shard::data_writer_test
