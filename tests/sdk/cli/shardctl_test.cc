// SPDX-License-Identifier: Apache-2.0
//
// The program itself, running ranks that are shell scripts.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kShardctl = "sdk/cli/shardctl";
constexpr int kSeconds = 60;  // After which a test gives up.

struct Result {
  int code = -1;  // 128 + signal when it was killed.
  std::string out;
  std::string error;
};

// shardctl in a process of its own, with its output in pipes.
class Shardctl {
 public:
  explicit Shardctl(std::vector<std::string> arguments,
                    const char* terminal = nullptr, bool non_blocking = false) {
    int out[2];
    int error[2];
    if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(error, O_CLOEXEC) != 0) {
      std::abort();
    }
    if (non_blocking) ::fcntl(out[1], F_SETFL, O_NONBLOCK);
    arguments.insert(arguments.begin(), kShardctl);
    pid_ = ::fork();
    if (pid_ == 0) {
      const int tty = terminal != nullptr ? ::open(terminal, O_RDWR) : -1;
      ::dup2(tty >= 0 ? tty : out[1], STDOUT_FILENO);
      ::dup2(error[1], STDERR_FILENO);
      std::vector<char*> argv;
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      ::execv(kShardctl, argv.data());
      ::_exit(99);
    }
    ::close(out[1]);
    ::close(error[1]);
    out_ = out[0];
    error_ = error[0];
  }

  ~Shardctl() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    CloseOutput();
    ::close(error_);
  }

  // Reads no more of stdout.
  void CloseOutput() {
    if (out_ >= 0) ::close(out_);
    out_ = -1;
    out_open_ = false;
  }

  void Kill(int signal) { ::kill(pid_, signal); }

  // Reads until `text` has come `times` times on stdout.
  void ReadUntil(const std::string& text, int times = 1) {
    const auto count = [&] {
      int found = 0;
      for (size_t at = result_.out.find(text); at != std::string::npos;
           at = result_.out.find(text, at + text.size())) {
        ++found;
      }
      return found;
    };
    while (count() < times) {
      ASSERT_TRUE(ReadSome()) << result_.out << result_.error;
    }
  }

  // Waits for its end.
  Result Wait() {
    while (ReadSome()) {
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    result_.code =
        WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result_;
  }

 private:
  // False at the end of both streams, or when the test has taken too long.
  bool ReadSome() {
    pollfd entries[2] = {{out_open_ ? out_ : -1, POLLIN, 0},
                         {error_open_ ? error_ : -1, POLLIN, 0}};
    if (!out_open_ && !error_open_) return false;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
    if (::poll(entries, 2, std::max<int>(0, static_cast<int>(left.count()))) <=
        0) {
      ADD_FAILURE() << "shardctl took longer than " << kSeconds << " s";
      Kill(SIGKILL);
      return false;
    }
    if (entries[0].revents != 0) out_open_ = Take(out_, &result_.out);
    if (entries[1].revents != 0) error_open_ = Take(error_, &result_.error);
    return true;
  }

  static bool Take(int fd, std::string* to) {
    char buffer[4096];
    const ssize_t size = ::read(fd, buffer, sizeof(buffer));
    if (size > 0) to->append(buffer, static_cast<size_t>(size));
    return size > 0;
  }

  const Clock::time_point deadline_ =
      Clock::now() + std::chrono::seconds(kSeconds);
  pid_t pid_ = -1;
  int out_ = -1;
  int error_ = -1;
  bool out_open_ = true;
  bool error_open_ = true;
  Result result_;
};

Result RunShardctl(const std::vector<std::string>& arguments) {
  return Shardctl(arguments).Wait();
}

std::vector<std::string> Script(int ranks, const std::string& script) {
  return {"run", "-n", std::to_string(ranks), "--", "sh", "-c", script};
}

std::vector<std::string> SortedLines(const std::string& text) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    lines.push_back(text.substr(begin, end - begin));
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  std::sort(lines.begin(), lines.end());
  return lines;
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ShardctlTest, HelpAndVersion) {
  const Result help = RunShardctl({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_TRUE(Has(help.out, "run"));
  const Result run = RunShardctl({"run", "--help"});
  EXPECT_EQ(run.code, 0);
  EXPECT_TRUE(Has(run.out, "SHARD_RENDEZVOUS"));
  EXPECT_TRUE(Has(run.out, "shardctl run -n 4 -- ./train"));
  const Result version = RunShardctl({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_TRUE(Has(version.out, "libshard"));
}

TEST(ShardctlTest, WrongUse) {
  EXPECT_NE(RunShardctl({}).code, 0);
  EXPECT_NE(RunShardctl({"run", "-n", "0", "--", "true"}).code, 0);
  EXPECT_NE(RunShardctl({"run", "-n", "two", "--", "true"}).code, 0);
  EXPECT_NE(RunShardctl({"run", "--", "true"}).code, 0);
  EXPECT_NE(RunShardctl({"run", "-n", "2"}).code, 0);
  const Result url =
      RunShardctl({"run", "-n", "1", "--name", "a:b", "--", "true"});
  EXPECT_NE(url.code, 0);
  EXPECT_TRUE(Has(url.error, "'a:b' has a ':'; give a name, not a URL"));
}

TEST(ShardctlTest, EveryRankKnowsItsPlace) {
  const Result result =
      RunShardctl(Script(3,
                         "echo $SHARD_RANK $SHARD_LOCAL_RANK $SHARD_WORLD_SIZE "
                         "$SHARD_LOCAL_WORLD_SIZE ${SHARD_TERMINAL:-none}; "
                         "echo $SHARD_RENDEZVOUS >&2"));
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(SortedLines(result.out),
            (std::vector<std::string>{"[0] 0 0 3 3 none", "[1] 1 1 3 3 none",
                                      "[2] 2 2 3 3 none"}));
  // One name for all, another one for each run.
  auto names = SortedLines(result.error);
  ASSERT_EQ(names.size(), 3u);
  const std::string name = names[0].substr(4);
  for (const std::string& line : names) EXPECT_EQ(line.substr(4), name);
  const Result again = RunShardctl(Script(1, "echo $SHARD_RENDEZVOUS"));
  EXPECT_NE(again.out, name + "\n");
  EXPECT_EQ(RunShardctl({"run", "-n1", "--name", "mine", "sh", "-c",
                         "echo $SHARD_RENDEZVOUS"})
                .out,
            "mine\n");
}

TEST(ShardctlTest, LinesStayWhole) {
  // Each rank writes its lines in two pieces, as fast as it can.
  const Result result = RunShardctl(
      Script(4,
             "i=0; while [ $i -lt 500 ]; do printf 'abc'; "
             "printf 'def %s\\n' $i; i=$((i+1)); done; printf 'no newline'"));
  EXPECT_EQ(result.code, 0);
  const auto lines = SortedLines(result.out);
  ASSERT_EQ(lines.size(), 4u * 501u);
  for (const std::string& line : lines) {
    const std::string text = line.substr(4);
    EXPECT_TRUE(line[0] == '[' && line[2] == ']' && line[3] == ' ') << line;
    EXPECT_TRUE(text.rfind("abcdef ", 0) == 0 || text == "no newline") << line;
  }
}

TEST(ShardctlTest, StreamsStayApart) {
  const Result result = RunShardctl(Script(2, "echo out; echo err >&2"));
  EXPECT_EQ(SortedLines(result.out),
            (std::vector<std::string>{"[0] out", "[1] out"}));
  EXPECT_EQ(SortedLines(result.error),
            (std::vector<std::string>{"[0] err", "[1] err"}));
}

TEST(ShardctlTest, OneRankIsLeftAsItIs) {
  const Result result = RunShardctl(Script(1, "printf 'as it is'; exit 5"));
  EXPECT_EQ(result.out, "as it is");
  EXPECT_EQ(result.code, 5);
}

TEST(ShardctlTest, ArgumentsAreTheProgramsOwn) {
  const Result result = RunShardctl(
      {"run", "-n", "2", "printf", "%s,", "-n", "--help", "a b", "--"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(SortedLines(result.out)[1], "[1] -n,--help,a b,--,");
}

TEST(ShardctlTest, OneFailsAndTheOthersAreEnded) {
  const Result result = RunShardctl(
      Script(3, "if [ $SHARD_RANK = 1 ]; then exit 3; fi; exec sleep 1000"));
  EXPECT_EQ(result.code, 3);
  EXPECT_TRUE(Has(result.error,
                  "shardctl: rank 1 ended with code 3; ending the others"));
  EXPECT_FALSE(Has(result.error, "killing"));
}

// True when the other ends of a pipe are all closed within a few seconds.
bool Ends(int fd) {
  char byte;
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 10 * 1000) == 1 && ::read(fd, &byte, 1) == 0;
}

// What ranks have started holds the write end of a pipe, as do the ranks.
TEST(ShardctlTest, NothingOutlivesTheRun) {
  for (const char* script :
       {"sleep 1000 & if [ $SHARD_RANK = 1 ]; then exit 3; fi; wait",
        "sleep 1000 & exit 3", "sleep 1000 & exit 0",
        "trap '' TERM; sleep 1000 & exit 3"}) {
    SCOPED_TRACE(script);
    int alive[2];
    ASSERT_EQ(::pipe(alive), 0);
    Shardctl shardctl(Script(2, script));
    ::close(alive[1]);
    EXPECT_TRUE(Ends(alive[0]));
    EXPECT_EQ(shardctl.Wait().code, Has(script, "exit 3") ? 3 : 0);
    ::close(alive[0]);
  }
}

// As in `shardctl run ... | head -1`: the ranks go on, and end as they will.
// Their own pipes break as usual.
TEST(ShardctlTest, NobodyReads) {
  Shardctl shardctl(
      Script(2,
             "echo first; i=0; while [ $i -lt 50 ]; do echo more; "
             "sleep 0.01; i=$((i+1)); done; yes | head -1 >/dev/null; "
             "sh -c 'kill -PIPE $$'; echo pipe=$? >&2; exit 0"));
  shardctl.ReadUntil("first");
  shardctl.CloseOutput();
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(SortedLines(result.error),
            (std::vector<std::string>{"[0] pipe=141", "[1] pipe=141"}));
}

// Whoever shares stdout has made it non-blocking, and reads late.
TEST(ShardctlTest, NonBlockingOutputLosesNothing) {
  Shardctl shardctl(
      Script(2,
             "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done"),
      /*terminal=*/nullptr, /*non_blocking=*/true);
  ::poll(nullptr, 0, 500);  // The pipe fills.
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(SortedLines(result.out).size(), 40000u);
}

TEST(ShardctlTest, ASignalIsNamed) {
  const Result result = RunShardctl(Script(
      2, "if [ $SHARD_RANK = 1 ]; then kill -SEGV $$; fi; exec sleep 1000"));
  EXPECT_EQ(result.code, 128 + SIGSEGV);
  EXPECT_TRUE(Has(result.error, "rank 1 was ended by signal 11"));
}

TEST(ShardctlTest, StubbornRanksAreKilled) {
  Shardctl shardctl(
      Script(2, "trap '' TERM; echo ready; while :; do sleep 0.01; done"));
  shardctl.ReadUntil("ready", 2);
  shardctl.Kill(SIGTERM);
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_TRUE(Has(result.error, "did not end within 5 s; killing them"));
}

TEST(ShardctlTest, TheSecondSignalKills) {
  Shardctl shardctl(Script(
      2, "trap 'echo no' INT; echo ready; while :; do sleep 0.01; done"));
  shardctl.ReadUntil("ready", 2);
  shardctl.Kill(SIGINT);
  shardctl.ReadUntil("no");
  shardctl.Kill(SIGINT);
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_FALSE(Has(result.error, "killing"));
}

TEST(ShardctlTest, Timeout) {
  const Result result = RunShardctl(
      {"run", "-n", "2", "--timeout", "0.2", "--", "sleep", "1000"});
  EXPECT_EQ(result.code, 124);
  EXPECT_TRUE(Has(result.error, "longer than its timeout"));
}

TEST(ShardctlTest, NoSuchProgram) {
  const Result result =
      RunShardctl({"run", "-n", "2", "--", "no-such-program"});
  EXPECT_EQ(result.code, 127);
  EXPECT_TRUE(
      Has(result.error, "cannot run 'no-such-program': no such program"));
  EXPECT_EQ(RunShardctl({"run", "-n", "2", "--", "/"}).code, 126);
}

TEST(ShardctlTest, SignalsArePassedOn) {
  for (const int signal : {SIGINT, SIGTERM}) {
    for (const int ranks : {1, 2}) {
      Shardctl shardctl(
          Script(ranks,
                 "trap 'echo caught; exit 7' INT TERM; echo ready; "
                 "while :; do sleep 0.01; done"));
      shardctl.ReadUntil("ready", ranks);
      shardctl.Kill(signal);
      const Result result = shardctl.Wait();
      EXPECT_EQ(result.code, 7);
      EXPECT_TRUE(Has(result.out, "caught"));
    }
  }
}

// The ranks hold the write end of a pipe: its end is theirs.
TEST(ShardctlTest, RanksDoNotOutliveShardctl) {
  int alive[2];
  ASSERT_EQ(::pipe(alive), 0);
  Shardctl shardctl(Script(3, "echo ready; exec sleep 1000"));
  ::close(alive[1]);
  shardctl.ReadUntil("ready", 3);
  shardctl.Kill(SIGKILL);
  pollfd entry{alive[0], POLLIN, 0};
  ASSERT_EQ(::poll(&entry, 1, kSeconds * 1000), 1) << "ranks are still there";
  char byte;
  EXPECT_EQ(::read(alive[0], &byte, 1), 0);
  ::close(alive[0]);
}

// On a terminal rank 0 may draw a bar, which stays below the others' lines.
TEST(ShardctlTest, ProgressBarOnATerminal) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(::grantpt(terminal), 0);
  ASSERT_EQ(::unlockpt(terminal), 0);
  // The script ends the bar only when it is told to: the bar is live.
  char folder[] = "/tmp/shardctl-test-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string go = std::string(folder) + "/go";
  Shardctl shardctl(
      Script(2,
             "if [ $SHARD_RANK = 0 ]; then echo t=$SHARD_TERMINAL; "
             "printf '\\r42%%'; while [ ! -e " +
                 go + " ]; do sleep 0.01; done; printf '\\r99%%\\n'; fi"),
      ::ptsname(terminal));
  std::string seen;
  const auto read_until = [&](const std::string& text) {
    while (seen.find(text) == std::string::npos) {
      pollfd entry{terminal, POLLIN, 0};
      ASSERT_GT(::poll(&entry, 1, kSeconds * 1000), 0) << seen;
      char buffer[1024];
      const ssize_t size = ::read(terminal, buffer, sizeof(buffer));
      ASSERT_GT(size, 0) << seen;
      seen.append(buffer, static_cast<size_t>(size));
    }
  };
  read_until("[0] t=1");
  read_until("[0] 42%");
  const int file = ::open(go.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  EXPECT_GE(file, 0);
  ::close(file);
  read_until("[0] 99%\r\n");
  EXPECT_EQ(shardctl.Wait().code, 0);
  ::unlink(go.c_str());
  ::rmdir(folder);
  ::close(terminal);
}

}  // namespace
