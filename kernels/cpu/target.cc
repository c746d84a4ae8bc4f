// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/target.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

const char* KernelTargetName() { return hwy::TargetName(HWY_TARGET); }

bool KernelTargetFuses() { return HWY_NATIVE_FMA != 0; }

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard {

HWY_EXPORT(KernelTargetName);

const char* KernelTargetName() {
  return HWY_DYNAMIC_DISPATCH(KernelTargetName)();
}

HWY_EXPORT(KernelTargetFuses);

bool KernelTargetFuses() { return HWY_DYNAMIC_DISPATCH(KernelTargetFuses)(); }

}  // namespace shard
#endif  // HWY_ONCE
