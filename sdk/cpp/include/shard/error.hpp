// SPDX-License-Identifier: Apache-2.0
//
// Errors of libshard as exceptions.
//
// Every function that fails throws shard::Error, or what a callback of the host
// threw in it. Destructors never throw. An operation of all ranks fails on all
// of them: see "Collective" in shard/base.h.

#ifndef SHARD_ERROR_HPP_
#define SHARD_ERROR_HPP_

#if !defined(__cpp_exceptions)
#error "shard/shard.hpp needs exceptions; without them, use shard/shard.h"
#endif

#include <cstdint>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#include "shard/base.h"

namespace shard {

// The codes of errors: shard_code in shard/base.h. A newer library may have
// others than these.
enum class Code : shard_code {
  ok = SHARD_OK,
  cancelled = SHARD_CANCELLED,
  unknown = SHARD_UNKNOWN,
  invalid_argument = SHARD_INVALID_ARGUMENT,
  deadline_exceeded = SHARD_DEADLINE_EXCEEDED,
  not_found = SHARD_NOT_FOUND,
  already_exists = SHARD_ALREADY_EXISTS,
  permission_denied = SHARD_PERMISSION_DENIED,
  resource_exhausted = SHARD_RESOURCE_EXHAUSTED,
  failed_precondition = SHARD_FAILED_PRECONDITION,
  aborted = SHARD_ABORTED,
  out_of_range = SHARD_OUT_OF_RANGE,
  unimplemented = SHARD_UNIMPLEMENTED,
  internal = SHARD_INTERNAL,
  unavailable = SHARD_UNAVAILABLE,
  data_loss = SHARD_DATA_LOSS,
  unauthenticated = SHARD_UNAUTHENTICATED,
  desync = SHARD_DESYNC,
  rank_lost = SHARD_RANK_LOST,
  corrupt = SHARD_CORRUPT,
  poisoned = SHARD_POISONED,
  backend_unavailable = SHARD_BACKEND_UNAVAILABLE
};

// Returns the name of a code, such as "RANK_LOST". Any thread.
inline const char* code_name(Code code) noexcept {
  return shard_code_name(static_cast<shard_code>(code));
}

// An error of libshard. Copies share their text and never throw.
class Error : public std::runtime_error {
 public:
  // Makes an error of the host's own, for example to throw in a callback.
  explicit Error(Code code, const std::string& message, std::int32_t rank = -1,
                 const std::string& detail = {})
      : std::runtime_error(std::string(code_name(code)) + ": " + message),
        code_(code),
        rank_(rank),
        detail_(detail) {}

  Code code() const noexcept { return code_; }

  // Returns the message: the problem, the value that has it, and the remedy.
  // what() has the name of the code and ": " in front of it.
  const char* message() const noexcept {
    return what() + std::strlen(code_name(code_)) + 2;
  }

  // Returns the rank that the error is about, or -1.
  std::int32_t rank() const noexcept { return rank_; }

  // Returns a JSON document with lists such as missing keys, or "".
  const char* detail() const noexcept { return detail_.what(); }

 private:
  Code code_;
  std::int32_t rank_;
  // A string that can be copied without an exception.
  std::runtime_error detail_;
};

namespace detail {

[[noreturn]] inline void throw_error(shard_error* error) {
  struct Owner {
    shard_error* error;
    ~Owner() { shard_error_free(error); }
  } const owner{error};
  throw Error(Code{shard_error_code(error)}, shard_error_message(error),
              shard_error_rank(error), shard_error_detail(error));
}

// Throws an error that a function of the C interface returned.
inline void check(shard_error* error) {
  if (error != nullptr) throw_error(error);
}

// The same for a call whose callback threw `thrown`, which comes before the
// error that it caused.
inline void check(shard_error* error, const std::exception_ptr& thrown) {
  if (thrown != nullptr) {
    shard_error_free(error);
    std::rethrow_exception(thrown);
  }
  check(error);
}

}  // namespace detail
}  // namespace shard

#endif  // SHARD_ERROR_HPP_
