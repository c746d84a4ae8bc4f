// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "sdk/cli/output_queue.h"

namespace shardctl::output_test {
namespace {

using Lines = std::vector<std::string>;

// Feeds the pieces one by one, and ends.
Lines Split(bool redraws, const std::vector<std::string>& pieces) {
  Lines lines;
  const auto sink = [&](std::string_view line) { lines.emplace_back(line); };
  LineSplitter splitter(redraws);
  for (const std::string& piece : pieces) splitter.Feed(piece, sink);
  splitter.Finish(sink);
  return lines;
}

TEST(LineSplitterTest, WholeLines) {
  EXPECT_EQ(Split(false, {}), Lines{});
  EXPECT_EQ(Split(false, {"a\nb\n"}), (Lines{"a", "b"}));
  EXPECT_EQ(Split(false, {"a", "b", "\n\nc"}), (Lines{"ab", "", "c"}));
  EXPECT_EQ(Split(false, {"10%\r20%\n"}), Lines{"10%\r20%"});
}

TEST(LineSplitterTest, RedrawnLinesEndAsTheyLook) {
  EXPECT_EQ(Split(true, {"10%\r", "20%\rdone\n"}), Lines{"done"});
  EXPECT_EQ(Split(true, {"\r10%", "\r20%", "\r\n"}), Lines{"20%"});
  EXPECT_EQ(Split(true, {"dos\r\n"}), Lines{"dos"});
  EXPECT_EQ(Split(true, {"10%\r20%\r"}), Lines{"20%"});
}

TEST(LineSplitterTest, Bar) {
  LineSplitter splitter(true);
  const auto sink = [](std::string_view) {};
  splitter.Feed("plain", sink);
  EXPECT_EQ(splitter.bar(), "");
  splitter.Feed("\n10%\r", sink);
  EXPECT_EQ(splitter.bar(), "10%");
  splitter.Feed("20%", sink);
  EXPECT_EQ(splitter.bar(), "20%");
  splitter.Feed("\n", sink);
  EXPECT_EQ(splitter.bar(), "");
}

TEST(LineSplitterTest, EndlessLinesAreBroken) {
  const std::string mebibyte(size_t{1} << 20, 'x');
  EXPECT_EQ(Split(false, {mebibyte, "y\n"}), (Lines{mebibyte, "y"}));
}

class OutputQueueTest : public ::testing::Test {
 protected:
  OutputQueueTest() {
    ::signal(SIGPIPE, SIG_IGN);
    EXPECT_EQ(::pipe(ends_), 0);
  }
  ~OutputQueueTest() override {
    for (const int end : ends_) {
      if (end >= 0) ::close(end);
    }
  }
  void Close(int end) {
    ::close(ends_[end]);
    ends_[end] = -1;
  }
  // Reads `bytes` bytes.
  std::string Read(size_t bytes) {
    std::string text(bytes, '\0');
    for (size_t at = 0; at < bytes;) {
      const ssize_t size = ::read(ends_[0], text.data() + at, bytes - at);
      if (size <= 0) return "the end";
      at += static_cast<size_t>(size);
    }
    return text;
  }
  static void WaitUntilEmpty(OutputQueue* queue) {
    while (!queue->empty()) {
      pollfd entry{queue->progress_fd(), POLLIN, 0};
      ASSERT_EQ(::poll(&entry, 1, kSeconds * 1000), 1);
      EXPECT_TRUE(queue->TakeProgress());
    }
  }

  static constexpr int kSeconds = 20;  // The time after which a test gives up.

  int ends_[2];
};

TEST_F(OutputQueueTest, TakesMoreThanThePipeAndSaysWhenItIsFull) {
  OutputQueue queue(ends_[1]);
  EXPECT_TRUE(queue.empty());
  std::string all;
  for (int i = 0; !queue.full(); ++i) {
    const std::string line(1000, static_cast<char>('a' + i % 26));
    queue.Append(line + "\n");
    all += line + "\n";
  }
  EXPECT_GE(all.size(), OutputQueue::kFullBytes);
  EXPECT_FALSE(queue.empty());
  EXPECT_EQ(Read(all.size()), all);
  WaitUntilEmpty(&queue);
  EXPECT_FALSE(queue.full());
  queue.Append("no newline");
  EXPECT_EQ(Read(10), "no newline");
}

// Other writers to a pipe come between lines only: O_DIRECT makes a packet of
// each write.
TEST_F(OutputQueueTest, WritesWholeLines) {
  ASSERT_EQ(::fcntl(ends_[1], F_SETFL, O_DIRECT), 0);
  OutputQueue queue(ends_[1]);
  std::string text;
  for (size_t i = 0; text.size() < 40000; ++i) {
    text += std::string(i * 7 % 301, 'x') + "\n";
  }
  queue.Append(text);
  std::string read;
  while (read.size() < text.size()) {
    char packet[8192];
    const ssize_t size = ::read(ends_[0], packet, sizeof(packet));
    ASSERT_GT(size, 0);
    EXPECT_EQ(packet[size - 1], '\n');
    read.append(packet, static_cast<size_t>(size));
  }
  EXPECT_EQ(read, text);
}

// The reader goes while the thread is in a write. The text that is in the queue
// then is dropped, and so is later text.
TEST_F(OutputQueueTest, DropsTextThatNobodyReads) {
  OutputQueue queue(ends_[1]);
  queue.Append(std::string(3 * OutputQueue::kFullBytes, 'x'));
  EXPECT_TRUE(queue.full());
  Close(0);
  WaitUntilEmpty(&queue);
  EXPECT_FALSE(queue.full());
  queue.Append("later\n");
  WaitUntilEmpty(&queue);
}

// The pipe takes one line: the thread is in the write of the second one, which
// ends when the test reads. The third line is dropped.
TEST_F(OutputQueueTest, EndsAlthoughTheReaderStalls) {
  ASSERT_EQ(::fcntl(ends_[1], F_SETPIPE_SZ, PIPE_BUF), PIPE_BUF);
  const std::string line = std::string(PIPE_BUF - 1, 'x') + "\n";
  auto queue = std::make_unique<OutputQueue>(ends_[1]);
  queue->Append(line + line + line);
  pollfd entry{queue->progress_fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&entry, 1, kSeconds * 1000), 1);
  EXPECT_FALSE(queue->empty());

  const std::future<void> end =
      std::async(std::launch::async, [&] { queue.reset(); });
  EXPECT_EQ(end.wait_for(std::chrono::seconds(kSeconds)),
            std::future_status::ready);
  Close(1);
  EXPECT_EQ(Read(2 * line.size()), line + line);
  EXPECT_EQ(Read(1), "the end");
}

}  // namespace
}  // namespace shardctl::output_test
