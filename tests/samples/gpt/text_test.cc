// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/text.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace text_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TextTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/text.XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    text_free(&data_);
    std::filesystem::remove_all(folder_);
  }

  std::string Path(const std::string& name) const {
    return folder_ + "/" + name;
  }
  void Write(const std::string& name, const std::string& bytes) {
    std::ofstream(Path(name), std::ios::binary) << bytes;
  }
  // Returns "" on success, or else the message.
  std::string Load(const std::string& path, int context = 4) {
    char message[512] = "";
    if (text_load(&data_, path.c_str(), context, message, sizeof(message))) {
      return "";
    }
    EXPECT_EQ(data_.train, nullptr);
    EXPECT_EQ(data_.held_out, nullptr);
    EXPECT_EQ(std::string(message).find('\n'), std::string::npos);
    return message;
  }
  std::string Train() const {
    return std::string(data_.train, data_.train + data_.train_bytes);
  }
  std::string HeldOut() const {
    return std::string(data_.held_out, data_.held_out + data_.held_out_bytes);
  }

  std::string folder_;
  text data_ = {};
};

TEST_F(TextTest, HoldsTheLastTenthOfAFileOut) {
  const std::string bytes = std::string(90, 't') + std::string(10, 'h');
  Write("a", bytes);
  ASSERT_EQ(Load(Path("a")), "");
  EXPECT_EQ(Train(), std::string(90, 't'));
  EXPECT_EQ(HeldOut(), std::string(10, 'h'));
  EXPECT_EQ(data_.files, 1);
}

TEST_F(TextTest, HoldsTheLastTenthOfEveryFileOutInOrderOfNames) {
  Write("b", std::string(45, 'B') + std::string(5, 'b'));
  Write("a", std::string(27, 'A') + std::string(3, 'a'));
  Write("empty", "");
  ASSERT_EQ(Load(folder_), "");
  EXPECT_EQ(Train(), std::string(27, 'A') + std::string(45, 'B'));
  EXPECT_EQ(HeldOut(), std::string(3, 'a') + std::string(5, 'b'));
}

TEST_F(TextTest, EveryByteIsInExactlyOnePart) {
  size_t total = 0;
  for (int size = 90; size < 110; size++) {
    Write("file" + std::to_string(size), std::string(size, 'x'));
    total += size;
  }
  ASSERT_EQ(Load(folder_), "");
  EXPECT_EQ(data_.train_bytes + data_.held_out_bytes, total);
}

TEST_F(TextTest, CountsAFileWithSeveralNamesOnce) {
  Write("real", std::string(100, 'r'));
  ASSERT_EQ(symlink("real", Path("also").c_str()), 0);
  ASSERT_EQ(link(Path("real").c_str(), Path("zzz").c_str()), 0);
  ASSERT_EQ(Load(folder_), "");
  EXPECT_EQ(data_.files, 1);
  EXPECT_EQ(data_.train_bytes, 90u);
  EXPECT_EQ(data_.held_out_bytes, 10u);
}

TEST_F(TextTest, SkipsFoldersPipesAndSymlinksToNothing) {
  Write("real", std::string(100, 'r'));
  std::filesystem::create_directory(Path("folder"));
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  ASSERT_EQ(symlink("nowhere", Path("dangling").c_str()), 0);
  ASSERT_EQ(Load(folder_), "");
  EXPECT_EQ(data_.files, 1);
}

TEST_F(TextTest, FollowsASymlinkToAFolder) {
  std::filesystem::create_directory(Path("folder"));
  Write("folder/a", std::string(100, 'a'));
  ASSERT_EQ(symlink("folder", Path("link").c_str()), 0);
  EXPECT_EQ(Load(Path("link")), "");
}

TEST_F(TextTest, NamesAPathThatIsMissing) {
  EXPECT_THAT(Load(Path("nothing")),
              AllOf(HasSubstr(Path("nothing")), HasSubstr("No such file")));
}

TEST_F(TextTest, NamesAFolderWithoutFiles) {
  std::filesystem::create_directory(Path("folder"));
  EXPECT_THAT(Load(folder_),
              AllOf(HasSubstr(folder_), HasSubstr("no regular files")));
}

TEST_F(TextTest, NamesWhatIsNeitherFileNorFolder) {
  EXPECT_THAT(Load("/dev/null"),
              AllOf(HasSubstr("/dev/null"), HasSubstr("neither a file nor")));
}

TEST_F(TextTest, NamesAFileThatMayNotBeRead) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  Write("secret", std::string(100, 's'));
  ASSERT_EQ(chmod(Path("secret").c_str(), 0), 0);
  EXPECT_THAT(Load(folder_),
              AllOf(HasSubstr(Path("secret")), HasSubstr("Permission denied")));
}

TEST_F(TextTest, NamesBothLengthsOfATextThatIsTooShort) {
  Write("a", std::string(100, 'a'));
  EXPECT_EQ(Load(Path("a"), 9), "");
  text_free(&data_);
  EXPECT_THAT(Load(Path("a"), 10),
              AllOf(HasSubstr(Path("a")), HasSubstr("90 bytes"),
                    HasSubstr("10 held out"), HasSubstr("context of 10"),
                    HasSubstr("11 of each")));
}

TEST_F(TextTest, NamesAnEmptyFile) {
  Write("empty", "");
  EXPECT_THAT(Load(Path("empty")),
              AllOf(HasSubstr(Path("empty")), HasSubstr("too short")));
}

// ---- Sequences ------------------------------------------------------------

// Returns the whole batch of one step, read by `ranks` ranks as train_gpt reads
// it.
std::vector<std::string> Batch(const text& data, uint64_t seed, int64_t step,
                               int ranks, int context) {
  constexpr int kGlobalBatch = 8;
  const int batch = kGlobalBatch / ranks;
  std::vector<std::string> sequences;
  for (int rank = 0; rank < ranks; rank++) {
    for (int b = 0; b < batch; b++) {
      std::string sequence(context + 1, '\0');
      text_training_sequence(&data, seed, step, rank * batch + b, context,
                             reinterpret_cast<uint8_t*>(sequence.data()));
      sequences.push_back(sequence);
    }
  }
  return sequences;
}

TEST_F(TextTest, ABatchDoesNotDependOnTheWorldSize) {
  std::string bytes;
  for (int i = 0; i < 4000; i++) bytes += std::to_string(i);
  Write("a", bytes);
  ASSERT_EQ(Load(Path("a"), 16), "");
  for (int64_t step : {0, 1, 1000}) {
    const auto alone = Batch(data_, 1, step, 1, 16);
    EXPECT_EQ(alone, Batch(data_, 1, step, 2, 16));
    EXPECT_EQ(alone, Batch(data_, 1, step, 4, 16));
    EXPECT_NE(alone, Batch(data_, 2, step, 1, 16));
    EXPECT_NE(alone, Batch(data_, 1, step + 1, 1, 16));
    for (const std::string& sequence : alone) {
      EXPECT_NE(Train().find(sequence), std::string::npos);
    }
  }
}

TEST_F(TextTest, TrainingReachesBothEndsAndNothingElse) {
  // Each byte tells its position.
  std::string bytes;
  for (int i = 0; i < 50; i++) bytes += static_cast<char>(i);
  Write("a", bytes);
  ASSERT_EQ(Load(Path("a"), 4), "");
  ASSERT_EQ(data_.train_bytes, 45u);
  int first = 255;
  int last = 0;
  for (int step = 0; step < 500; step++) {
    uint8_t sequence[5];
    text_training_sequence(&data_, 1, step, 0, 4, sequence);
    for (int i = 0; i < 5; i++) ASSERT_EQ(sequence[i], sequence[0] + i);
    first = std::min<int>(first, sequence[0]);
    last = std::max<int>(last, sequence[4]);
  }
  EXPECT_EQ(first, 0);
  EXPECT_EQ(last, 44);
}

TEST_F(TextTest, HeldOutSequencesPredictEachByteOnce) {
  std::string bytes;
  for (int i = 0; i < 210; i++) bytes += static_cast<char>(i);
  Write("a", bytes);
  ASSERT_EQ(Load(Path("a"), 5), "");
  ASSERT_EQ(data_.held_out_bytes, 21u);
  ASSERT_EQ(text_held_out_count(&data_, 5, 100), 4);
  for (int i = 0; i < 4; i++) {
    uint8_t sequence[6];
    text_held_out_sequence(&data_, i, 5, 100, sequence);
    for (int j = 0; j < 6; j++) EXPECT_EQ(sequence[j], 189 + 5 * i + j);
  }
}

TEST_F(TextTest, MoreHeldOutTextThanWantedIsReadEvenly) {
  std::string bytes;
  for (int i = 0; i < 210; i++) bytes += static_cast<char>(i);
  Write("a", bytes);
  ASSERT_EQ(Load(Path("a"), 5), "");
  ASSERT_EQ(text_held_out_count(&data_, 5, 2), 2);
  uint8_t sequence[6];
  text_held_out_sequence(&data_, 0, 5, 2, sequence);
  EXPECT_EQ(sequence[0], 189);
  text_held_out_sequence(&data_, 1, 5, 2, sequence);
  EXPECT_EQ(sequence[0], 199);
}

TEST_F(TextTest, FreeTwiceIsFine) {
  Write("a", std::string(100, 'a'));
  ASSERT_EQ(Load(Path("a")), "");
  text_free(&data_);
  text_free(&data_);
}

}  // namespace
}  // namespace text_test
