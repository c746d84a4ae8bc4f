// SPDX-License-Identifier: Apache-2.0

#include "core/base/spec.h"

#include <gtest/gtest.h>

#include "tests/core/base/expect_status.h"

namespace shard::spec_test {
namespace {

Spec Parsed(std::string_view text) {
  auto spec = Spec::Parse(text);
  EXPECT_OK(spec);
  return *std::move(spec);
}

TEST(Spec, NameBodyAndColon) {
  const Spec bare = Parsed("shm");
  EXPECT_EQ(bare.name(), "shm");
  EXPECT_EQ(bare.body(), "");
  EXPECT_FALSE(bare.has_colon());

  const Spec empty = Parsed("shm:");
  EXPECT_EQ(empty.name(), "shm");
  EXPECT_EQ(empty.body(), "");
  EXPECT_TRUE(empty.has_colon());

  const Spec full = Parsed("tcp://host:123/job?timeout=30");
  EXPECT_EQ(full.name(), "tcp");
  EXPECT_EQ(full.body(), "//host:123/job");
}

TEST(Spec, ColonAfterTheQuestionMarkIsAValue) {
  Spec spec = Parsed("shm?job=a:b");
  EXPECT_EQ(spec.name(), "shm");
  EXPECT_FALSE(spec.has_colon());
  EXPECT_EQ(spec.TakeString("job", ""), "a:b");
}

TEST(Spec, TakesEveryKind) {
  Spec spec = Parsed("adamw?lr=3e-4&steps=-7&nesterov=1&fused=false&s=a=b");
  EXPECT_EQ(*spec.TakeDouble("lr", 1.0), 3e-4);
  EXPECT_EQ(*spec.TakeInt("steps", 1), -7);
  EXPECT_TRUE(*spec.TakeBool("nesterov", false));
  EXPECT_FALSE(*spec.TakeBool("fused", true));
  EXPECT_EQ(spec.TakeString("s", ""), "a=b");
  EXPECT_OK(spec.CheckAllTaken());
}

TEST(Spec, FallbacksWhereAKeyIsAbsent) {
  Spec spec = Parsed("adamw");
  EXPECT_EQ(*spec.TakeDouble("lr", 0.5), 0.5);
  EXPECT_EQ(*spec.TakeInt("steps", 3), 3);
  EXPECT_TRUE(*spec.TakeBool("x", true));
  EXPECT_EQ(spec.TakeString("s", "d"), "d");
  EXPECT_OK(spec.CheckAllTaken());
}

TEST(Spec, UnreadableValuesNameKeyAndValue) {
  Spec spec = Parsed("adamw?lr=fast&steps=1.5&fused=maybe&eps=nan");
  ExpectInvalid(spec.TakeDouble("lr", 0), {"lr", "'fast'"});
  ExpectInvalid(spec.TakeDouble("eps", 0), {"eps", "'nan'"});
  ExpectInvalid(spec.TakeInt("steps", 0), {"steps", "'1.5'"});
  ExpectInvalid(spec.TakeBool("fused", false), {"fused", "'maybe'"});
}

TEST(Spec, UntakenKeyIsNamedWithTheKnownOnes) {
  Spec spec = Parsed("adamw?beta=0.9");
  EXPECT_OK(spec.TakeDouble("beta1", 0));
  EXPECT_OK(spec.TakeDouble("beta2", 0));
  ExpectInvalid(spec.CheckAllTaken(), {"'beta'", "beta1, beta2", "adamw"});
  ExpectInvalid(Parsed("sgd?x=1").CheckAllTaken(), {"'x'", "none"});
}

TEST(Spec, BadFormsAreErrors) {
  ExpectInvalid(Spec::Parse(""), {"no name"});
  ExpectInvalid(Spec::Parse(":body"), {"':body'", "no name"});
  ExpectInvalid(Spec::Parse("?a=1"), {"no name"});
  ExpectInvalid(Spec::Parse("a?b"), {"'b'", "key=value"});
  ExpectInvalid(Spec::Parse("a?=1"), {"'=1'"});
  ExpectInvalid(Spec::Parse("a?b=1&&c=2"), {"''"});
  ExpectInvalid(Spec::Parse("a?b=1&b=2"), {"'b'", "twice"});
}

}  // namespace
}  // namespace shard::spec_test
