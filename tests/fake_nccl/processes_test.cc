// SPDX-License-Identifier: Apache-2.0
//
// Ranks of the fake NCCL that are processes. Each is forked before the driver
// is called, and has a fake of its own.

#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fake_nccl/nccl_testing.h"

namespace shard::testing::fake_nccl {
namespace {

class ProcessesTest : public ::testing::Test {
 protected:
  void SetUp() override { id_ = NewId(); }

  // Runs ranks as processes. Fails the test where one fails.
  void Run(int nranks, const std::function<void(Rank*)>& body) {
    Start(nranks, body);
    for (const pid_t it : children_) {
      int status = 0;
      ASSERT_EQ(::waitpid(it, &status, 0), it);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << "a rank has failed, see above";
    }
    EXPECT_EQ(SegmentsLeft(), 0);
  }
  void Start(int nranks, const std::function<void(Rank*)>& body) {
    children_.clear();
    for (int r = 0; r < nranks; ++r) {
      std::fflush(nullptr);
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        ::alarm(100);  // No rank outlives a test that has failed.
        fake_cuda::Options cuda;
        cuda.devices = 4;
        ResetWithNccl(cuda);
        Api();
        {
          Rank rank(r, r);
          body(&rank);
        }
        FakeNccl::Check();
        std::fflush(nullptr);
        ::_exit(HasFailure() ? 1 : 0);
      }
      children_.push_back(child);
    }
  }
  // Returns how many files of this test's communicators are left.
  int SegmentsLeft() const {
    const std::string name = std::string(id_.internal).substr(1);
    int count = 0;
    DIR* const folder = ::opendir("/dev/shm");
    if (folder == nullptr) return 0;
    while (const dirent* const entry = ::readdir(folder)) {
      if (std::string(entry->d_name).rfind(name, 0) == 0) ++count;
    }
    ::closedir(folder);
    return count;
  }

  UniqueId id_ = {};
  std::vector<pid_t> children_;
};

TEST_F(ProcessesTest, RanksExchangeTensors) {
  constexpr size_t kCount = 30000;
  Run(3, [&](Rank* rank) {
    const auto r = static_cast<size_t>(rank->rank());
    Comm* const comm = rank->Init(3, id_);
    float* const x =
        rank->Put(std::vector<float>(3 * kCount, static_cast<float>(r + 1)));
    EXPECT_NCCL(ncclReduceScatter(x, x + r * kCount, kCount, DataType::kFloat32,
                                  RedOp::kSum, comm, rank->stream()));
    EXPECT_NCCL(ncclAllGather(x + r * kCount, x, kCount, DataType::kFloat32,
                              comm, rank->stream()));
    EXPECT_EQ(rank->Get(x, 3 * kCount), std::vector<float>(3 * kCount, 6));
    Comm* half = nullptr;
    EXPECT_EQ(ncclCommSplit(comm, rank->rank() / 2, 0, &half, nullptr),
              Result::kInProgress);
    EXPECT_NCCL(Rank::Await(comm));
    EXPECT_NCCL(
        ncclBroadcast(x, x, 1, DataType::kFloat32, 0, half, rank->stream()));
    EXPECT_TRUE(rank->Synchronize());
    Rank::Finish(half);
    Rank::Finish(comm);
  });
}

TEST_F(ProcessesTest, ADeviceHasOneRank) {
  Run(2, [&](Rank* rank) {
    const Rank other(rank->rank(), 3);
    Comm* comm = nullptr;
    EXPECT_EQ(rank->Begin(2, id_, &comm), Result::kInProgress);
    EXPECT_EQ(Rank::Await(comm), Result::kInvalidUsage);
    EXPECT_NE(std::string(ncclGetLastError(comm)).find("Duplicate GPU"),
              std::string::npos);
    EXPECT_NCCL(ncclCommAbort(comm));
  });
}

// A process that is killed holds no lock, and its peer can abort.
TEST_F(ProcessesTest, ARankIsKilled) {
  int ready[2];
  int killed[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(killed), 0);
  Start(2, [&](Rank* rank) {
    Comm* const comm = rank->Init(2, id_);
    if (rank->rank() == 1) {
      EXPECT_EQ(::write(ready[1], "", 1), 1);
      for (;;) ::pause();
    }
    float* const x = rank->Put(std::vector<float>(2));
    EXPECT_NCCL(
        ncclAllGather(x, x, 1, DataType::kFloat32, comm, rank->stream()));
    const CuEvent event = rank->Record();
    EXPECT_EQ(::write(ready[1], "", 1), 1);
    char byte = 0;
    EXPECT_EQ(::read(killed[0], &byte, 1), 1);
    EXPECT_TRUE(Rank::IsPending(event));
    EXPECT_NCCL(ncclCommAbort(comm));
    EXPECT_TRUE(rank->Synchronize());
  });
  char byte = 0;
  for (int i = 0; i < 2; ++i) ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(::kill(children_[1], SIGKILL), 0);
  int status = 0;
  EXPECT_EQ(::waitpid(children_[1], &status, 0), children_[1]);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(::write(killed[1], "", 1), 1);
  EXPECT_EQ(::waitpid(children_[0], &status, 0), children_[0]);
  EXPECT_EQ(status, 0);
  for (const int it : {ready[0], ready[1], killed[0], killed[1]}) ::close(it);
}

// The environment controls programs that are not linked with the fake's header.
class EnvironmentTest : public ::testing::Test {
 protected:
  static std::string CountsPath() {
    return std::string(std::getenv("TEST_TMPDIR") == nullptr
                           ? "/tmp"
                           : std::getenv("TEST_TMPDIR")) +
           "/counts";
  }
  static std::string ProgramPath() {
    char path[4096] = {};
    EXPECT_GT(::readlink("/proc/self/exe", path, sizeof(path) - 1), 0);
    return path;
  }
};

TEST_F(EnvironmentTest, ControlsAProgram) {
  if (std::getenv("SHARD_FAKE_NCCL_VERSION") == nullptr) {
    const std::string program = ProgramPath();
    const std::string command =
        "SHARD_FAKE_NCCL_VERSION=22005 SHARD_FAKE_NCCL_POLLS=init:0 "
        "SHARD_FAKE_NCCL_FAIL=ncclCommCount:1:3 SHARD_FAKE_NCCL_STICK=1 "
        "SHARD_FAKE_NCCL_FAIL_ASYNC=2:6 SHARD_FAKE_NCCL_STRICT=1 "
        "SHARD_FAKE_NCCL_COUNTS=" +
        CountsPath() + " '" + program +
        "' --gtest_filter=EnvironmentTest.ControlsAProgram > '" + CountsPath() +
        ".log' 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0);
    std::ifstream counts(CountsPath());
    const std::string text((std::istreambuf_iterator<char>(counts)), {});
    EXPECT_NE(text.find("ncclAllGather 2 8\n"), std::string::npos) << text;
    return;
  }
  int version = 0;
  EXPECT_NCCL(ncclGetVersion(&version));
  EXPECT_EQ(version, 22005);
  Api();
  Rank rank(0, 0);
  Comm* comm = nullptr;
  EXPECT_NCCL(rank.Begin(1, NewId(), &comm));
  int count = 0;
  EXPECT_EQ(ncclCommCount(comm, &count), Result::kInternalError);
  float* const x = rank.Put(std::vector<float>(1));
  for (int i = 0; i < 2; ++i) {
    EXPECT_NCCL(
        ncclAllGather(x, x, 1, DataType::kFloat32, comm, rank.stream()));
  }
  EXPECT_TRUE(Rank::IsPending(rank.Record()));
  EXPECT_EQ(Rank::Await(comm), Result::kRemoteError);
  EXPECT_NCCL(ncclCommAbort(comm));
  EXPECT_TRUE(rank.Synchronize());
}

}  // namespace
}  // namespace shard::testing::fake_nccl
