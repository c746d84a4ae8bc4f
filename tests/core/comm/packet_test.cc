// SPDX-License-Identifier: Apache-2.0

#include "core/comm/shm/packet.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "core/base/fd.h"
#include "tests/ranks/ranks.h"

namespace shard::shm::packet_test {
namespace {

class PacketTest : public ::testing::Test {
 protected:
  PacketTest() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    here_.Reset(ends[0]);
    there_.Reset(ends[1]);
  }

  static Status SendText(const Fd& fd, const std::string& text,
                         const std::vector<int>& fds = {}) {
    return Send(fd.get(), text.data(), text.size(), fds, Deadline::After(10));
  }

  static StatusOr<Packet> Take(const Fd& fd, double seconds = 10) {
    return Receive(fd.get(), Deadline::After(seconds));
  }

  Fd here_;
  Fd there_;
};

TEST_F(PacketTest, ArrivesWholeAndInOrder) {
  ASSERT_TRUE(SendText(there_, "one").ok());
  ASSERT_TRUE(SendText(there_, "two").ok());
  EXPECT_EQ(Take(here_)->bytes, "one");
  EXPECT_EQ(Take(here_)->bytes, "two");
  EXPECT_EQ(ReceiveNow(here_.get()).status().code(), StatusCode::kNotFound);
}

TEST_F(PacketTest, DescriptorsAreOwnedAndClosedOnExec) {
  const int before = testing::CountOpenFiles();
  {
    ASSERT_TRUE(SendText(there_, "files", {0, 1, 2}).ok());
    const auto packet = Take(here_);
    ASSERT_TRUE(packet.ok()) << packet.status().ToString();
    ASSERT_EQ(packet->fds.size(), 3u);
    for (const Fd& fd : packet->fds) {
      EXPECT_EQ(::fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
    }
    // The descriptors of a packet that is refused are closed as well.
    ASSERT_TRUE(SendText(there_, std::string(5000, 'x'), {0}).ok());
    EXPECT_EQ(Take(here_).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(testing::CountOpenFiles(), before);
}

TEST_F(PacketTest, DeadlineAndGivingUp) {
  EXPECT_EQ(Take(here_, 0.01).status().code(), StatusCode::kDeadlineExceeded);
  int asked = 0;
  const auto packet =
      Receive(here_.get(), Deadline::After(60), [&] { return ++asked == 2; });
  EXPECT_EQ(packet.status().code(), StatusCode::kCancelled);
  // The peer does not receive.
  Status status;
  while (status.ok()) {
    status = Send(here_.get(), "x", 1, {}, Deadline::After(0.01));
  }
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
}

TEST_F(PacketTest, APeerThatIsGoneIsUnavailable) {
  there_.Reset();
  EXPECT_EQ(Take(here_).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(SendText(here_, "x").code(), StatusCode::kUnavailable);
}

// The last packet of a peer that left is received, even when the peer left
// packets of ours unread: the kernel would return ECONNRESET first.
TEST_F(PacketTest, TheLastWordsOfAPeerAreReceived) {
  ASSERT_TRUE(SendText(here_, "never read").ok());
  ASSERT_TRUE(SendText(there_, "last words").ok());
  there_.Reset();
  const auto packet = Take(here_);
  ASSERT_TRUE(packet.ok()) << packet.status().ToString();
  EXPECT_EQ(packet->bytes, "last words");
  EXPECT_EQ(Take(here_).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace shard::shm::packet_test
