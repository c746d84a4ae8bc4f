// SPDX-License-Identifier: Apache-2.0
//
// A library of another build, which therefore knows none of this one.

#include <cstdint>

#include "core/device/plugin/plugin.h"

extern "C" __attribute__((visibility("default"))) const shard::Plugin*
shard_plugin(uint64_t) {
  return nullptr;
}
