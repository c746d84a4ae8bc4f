// SPDX-License-Identifier: Apache-2.0
//
// The helper is invisible to the host process: no signal, no child, no zombie,
// and nothing of the host in the helper. The hosts here are of each kind that
// sees a program which is started in the usual way.

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <thread>

#include "core/comm/network/start_helper.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/in_child.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/comm/network/local_helper.h"
#include "tests/ranks/shared.h"

namespace shard::testing::invisible_test {
namespace {

using network::HelperConnection;
using network::MeetHelper;

std::unique_ptr<HelperConnection> MeetAlone() {
  auto met = MeetHelper(OptionsFor(UniqueName(), 0, 1));
  EXPECT_TRUE(met.ok()) << met.status().ToString();
  return met.ok() ? *std::move(met) : nullptr;
}

volatile sig_atomic_t signals = 0;

// Counts SIGCHLD from here on.
void CountSigchld() {
  struct sigaction action = {};
  action.sa_handler = [](int) { signals = signals + 1; };
  ASSERT_EQ(::sigaction(SIGCHLD, &action, nullptr), 0);
}

// Expects that the host has no child to wait for and had none.
void ExpectNoTrace() {
  EXPECT_EQ(signals, 0) << "SIGCHLD";
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

// The numbers of calls that older headers lack.
constexpr int kPidfdOpen = 434;
constexpr int kCloseRange = 436;

// Makes a system call fail from here on, as in an older kernel or a sandbox, in
// this process and in those that it starts.
void Deny(int number, int error) {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1),
      BPF_STMT(BPF_RET | BPF_K,
               SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {std::size(rules), rules};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

// Waits for all children, all the time, as a host may in a thread of its own.
class Waiter {
 public:
  Waiter() {
    thread_ = std::thread([this] {
      while (!stop_) {
        int status = 0;
        if (::waitpid(-1, &status, 0) > 0) ++found_;
      }
    });
  }
  // Returns the number of children that were found.
  int Stop() {
    stop_ = true;
    thread_.join();
    return found_;
  }

 private:
  std::atomic<bool> stop_ = false;
  int found_ = 0;
  std::thread thread_;
};

TEST(InvisibleTest, TheHostHasNoChildAndGetsNoSignal) {
  InChild([] {
    CountSigchld();
    Waiter waiter;
    auto met = MeetAlone();
    ASSERT_NE(met, nullptr);
    const pid_t helper = met->helper();
    EXPECT_EQ(ChildrenOf(::getpid()), std::vector<pid_t>());
    EXPECT_NE(StatusLine(helper, "PPid"), StrCat(::getpid()));
    met.reset();
    EXPECT_TRUE(EndsSoon(helper));
    EXPECT_EQ(ChildrenOf(::getpid()), std::vector<pid_t>());
    EXPECT_EQ(waiter.Stop(), 0);
    ExpectNoTrace();
  });
}

TEST(InvisibleTest, AHelperThatIsKilledLeavesNoTrace) {
  InChild([] {
    CountSigchld();
    const auto met = MeetAlone();
    ASSERT_NE(met, nullptr);
    ASSERT_EQ(::kill(met->helper(), SIGKILL), 0);
    EXPECT_TRUE(EndsSoon(met->helper()));
    EXPECT_EQ(ChildrenOf(::getpid()), std::vector<pid_t>());
    ExpectNoTrace();
  });
}

TEST(InvisibleTest, AProgramThatCannotBeStartedLeavesNoTrace) {
  InChild([] {
    CountSigchld();
    Waiter waiter;
    for (const char* path : {"/none", "/bin/true"}) {
      network::MeetOptions options = OptionsFor(UniqueName(), 0, 1);
      options.program = path;
      EXPECT_EQ(MeetHelper(options).status().code(),
                StatusCode::kBackendUnavailable);
    }
    EXPECT_EQ(ChildrenOf(::getpid()), std::vector<pid_t>());
    EXPECT_EQ(waiter.Stop(), 0);
    ExpectNoTrace();
  });
}

TEST(InvisibleTest, AHostThatIgnoresSigchld) {
  InChild([] {
    ::signal(SIGCHLD, SIG_IGN);
    auto met = MeetAlone();
    ASSERT_NE(met, nullptr);
    const pid_t helper = met->helper();
    EXPECT_FALSE(IsGone(helper));
    met.reset();
    EXPECT_TRUE(EndsSoon(helper));
  });
}

TEST(InvisibleTest, TheDispositionsMaskAndFolderOfTheHostStay) {
  InChild([] {
    CountSigchld();
    sigset_t before;
    sigset_t after;
    ::sigemptyset(&before);
    ::sigaddset(&before, SIGUSR1);
    ASSERT_EQ(::sigprocmask(SIG_SETMASK, &before, nullptr), 0);
    const auto folder = std::filesystem::current_path();
    const pid_t session = ::getsid(0);
    const auto met = MeetAlone();
    ::sigprocmask(SIG_SETMASK, nullptr, &after);
    for (int signal = 1; signal < NSIG; ++signal) {
      EXPECT_EQ(::sigismember(&after, signal), signal == SIGUSR1 ? 1 : 0)
          << signal;
    }
    struct sigaction action = {};
    ::sigaction(SIGCHLD, nullptr, &action);
    EXPECT_NE(action.sa_handler, SIG_DFL);
    EXPECT_EQ(std::filesystem::current_path(), folder);
    EXPECT_EQ(::getsid(0), session);
  });
}

// --- the helper ---

// Expects that the helper has no descriptors but those of its own work.
void ExpectCleanDescriptors(pid_t helper) {
  int sockets = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(StrCat("/proc/", helper, "/fd"))) {
    const std::string link = LinkOf(entry.path());
    if (link.empty()) continue;  // The helper has closed it.
    const int fd =
        static_cast<int>(*ParseInt(entry.path().filename().string()));
    if (fd < 3) {
      EXPECT_EQ(link, "/dev/null") << fd;
    } else if (link.compare(0, 8, "socket:[") == 0) {
      ++sockets;
    } else {
      EXPECT_TRUE(link.compare(0, 11, "anon_inode:") == 0 ||
                  link.compare(0, 7, "/memfd:") == 0 ||
                  link.compare(0, 6, "pidfd:") == 0)
          << fd << ": " << link;
    }
  }
  EXPECT_EQ(sockets, 1) << "that of the rank";
}

// Starts a helper from a host that leaves open, ignores, catches and blocks
// what it can.
void StartFromAMess() {
  // Descriptors without CLOEXEC, of each number that the helper may use.
  std::vector<int> open;
  for (int i = 0; i < 40; ++i) open.push_back(::open("/etc/passwd", O_RDONLY));
  ASSERT_GE(::dup2(open[0], 900), 0);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  for (const int fd : {3, 5, 7}) ::close(fd);
  // Nor signals: some are ignored, some caught, all blocked.
  CountSigchld();
  for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGQUIT, SIGUSR1}) {
    ::signal(signal, SIG_IGN);
  }
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);

  network::MeetOptions options = OptionsFor(UniqueName(), 0, 1);
  options.keep_stderr = false;
  const auto met = MeetHelper(options);
  ASSERT_TRUE(met.ok()) << met.status().ToString();
  const pid_t helper = (*met)->helper();
  ExpectCleanDescriptors(helper);
  EXPECT_EQ(StatusLine(helper, "SigBlk"), "0000000000000000");
  // The program itself ignores SIGPIPE.
  EXPECT_EQ(StatusLine(helper, "SigIgn"), "0000000000001000");
  if (!kSanitized) {
    // Glibc catches its own two in programs with threads.
    EXPECT_EQ(StatusLine(helper, "SigCgt").substr(8), "00000000");
  }
  EXPECT_EQ(::getsid(helper), helper);
  EXPECT_EQ(LinkOf(StrCat("/proc/", helper, "/cwd")), "/");
  EXPECT_EQ(StatusLine(helper, "Name"), "shard-network");
}

TEST(InvisibleTest, TheHelperInheritsNothing) { InChild(StartFromAMess); }

TEST(InvisibleTest, TheHelperInheritsNothingWithoutCloseRange) {
  for (const int error : {ENOSYS, EPERM}) {
    InChild([&] {
      Deny(kCloseRange, error);
      StartFromAMess();
    });
  }
}

TEST(InvisibleTest, TheErrorOutputIsKeptWhereItIsAskedFor) {
  for (const bool is_closed : {false, true}) {
    InChild([&] {
      const TempFolder temporary;
      const std::string folder = std::filesystem::canonical(temporary.path());
      const int file =
          ::open((folder + "/log").c_str(), O_CREAT | O_WRONLY, 0600);
      ASSERT_GE(file, 0);
      const int standard = ::dup(STDERR_FILENO);
      if (is_closed) {
        ::close(STDERR_FILENO);
      } else {
        ::dup3(file, STDERR_FILENO, O_CLOEXEC);
      }
      ::close(file);
      network::MeetOptions options = OptionsFor(UniqueName(), 0, 1);
      options.keep_stderr = true;
      const auto met = MeetHelper(options);
      ::dup2(standard, STDERR_FILENO);
      ASSERT_TRUE(met.ok()) << met.status().ToString();
      EXPECT_EQ(LinkOf(StrCat("/proc/", (*met)->helper(), "/fd/2")),
                is_closed ? "/dev/null" : folder + "/log");
    });
  }
}

TEST(InvisibleTest, TheEnvironmentAsksForTheErrorOutput) {
  InChild([] {
    const auto asks = [](const char* log, const char* file) {
      ::setenv("SHARD_LOG", log, 1);
      ::setenv("SHARD_LOG_FILE", file, 1);
      return network::LogsToStderr();
    };
    EXPECT_FALSE(asks("", ""));
    EXPECT_FALSE(asks("off", ""));
    EXPECT_FALSE(asks("info", "/tmp/log"));
    EXPECT_FALSE(asks("", "/tmp/log"));
    EXPECT_FALSE(asks("wrong", ""));
    EXPECT_TRUE(asks("info", ""));
    ::unsetenv("SHARD_LOG");
    EXPECT_FALSE(network::LogsToStderr());
  });
}

// The helper ends with its last rank, in whichever way this ends.
TEST(InvisibleTest, TheHelperEndsWithItsLastRank) {
  for (const std::string way : {"exit", "kill", "close", "closed by a fork"}) {
    const std::string key = UniqueName();
    const Shared<std::atomic<int>> helper;
    const auto results = RunRanks(2, [&](const Rank& rank) {
      auto met = MeetHelper(OptionsFor(key, rank.rank(), 2));
      ASSERT_TRUE(met.ok()) << met.status().ToString();
      const pid_t process = (*met)->helper();
      *helper = process;
      if (rank.rank() == 1) {
        // The helper stays for the other rank.
        met->reset();
        return;
      }
      ::poll(nullptr, 0, 100);
      EXPECT_FALSE(IsGone(process)) << way;
      if (way == "kill") ::kill(::getpid(), SIGKILL);
      if (way == "exit") ::_exit(0);
      if (way == "close") {
        met->reset();
        EXPECT_TRUE(EndsSoon(process)) << way;
        return;
      }
      // A child has the connection as well, and closes its own alone. It does
      // not release what its parent has.
      const auto region = (*met)->RequestRegion("a", {}, 4096, Soon());
      ASSERT_OK(region);
      region->data()[0] = std::byte{7};
      const pid_t child = ::fork();
      if (child == 0) {
        const Status released = (*met)->ReleaseRegion("a", Soon());
        met->reset();
        ::_exit(released.ok() ? 0 : 1);
      }
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
      EXPECT_FALSE((*met)->HelperIsGone()) << way;
      const auto again = (*met)->RequestRegion("a", {}, 4096, Soon());
      ASSERT_OK(again);
      EXPECT_EQ(again->data()[0], std::byte{7}) << way;
      const pid_t sleeper = ::fork();
      if (sleeper == 0) {
        ::poll(nullptr, 0, 20000);
        ::_exit(0);
      }
      met->reset();
      EXPECT_TRUE(EndsSoon(process)) << way;
      ::kill(sleeper, SIGKILL);
      ::waitpid(sleeper, nullptr, 0);
    });
    EXPECT_TRUE(results[0].passed() || results[0].signal == SIGKILL)
        << way << ": " << results[0].ToString();
    EXPECT_TRUE(results[1].passed()) << way;
    ASSERT_NE(*helper, 0) << way;
    EXPECT_TRUE(EndsSoon(*helper)) << way;
  }
}

TEST(InvisibleTest, TheThreadThatStartsTheHelperMayEnd) {
  InChild([] {
    std::unique_ptr<HelperConnection> met;
    std::thread([&] { met = MeetAlone(); }).join();
    ASSERT_NE(met, nullptr);
    ::poll(nullptr, 0, 200);
    EXPECT_FALSE(IsGone(met->helper()));
    EXPECT_OK(met->RequestRegion("a", {}, 4096, Soon()));
  });
}

// --- hosts to which orphans come ---

void BecomeSubreaper() {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
}

TEST(InvisibleTest, AHostThatIsASubreaper) {
  InChild([] {
    BecomeSubreaper();
    CountSigchld();
    Waiter waiter;
    auto met = MeetAlone();
    ASSERT_NE(met, nullptr);
    const pid_t helper = met->helper();
    // The keeper shares the memory of the host, and nothing else.
    const std::vector<pid_t> children = ChildrenOf(::getpid());
    ASSERT_EQ(children.size(), 1u);
    const pid_t keeper = children[0];
    EXPECT_TRUE(ComesTrue(
        [&] { return StatusLine(keeper, "Name") == "shard-keeper"; }));
    EXPECT_EQ(StatusLine(helper, "PPid"), StrCat(keeper));
    EXPECT_EQ(::getsid(keeper), keeper);
    EXPECT_TRUE(ComesTrue([&] {
      for (const auto& entry : std::filesystem::directory_iterator(
               StrCat("/proc/", keeper, "/fd"))) {
        if (!Contains(LinkOf(entry.path()), "pidfd")) return false;
      }
      return true;
    }));
    met.reset();
    EXPECT_TRUE(EndsSoon(helper));
    // The end of the connection waits for the keeper.
    EXPECT_TRUE(ComesTrue([&] {
      network::ReapKeepers(Deadline::After(0));
      return ChildrenOf(::getpid()).empty();
    }));
    EXPECT_EQ(waiter.Stop(), 0);
    ExpectNoTrace();
  });
}

TEST(InvisibleTest, AKeeperEndsWithAHelperThatIsKilled) {
  InChild([] {
    BecomeSubreaper();
    CountSigchld();
    const auto met = MeetAlone();
    ASSERT_NE(met, nullptr);
    const std::vector<pid_t> children = ChildrenOf(::getpid());
    ASSERT_EQ(children.size(), 1u);
    ASSERT_EQ(::kill(met->helper(), SIGKILL), 0);
    EXPECT_TRUE(EndsSoon(children[0]));
    ExpectNoTrace();  // Also while the keeper is a zombie.
    // The next start reaps it.
    const auto again = MeetAlone();
    ASSERT_NE(again, nullptr);
    EXPECT_EQ(StatusLine(children[0], "State"), "");
    ExpectNoTrace();
  });
}

// The helper stays for the other rank, and the memory of the host does not.
TEST(InvisibleTest, AKeeperEndsWithItsHost) {
  const std::string key = UniqueName();
  const Shared<std::atomic<int>> keeper;
  const Shared<std::atomic<int>> met_both;
  const auto results = RunRanks(2, [&](const Rank& rank) {
    network::MeetOptions options = OptionsFor(key, rank.rank(), 2);
    if (rank.rank() == 0) {
      BecomeSubreaper();
      options.phase_hook = [&](std::string_view at) {
        if (at != "started") return;
        const std::vector<pid_t> children = ChildrenOf(::getpid());
        ASSERT_EQ(children.size(), 1u);
        *keeper = children[0];
      };
    } else {
      ASSERT_TRUE(ComesTrue([&] { return *keeper != 0; }));
    }
    const auto met = MeetHelper(options);
    ASSERT_TRUE(met.ok()) << met.status().ToString();
    ++*met_both;
    ASSERT_TRUE(ComesTrue([&] { return *met_both == 2; }));
    if (rank.rank() == 0) ::kill(::getpid(), SIGKILL);
    EXPECT_TRUE(EndsSoon(*keeper));
    EXPECT_FALSE(IsGone((*met)->helper()));
    EXPECT_OK((*met)->RequestRegion("a", {}, 4096, Soon()));
  });
  EXPECT_EQ(results[0].signal, SIGKILL);
  EXPECT_TRUE(results[1].passed()) << results[1].ToString();
}

TEST(InvisibleTest, AKernelWithoutPidfds) {
  InChild([] {
    Deny(kPidfdOpen, ENOSYS);
    BecomeSubreaper();
    CountSigchld();
    auto met = MeetAlone();
    ASSERT_NE(met, nullptr);
    const pid_t helper = met->helper();
    EXPECT_EQ(ChildrenOf(::getpid()).size(), 1u);
    met.reset();
    EXPECT_TRUE(EndsSoon(helper));
    EXPECT_TRUE(ComesTrue([&] {
      network::ReapKeepers(Deadline::After(0));
      return ChildrenOf(::getpid()).empty();
    }));
    ExpectNoTrace();
  });
}

// Many keepers share the host's memory, which changes meanwhile.
TEST(InvisibleTest, KeepersOfManyThreads) {
  InChild([] {
    BecomeSubreaper();
    CountSigchld();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 5; ++i) {
          auto met = MeetAlone();
          ASSERT_NE(met, nullptr);
          std::vector<int> numbers(100000, i);
          EXPECT_EQ(numbers.back(), i);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(ComesTrue([&] {
      network::ReapKeepers(Deadline::After(0));
      return ChildrenOf(::getpid()).empty();
    }));
    ExpectNoTrace();
  });
}

TEST(InvisibleTest, AHostThatIsTheInitProcess) {
  InChild([] {
    // Root makes the namespace by itself, others in one of users.
    if (::unshare(CLONE_NEWPID) != 0 &&
        ::unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) {
      std::cout << "[  SKIPPED ] no pid namespace can be made here: "
                << std::strerror(errno) << std::endl;
      return;
    }
    InChild([] {
      ASSERT_EQ(::getpid(), 1);
      CountSigchld();
      Waiter waiter;
      auto met = MeetAlone();
      ASSERT_NE(met, nullptr);
      // In this namespace the host is 1, the keeper 2 or so.
      const pid_t helper = met->helper();
      EXPECT_GT(helper, 1);
      EXPECT_EQ(::kill(helper, 0), 0);
      EXPECT_OK(met->RequestRegion("a", {}, 4096, Soon()));
      met.reset();
      EXPECT_TRUE(ComesTrue(
          [&] {
            network::ReapKeepers(Deadline::After(0));
            // No process but this one, zombies included.
            return ::kill(-1, 0) != 0 && errno == ESRCH;
          },
          Deadline::After(kGoneSeconds)));
      EXPECT_EQ(waiter.Stop(), 0);
      ExpectNoTrace();
    });
  });
}

// --- limits ---

// With some descriptors left, each number of them: a clear error, or none.
TEST(InvisibleTest, FewDescriptorsAreAnErrorOrEnough) {
  InChild([] {
    LowerLimit(RLIMIT_NOFILE, 40);
    bool ok = false;
    for (int left = 0; left < 20 && !ok; ++left) {
      std::vector<Fd> taken;
      for (;;) {
        Fd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        if (!fd.valid()) break;
        taken.push_back(std::move(fd));
      }
      ASSERT_EQ(errno, EMFILE);
      ASSERT_GT(taken.size(), static_cast<size_t>(left));
      taken.resize(taken.size() - static_cast<size_t>(left));
      const auto met = MeetHelper(OptionsFor(UniqueName(), 0, 1));
      ok = met.ok();
      if (!ok) {
        ExpectError(met, StatusCode::kResourceExhausted, {});
        EXPECT_TRUE(Contains(met.status().message(), "RLIMIT_NOFILE") ||
                    Contains(met.status().message(), "ulimit -n") ||
                    Contains(met.status().message(), "Too many open files"))
            << met.status().ToString();
      }
      // A failed meeting has taken none.
      if (!ok) {
        std::vector<Fd> again;
        for (int i = 0; i < left; ++i) {
          again.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
          EXPECT_TRUE(again.back().valid()) << left << " were left";
        }
      }
      EXPECT_FALSE(ok && left == 0);
    }
    EXPECT_TRUE(ok);
  });
}

TEST(InvisibleTest, NoMoreProcessesIsAClearError) {
  InChild([] {
    Deny(SYS_clone, EAGAIN);
    ExpectError(MeetHelper(OptionsFor(UniqueName(), 0, 1)),
                StatusCode::kResourceExhausted, {"a new process", "ulimit -u"});
  });
}

TEST(InvisibleTest, ADeadlineEndsTheStart) {
  InChild([] {
    network::HelperProgram program;
    program.path = "/bin/true";
    const Status started = network::StartHelper(program, Deadline::After(0));
    // The program may be faster than the deadline of none.
    EXPECT_TRUE(started.ok() || started.code() == StatusCode::kDeadlineExceeded)
        << started.ToString();
    network::ReapKeepers(Soon());
    EXPECT_EQ(ChildrenOf(::getpid()), std::vector<pid_t>());
    program.fds.assign(9, 3);
    ExpectError(network::StartHelper(program, Soon()),
                StatusCode::kInvalidArgument, {"8", "9"});
  });
}

}  // namespace
}  // namespace shard::testing::invisible_test
