// SPDX-License-Identifier: Apache-2.0
//
// The type of fixture.cu's elements, in a header of another target.

#ifndef SHARD_TESTS_TOOLS_CUDA_FIXTURE_TYPE_H_
#define SHARD_TESTS_TOOLS_CUDA_FIXTURE_TYPE_H_

using Element = float;

#endif  // SHARD_TESTS_TOOLS_CUDA_FIXTURE_TYPE_H_
