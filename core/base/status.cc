// SPDX-License-Identifier: Apache-2.0

#include "core/base/status.h"

#include <cerrno>
#include <cstring>

namespace shard {

namespace {

const std::string& EmptyString() {
  // Leaked on purpose: no static destructor may run in the host's exit.
  static const std::string* const empty = new std::string;
  return *empty;
}

StatusCode CodeOfErrno(int error) {
  switch (error) {
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
      return StatusCode::kResourceExhausted;
    case EACCES:
    case EPERM:
    case EROFS:
      return StatusCode::kPermissionDenied;
    case ENOENT:
      return StatusCode::kNotFound;
    case EEXIST:
      return StatusCode::kAlreadyExists;
    case ENOTDIR:
    case EISDIR:
    case ENOTEMPTY:
    case ELOOP:
      return StatusCode::kFailedPrecondition;
    case ENAMETOOLONG:
      return StatusCode::kInvalidArgument;
    case EIO:
      return StatusCode::kDataLoss;
    default:
      return StatusCode::kInternal;
  }
}

// Returns the remedy; empty where the text of the error contains it.
const char* RemedyOfErrno(int error) {
  switch (error) {
    case ENOSPC:
      return "; free space";
    case EDQUOT:
      return "; free space, or ask for a larger quota";
    case EFBIG:
      return "; raise the limit of file sizes (ulimit -f), or use a file "
             "system "
             "that holds larger files";
    case EMFILE:
    case ENFILE:
      return "; close files, or raise the limit (ulimit -n)";
    case EIO:
      return "; the device, or the way to it, failed: see the kernel's log";
    default:
      return "";
  }
}

}  // namespace

const char* StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "OK";
    case StatusCode::kCancelled:
      return "CANCELLED";
    case StatusCode::kUnknown:
      return "UNKNOWN";
    case StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case StatusCode::kNotFound:
      return "NOT_FOUND";
    case StatusCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case StatusCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case StatusCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case StatusCode::kAborted:
      return "ABORTED";
    case StatusCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case StatusCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case StatusCode::kInternal:
      return "INTERNAL";
    case StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case StatusCode::kDataLoss:
      return "DATA_LOSS";
    case StatusCode::kUnauthenticated:
      return "UNAUTHENTICATED";
    case StatusCode::kDesync:
      return "DESYNC";
    case StatusCode::kRankLost:
      return "RANK_LOST";
    case StatusCode::kCorrupt:
      return "CORRUPT";
    case StatusCode::kPoisoned:
      return "POISONED";
    case StatusCode::kBackendUnavailable:
      return "BACKEND_UNAVAILABLE";
  }
  return "UNKNOWN_CODE";
}

Status::Status(StatusCode code, std::string message, int rank,
               std::string detail)
    : state_(std::make_shared<const State>(
          State{code, rank, std::move(message), std::move(detail)})) {}

const std::string& Status::message() const {
  return ok() ? EmptyString() : state_->message;
}

const std::string& Status::detail() const {
  return ok() ? EmptyString() : state_->detail;
}

Status Status::WithContext(std::string_view context) const {
  if (ok()) return *this;
  return Status(code(), StrCat(context, ": ", message()), rank(), detail());
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  return StrCat(StatusCodeName(code()), ": ", message());
}

Status ErrnoStatus(std::string_view what, int error) {
  char buffer[128];
  // The GNU form of strerror_r is thread-safe and may ignore the buffer.
  const char* text = strerror_r(error, buffer, sizeof(buffer));
  return Status(CodeOfErrno(error), StrCat(what, " failed: ", text, " (errno ",
                                           error, ")", RemedyOfErrno(error)));
}

}  // namespace shard
