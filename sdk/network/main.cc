// SPDX-License-Identifier: Apache-2.0
//
// shard-network: the network helper of the ranks of a host. The first of these
// ranks starts it; it ends when its ranks do.

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "core/base/fd.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "sdk/network/serve.h"

namespace {

using shard::Fd;
using shard::InvalidArgument;
using shard::Status;
using shard::StatusOr;
using shard::StrCat;

constexpr int kUsage = 2;
constexpr int kFailed = 3;

constexpr const char* kVersion =
    "shard-network (libshard) " SHARD_NETWORK_VERSION "\n";

constexpr const char* kHelp =
    R"(Usage: shard-network --listen-fd=N

The network helper of the ranks of one host. libshard starts it for
communicators over hosts, finds it in ../libexec/libshard from libshard.so or by
SHARD_NETWORK_HELPER, and gives it its socket. It ends when its ranks do; nobody
need start or stop it.

  --listen-fd=N   the descriptor of the Unix socket where the ranks connect
  --help          show this text
  --version       show the version

Exit codes: 0 all ranks are gone, 2 wrong use, 3 an error.
)";

void Say(std::string_view text) {
  const std::string line = StrCat("shard-network: ", text, "\n");
  std::fputs(line.c_str(), stderr);
}

struct Arguments {
  bool help = false;
  bool version = false;
  int listen_fd = -1;
};

StatusOr<Arguments> ReadArguments(int argc, char** argv) {
  Arguments arguments;
  constexpr std::string_view kListen = "--listen-fd=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--help") {
      arguments.help = true;
    } else if (argument == "--version") {
      arguments.version = true;
    } else if (argument.substr(0, kListen.size()) == kListen) {
      const auto fd = shard::ParseInt(argument.substr(kListen.size()));
      if (!fd || *fd <= STDERR_FILENO || *fd > INT32_MAX) {
        return InvalidArgument("'", argument,
                               "' names no descriptor; it must be above 2");
      }
      arguments.listen_fd = static_cast<int>(*fd);
    } else {
      return InvalidArgument("there is no argument '", argument,
                             "'; see shard-network --help");
    }
  }
  if (arguments.listen_fd < 0 && !arguments.help && !arguments.version) {
    return InvalidArgument(
        "--listen-fd is missing: libshard starts this program and gives it its "
        "socket; see shard-network --help");
  }
  return arguments;
}

// Allows as many descriptors as the system does: each rank takes some.
void RaiseFileLimit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

Status ServeAt(int listen_fd) {
  if (::fcntl(listen_fd, F_SETFD, FD_CLOEXEC) != 0) {
    return InvalidArgument("descriptor ", listen_fd, " is not open");
  }
  ::signal(SIGPIPE, SIG_IGN);
  RaiseFileLimit();
  return shard::network::Serve(Fd(listen_fd), Say);
}

}  // namespace

int main(int argc, char** argv) try {
  const auto arguments = ReadArguments(argc, argv);
  if (!arguments.ok()) {
    Say(arguments.status().message());
    return kUsage;
  }
  if (arguments->help || arguments->version) {
    std::fputs(arguments->help ? kHelp : kVersion, stdout);
    return std::fflush(stdout) == 0 ? 0 : kFailed;
  }
  const Status served = ServeAt(arguments->listen_fd);
  if (served.ok()) return 0;
  Say(served.message());
  return served.code() == shard::StatusCode::kInvalidArgument ? kUsage
                                                              : kFailed;
} catch (const std::bad_alloc&) {
  // A longer message would need memory.
  std::fputs("shard-network: out of memory\n", stderr);
  return kFailed;
} catch (const std::exception& error) {
  Say(error.what());
  return kFailed;
}
