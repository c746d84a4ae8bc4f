// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace shardctl {

namespace {

struct Pipe {
  int read = -1;
  int write = -1;

  bool Open() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return false;
    read = ends[0];
    write = ends[1];
    return true;
  }
  void Close() {
    if (read >= 0) ::close(read);
    if (write >= 0) ::close(write);
  }
};

[[noreturn]] void Fail(int report) {
  const int error = errno;
  // Writes four bytes, which a pipe takes whole.
  if (::write(report, &error, sizeof(error)) < 0) ::_exit(125);
  ::_exit(127);
}

// `in` is -1 for a process without input.
[[noreturn]] void Exec(const SpawnOptions& options, pid_t parent, int in,
                       int out, int error, int report) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(125);  // shardctl died before the prctl.
  if (options.detached) {
    ::setpgid(0, 0);
    if (in < 0) in = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (in < 0 || ::dup2(in, STDIN_FILENO) < 0 ||
        ::dup2(out, STDOUT_FILENO) < 0 || ::dup2(error, STDERR_FILENO) < 0) {
      Fail(report);
    }
  }
  for (const auto& [name, value] : options.environment) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  std::vector<char*> arguments;
  for (const std::string& argument : options.command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);  // exec would leave it ignored.
  ::execvp(arguments[0], arguments.data());
  Fail(report);
}

}  // namespace

Process Spawn(const SpawnOptions& options) {
  Process process;
  Pipe in;
  Pipe out;
  Pipe error;
  Pipe report;  // Closed by exec; carries errno when there is none.
  const bool opened = report.Open() && (!options.pipe_input || in.Open()) &&
                      (!options.detached || (out.Open() && error.Open()));
  const pid_t parent = ::getpid();
  if (opened) process.pid = ::fork();
  if (process.pid < 0) {
    process.spawn_errno = errno;
    report.Close();
    in.Close();
    out.Close();
    error.Close();
    return process;
  }
  if (process.pid == 0) {
    Exec(options, parent, in.read, out.write, error.write, report.write);
  }
  // Parent and child both set the group: either may come first.
  if (options.detached) ::setpgid(process.pid, process.pid);
  ::close(report.write);
  ssize_t size = 0;
  do {
    size =
        ::read(report.read, &process.spawn_errno, sizeof(process.spawn_errno));
  } while (size < 0 && errno == EINTR);
  ::close(report.read);
  if (options.detached) {
    ::close(out.write);
    ::close(error.write);
    if (options.pipe_input) ::close(in.read);
    process.in = in.write;
    process.out = out.read;
    process.error = error.read;
    for (const int fd : {process.in, process.out, process.error}) {
      if (fd >= 0) ::fcntl(fd, F_SETFL, O_NONBLOCK);
    }
  }
  if (process.spawn_errno != 0) {
    ::waitpid(process.pid, nullptr, 0);
    process.pid = -1;
    for (int* fd : {&process.in, &process.out, &process.error}) {
      if (*fd >= 0) ::close(*fd);
      *fd = -1;
    }
  }
  return process;
}

}  // namespace shardctl
