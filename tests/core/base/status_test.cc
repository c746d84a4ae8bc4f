// SPDX-License-Identifier: Apache-2.0

#include "core/base/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "tests/core/base/expect_status.h"

namespace shard::status_test {
namespace {

TEST(Status, OkIsEmpty) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(status.detail(), "");
  EXPECT_EQ(status.rank(), -1);
  EXPECT_EQ(status.ToString(), "OK");
  EXPECT_TRUE(status.WithContext("saving").ok());
}

TEST(Status, CarriesAllFour) {
  const Status status(StatusCode::kRankLost, "rank 3 is gone", 3, "{}");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kRankLost);
  EXPECT_EQ(status.message(), "rank 3 is gone");
  EXPECT_EQ(status.rank(), 3);
  EXPECT_EQ(status.detail(), "{}");
  EXPECT_EQ(status.ToString(), "RANK_LOST: rank 3 is gone");
}

TEST(Status, ContextKeepsTheRest) {
  const Status status =
      Status(StatusCode::kCorrupt, "bad sum", 2, "[1]").WithContext("loading");
  EXPECT_EQ(status.message(), "loading: bad sum");
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_EQ(status.rank(), 2);
  EXPECT_EQ(status.detail(), "[1]");
}

TEST(Status, CopiesAreIndependentOfTheOriginal) {
  Status copy;
  {
    const Status original = NotFound("no ", 5);
    copy = original;
  }
  EXPECT_EQ(copy.message(), "no 5");
}

// The values are those of shard.h and go over the wire.
TEST(Status, CodesAreFrozen) {
  const std::pair<int, const char*> codes[] = {
      {0, "OK"},
      {1, "CANCELLED"},
      {2, "UNKNOWN"},
      {3, "INVALID_ARGUMENT"},
      {4, "DEADLINE_EXCEEDED"},
      {5, "NOT_FOUND"},
      {6, "ALREADY_EXISTS"},
      {7, "PERMISSION_DENIED"},
      {8, "RESOURCE_EXHAUSTED"},
      {9, "FAILED_PRECONDITION"},
      {10, "ABORTED"},
      {11, "OUT_OF_RANGE"},
      {12, "UNIMPLEMENTED"},
      {13, "INTERNAL"},
      {14, "UNAVAILABLE"},
      {15, "DATA_LOSS"},
      {16, "UNAUTHENTICATED"},
      {64, "DESYNC"},
      {65, "RANK_LOST"},
      {66, "CORRUPT"},
      {67, "POISONED"},
      {68, "BACKEND_UNAVAILABLE"},
      {17, "UNKNOWN_CODE"},
      {-1, "UNKNOWN_CODE"},
  };
  for (const auto& [value, name] : codes) {
    EXPECT_STREQ(StatusCodeName(static_cast<StatusCode>(value)), name);
  }
}

TEST(Status, FactoriesJoinTheirPieces) {
  ExpectError(InvalidArgument("lr ", -1.5), StatusCode::kInvalidArgument,
              {"lr -1.5"});
  ExpectError(FailedPrecondition("x"), StatusCode::kFailedPrecondition, {"x"});
  ExpectError(BackendUnavailable("nccl"), StatusCode::kBackendUnavailable,
              {"nccl"});
  const Status lost = RankLost(7, "rank ", 7, " exited");
  EXPECT_EQ(lost.rank(), 7);
  ExpectError(lost, StatusCode::kRankLost, {"rank 7 exited"});
  const Status desync = Desync(2, "differs");
  EXPECT_EQ(desync.rank(), 2);
  ExpectError(desync, StatusCode::kDesync, {"differs"});
}

TEST(ErrnoStatus, CodeFollowsTheErrno) {
  ExpectError(ErrnoStatus("open('/x')", ENOENT), StatusCode::kNotFound,
              {"open('/x') failed", "No such file", "errno 2"});
  ExpectError(ErrnoStatus("mmap", ENOMEM), StatusCode::kResourceExhausted, {});
  ExpectError(ErrnoStatus("open", EACCES), StatusCode::kPermissionDenied, {});
  ExpectError(ErrnoStatus("open", EPERM), StatusCode::kPermissionDenied, {});
  ExpectError(ErrnoStatus("write", EROFS), StatusCode::kPermissionDenied, {});
  ExpectError(ErrnoStatus("mkdir", EEXIST), StatusCode::kAlreadyExists, {});
  for (const int in_the_way : {ENOTDIR, EISDIR, ENOTEMPTY, ELOOP}) {
    ExpectError(ErrnoStatus("open", in_the_way),
                StatusCode::kFailedPrecondition, {});
  }
  ExpectInvalid(ErrnoStatus("open", ENAMETOOLONG), {});
  ExpectError(ErrnoStatus("read", EPIPE), StatusCode::kInternal, {"errno 32"});
}

TEST(ErrnoStatus, SaysWhatToDo) {
  ExpectError(ErrnoStatus("write", ENOSPC), StatusCode::kResourceExhausted,
              {"errno 28", "free space"});
  ExpectError(ErrnoStatus("write", EDQUOT), StatusCode::kResourceExhausted,
              {"free space", "quota"});
  ExpectError(ErrnoStatus("write", EFBIG), StatusCode::kResourceExhausted,
              {"ulimit -f"});
  ExpectError(ErrnoStatus("open", EMFILE), StatusCode::kResourceExhausted,
              {"ulimit -n"});
  ExpectError(ErrnoStatus("read", EIO), StatusCode::kDataLoss,
              {"errno 5", "kernel's log"});
}

StatusOr<int> Half(int value) {
  if (value % 2 != 0) return InvalidArgument(value, " is odd");
  return value / 2;
}

StatusOr<int> Quarter(int value) {
  SHARD_ASSIGN_OR_RETURN(const int half, Half(value));
  SHARD_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

Status CheckEven(int value) {
  SHARD_RETURN_IF_ERROR(Half(value).status());
  return Status();
}

TEST(StatusOr, HoldsAValueOrTheReason) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(8).status().code(), StatusCode::kOk);
  ExpectInvalid(Quarter(7), {"7 is odd"});
  ExpectInvalid(Quarter(6), {"3 is odd"});
  EXPECT_OK(CheckEven(2));
  ExpectInvalid(CheckEven(3), {"3 is odd"});
}

TEST(StatusOr, MovesWhatCannotBeCopied) {
  StatusOr<std::unique_ptr<int>> result(std::make_unique<int>(5));
  const std::unique_ptr<int> value = *std::move(result);
  EXPECT_EQ(*value, 5);
}

}  // namespace
}  // namespace shard::status_test
