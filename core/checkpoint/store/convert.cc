// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/store/convert.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/convert.h"

namespace shard {

namespace {

// Elements of a piece, which stays in the L1 cache.
constexpr size_t kPiece = 1024;

void WidenPiece(ElementType from, const std::byte* data, float* to,
                size_t count) {
  alignas(8) std::byte aligned[kPiece * sizeof(double)];
  std::memcpy(aligned, data, count * ElementSize(from));
  if (from != ElementType::kF64) {
    Widen(static_cast<DType>(from), aligned, to, count);
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    double value;
    std::memcpy(&value, aligned + i * sizeof(value), sizeof(value));
    to[i] = static_cast<float>(value);
  }
}

void NarrowPiece(const float* from, DType to, std::byte* out, size_t count) {
  alignas(8) std::byte aligned[kPiece * sizeof(double)];
  if (to != DType::kF64) {
    Narrow(to, from, aligned, count, nullptr);
  } else {
    for (size_t i = 0; i < count; ++i) {
      const double value = from[i];
      std::memcpy(aligned + i * sizeof(value), &value, sizeof(value));
    }
  }
  std::memcpy(out, aligned, count * DTypeSize(to));
}

}  // namespace

void ConvertElements(ElementType from, const std::byte* data, DType to,
                     std::byte* out, size_t count) {
  if (from == ElementTypeOf(to)) {
    std::memcpy(out, data, count * DTypeSize(to));
    return;
  }
  float values[kPiece];
  for (size_t at = 0; at < count; at += kPiece) {
    const size_t some = std::min(kPiece, count - at);
    WidenPiece(from, data + at * ElementSize(from), values, some);
    NarrowPiece(values, to, out + at * DTypeSize(to), some);
  }
}

}  // namespace shard
