// SPDX-License-Identifier: Apache-2.0
//
// Runs a fuzz target on files, once each, where --config=fuzz does not link
// libFuzzer.

#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/fuzz.h"

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    std::printf("%s\n", argv[i]);
    std::fflush(stdout);
    FUZZ_CHECK(file.good());
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()),
                           bytes.size());
  }
  FUZZ_CHECK(argc > 1);
  return 0;
}
