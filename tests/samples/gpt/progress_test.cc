// SPDX-License-Identifier: Apache-2.0

#include "samples/gpt/progress.h"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace progress_test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ReadFile(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path).rdbuf();
  return bytes.str();
}

TEST(ProgressTest, LogsOneObjectPerStepAndPerValidation) {
  const std::string path = ::testing::TempDir() + "/progress.jsonl";
  char message[512] = "";
  progress* p = progress_open(2, 100, path.c_str(), message, sizeof(message));
  ASSERT_NE(p, nullptr) << message;
  const progress_step first = {.step = 1,
                               .loss = 0.1,
                               .lr = 0.5,
                               .grad_norm = 2,
                               .seconds = 0.5,
                               .bytes_communicated = 4096,
                               .bytes_overlapped = 1024,
                               .seconds_exposed = 0.25};
  const progress_step second = {.step = 2,
                                .loss = NAN,
                                .lr = 0.25,
                                .grad_norm = -1,
                                .seconds = 0.5,
                                .skipped = true};
  progress_report(p, &first);
  progress_report(p, &second);
  progress_report_validation(p, 2, 0.75);
  EXPECT_TRUE(progress_close(p, message, sizeof(message)));

  std::istringstream lines(ReadFile(path));
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  // 17 digits let the same text mean the same bits.
  EXPECT_THAT(line, StartsWith("{\"step\":1,\"loss\":0.10000000000000001,"
                               "\"lr\":0.5,\"grad_norm\":2,"
                               "\"tokens_per_second\":200,\"seconds\":"));
  EXPECT_THAT(line, EndsWith(",\"bytes_communicated\":4096,"
                             "\"bytes_overlapped\":1024,"
                             "\"seconds_exposed\":0.25}"));
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_THAT(line, StartsWith("{\"step\":2,\"loss\":null,\"lr\":0.25,"
                               "\"grad_norm\":null,"));
  EXPECT_THAT(line, HasSubstr("\"skipped\":true}"));
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_THAT(line, StartsWith("{\"step\":2,\"validation_loss\":0.75,"));
  EXPECT_FALSE(std::getline(lines, line));
}

TEST(ProgressTest, NamesALogThatCannotBeOpened) {
  char message[512] = "";
  EXPECT_EQ(
      progress_open(1, 1, "/no/such/folder/log", message, sizeof(message)),
      nullptr);
  EXPECT_THAT(message, HasSubstr("/no/such/folder/log"));
  EXPECT_THAT(message, HasSubstr("No such file"));
}

TEST(ProgressTest, SaysSoWhenTheLogDidNotFit) {
  char message[512] = "";
  progress* p = progress_open(1, 1, "/dev/full", message, sizeof(message));
  ASSERT_NE(p, nullptr) << message;
  progress_report_validation(p, 1, 0.5);
  EXPECT_FALSE(progress_close(p, message, sizeof(message)));
  EXPECT_THAT(message, HasSubstr("No space left"));
}

TEST(ProgressTest, DrawsABarOnATerminal) {
  setenv("SHARD_TERMINAL", "1", 1);
  char message[512] = "";
  progress* p = progress_open(4, 100, nullptr, message, sizeof(message));
  unsetenv("SHARD_TERMINAL");
  ASSERT_NE(p, nullptr) << message;
  ::testing::internal::CaptureStdout();
  progress_report_validation(p, 0, 5.5);
  const progress_step step = {.step = 4, .loss = 1.25, .seconds = 0.5};
  progress_report(p, &step);
  progress_close(p, message, sizeof(message));
  const std::string out = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(out, StartsWith("\r[################] 4/4  loss 1.250 "
                              "(val 5.500)  200 tok/s  ETA 0:00"));
  EXPECT_EQ(out.back(), '\n');
  EXPECT_LE(out.size(), 81u);
}

// Returns the last redraw with this value of COLUMNS.
std::string DrawWithColumns(const char* columns) {
  setenv("SHARD_TERMINAL", "1", 1);
  if (columns != nullptr) setenv("COLUMNS", columns, 1);
  char message[512] = "";
  progress* p = progress_open(150, 1000, nullptr, message, sizeof(message));
  EXPECT_NE(p, nullptr) << message;
  ::testing::internal::CaptureStdout();
  progress_report_validation(p, 0, 123.456);
  const progress_step step = {.step = 150, .loss = 100.25, .seconds = 0.5};
  progress_report(p, &step);
  progress_close(p, message, sizeof(message));
  const std::string out = ::testing::internal::GetCapturedStdout();
  unsetenv("COLUMNS");
  unsetenv("SHARD_TERMINAL");
  EXPECT_EQ(out.front(), '\r');
  EXPECT_EQ(out.back(), '\n');
  return out.substr(1, out.size() - 2);
}

TEST(ProgressTest, ARedrawIsOneLessThanTheColumns) {
  for (const unsigned columns : {1, 2, 20, 40, 60, 76, 80, 120}) {
    const std::string text = std::to_string(columns);
    EXPECT_EQ(DrawWithColumns(text.c_str()).size(), columns - 1);
  }
  // The line has a bounded length, whatever the number is.
  EXPECT_LT(DrawWithColumns("999999999999999999999").size(), 200u);
}

// The test's stdout is no terminal that has a width.
TEST(ProgressTest, WithoutAWidthItIsThatOf80Columns) {
  unsetenv("COLUMNS");
  EXPECT_EQ(DrawWithColumns(nullptr).size(), 79u);
  for (const char* columns : {"", "x", "0", "-5"}) {
    EXPECT_EQ(DrawWithColumns(columns).size(), 79u) << columns;
  }
}

TEST(ProgressTest, TheBarShrinksBeforeTheNumbersDo) {
  const std::string numbers =
      "150/150  loss 100.250 (val 123.456)  2000 tok/s  ETA 0:00";
  EXPECT_EQ(DrawWithColumns("77"), "[################] " + numbers);
  EXPECT_EQ(DrawWithColumns("70"), "[#########] " + numbers);
  EXPECT_EQ(DrawWithColumns("65"), "[####] " + numbers);
  EXPECT_THAT(DrawWithColumns("64"), StartsWith(numbers));
  EXPECT_EQ(DrawWithColumns("58"), numbers);
}

TEST(ProgressTest, WithoutAProgressNothingHappens) {
  const progress_step step = {.step = 1};
  char message[512] = "";
  progress_report(nullptr, &step);
  progress_report_validation(nullptr, 1, 1);
  progress_end_line(nullptr);
  EXPECT_TRUE(progress_close(nullptr, message, sizeof(message)));
}

}  // namespace
}  // namespace progress_test
