// SPDX-License-Identifier: Apache-2.0
//
// Makes the kernels of a benchmark run on the instruction set that
// SHARD_BENCH_TARGET names, before its main runs. `tools/bench --target` sets
// the variable. Checksums, BLAS and the roofs keep the processor's best:
// checksums and BLAS do not use Highway, and a roof is bound by memory.

#include <hwy/targets.h>
#include <strings.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "core/base/strings.h"
#include "tests/kernels/cpu/target_list.h"

namespace shard::bench {
namespace {

[[maybe_unused]] const bool chosen = [] {
  const char* const name = std::getenv("SHARD_BENCH_TARGET");
  if (name == nullptr || *name == '\0') return false;
  std::string known;
  for (const uint32_t target : Targets()) {
    const char* const its_name = hwy::TargetName(static_cast<int>(target));
    if (strcasecmp(name, its_name) == 0) {
      hwy::SetSupportedTargetsForTest(target);
      std::printf("instruction set: %s\n", its_name);
      return true;
    }
    known += StrCat(known.empty() ? "" : ", ", its_name);
  }
  std::fprintf(stderr,
               "no instruction set '%s' here: there are %s "
               "(AVX3 is AVX-512)\n",
               name, known.c_str());
  std::exit(2);
}();

}  // namespace
}  // namespace shard::bench
