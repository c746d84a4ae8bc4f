// SPDX-License-Identifier: Apache-2.0
//
// Status: the result of an operation that can fail. Core code throws nothing; a
// function returns Status, or StatusOr<T> when it has a value to return.
//
// A message says what was wrong, with which value, and what to do about it.
// `rank` is the rank that the error is about (a lost or disagreeing one), or
// -1. `detail` is empty or a JSON document, for lists that a program may want
// to read.
//
// Codes 0 to 16 are the canonical ones of absl and gRPC; ours begin at 64.
// They are the values of shard_code in shard.h, and frozen.

#ifndef SHARD_CORE_BASE_STATUS_H_
#define SHARD_CORE_BASE_STATUS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/strings.h"

namespace shard {

enum class StatusCode : int32_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
  kDesync = 64,              // Ranks made different calls, or differ.
  kRankLost = 65,            // A rank died; Status::rank() names it.
  kCorrupt = 66,             // Stored bytes differ from those written.
  kPoisoned = 67,            // An earlier error made the object unusable.
  kBackendUnavailable = 68,  // A backend or plugin is not on this machine.
};

// Returns "INVALID_ARGUMENT"; "UNKNOWN_CODE" for an unknown value.
const char* StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  // Makes OK. Allocates nothing.
  Status() = default;

  // REQUIRES: code != kOk.
  Status(StatusCode code, std::string message, int rank = -1,
         std::string detail = "");

  bool ok() const { return state_ == nullptr; }
  StatusCode code() const { return ok() ? StatusCode::kOk : state_->code; }
  const std::string& message() const;
  int rank() const { return ok() ? -1 : state_->rank; }
  const std::string& detail() const;

  // Returns the same error with `context` and ": " before its message.
  Status WithContext(std::string_view context) const;

  // Returns "RANK_LOST: rank 3 ..."; "OK" for success.
  std::string ToString() const;

 private:
  struct State {
    StatusCode code;
    int rank;
    std::string message;
    std::string detail;
  };
  // Shared and immutable, so that a Status is cheap to copy.
  std::shared_ptr<const State> state_;
};

// Factories, one for each code. They join the pieces with StrCat.
#define SHARD_DEFINE_STATUS_FACTORY(Name)                  \
  template <typename... Pieces>                            \
  Status Name(const Pieces&... pieces) {                   \
    return Status(StatusCode::k##Name, StrCat(pieces...)); \
  }
SHARD_DEFINE_STATUS_FACTORY(Cancelled)
SHARD_DEFINE_STATUS_FACTORY(InvalidArgument)
SHARD_DEFINE_STATUS_FACTORY(DeadlineExceeded)
SHARD_DEFINE_STATUS_FACTORY(NotFound)
SHARD_DEFINE_STATUS_FACTORY(AlreadyExists)
SHARD_DEFINE_STATUS_FACTORY(PermissionDenied)
SHARD_DEFINE_STATUS_FACTORY(ResourceExhausted)
SHARD_DEFINE_STATUS_FACTORY(FailedPrecondition)
SHARD_DEFINE_STATUS_FACTORY(OutOfRange)
SHARD_DEFINE_STATUS_FACTORY(Unimplemented)
SHARD_DEFINE_STATUS_FACTORY(Internal)
SHARD_DEFINE_STATUS_FACTORY(Unavailable)
SHARD_DEFINE_STATUS_FACTORY(Corrupt)
SHARD_DEFINE_STATUS_FACTORY(BackendUnavailable)
#undef SHARD_DEFINE_STATUS_FACTORY

template <typename... Pieces>
Status RankLost(int rank, const Pieces&... pieces) {
  return Status(StatusCode::kRankLost, StrCat(pieces...), rank);
}

// Makes a kDesync error. `rank` is the first rank that disagrees with rank 0.
template <typename... Pieces>
Status Desync(int rank, const Pieces&... pieces) {
  return Status(StatusCode::kDesync, StrCat(pieces...), rank);
}

// Makes the error for an operation `what` that failed with the errno `error`.
// The code follows from the errno: ENOMEM, ENOSPC, EDQUOT and EMFILE are
// kResourceExhausted; EACCES, EPERM and EROFS kPermissionDenied; ENOENT
// kNotFound; EEXIST kAlreadyExists; ENOTDIR, EISDIR, ENOTEMPTY and ELOOP, where
// another kind of file is in the way, kFailedPrecondition; ENAMETOOLONG
// kInvalidArgument; EIO kDataLoss; anything else kInternal.
Status ErrnoStatus(std::string_view what, int error);

// A value, or the reason why there is none.
template <typename T>
class [[nodiscard]] StatusOr {
 public:
  // REQUIRES: !status.ok().
  StatusOr(Status status) : status_(std::move(status)) {}  // NOLINT: implicit
  StatusOr(T value) : value_(std::move(value)) {}          // NOLINT: implicit

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // REQUIRES: ok().
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

#define SHARD_RETURN_IF_ERROR(expression)                                    \
  do {                                                                       \
    if (::shard::Status shard_status_ = (expression); !shard_status_.ok()) { \
      return shard_status_;                                                  \
    }                                                                        \
  } while (false)

#define SHARD_MACRO_JOIN_INNER(a, b) a##b
#define SHARD_MACRO_JOIN(a, b) SHARD_MACRO_JOIN_INNER(a, b)

// SHARD_ASSIGN_OR_RETURN(auto value, ExpressionOfStatusOr());
#define SHARD_ASSIGN_OR_RETURN(declaration, expression)              \
  SHARD_ASSIGN_OR_RETURN_IMPL(SHARD_MACRO_JOIN(shard_or_, __LINE__), \
                              declaration, expression)
#define SHARD_ASSIGN_OR_RETURN_IMPL(temporary, declaration, expression) \
  auto temporary = (expression);                                        \
  if (!temporary.ok()) return temporary.status();                       \
  declaration = *std::move(temporary)

}  // namespace shard

#endif  // SHARD_CORE_BASE_STATUS_H_
