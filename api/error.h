// SPDX-License-Identifier: Apache-2.0
//
// The border between core's Status and the C ABI's shard_error.

#ifndef SHARD_API_ERROR_H_
#define SHARD_API_ERROR_H_

#include <new>
#include <utility>

#include "core/base/status.h"
#include "core/device/host_pointer.h"
#include "shard/shard.h"

struct shard_error {
  shard::Status status;
};

namespace shard::api {

// Returns the error of a status: NULL for OK, and the static out-of-memory
// error when there is no memory for another.
shard_error* ToError(const Status& status) noexcept;

// Returns the error of every entry point that runs out of memory; never freed.
shard_error* OutOfMemory() noexcept;

// Returns an error that names the exception in flight, which is a bug: nothing
// else than std::bad_alloc should be thrown.
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

// Returns an error that names `argument` when it is NULL.
#define SHARD_API_REQUIRE(argument)                          \
  do {                                                       \
    if ((argument) == nullptr) {                             \
      return ::shard::InvalidArgument(#argument " is NULL"); \
    }                                                        \
  } while (false)

// Returns an error that names `argument` when it is NULL, or memory of a GPU,
// which the host would fault at.
#define SHARD_API_REQUIRE_HOSTS(argument)                            \
  do {                                                               \
    SHARD_API_REQUIRE(argument);                                     \
    SHARD_RETURN_IF_ERROR(                                           \
        ::shard::CheckHostPointer(argument).WithContext(#argument)); \
  } while (false)

}  // namespace shard::api

#endif  // SHARD_API_ERROR_H_
