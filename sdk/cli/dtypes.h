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

// "bf16"; "dtype 99" for what this program does not know.
std::string DTypeText(shard_dtype dtype);

// Of the types that a parameter may have; throws Failure with the names.
shard_dtype ParseParamDType(const std::string& name);
// The same names, for help texts.
inline constexpr const char* kParamDTypes = "f32, bf16, f16 or f64";

bool IsFloat(shard_dtype dtype);

// Elements as doubles; those of q8 are their codes, 0 to 255. 64-bit integers
// beyond 2^53 are rounded. REQUIRES: shard_dtype_size(dtype) > 0.
void ToDoubles(shard_dtype dtype, const std::byte* from, size_t count,
               double* to);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_DTYPES_H_
