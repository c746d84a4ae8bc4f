// SPDX-License-Identifier: Apache-2.0
//
// Prints the path of the network helper that a library at the place of this
// program finds, or the error.

#include <cstdio>

#include "core/comm/network/helper_path.h"

int main() {
  const auto path = shard::network::HelperPath();
  const std::string text = path.ok() ? *path : path.status().ToString();
  std::fputs(text.c_str(), stdout);
  return 0;
}
