// SPDX-License-Identifier: Apache-2.0

#include "core/model/name_index.h"

#include <sys/random.h>
#include <time.h>
#include <xxhash.h>

namespace shard {

namespace {

// Returns the seed of the hashes of names. Names may come from a file that was
// made to harm: under a seed that its author cannot know, names chosen to
// collide do not. Equal in all models, so that a copied index stays valid.
uint64_t HashSeed() {
  static const uint64_t seed = [] {
    uint64_t word = 0;
    if (::getrandom(&word, sizeof(word), GRND_NONBLOCK) == sizeof(word)) {
      return word;
    }
    // A sandbox may forbid the call. Nobody outside knows when this runs, and
    // at which address.
    timespec now = {};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    const uint64_t parts[] = {reinterpret_cast<uintptr_t>(&word),
                              static_cast<uint64_t>(now.tv_nsec)};
    return static_cast<uint64_t>(XXH3_64bits(parts, sizeof(parts)));
  }();
  return seed;
}

}  // namespace

uint64_t NameIndex::HashOf(int32_t module, std::string_view name) {
  return XXH3_64bits_withSeed(name.data(), name.size(),
                              HashSeed() + static_cast<uint64_t>(module));
}

}  // namespace shard
