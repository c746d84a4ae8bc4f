// SPDX-License-Identifier: Apache-2.0
//
// Expectations on errors: the code, and the texts that the message must have.

#ifndef SHARD_TESTS_CORE_BASE_EXPECT_STATUS_H_
#define SHARD_TESTS_CORE_BASE_EXPECT_STATUS_H_

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace shard {

inline const Status& StatusOf(const Status& status) { return status; }

template <typename T>
const Status& StatusOf(const StatusOr<T>& result) {
  return result.status();
}

template <typename Result>
void ExpectError(const Result& result, StatusCode code,
                 std::initializer_list<std::string_view> parts) {
  const Status& status = StatusOf(result);
  EXPECT_EQ(StatusCodeName(status.code()), std::string(StatusCodeName(code)))
      << status.ToString();
  for (const std::string_view part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos)
        << "no \"" << part << "\" in: " << status.ToString();
  }
}

template <typename Result>
void ExpectInvalid(const Result& result,
                   std::initializer_list<std::string_view> parts) {
  ExpectError(result, StatusCode::kInvalidArgument, parts);
}

#define EXPECT_OK(expression)                           \
  do {                                                  \
    const auto& shard_result_ = (expression);           \
    EXPECT_TRUE(::shard::StatusOf(shard_result_).ok())  \
        << ::shard::StatusOf(shard_result_).ToString(); \
  } while (false)

#define ASSERT_OK(expression)                           \
  do {                                                  \
    const auto& shard_result_ = (expression);           \
    ASSERT_TRUE(::shard::StatusOf(shard_result_).ok())  \
        << ::shard::StatusOf(shard_result_).ToString(); \
  } while (false)

}  // namespace shard

#endif  // SHARD_TESTS_CORE_BASE_EXPECT_STATUS_H_
