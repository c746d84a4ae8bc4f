// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/random.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/random.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/cpu/random-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

void RandomBits(const RandomStream& stream, uint32_t tensor, uint16_t* bits) {
  HWY_ALIGN uint16_t block[kRandomBlock];
  MakeRandomBits(RandomKeys(stream.seed), stream, tensor, block);
  std::copy_n(block, kRandomBlock, bits);
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard {

HWY_EXPORT(RandomBits);

void RandomBits(const RandomStream& stream, uint32_t tensor, uint16_t* bits) {
  HWY_DYNAMIC_DISPATCH(RandomBits)(stream, tensor, bits);
}

}  // namespace shard
#endif  // HWY_ONCE
