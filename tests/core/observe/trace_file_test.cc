// SPDX-License-Identifier: Apache-2.0

#include "core/observe/trace_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/in_child.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/observe/trace_reader.h"

namespace shard::trace_file_test {
namespace {

using testing::ReadText;
using testing::ReadTrace;
using testing::TempFolder;
using testing::WriteText;

std::string EventOf(int pid, const std::string& name) {
  return StrCat(",\n{\"name\":\"", name, "\",\"ph\":\"X\",\"pid\":", pid,
                ",\"tid\":1,\"ts\":1.000,\"dur\":2.000,\"args\":{}}");
}

bool IsLocked(const TraceFile& file) {
  const StatusOr<bool> locked = file.TryLock();
  EXPECT_OK(locked);
  return locked.ok() && *locked;
}

Status Append(const TraceFile& file, const std::string& events) {
  EXPECT_TRUE(IsLocked(file));
  const Status status = file.Append(events);
  file.Unlock();
  return status;
}

// The events of a file, without the one that it begins with.
size_t CountIn(const std::string& path) {
  const size_t count = ReadTrace(path).size();
  return count == 0 ? 0 : count - 1;
}

class TraceFileTest : public ::testing::Test {
 protected:
  // Begins the trace in a process of its own, which then ends.
  void ExpectAnotherRunHas(int number) const {
    testing::InChild([&] {
      const auto other = TraceFile::Begin(path_);
      ASSERT_OK(other);
      EXPECT_EQ(other->number(), number);
    });
  }

  const TempFolder folder_;
  const std::string path_ = folder_ / "trace.json";
};

TEST_F(TraceFileTest, TheFileIsWholeAfterEachWriteOfEachWriter) {
  const auto first = TraceFile::Begin(path_);
  const auto second = TraceFile::Join(path_, 1);
  ASSERT_OK(first);
  ASSERT_OK(second);
  for (size_t i = 1; i <= 5; ++i) {
    EXPECT_OK(Append(*first, EventOf(0, "a") + EventOf(0, "b")));
    EXPECT_EQ(CountIn(path_), 3 * i - 1);
    EXPECT_OK(Append(*second, EventOf(1, "c")));
    EXPECT_EQ(CountIn(path_), 3 * i);
  }
}

TEST_F(TraceFileTest, OneWriterAtATimeHasTheFile) {
  const auto first = TraceFile::Begin(path_);
  const auto second = TraceFile::Join(path_, 1);
  EXPECT_TRUE(IsLocked(*first));
  EXPECT_FALSE(IsLocked(*second));
  first->Unlock();
  EXPECT_TRUE(IsLocked(*second));
}

// A job and the programs that it starts have one environment.
TEST_F(TraceFileTest, AProcessBesideARunHasTheNextFile) {
  const auto run = TraceFile::Begin(path_);
  ASSERT_OK(run);
  EXPECT_OK(Append(*run, EventOf(0, "a")));
  testing::InChild([&] {
    const auto other = TraceFile::Begin(path_);
    ASSERT_OK(other);
    EXPECT_EQ(other->number(), 2);
    EXPECT_OK(Append(*other, EventOf(0, "b") + EventOf(0, "c")));
  });
  EXPECT_EQ(CountIn(path_), 1u);
  EXPECT_EQ(CountIn(folder_ / "trace.2.json"), 2u);
}

TEST_F(TraceFileTest, AFileIsThatOfItsRunUntilTheLastRankEnds) {
  ExpectAnotherRunHas(1);
  {
    const auto guest = TraceFile::Join(path_, 1);
    ASSERT_OK(guest);
    ExpectAnotherRunHas(2);
  }
  ExpectAnotherRunHas(1);
}

// It may open another communicator, and then goes on with its trace.
TEST_F(TraceFileTest, AFileIsThatOfTheProcessThatBeganItUntilThatEnds) {
  EXPECT_OK(TraceFile::Begin(path_));
  ExpectAnotherRunHas(2);
  EXPECT_EQ(TraceFile::Begin(path_)->number(), 1);
}

TEST_F(TraceFileTest, AProcessBeginsAFileOnce) {
  WriteText(path_, "[\n{\"of\":\"the run before\"}\n]\n");
  for (size_t i = 1; i <= 2; ++i) {
    const auto file = TraceFile::Begin(path_);
    ASSERT_OK(file);
    EXPECT_OK(Append(*file, EventOf(0, "a")));
    EXPECT_EQ(CountIn(path_), i);
  }
}

// A writer that is killed leaves what it has written so far.
TEST_F(TraceFileTest, APartOfALineIsRemoved) {
  const auto file = TraceFile::Begin(path_);
  ASSERT_OK(file);
  EXPECT_OK(Append(*file, EventOf(0, "a") + EventOf(0, "b")));
  const std::string whole = ReadText(path_);
  // Longer than what the next writer writes.
  const std::string torn =
      whole.substr(0, whole.size() - 3) + EventOf(0, std::string(100, 'c'));
  for (size_t size = whole.size() - 3; size <= torn.size(); ++size) {
    WriteText(path_, torn.substr(0, size));
    EXPECT_OK(Append(*file, EventOf(1, "d")));
    ASSERT_GE(CountIn(path_), 2u) << size;
    EXPECT_EQ(ReadTrace(path_).back()["name"], "d") << size;
  }
}

TEST_F(TraceFileTest, WhatIsNoTraceIsReplaced) {
  const std::string long_text(20000, 'x');
  for (const char* text :
       {"x", "\n\n", ",\n", "]", "not a trace\n", long_text.c_str()}) {
    WriteText(path_, text);
    const auto file = TraceFile::Join(path_, 1);
    EXPECT_OK(Append(*file, EventOf(0, "a")));
    EXPECT_EQ(CountIn(path_), 1u) << text;
  }
}

TEST_F(TraceFileTest, AFullDiskLeavesAWholeFile) {
  testing::InChild([&] {
    const auto file = TraceFile::Begin(path_);
    ASSERT_OK(file);
    EXPECT_OK(Append(*file, EventOf(0, "a")));
    testing::LowerLimit(RLIMIT_FSIZE, 500);
    const Status status = Append(*file, EventOf(0, std::string(1000, 'x')));
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find(path_), std::string::npos);
  });
  EXPECT_EQ(CountIn(path_), 1u);
}

// Nor does the process die of SIGXFSZ, which ftruncate sends too.
TEST_F(TraceFileTest, ADiskThatIsFullFromTheBeginningLeavesAnEmptyFile) {
  for (const rlim_t room : {0, 10, 100}) {
    testing::InChild([&] {
      const auto file = TraceFile::Begin(path_);
      ASSERT_OK(file);
      testing::LowerLimit(RLIMIT_FSIZE, room);
      EXPECT_FALSE(Append(*file, EventOf(0, "a")).ok());
    });
    EXPECT_EQ(ReadText(path_), "") << room;
  }
}

TEST_F(TraceFileTest, AFileThatIsLongerThanALimitStaysWhole) {
  const auto file = TraceFile::Begin(path_);
  ASSERT_OK(file);
  EXPECT_OK(Append(*file, EventOf(0, "a")));
  const std::string whole = ReadText(path_);
  for (rlim_t room = whole.size() - 5; room < whole.size() + 5; ++room) {
    testing::InChild([&] {
      testing::LowerLimit(RLIMIT_FSIZE, room);
      EXPECT_FALSE(Append(*file, EventOf(0, "b")).ok());
    });
    EXPECT_EQ(ReadText(path_), whole) << room;
  }
}

TEST_F(TraceFileTest, AFileIsNotWrittenBeyondWhatAViewerOpens) {
  const auto file = TraceFile::Begin(path_);
  ASSERT_OK(file);
  // Without blocks on the disk, but for the last.
  ASSERT_EQ(::truncate(path_.c_str(), TraceFile::kMostBytes - 100), 0);
  std::ofstream(path_, std::ios::app) << EventOf(0, "a") << "\n]\n";
  const auto size = std::filesystem::file_size(path_);
  ExpectError(Append(*file, EventOf(0, "b")), StatusCode::kResourceExhausted,
              {path_, "trace fewer steps"});
  EXPECT_EQ(std::filesystem::file_size(path_), size);
}

TEST_F(TraceFileTest, PathsThatCannotBeTracesAreErrors) {
  const std::string fifo = folder_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  ExpectError(TraceFile::Begin(fifo), StatusCode::kFailedPrecondition,
              {fifo, "regular file"});
  ExpectError(TraceFile::Begin(folder_.path()), StatusCode::kFailedPrecondition,
              {folder_.path()});
  ExpectError(TraceFile::Begin(folder_ / "no/trace"), StatusCode::kNotFound,
              {"no/trace"});
}

}  // namespace
}  // namespace shard::trace_file_test
