// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/dtypes.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "sdk/cli/handles.h"
#include "sdk/cli/text.h"
#include "shard/shard.h"

namespace shardctl {

namespace {

// A float of sign, `exponent` and `mantissa` bits. E4M3 as OCP has it: no
// infinities, and only the largest code is a NaN.
double SmallFloat(uint32_t bits, int exponent, int mantissa, bool infinities) {
  const uint32_t sign = bits >> (exponent + mantissa) & 1;
  const uint32_t top = (1u << exponent) - 1;
  const uint32_t e = bits >> mantissa & top;
  const uint32_t m = bits & ((1u << mantissa) - 1);
  const int bias = (1 << (exponent - 1)) - 1;
  double value;
  if (e == top && infinities) {
    value = m == 0 ? std::numeric_limits<double>::infinity()
                   : std::numeric_limits<double>::quiet_NaN();
  } else if (e == top && m == (1u << mantissa) - 1) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (e == 0) {
    value = std::ldexp(static_cast<double>(m), 1 - bias - mantissa);
  } else {
    value = std::ldexp(static_cast<double>(m | 1u << mantissa),
                       static_cast<int>(e) - bias - mantissa);
  }
  return sign != 0 ? -value : value;
}

template <typename T, typename Convert>
void Each(const std::byte* from, size_t count, double* to,
          const Convert& convert) {
  for (size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    to[i] = convert(value);
  }
}

template <typename T>
void Each(const std::byte* from, size_t count, double* to) {
  Each<T>(from, count, to, [](T value) { return static_cast<double>(value); });
}

}  // namespace

std::string DTypeText(shard_dtype dtype) {
  const std::string name = shard_dtype_name(dtype);
  return name != "unknown" ? name : "dtype " + std::to_string(dtype);
}

bool IsDTypeName(const std::string& text) {
  for (shard_dtype dtype = SHARD_F32; dtype <= SHARD_OPAQUE; ++dtype) {
    if (text == shard_dtype_name(dtype)) return true;
  }
  return false;
}

shard_dtype ParseParamDType(const std::string& name) {
  for (const shard_dtype dtype :
       {SHARD_F32, SHARD_BF16, SHARD_F16, SHARD_F64}) {
    if (name == shard_dtype_name(dtype)) return dtype;
  }
  throw Failure("unknown element type '" + name + "'; give " + kParamDTypes);
}

shard_dtype ParseBufferDType(const std::string& name) {
  std::string known;
  for (shard_dtype dtype = SHARD_F32; dtype < SHARD_OPAQUE; ++dtype) {
    if (shard_dtype_size(dtype) == 0 || dtype == SHARD_Q8) continue;
    if (name == shard_dtype_name(dtype)) return dtype;
    known += (known.empty() ? "" : ", ") + std::string(shard_dtype_name(dtype));
  }
  throw Failure("unknown element type '" + name + "'; give one of " + known);
}

bool IsFloat(shard_dtype dtype) {
  switch (dtype) {
    case SHARD_F32:
    case SHARD_BF16:
    case SHARD_F16:
    case SHARD_F64:
    case SHARD_F8_E4M3:
    case SHARD_F8_E5M2:
      return true;
    default:
      return false;
  }
}

void ToDoubles(shard_dtype dtype, const std::byte* from, size_t count,
               double* to) {
  switch (dtype) {
    case SHARD_F32:
      return Each<float>(from, count, to);
    case SHARD_BF16:
      return Each<uint16_t>(from, count, to, [](uint16_t bits) {
        return static_cast<double>(
            std::bit_cast<float>(static_cast<uint32_t>(bits) << 16));
      });
    case SHARD_F16:
      return Each<uint16_t>(from, count, to, [](uint16_t bits) {
        return SmallFloat(bits, 5, 10, /*infinities=*/true);
      });
    case SHARD_F64:
      return Each<double>(from, count, to);
    case SHARD_F8_E4M3:
      return Each<uint8_t>(from, count, to, [](uint8_t bits) {
        return SmallFloat(bits, 4, 3, /*infinities=*/false);
      });
    case SHARD_F8_E5M2:
      return Each<uint8_t>(from, count, to, [](uint8_t bits) {
        return SmallFloat(bits, 5, 2, /*infinities=*/true);
      });
    case SHARD_I8:
      return Each<int8_t>(from, count, to);
    case SHARD_I16:
      return Each<int16_t>(from, count, to);
    case SHARD_I32:
      return Each<int32_t>(from, count, to);
    case SHARD_I64:
      return Each<int64_t>(from, count, to);
    case SHARD_U16:
      return Each<uint16_t>(from, count, to);
    case SHARD_U32:
      return Each<uint32_t>(from, count, to);
    case SHARD_U64:
      return Each<uint64_t>(from, count, to);
    default:  // q8, u8, bool, opaque.
      return Each<uint8_t>(from, count, to);
  }
}

}  // namespace shardctl
