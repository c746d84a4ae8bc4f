// SPDX-License-Identifier: Apache-2.0
//
// Element types of files: names and values.

#ifndef SHARD_SDK_CLI_DTYPES_H_
#define SHARD_SDK_CLI_DTYPES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shard/base.h"

namespace shardctl {

// Returns the name of an element type: "bf16"; "dtype 99" for an unknown one.
std::string DTypeText(shard_dtype dtype);

// Returns whether a text is the name of an element type: "bf16".
bool IsDTypeName(const std::string& text);

// Returns the type of a name that a parameter may have. Throws Failure, with
// the allowed names, for others.
shard_dtype ParseParamDType(const std::string& name);
// The names that ParseParamDType takes, for help texts.
inline constexpr const char* kParamDTypes = "f32, bf16, f16 or f64";

// Returns the type of a name that a buffer may have: any but q8 and opaque.
// Throws Failure, with the allowed names, for others.
shard_dtype ParseBufferDType(const std::string& name);

bool IsFloat(shard_dtype dtype);

// Converts elements to doubles; an element of q8 gives its code, and a byte of
// an opaque type its value, 0 to 255. 64-bit integers beyond 2^53 are rounded.
// REQUIRES: a dtype that this program knows.
void ToDoubles(shard_dtype dtype, const std::byte* from, size_t count,
               double* to);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_DTYPES_H_
