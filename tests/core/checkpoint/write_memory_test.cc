// SPDX-License-Identifier: Apache-2.0
//
// Bounds on the memory of writing and exporting: below 64 MiB and 16 MiB per
// thread, however large the tensors are.

#include <gtest/gtest.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/checkpoint/manifest/checksum.h"
#include "core/checkpoint/safetensors/safetensors_export.h"
#include "core/checkpoint/store/converting_store.h"
#include "core/checkpoint/verify.h"
#include "core/checkpoint/write_checkpoint.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/forwarding_env.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/checkpoint/sample_checkpoint.h"

namespace shard::testing {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// Elements of q8, which take the most work: as f64 they are eight times as
// large.
constexpr int64_t kNumel = 48 * kMiB;
constexpr int kThreads = 2;
constexpr int64_t kBound = 64 * kMiB + kThreads * 16 * kMiB;

// Returns the resident memory that does not belong to files.
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
      large.AddQ8("state.weight.exp_avg", kNumel, 3);
      ASSERT_OK(large.Write(FileEnv::Posix(), folder_ / "from"));
    }
    from_ = OpenStore(folder_ / "from");
    ASSERT_NE(from_, nullptr);
    conversion_.dtype = DType::kF64;
    before_ = AnonymousBytes();
  }

  // Returns a progress function that measures memory while the threads hold
  // theirs.
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

TEST_F(WriteMemoryTest, WritesACheckpointWithinTheBound) {
  const WriteCheckpointOptions options = {.conversion = conversion_,
                                          .world_size = 3,
                                          .threads = kThreads,
                                          .progress = Meter()};
  ASSERT_OK(WriteCheckpoint(FileEnv::Posix(), *from_, folder_ / "to", options));
  EXPECT_GT(calls_, 80);
  EXPECT_LT(peak_, kBound);
}

TEST_F(WriteMemoryTest, ExportsSafetensorsWithinTheBound) {
  const ConvertingStore store(*from_, conversion_);
  std::vector<size_t> all(store.num_tensors());
  std::iota(all.begin(), all.end(), 0);
  const SafetensorsExportOptions options = {.threads = kThreads,
                                            .progress = Meter()};
  ASSERT_OK(ExportSafetensors(FileEnv::Posix(), store, all,
                              folder_ / "to.safetensors", options));
  EXPECT_GT(calls_, 80);
  EXPECT_LT(peak_, kBound);
}

// A blob of any size is copied in pieces.
TEST_F(WriteMemoryTest, CopiesALargeBlobWithinTheBound) {
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
  const WriteCheckpointOptions options = {
      .world_size = 2, .threads = kThreads, .progress = Meter()};
  ASSERT_OK(WriteCheckpoint(FileEnv::Posix(), *from, folder_ / "to", options));
  EXPECT_GT(calls_, 20);
  EXPECT_LT(peak_, kBound);
  const auto to = OpenStore(folder_ / "to");
  ASSERT_NE(to, nullptr);
  const ReadOptions read = {.progress = Meter()};
  EXPECT_OK(VerifyStore(*to, read));
  EXPECT_LT(peak_, kBound);
  EXPECT_EQ(to->manifest()->blob(1).extent.checksum,
            from->manifest()->blob(1).extent.checksum);
  const auto whole = to->ReadBlob(1);
  ASSERT_OK(whole);
  EXPECT_EQ(whole->size(), kBlob);
}

// Returns a checkpoint of version 1 with a blob of `bytes` zeros, in a file
// that takes no space.
std::shared_ptr<const FileStore> SparseBlob(const std::string& folder,
                                            uint64_t bytes,
                                            const Checksum& checksum) {
  const std::string name = DataFileName(0);
  ManifestContents contents;
  contents.writer = "test";
  contents.files = {{name, bytes}};
  contents.blobs = {{"huge", BlobRule::kPerRank, 0, {0, 0, bytes, checksum}}};
  const auto manifest = EncodeManifest(contents);
  EXPECT_OK(manifest);
  std::filesystem::create_directory(folder);
  WriteText(folder + "/" + name, "");
  std::filesystem::resize_file(folder + "/" + name, bytes);
  WriteText(
      folder + "/" + kManifestName,
      {reinterpret_cast<const char*>(manifest->data()), manifest->size()});
  return OpenStore(folder);
}

// Tests a blob so large that not even a list of its parts fits into memory.
class HugeBlobTest : public WriteMemoryTest {
 protected:
  static constexpr uint64_t kBytes = uint64_t{1} << 60;

  void SetUp() override {
    huge_ = SparseBlob(memory_ / "huge", kBytes, {1, 2});
    ASSERT_NE(huge_, nullptr);
    before_ = AnonymousBytes();
    options_.threads = kThreads;
  }

  // Returns a meter that cancels at its fourth call.
  Progress CancellingMeter() {
    return [this, meter = Meter()](uint64_t done, uint64_t total) {
      meter(done, total);
      EXPECT_GE(total, kBytes);
      return calls_ < 4;
    };
  }

  TempFolder memory_{kMemoryFolder};
  std::shared_ptr<const FileStore> huge_;
  WriteCheckpointOptions options_;
};

TEST_F(HugeBlobTest, IsNotReadIntoMemory) {
  ExpectError(huge_->ReadBlob(0), StatusCode::kResourceExhausted,
              {"'huge'", "memory"});
}

TEST_F(HugeBlobTest, IsVerifiedInPiecesOnTheWayToACancellation) {
  const ReadOptions read = {.progress = CancellingMeter()};
  ExpectError(VerifyStore(*huge_, read), StatusCode::kCancelled, {"progress"});
  EXPECT_EQ(calls_, 4);
  EXPECT_LT(peak_, kBound);
}

TEST_F(HugeBlobTest, IsNotReadWhereItCannotBeWritten) {
  std::filesystem::create_directories(memory_ / "to/step-000000");
  WriteText(memory_ / "to/step-000000/manifest.shard", "");
  options_.progress = Meter();
  ExpectError(
      WriteCheckpoint(FileEnv::Posix(), *huge_, memory_ / "to", options_),
      StatusCode::kAlreadyExists, {"step-000000"});
  EXPECT_EQ(calls_, 0);
  // The file system has no room for the blob.
  ExpectError(
      WriteCheckpoint(FileEnv::Posix(), *huge_, memory_ / "other", options_),
      StatusCode::kResourceExhausted, {"data-00000.bin"});
  EXPECT_LE(calls_, 1);
  EXPECT_LT(peak_, kBound);
}

// A file system that cannot allocate space in advance.
class NoAllocateEnv final : public ForwardingEnv {
 public:
  NoAllocateEnv() : ForwardingEnv(FileEnv::Posix()) {}
  int Allocate(int, uint64_t) override { return -EOPNOTSUPP; }
};

TEST_F(HugeBlobTest, IsCopiedInPiecesOnTheWayToACancellation) {
  NoAllocateEnv env;
  options_.progress = CancellingMeter();
  ExpectError(WriteCheckpoint(&env, *huge_, memory_ / "to", options_),
              StatusCode::kCancelled, {"progress"});
  EXPECT_EQ(calls_, 4);
  EXPECT_LT(peak_, kBound);
  EXPECT_FALSE(std::filesystem::exists(memory_ / "to"));
}

// The file claims a tensor that would have 2^34 slices of the largest size.
TEST_F(HugeBlobTest, AHugeTensorIsRefusedBeforeItIsCut) {
  const std::string path = memory_ / "huge.safetensors";
  const uint64_t numel = kBytes / 4;
  const std::string header =
      StrCat("{\"w\":{\"dtype\":\"F32\",\"shape\":[", numel,
             "],\"data_offsets\":[0,", kBytes, "]}}");
  const uint64_t length = header.size();
  WriteText(path,
            std::string(reinterpret_cast<const char*>(&length), 8) + header);
  std::filesystem::resize_file(path, 8 + length + kBytes);
  const auto store = OpenStore(path);
  ASSERT_NE(store, nullptr);
  ExpectError(
      WriteCheckpoint(FileEnv::Posix(), *store, memory_ / "to", options_),
      StatusCode::kResourceExhausted,
      {"'w'", "more than a checkpoint can hold"});
  EXPECT_FALSE(std::filesystem::exists(memory_ / "to"));
}

// A blob that a host once had in memory can be read into memory again.
TEST(LargeBlobTest, IsReadIntoMemoryWhereItFits) {
  constexpr uint64_t kBytes = (uint64_t{1} << 30) + 4096;
  ChecksumStream checksum;
  const std::vector<char> zeros(1 << 20);
  for (uint64_t at = 0; at < kBytes; at += zeros.size()) {
    checksum.Add(zeros.data(), std::min<uint64_t>(zeros.size(), kBytes - at));
  }
  const TempFolder memory(kMemoryFolder);
  const auto store = SparseBlob(memory / "large", kBytes, checksum.Finish());
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->manifest()->version(), 1u);
  const auto content = store->ReadBlob(0);
  ASSERT_OK(content);
  EXPECT_EQ(content->size(), kBytes);
}

}  // namespace
}  // namespace shard::testing
