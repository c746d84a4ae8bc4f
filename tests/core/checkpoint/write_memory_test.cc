// SPDX-License-Identifier: Apache-2.0
//
// What writing and exporting promise of their memory: below 64 MiB and 16 MiB
// per thread, however large the tensors are.

#include <gtest/gtest.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "core/checkpoint/converting_store.h"
#include "core/checkpoint/safetensors_writer.h"
#include "core/checkpoint/verify.h"
#include "core/checkpoint/write_checkpoint.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/checkpoint/sample_checkpoint.h"

namespace shard::testing {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// Of q8, which is the most work: as f64 eight times as much.
constexpr int64_t kNumel = 48 * kMiB;
constexpr int kThreads = 2;
constexpr int64_t kBound = 64 * kMiB + kThreads * 16 * kMiB;

// Memory that is not in files.
int64_t AnonymousBytes() {
  FILE* const file = ::fopen("/proc/self/statm", "r");
  EXPECT_NE(file, nullptr);
  long size = 0;
  long resident = 0;
  long shared = 0;
  EXPECT_EQ(::fscanf(file, "%ld %ld %ld", &size, &resident, &shared), 3);
  ::fclose(file);
  return (resident - shared) * ::sysconf(_SC_PAGESIZE);
}

class WriteMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    {
      CheckpointBuilder large(uint64_t{4} << 20);
      large.AddQ8("state.weight.exp_avg", kNumel, 0);
      ASSERT_OK(large.Write(FileEnv::Posix(), folder_ / "from"));
    }
    from_ = OpenStore(folder_ / "from");
    ASSERT_NE(from_, nullptr);
    conversion_.dtype = DType::kF64;
    before_ = AnonymousBytes();
  }

  // Looks while the threads have what they have.
  Progress Meter() {
    return [this](uint64_t, uint64_t) {
      peak_ = std::max(peak_, AnonymousBytes() - before_);
      ++calls_;
      return true;
    };
  }

  TempFolder folder_;
  std::shared_ptr<const FileStore> from_;
  ConversionOptions conversion_;
  int64_t before_ = 0;
  int64_t peak_ = 0;
  int calls_ = 0;
};

TEST_F(WriteMemoryTest, OfACheckpoint) {
  WriteCheckpointOptions options;
  options.conversion = conversion_;
  options.world_size = 3;
  options.threads = kThreads;
  options.progress = Meter();
  ASSERT_OK(WriteCheckpoint(FileEnv::Posix(), *from_, folder_ / "to", options));
  EXPECT_GT(calls_, 80);
  EXPECT_LT(peak_, kBound);
}

TEST_F(WriteMemoryTest, OfASafetensorsFile) {
  const ConvertingStore store(*from_, conversion_);
  std::vector<size_t> all(store.num_tensors());
  std::iota(all.begin(), all.end(), 0);
  SafetensorsExportOptions options;
  options.threads = kThreads;
  options.progress = Meter();
  ASSERT_OK(ExportSafetensors(FileEnv::Posix(), store, all,
                              folder_ / "to.safetensors", options));
  EXPECT_GT(calls_, 80);
  EXPECT_LT(peak_, kBound);
}

// A blob is copied in pieces, however large.
TEST_F(WriteMemoryTest, OfALargeBlob) {
  constexpr size_t kBlob = 2 * kBound + 12345;
  {
    CheckpointBuilder large;
    large.contents().world_size = 2;
    large.AddBlob("small", BlobRule::kPerRank, 0, "abc");
    large.AddBlob("large", BlobRule::kPerRank, 1, std::string(kBlob, 'x'));
    ASSERT_OK(large.Write(FileEnv::Posix(), folder_ / "blob"));
  }
  const auto from = OpenStore(folder_ / "blob");
  ASSERT_NE(from, nullptr);
  before_ = AnonymousBytes();
  WriteCheckpointOptions options;
  options.world_size = 2;
  options.threads = kThreads;
  options.progress = Meter();
  ASSERT_OK(WriteCheckpoint(FileEnv::Posix(), *from, folder_ / "to", options));
  EXPECT_GT(calls_, 20);
  EXPECT_LT(peak_, kBound);
  const auto to = OpenStore(folder_ / "to");
  ASSERT_NE(to, nullptr);
  ReadOptions read;
  read.progress = Meter();
  EXPECT_OK(VerifyStore(*to, read));
  EXPECT_LT(peak_, kBound);
  EXPECT_EQ(to->manifest()->blob(1).extent.checksum,
            from->manifest()->blob(1).extent.checksum);
  const auto whole = to->ReadBlob(1);
  ASSERT_OK(whole);
  EXPECT_EQ(whole->size(), kBlob);
}

// A file may say that it has more than there is memory, and take no space.
TEST_F(WriteMemoryTest, OfABlobThatDoesNotFit) {
  constexpr uint64_t kBytes = uint64_t{3} << 30;
  const std::string name = DataFileName(0);
  ManifestContents contents;
  contents.writer = "test";
  contents.files = {{name, kBytes}};
  contents.blobs = {{"huge", BlobRule::kPerRank, 0, {0, 0, kBytes, {1, 2}}}};
  const auto manifest = EncodeManifest(contents);
  ASSERT_OK(manifest);
  const std::string folder = folder_ / "huge";
  std::filesystem::create_directory(folder);
  WriteText(folder + "/" + name, "");
  std::filesystem::resize_file(folder + "/" + name, kBytes);
  WriteText(
      folder + "/" + kManifestName,
      {reinterpret_cast<const char*>(manifest->data()), manifest->size()});
  const auto store = OpenStore(folder);
  ASSERT_NE(store, nullptr);
  ExpectError(store->ReadBlob(0), StatusCode::kResourceExhausted,
              {"'huge'", "3221225472 bytes", "at most 1073741824"});
}

}  // namespace
}  // namespace shard::testing
