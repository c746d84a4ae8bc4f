// SPDX-License-Identifier: Apache-2.0
//
// The border between core's Status and the C ABI's shard_error.

#ifndef SHARD_API_ERROR_H_
#define SHARD_API_ERROR_H_

#include <new>
#include <utility>

#include "core/base/status.h"
#include "shard/shard.h"

struct shard_error {
  shard::Status status;
};

namespace shard::api {

// NULL for OK. The static out-of-memory error when there is no memory for one.
shard_error* ToError(const Status& status) noexcept;

// The error every entry point returns when memory runs out; never freed.
shard_error* OutOfMemory() noexcept;

// Something threw that should not have; names it.
shard_error* FromException() noexcept;

// Runs the body of an entry point, a callable that returns Status. Exceptions
// (only the standard library's own can occur) do not cross.
template <typename Body>
shard_error* Guard(Body&& body) noexcept {
  try {
    return ToError(std::forward<Body>(body)());
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  } catch (...) {
    return FromException();
  }
}

// Names the argument in the error of a NULL one.
#define SHARD_API_REQUIRE(argument)                          \
  do {                                                       \
    if ((argument) == nullptr) {                             \
      return ::shard::InvalidArgument(#argument " is NULL"); \
    }                                                        \
  } while (false)

}  // namespace shard::api

#endif  // SHARD_API_ERROR_H_
