// SPDX-License-Identifier: Apache-2.0
//
// A program that is started with this exits, with code 0, when it gets SIGUSR1.

#include <signal.h>
#include <unistd.h>

namespace {

[[maybe_unused]] const bool is_set = [] {
  ::signal(SIGUSR1, [](int) { ::_exit(0); });
  return true;
}();

}  // namespace
