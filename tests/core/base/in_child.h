// SPDX-License-Identifier: Apache-2.0
//
// Runs a part of a test in a process of its own, for limits and signals that
// would otherwise affect the whole test.

#ifndef SHARD_TESTS_CORE_BASE_IN_CHILD_H_
#define SHARD_TESTS_CORE_BASE_IN_CHILD_H_

#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace shard::testing {

// Runs `body` in a child process. Fails the test if `body` fails, or the
// process dies of a signal. REQUIRES: the calling process has one thread, or
// `body` takes no lock that another thread may hold.
inline void InChild(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // A lock that another thread holds is never free here.
    ::alarm(60);
    body();
    std::fflush(nullptr);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_FALSE(WIFSIGNALED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "see above";
}

// Lowers a limit of the calling process, for good.
inline void LowerLimit(decltype(RLIMIT_NOFILE) resource, rlim_t value) {
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(resource, &limit), 0);
  limit.rlim_cur = value;
  ASSERT_EQ(::setrlimit(resource, &limit), 0);
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_BASE_IN_CHILD_H_
