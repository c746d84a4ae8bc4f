// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/in_process.h"

#include <utility>

namespace shard::network {

namespace {

InProcessStart in_process_start = nullptr;

}  // namespace

void SetInProcessStart(InProcessStart start) { in_process_start = start; }

Status StartInProcess(Fd listening, bool keep_stderr) {
  if (in_process_start == nullptr) {
    return BackendUnavailable(
        "isolate=0 is for tests of libshard, and this program does not have "
        "the code of the network helper; leave it out");
  }
  return in_process_start(std::move(listening), keep_stderr);
}

}  // namespace shard::network
