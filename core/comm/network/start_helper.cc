// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/start_helper.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>

#include "core/base/fd.h"
#include "core/base/mapping.h"
#include "core/base/own_path.h"
#include "core/base/strings.h"
#include "core/comm/network/start_child.h"
#include "core/observe/settings.h"

namespace shard::network {

namespace {

// Enough for the children, which call no library.
constexpr size_t kStackBytes = 32 * 1024;

// The time between two looks at a child that cannot be waited for with a limit.
constexpr int kLookMillis = 2;

// A child that has not been waited for, and its memory.
struct Child {
  pid_t process = 0;
  Mapping memory;
};

// The children of this process that stay: keepers, and those that were slower
// than a deadline. Never destroyed, for they may be longer than this library's
// statics.
struct Children {
  std::mutex mutex;
  std::list<Child> list;  // Under the mutex.
};
Children& TheChildren() {
  static auto* const children = new Children;
  return *children;
}

// Returns whether the child has ended; its memory is free then. A child whose
// end another wait has taken (one with __WALL), or that is the child of the
// process that this one was forked from, counts as ended.
bool HasEnded(pid_t process) {
  return ::waitpid(process, nullptr, __WCLONE | WNOHANG) != 0;
}

// Waits for a child that is about to end.
bool WaitFor(pid_t process, const Deadline& deadline) {
  while (!HasEnded(process)) {
    if (deadline.Expired()) return false;
    ::poll(nullptr, 0, kLookMillis);
  }
  return true;
}

// Whether a process whose parent ends becomes a child of this process.
bool AdoptsOrphans() {
  int is_subreaper = 0;
  // The library has no reference to prctl(), which may change a process.
  return ::getpid() == 1 ||
         (::syscall(SYS_prctl, PR_GET_CHILD_SUBREAPER, &is_subreaper) == 0 &&
          is_subreaper != 0);
}

// Keeps this library in memory when the host closes it: a keeper runs its code.
void KeepLibrary() {
  const std::string path = OwnPath();
  if (!path.empty()) {
    dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  }
}

// Writes a plan for the children into one piece of memory, with all that the
// plan refers to, and the stacks behind it.
class PlanWriter {
 public:
  PlanWriter(const HelperProgram& program, char* const* environment)
      : program_(program), environment_(environment) {}

  StatusOr<Mapping> Write() {
    size_t texts = program_.path.size() + 1;
    size_t pointers = 3;  // The program's name, and the ends of both lists.
    for (const std::string& argument : program_.arguments) {
      texts += argument.size() + 1;
      ++pointers;
    }
    // Copied once: the host may change its environment meanwhile.
    std::vector<std::string> variables;
    for (auto at = environment_; at != nullptr && *at != nullptr; ++at) {
      variables.emplace_back(*at);
      texts += variables.back().size() + 1;
      ++pointers;
    }
    const size_t bytes = sizeof(ChildPlan) + pointers * sizeof(char*) + texts;
    const size_t stacks = (bytes + 15) / 16 * 16;
    SHARD_ASSIGN_OR_RETURN(Mapping memory,
                           Mapping::Anonymous(stacks + 2 * kStackBytes));

    auto* const plan = new (memory.data()) ChildPlan();
    next_pointer_ = reinterpret_cast<char**>(plan + 1);
    next_text_ = reinterpret_cast<char*>(next_pointer_ + pointers);
    plan->path = next_text_;
    plan->arguments = next_pointer_;
    Append(program_.path);
    for (const std::string& argument : program_.arguments) Append(argument);
    *next_pointer_++ = nullptr;
    plan->environment = next_pointer_;
    for (const std::string& variable : variables) Append(variable);
    *next_pointer_++ = nullptr;

    plan->fd_count = static_cast<int>(program_.fds.size());
    std::copy(program_.fds.begin(), program_.fds.end(), plan->fds);
    plan->keep_stderr = program_.keep_stderr;
    plan->host = ::getpid();
    plan->program_stack = memory.data() + stacks + kStackBytes;
    return memory;
  }

 private:
  void Append(const std::string& text) {
    *next_pointer_++ = next_text_;
    std::memcpy(next_text_, text.c_str(), text.size() + 1);
    next_text_ += text.size() + 1;
  }

  const HelperProgram& program_;
  char* const* const environment_;
  char** next_pointer_ = nullptr;
  char* next_text_ = nullptr;
};

// Makes the child. No signal is delivered to it: the handlers are the host's.
pid_t CloneQuietly(ChildPlan* plan, std::byte* stack) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t process = CloneChild(plan, stack);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return process;
}

Status Failed(const HelperProgram& program, StartStep step, int error) {
  const std::string_view what = step == StartStep::kProcess ? "a new process"
                                : step == StartStep::kDescriptors
                                    ? "its file descriptors"
                                : step == StartStep::kNull ? "opening /dev/null"
                                                           : "executing it";
  const Status cause = ErrnoStatus(
      StrCat("starting the network helper ", program.path, ": ", what), error);
  if (step == StartStep::kProcess && (error == EAGAIN || error == ENOMEM)) {
    return ResourceExhausted(
        cause.message(),
        "; this process may not start more processes, or has no memory: raise "
        "the limit with 'ulimit -u', or that of the container");
  }
  if (cause.code() == StatusCode::kResourceExhausted) {
    return step == StartStep::kDescriptors || step == StartStep::kNull
               ? ResourceExhausted(cause.message(),
                                   "; raise it with 'ulimit -n'")
               : cause;
  }
  return BackendUnavailable(
      cause.message(),
      "; install the program, which comes with libshard, or name it in "
      "SHARD_NETWORK_HELPER");
}

// Reads the report. nullopt: the child has ended without one.
StatusOr<StartReport> ReadReport(const Fd& pipe, const HelperProgram& program,
                                 const Deadline& deadline) {
  StartReport report = {};
  for (;;) {
    const ssize_t size = ::read(pipe.get(), &report, sizeof(report));
    if (size == static_cast<ssize_t>(sizeof(report))) return report;
    if (size >= 0) return StartReport{};
    if (errno != EAGAIN && errno != EINTR) {
      return ErrnoStatus("reading from the network helper's parent", errno);
    }
    if (deadline.Expired()) {
      return DeadlineExceeded("the network helper ", program.path,
                              " did not start within ", deadline.seconds(),
                              " s");
    }
    pollfd entry{pipe.get(), POLLIN, 0};
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline.Remaining());
    ::poll(&entry, 1, static_cast<int>(std::min<int64_t>(left.count(), 1000)));
  }
}

}  // namespace

Status StartHelper(const HelperProgram& program, const Deadline& deadline) {
  if (program.fds.size() > ChildPlan::kMostFds) {
    return InvalidArgument("a helper takes ", ChildPlan::kMostFds,
                           " descriptors at most, not ", program.fds.size());
  }
  ReapKeepers(Deadline::After(0));
  SHARD_ASSIGN_OR_RETURN(Mapping memory, PlanWriter(program, environ).Write());
  auto* const plan = reinterpret_cast<ChildPlan*>(memory.data());

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    return Failed(program, StartStep::kDescriptors, errno);
  }
  const Fd reading(ends[0]);
  Fd writing(ends[1]);
  if (!reading.valid() || !writing.valid()) {
    return Failed(program, StartStep::kDescriptors, EMFILE);
  }
  plan->report_fd = writing.get();
  plan->is_keeper = AdoptsOrphans();
  if (plan->is_keeper) KeepLibrary();

  // Made before, for no exception may free the memory of a child.
  std::list<Child> child(1);
  child.front().memory = std::move(memory);
  std::byte* const end =
      child.front().memory.data() + child.front().memory.size() / 16 * 16;
  const pid_t process = CloneQuietly(plan, end);
  if (process < 0) return Failed(program, StartStep::kProcess, -process);
  child.front().process = process;
  writing.Reset();

  const auto report = ReadReport(reading, program, deadline);
  const bool is_running = report.ok() && report->step == StartStep::kRunning;
  if (!report.ok() || (is_running && plan->is_keeper) ||
      !WaitFor(process, deadline)) {
    Children& children = TheChildren();
    const std::lock_guard<std::mutex> lock(children.mutex);
    children.list.splice(children.list.end(), child);
  }
  SHARD_RETURN_IF_ERROR(report.status());
  if (is_running) return Status();
  if (report->step == StartStep::kNone) {
    return BackendUnavailable("starting the network helper ", program.path,
                              ": its process was killed before it ran");
  }
  return Failed(program, report->step, report->error);
}

bool LogsToStderr() {
  ObserverSettings settings;
  const Status read = ReadSettings(
      [](const char* name) { return ::secure_getenv(name); }, &settings);
  return read.ok() && settings.log_level != LogLevel::kOff &&
         settings.log_file.empty();
}

void ReapKeepers(const Deadline& deadline) {
  Children& children = TheChildren();
  const std::lock_guard<std::mutex> lock(children.mutex);
  std::erase_if(children.list, [&](const Child& child) {
    return WaitFor(child.process, deadline);
  });
}

}  // namespace shard::network
