// SPDX-License-Identifier: Apache-2.0
//
// The header that Debian's libgloo-dev leaves out and the headers of Gloo's TCP
// connections include. It declares the types of Gloo's members with their
// sizes and nothing to use them with: that is in the library. Where the package
// has the header, that one is read.

#if __has_include_next("gloo/common/memory.h")
#include_next "gloo/common/memory.h"
#else

#ifndef SHARD_TOOLS_BAZEL_SYSTEM_GLOO_GLOO_COMMON_MEMORY_H_
#define SHARD_TOOLS_BAZEL_SYSTEM_GLOO_GLOO_COMMON_MEMORY_H_

#include <memory>

namespace gloo {

// A pointer to what is held while the pointer is there.
template <typename T>
class NonOwningPtr {
  std::shared_ptr<T> pointer_;
};

// A pointer to what may be gone.
template <typename T>
class WeakNonOwningPtr {
  std::weak_ptr<T> pointer_;
};

}  // namespace gloo

#endif  // SHARD_TOOLS_BAZEL_SYSTEM_GLOO_GLOO_COMMON_MEMORY_H_

#endif  // __has_include_next
