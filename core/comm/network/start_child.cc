// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/start_child.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace shard::network {

namespace {

// Older headers lack these numbers, which are the same on all architectures.
constexpr long kPidfdOpen = 434;
constexpr long kCloseRange = 436;

constexpr int kSignals = 64;
constexpr size_t kSignalSetBytes = kSignals / 8;

// Calls the kernel. Returns its result, or -errno.
long Call(long number, long a = 0, long b = 0, long c = 0, long d = 0) {
#if defined(__x86_64__)
  long result;
  register long r10 asm("r10") = d;
  asm volatile("syscall"
               : "=a"(result)
               : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
               : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  register long x3 asm("x3") = d;
  asm volatile("svc #0"
               : "+r"(x0)
               : "r"(x8), "r"(x1), "r"(x2), "r"(x3)
               : "memory");
  return x0;
#else
#error "start_child.cc needs the system call of this architecture"
#endif
}

template <typename T>
long Address(T* pointer) {
  return reinterpret_cast<long>(pointer);
}

// Makes a process that runs `run(plan)` on another stack, and ends with its
// result. Returns the process id, or -errno.
long CloneOnStack(long flags, std::byte* stack, int (*run)(ChildPlan*),
                  ChildPlan* plan) {
  // The new process takes these two from its stack.
  auto** const top = reinterpret_cast<void**>(stack) - 2;
  top[0] = reinterpret_cast<void*>(run);
  top[1] = plan;
#if defined(__x86_64__)
  long result;
  register long r10 asm("r10") = 0;
  register long r8 asm("r8") = 0;
  asm volatile(
      "syscall\n\t"
      "testq %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xorl %%ebp, %%ebp\n\t"  // The last frame, for those who walk the stack.
      "popq %%rax\n\t"
      "popq %%rdi\n\t"
      "callq *%%rax\n\t"
      "movl %%eax, %%edi\n\t"
      "movl %[exit], %%eax\n\t"
      "syscall\n\t"
      "1:"
      : "=a"(result)
      : "0"(static_cast<long>(SYS_clone)), "D"(flags), "S"(top), "d"(0L),
        "r"(r10), "r"(r8), [exit] "i"(SYS_exit)
      : "rcx", "r11", "memory", "cc");
  return result;
#elif defined(__aarch64__)
  register long x8 asm("x8") = SYS_clone;
  register long x0 asm("x0") = flags;
  register long x1 asm("x1") = Address(top);
  register long x2 asm("x2") = 0;
  register long x3 asm("x3") = 0;
  register long x4 asm("x4") = 0;
  asm volatile(
      "svc #0\n\t"
      "cbnz x0, 1f\n\t"
      "mov x29, xzr\n\t"
      "ldp x1, x0, [sp], #16\n\t"
      "blr x1\n\t"
      "mov x8, %[exit]\n\t"
      "svc #0\n\t"
      "1:"
      : "+r"(x0)
      : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), [exit] "i"(SYS_exit)
      : "memory", "cc");
  return x0;
#endif
}

void BlockSignals(bool block) {
  const uint64_t set = block ? ~uint64_t{0} : 0;
  Call(SYS_rt_sigprocmask, SIG_SETMASK, Address(&set), 0, kSignalSetBytes);
}

// Closes the descriptors first to last, where the kernel is older than Linux
// 5.9 or a sandbox forbids close_range: those that /proc lists.
void CloseListed(unsigned first, unsigned last) {
  const long folder = Call(SYS_openat, AT_FDCWD, Address("/proc/self/fd"),
                           O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) {
    // No sandbox without /proc has many files open.
    constexpr unsigned kMost = 65536;
    for (unsigned fd = first; fd <= last && fd < kMost; ++fd) {
      Call(SYS_close, fd);
    }
    return;
  }
  struct Entry {  // The kernel's linux_dirent64.
    uint64_t inode;
    int64_t next;
    uint16_t bytes;
    uint8_t type;
    char name[1];
  };
  alignas(Entry) char entries[2048];
  for (;;) {
    const long size = Call(SYS_getdents64, folder, Address(entries),
                           static_cast<long>(sizeof(entries)));
    if (size <= 0) break;
    for (long at = 0; at < size;) {
      const auto* const entry = reinterpret_cast<const Entry*>(entries + at);
      at += entry->bytes;
      long fd = 0;
      const char* digit = entry->name;
      for (; *digit >= '0' && *digit <= '9'; ++digit)
        fd = fd * 10 + *digit - '0';
      if (digit == entry->name || fd == folder) continue;
      if (fd >= first && fd <= last) Call(SYS_close, fd);
    }
  }
  Call(SYS_close, folder);
}

void CloseRange(unsigned first, unsigned last) {
  if (first > last) return;
  if (Call(kCloseRange, first, last, 0) != 0) CloseListed(first, last);
}

constexpr unsigned kLastFd = 0x7FFFFFFF;

// Closes all descriptors but `kept`, which is sorted.
void CloseAllBut(const int* kept, int count) {
  unsigned first = 0;
  for (int i = 0; i < count; ++i) {
    const auto fd = static_cast<unsigned>(kept[i]);
    if (fd > first) CloseRange(first, fd - 1);
    if (fd >= first) first = fd + 1;
  }
  CloseRange(first, kLastFd);
}

// Gives the program its descriptors and no others. Returns the failed step, or
// kNone. Closes before it opens: the host may have as many as it is allowed.
StartReport ArrangeDescriptors(const ChildPlan& plan) {
  int kept[ChildPlan::kMostFds + 1];
  int count = 0;
  const auto keep = [&](int fd) {
    int at = count++;
    for (; at > 0 && kept[at - 1] > fd; --at) kept[at] = kept[at - 1];
    kept[at] = fd;
  };
  for (int i = 0; i < plan.fd_count; ++i) keep(plan.fds[i]);
  if (plan.keep_stderr) keep(STDERR_FILENO);
  CloseAllBut(kept, count);

  // Moves them out of the way of each other, and then to their places.
  const int end = STDERR_FILENO + 1 + plan.fd_count;
  int moved[ChildPlan::kMostFds];
  for (int i = 0; i < plan.fd_count; ++i) {
    const long fd = Call(SYS_fcntl, plan.fds[i], F_DUPFD_CLOEXEC, end);
    // EINVAL means that the limit on descriptors is that low.
    if (fd < 0) {
      return {StartStep::kDescriptors,
              fd == -EINVAL ? EMFILE : static_cast<int>(-fd)};
    }
    moved[i] = static_cast<int>(fd);
  }
  for (int i = 0; i < plan.fd_count; ++i) {
    const long fd = Call(SYS_dup3, moved[i], STDERR_FILENO + 1 + i, 0);
    if (fd < 0) return {StartStep::kDescriptors, static_cast<int>(-fd)};
  }
  CloseRange(static_cast<unsigned>(end), kLastFd);

  const long null = Call(SYS_openat, AT_FDCWD, Address("/dev/null"), O_RDWR);
  if (null < 0) return {StartStep::kNull, static_cast<int>(-null)};
  // Nothing else has the lowest number.
  Call(SYS_dup3, null, STDOUT_FILENO, 0);
  // The host may have closed its error output, or close it on exec.
  if (!plan.keep_stderr || Call(SYS_fcntl, STDERR_FILENO, F_SETFD, 0) < 0) {
    Call(SYS_dup3, null, STDERR_FILENO, 0);
  }
  return {StartStep::kNone, 0};
}

// The process that becomes the program.
int RunProgram(ChildPlan* plan) {
  Call(SYS_setsid);
  Call(SYS_chdir, Address("/"));
  // Zeros are SIG_DFL without flags, in the kernel's own form of the struct.
  const uint64_t action[4] = {};
  for (int signal = 1; signal <= kSignals; ++signal) {
    Call(SYS_rt_sigaction, signal, Address(action), 0, kSignalSetBytes);
  }
  plan->report = ArrangeDescriptors(*plan);
  if (plan->report.step != StartStep::kNone) return 127;
  BlockSignals(false);
  plan->report = {StartStep::kRunning, 0};
  const long error = Call(SYS_execve, Address(plan->path),
                          Address(plan->arguments), Address(plan->environment));
  plan->report = {StartStep::kExecute, static_cast<int>(-error)};
  return 127;
}

// Sleeps until the program or the host has ended.
void Keep(long program, const ChildPlan& plan) {
  CloseAllBut(nullptr, 0);
  Call(SYS_setsid);
  Call(SYS_chdir, Address("/"));
  Call(SYS_prctl, PR_SET_NAME, Address("shard-keeper"));
  pollfd ends[2] = {};
  const pid_t host = plan.host;
  ends[0].fd = static_cast<int>(Call(kPidfdOpen, program, 0));
  ends[1].fd = static_cast<int>(Call(kPidfdOpen, host, 0));
  ends[0].events = ends[1].events = POLLIN;
  // The host may have ended before, and its number may be another's.
  if (Call(SYS_getppid) != host) return;
  if (ends[0].fd >= 0) {
    // Without a limit: a timeout would only call again. A descriptor that is
    // negative is none to poll.
    while (Call(SYS_ppoll, Address(ends), 2, 0, 0) < 0) {
    }
    if (ends[0].revents == 0) return;
  }
  // Also the whole wait, where there are no pidfds.
  while (Call(SYS_wait4, program, 0, __WALL, 0) == -EINTR) {
  }
}

// The child between the host and the program.
int RunChild(ChildPlan* plan) {
  BlockSignals(true);
  StartReport report = {};
  const long program = CloneOnStack(CLONE_VM | CLONE_VFORK, plan->program_stack,
                                    &RunProgram, plan);
  // The program runs now, or its process has ended.
  report = program < 0
               ? StartReport{StartStep::kProcess, static_cast<int>(-program)}
               : plan->report;
  const bool is_running = report.step == StartStep::kRunning;
  if (program > 0 && !is_running) {
    while (Call(SYS_wait4, program, 0, __WALL, 0) == -EINTR) {
    }
  }
  Call(SYS_write, plan->report_fd, Address(&report), sizeof(report));
  if (is_running && plan->is_keeper) Keep(program, *plan);
  return 0;
}

}  // namespace

pid_t CloneChild(ChildPlan* plan, std::byte* stack) {
  // The lowest byte of the flags is the signal at the end: none.
  return static_cast<pid_t>(CloneOnStack(CLONE_VM, stack, &RunChild, plan));
}

}  // namespace shard::network
