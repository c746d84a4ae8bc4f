// SPDX-License-Identifier: Apache-2.0
//
// Changes JSON for libFuzzer: as libFuzzer itself would, and every other time
// by replacing a number by one at a limit. Changes of single bits would hardly
// ever produce those.

#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/fuzz/fuzz.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr const char* kNumbers[] = {
    "0", "1", "2", "-1", "1.5", "64", "65", "4294967295", "4294967296",
    "1073741824", "3037000500", "1152921504606846976",
    // 2^62, 2^63 and 2^64, and the numbers before them.
    "4611686018427387904", "9223372036854775807", "9223372036854775808",
    "18446744073709551615", "18446744073709551616"};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size,
                                          size_t max_size, unsigned seed) {
  std::minstd_rand random(seed);
  std::string text(reinterpret_cast<const char*>(data), size);
  // Each place is the beginning and the end of a number.
  std::vector<std::pair<size_t, size_t>> places;
  for (size_t i = 0; i < size; ++i) {
    if (!IsDigit(text[i])) continue;
    const size_t begin = i;
    while (i < size && IsDigit(text[i])) ++i;
    places.emplace_back(begin, i);
  }
  if (places.empty() || random() % 2 == 0) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  const auto [begin, end] = places[random() % places.size()];
  text.replace(begin, end - begin, kNumbers[random() % std::size(kNumbers)]);
  if (text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}
