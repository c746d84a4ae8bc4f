// SPDX-License-Identifier: Apache-2.0
//
// Makes a model, twice. Prints the errors of a library that does not fit.

#include <cstdio>

#include "shard/shard.hpp"

int main() {
  for (int i = 0; i < 2; ++i) {
    try {
      (void)shard::Model::create("Net");
      std::puts("made");
    } catch (const shard::Error& error) {
      std::puts(error.what());
    }
  }
}
