// SPDX-License-Identifier: Apache-2.0
//
// The library leaves the state of its host alone: output, signals, locale,
// umask, working directory, environment.

#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <vector>

#include "tests/api/api_testing.h"

extern char** environ;

namespace shard_api_testing::host_test {
namespace {

// Makes a run with success, errors and an abort in it.
void UseTheLibrary() {
  RunRanks(2, [](int rank, shard_comm* comm) {
    const Engine engine = TrainingEngine(comm);
    FillGrad(engine.get(), 1.0f);
    shard_step_options options = SHARD_STEP_OPTIONS_INIT;
    options.max_grad_norm = 1;
    EXPECT_OK(shard_engine_step(engine.get(), &options, nullptr));
    EXPECT_OK(shard_engine_set_hyper(engine.get(), 0, "lr", rank == 0 ? 1 : 2));
    EXPECT_FAILS(shard_engine_step(engine.get(), &options, nullptr),
                 SHARD_DESYNC, "lr");
    EXPECT_OK(shard_comm_barrier(comm, 0));
    if (rank == 0) {
      EXPECT_OK(shard_comm_abort(comm, "reason"));
    }
    EXPECT_FAILS(shard_comm_barrier(comm, 0), SHARD_POISONED, "reason");
  });
  const Model model = SmallModel();
  shard_plan_options options = PlanOptions(1);
  options.optimizer = "adamx";
  shard_plan* plan = nullptr;
  EXPECT_FAILS(shard_plan_create(model.get(), &options, &plan),
               SHARD_INVALID_ARGUMENT, "adamx");
}

// Sends stdout and stderr to a file during its lifetime.
class Captured {
 public:
  Captured() : file_(::tmpfile()) {
    ::fflush(nullptr);
    for (int fd : {STDOUT_FILENO, STDERR_FILENO}) {
      saved_[fd] = ::dup(fd);
      ::dup2(::fileno(file_), fd);
    }
  }
  // Ends the capture and returns the output.
  std::string Finish() {
    ::fflush(nullptr);
    for (int fd : {STDOUT_FILENO, STDERR_FILENO}) {
      ::dup2(saved_[fd], fd);
      ::close(saved_[fd]);
    }
    std::string text(static_cast<size_t>(::lseek(::fileno(file_), 0, SEEK_END)),
                     '\0');
    EXPECT_EQ(::pread(::fileno(file_), text.data(), text.size(), 0),
              static_cast<ssize_t>(text.size()));
    ::fclose(file_);
    return text;
  }

 private:
  FILE* const file_;
  int saved_[3] = {-1, -1, -1};
};

TEST(HostTest, NothingIsPrinted) {
  Captured captured;
  UseTheLibrary();
  EXPECT_EQ(captured.Finish(), "");
}

std::vector<std::string> HostState() {
  std::vector<std::string> state;
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action;
    if (::sigaction(number, nullptr, &action) != 0) continue;
    std::string line = "signal " + std::to_string(number) + ": " +
                       std::to_string(action.sa_flags) + " " +
                       std::to_string(reinterpret_cast<uintptr_t>(
                           reinterpret_cast<void*>(action.sa_sigaction)));
    for (int masked = 1; masked < NSIG; ++masked) {
      line += ::sigismember(&action.sa_mask, masked) == 1 ? '1' : '0';
    }
    state.push_back(line);
  }
  sigset_t blocked;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  for (int number = 1; number < NSIG; ++number) {
    if (::sigismember(&blocked, number) == 1) {
      state.push_back("blocked " + std::to_string(number));
    }
  }
  state.push_back(std::string("locale ") + ::setlocale(LC_ALL, nullptr));
  const mode_t mask = ::umask(0);
  ::umask(mask);
  state.push_back("umask " + std::to_string(mask));
  char* folder = ::getcwd(nullptr, 0);
  state.push_back(std::string("cwd ") + (folder != nullptr ? folder : "?"));
  ::free(folder);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    state.emplace_back(*variable);
  }
  return state;
}

TEST(HostTest, NothingIsChanged) {
  ::setlocale(LC_ALL, "C.UTF-8");
  ::signal(SIGPIPE, SIG_DFL);
  ::umask(027);
  const std::vector<std::string> before = HostState();
  UseTheLibrary();
  EXPECT_EQ(HostState(), before);
}

TEST(HostTest, NoDescriptorsAreLeft) {
  const auto lowest_free = [] {
    const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::close(fd);
    return fd;
  };
  const int before = lowest_free();
  UseTheLibrary();
  EXPECT_EQ(lowest_free(), before);
}

// The library writes only to the host's log, and only up to the level that the
// host asked for.
TEST(HostTest, LogGoesToTheHost) {
  struct Log {
    std::atomic<int> lines{0};
    std::atomic<int> most{0};
  } log;
  const auto sink = [](int32_t level, const char* message, void* user_data) {
    auto* to = static_cast<Log*>(user_data);
    EXPECT_STRNE(message, "");
    ++to->lines;
    if (level > to->most) to->most = level;
  };
  const Plan plan = SmallPlan(1);
  for (const int32_t level : {+SHARD_LOG_ERROR, +SHARD_LOG_INFO}) {
    log.lines = 0;
    shard_comm_options options = SHARD_COMM_OPTIONS_INIT;
    options.log = sink;
    options.log_user_data = &log;
    options.log_level = level;
    shard_comm* comm = nullptr;
    ASSERT_OK(shard_comm_open("local:", &options, &comm));
    const Comm owned(comm);
    const Engine engine = MakeEngine(plan.get(), comm);
    EXPECT_EQ(log.lines > 0, level == SHARD_LOG_INFO);
    EXPECT_LE(log.most, level);
  }
}

}  // namespace
}  // namespace shard_api_testing::host_test
