// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/exact_sum.h"

#include <bit>
#include <cstddef>
#include <cstdint>

namespace shard {

void AddExact(double value, ExactSum* sum) {
  // Avoids frexp, because this runs once or twice for every 8 KiB of gradients.
  constexpr int kMantissaBits = 52;
  constexpr uint64_t kImplicitBit = uint64_t{1} << kMantissaBits;
  const auto bits = std::bit_cast<uint64_t>(value);
  const auto biased = static_cast<int>(bits >> kMantissaBits & 0x7FF);
  // A denormal is not a multiple of the lowest bit.
  if (biased == 0) return;
  uint64_t mantissa = (bits & (kImplicitBit - 1)) | kImplicitBit;
  int shift = biased - 1023 - kMantissaBits - ExactSum::kLowestExponent;
  if (shift < 0) {
    // Drops only zeros, because the value is a multiple of the lowest bit.
    mantissa >>= -shift;
    shift = 0;
  }
  const auto first = static_cast<size_t>(shift) / 64;
  const auto bit = static_cast<size_t>(shift) % 64;
  const uint64_t addends[] = {mantissa << bit,
                              bit == 0 ? 0 : mantissa >> (64 - bit)};

  uint64_t carry = 0;
  for (size_t i = first; i < ExactSum::kNumWords; ++i) {
    const bool above = i > first + 1;
    if (above && carry == 0) return;
    const uint64_t addend = above ? 0 : addends[i - first];
    const uint64_t before = sum->words[i];
    if (value < 0) {
      sum->words[i] = before - addend - carry;
      carry = before < addend || (carry != 0 && before == addend) ? 1 : 0;
    } else {
      const uint64_t after = before + addend + carry;
      carry = after < before || (carry != 0 && after == before) ? 1 : 0;
      sum->words[i] = after;
    }
  }
}

}  // namespace shard
