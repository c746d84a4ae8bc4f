// SPDX-License-Identifier: Apache-2.0
//
// run_ranks N PROGRAM [ARGUMENT...]: works as `shardctl run -n N`, for tests of
// programs.

#include <cstdio>
#include <cstdlib>

#include "sdk/cli/commands/run.h"

int main(int argc, char** argv) {
  shardctl::RunOptions options;
  if (argc > 2) options.ranks = std::atoi(argv[1]);
  if (argc < 3 || options.ranks < 1) {
    std::fprintf(stderr, "usage: run_ranks N PROGRAM [ARGUMENT...]\n");
    return EXIT_FAILURE;
  }
  options.command.assign(argv + 2, argv + argc);
  return shardctl::Run(options);
}
