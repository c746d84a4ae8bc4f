// SPDX-License-Identifier: Apache-2.0
//
// The instruction set that the kernels of this folder run on: each is compiled
// for several (AVX-512, AVX2, SSE4, ...), and Highway chooses at run time.
// Their sources and the headers named *-inl.h are therefore compiled once per
// set, in a namespace of its own.

#ifndef SHARD_KERNELS_CPU_TARGET_H_
#define SHARD_KERNELS_CPU_TARGET_H_

namespace shard {

// Returns the instruction set in use: "AVX3", "AVX2", ...
const char* KernelTargetName();

// Returns whether a multiply-add of the instruction set in use rounds once. The
// updates of parameters have the same bits on all sets that do, and the same on
// all that do not.
bool KernelTargetFuses();

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_TARGET_H_
