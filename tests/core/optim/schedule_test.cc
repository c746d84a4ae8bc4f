// SPDX-License-Identifier: Apache-2.0

#include "core/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "tests/core/base/expect_status.h"

namespace shard::schedule_test {
namespace {

Schedule Parsed(std::string_view text) {
  auto schedule = Schedule::Parse(text);
  EXPECT_OK(schedule);
  return *std::move(schedule);
}

TEST(Schedule, ConstantByHand) {
  const Schedule plain = Parsed("constant?lr=0.5");
  EXPECT_EQ(plain.Lr(1), 0.5);
  EXPECT_EQ(plain.Lr(1000000), 0.5);
  const Schedule warm = Parsed("constant?lr=0.5&warmup=4");
  EXPECT_EQ(warm.Lr(1), 0.125);
  EXPECT_EQ(warm.Lr(2), 0.25);
  EXPECT_EQ(warm.Lr(3), 0.375);
  EXPECT_EQ(warm.Lr(4), 0.5);
  EXPECT_EQ(warm.Lr(5), 0.5);
}

TEST(Schedule, LinearByHand) {
  const Schedule schedule = Parsed("linear?lr=1&min_lr=0.5&warmup=2&total=10");
  EXPECT_EQ(schedule.Lr(1), 0.5);
  EXPECT_EQ(schedule.Lr(2), 1);
  EXPECT_EQ(schedule.Lr(3), 0.9375);
  EXPECT_EQ(schedule.Lr(6), 0.75);
  EXPECT_EQ(schedule.Lr(10), 0.5);
  EXPECT_EQ(schedule.Lr(11), 0.5);
}

TEST(Schedule, CosineByHand) {
  const Schedule schedule = Parsed("cosine?lr=1&min_lr=0.2&warmup=1&total=7");
  EXPECT_EQ(schedule.Lr(1), 1);
  // (1 + cos 30)/2 = 0.933013, cos 60 = 1/2, cos 90 = 0, cos 120 = -1/2.
  EXPECT_NEAR(schedule.Lr(2), 0.2 + 0.8 * 0.933013, 1e-6);
  EXPECT_NEAR(schedule.Lr(3), 0.8, 1e-15);
  EXPECT_NEAR(schedule.Lr(4), 0.6, 1e-15);
  EXPECT_NEAR(schedule.Lr(5), 0.4, 1e-15);
  EXPECT_EQ(schedule.Lr(7), 0.2);
  EXPECT_EQ(schedule.Lr(700), 0.2);
}

TEST(Schedule, InverseSqrtByHand) {
  const Schedule warm = Parsed("inverse_sqrt?lr=1&warmup=4&min_lr=0.3");
  EXPECT_EQ(warm.Lr(2), 0.5);
  EXPECT_EQ(warm.Lr(4), 1);
  EXPECT_EQ(warm.Lr(16), 0.5);
  EXPECT_NEAR(warm.Lr(5), 0.894427, 1e-6);
  EXPECT_EQ(warm.Lr(64), 0.3);  // It is not 1/4.
  const Schedule plain = Parsed("inverse_sqrt?lr=1");
  EXPECT_EQ(plain.Lr(1), 1);
  EXPECT_EQ(plain.Lr(4), 0.5);
  EXPECT_EQ(plain.Lr(1000000), 1e-3);
}

TEST(Schedule, WsdByHand) {
  const std::string text = "wsd?lr=1&min_lr=0.5&warmup=2&total=12&decay=4";
  for (const char* shape :
       {"", "&shape=linear", "&shape=1-sqrt", "&shape=cosine"}) {
    const Schedule schedule = Parsed(text + shape);
    EXPECT_EQ(schedule.Lr(1), 0.5) << shape;
    EXPECT_EQ(schedule.Lr(2), 1) << shape;
    EXPECT_EQ(schedule.Lr(8), 1) << shape;
    EXPECT_EQ(schedule.Lr(12), 0.5) << shape;
    EXPECT_EQ(schedule.Lr(13), 0.5) << shape;
  }
  EXPECT_EQ(Parsed(text).Lr(9), 0.875);
  EXPECT_EQ(Parsed(text).Lr(10), 0.75);
  EXPECT_EQ(Parsed(text + "&shape=1-sqrt").Lr(9), 0.75);
  EXPECT_NEAR(Parsed(text + "&shape=1-sqrt").Lr(11), 0.566987, 1e-6);
  EXPECT_NEAR(Parsed(text + "&shape=cosine").Lr(9), 0.926777, 1e-6);
  EXPECT_NEAR(Parsed(text + "&shape=cosine").Lr(10), 0.75, 1e-15);
}

// With warmup = total there is nothing but warm-up; the last rate is lr.
TEST(Schedule, MayBeWarmUpOnly) {
  const Schedule schedule = Parsed("cosine?lr=1&warmup=4&total=4");
  EXPECT_EQ(schedule.Lr(3), 0.75);
  EXPECT_EQ(schedule.Lr(4), 1);
  EXPECT_EQ(schedule.Lr(5), 1);
}

TEST(Schedule, DecayMayFollowTheWarmUpAtOnce) {
  const Schedule schedule = Parsed("wsd?lr=1&warmup=4&total=8&decay=4");
  EXPECT_EQ(schedule.Lr(4), 1);
  EXPECT_EQ(schedule.Lr(5), 0.75);
  EXPECT_EQ(schedule.Lr(8), 0);
}

constexpr const char* kAllKinds[] = {
    "constant?lr=3e-4&warmup=37",
    "linear?lr=3e-4&min_lr=1e-5&warmup=37&total=1000",
    "cosine?lr=3e-4&min_lr=1e-5&warmup=37&total=1000",
    "inverse_sqrt?lr=3e-4&min_lr=1e-4&warmup=37",
    "wsd?lr=3e-4&min_lr=1e-5&warmup=37&total=1000&decay=200",
    "wsd?lr=3e-4&min_lr=1e-5&warmup=37&total=1000&decay=200&shape=1-sqrt",
    "wsd?lr=3e-4&min_lr=1e-5&warmup=37&total=1000&decay=200&shape=cosine",
};

TEST(Schedule, RisesOnceAndFallsOnceWithinItsBounds) {
  for (const char* text : kAllKinds) {
    const Schedule schedule = Parsed(text);
    EXPECT_EQ(schedule.Lr(37), 3e-4) << text;
    double last = 0;
    for (int64_t t = 1; t <= 1100; ++t) {
      const double lr = schedule.Lr(t);
      EXPECT_LE(lr, 3e-4) << text << ", step " << t;
      if (t <= 37) {
        EXPECT_GT(lr, last) << text << ", step " << t;
      } else {
        EXPECT_LE(lr, last) << text << ", step " << t;
        EXPECT_GE(lr, 1e-5) << text << ", step " << t;
      }
      last = lr;
    }
  }
}

// No two steps in a row differ by more than the steepest slope: 1/37 of lr in
// the warm-up; 1-sqrt starts with a step of sqrt(1/200).
TEST(Schedule, SeamsAreContinuous) {
  for (const char* text : kAllKinds) {
    const Schedule schedule = Parsed(text);
    for (int64_t t = 1; t <= 1100; ++t) {
      EXPECT_LE(std::abs(schedule.Lr(t + 1) - schedule.Lr(t)), 3e-4 * 0.071)
          << text << ", step " << t;
    }
  }
}

TEST(Schedule, StaysPutFarBeyondTheEnd) {
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  for (const char* text : kAllKinds) {
    const Schedule schedule = Parsed(text);
    EXPECT_EQ(schedule.Lr(kLast), schedule.Lr(kLast - 1)) << text;
    EXPECT_GE(schedule.Lr(kLast), 1e-5) << text;
  }
  EXPECT_EQ(Parsed("linear?lr=1&total=9223372036854775807").Lr(kLast), 0);
}

TEST(Schedule, CanonicalTextReadsBack) {
  EXPECT_EQ(
      Parsed("cosine?total=100000&warmup=2000&lr=3e-4&min_lr=3e-5").ToString(),
      "cosine?lr=3e-04&min_lr=3e-05&warmup=2000&total=100000");
  EXPECT_EQ(Parsed("constant?lr=1").ToString(), "constant?lr=1&warmup=0");
  EXPECT_EQ(Parsed("wsd?lr=1&total=9&decay=2").ToString(),
            "wsd?lr=1&min_lr=0&warmup=0&total=9&decay=2&shape=linear");
  for (const char* text : kAllKinds) {
    const Schedule first = Parsed(text);
    const Schedule second = Parsed(first.ToString());
    EXPECT_EQ(second.ToString(), first.ToString());
    for (int64_t t = 1; t < 1100; t += 13) {
      EXPECT_EQ(second.Lr(t), first.Lr(t)) << text;
    }
  }
}

TEST(Schedule, WrongTextsAreNamed) {
  const struct {
    const char* text;
    std::initializer_list<std::string_view> parts;
  } kCases[] = {
      {"", {"no name"}},
      {"cosin?lr=1",
       {"'cosin?lr=1'", "constant, linear, cosine, inverse_sqrt, wsd"}},
      {"cosine:x?lr=1&total=1", {"unknown schedule"}},
      {"cosine?lr=1&totl=5",
       {"unknown key 'totl'", "lr, min_lr, warmup, total"}},
      {"constant?lr=1&total=5", {"unknown key 'total'", "lr, warmup"}},
      {"constant?lr=1&min_lr=0", {"unknown key 'min_lr'"}},
      {"linear?lr=1&total=5&decay=2", {"unknown key 'decay'"}},
      {"constant", {"constant needs lr"}},
      {"cosine?lr=1", {"cosine needs total"}},
      {"linear?lr=1", {"linear needs total"}},
      {"wsd?lr=1&decay=2", {"wsd needs total"}},
      {"wsd?lr=1&total=5", {"wsd needs decay"}},
      {"constant?lr=fast", {"lr='fast'", "not a finite number"}},
      {"constant?lr=nan", {"lr='nan'"}},
      {"constant?lr=inf", {"lr='inf'"}},
      {"constant?lr=-0.1", {"lr=-0.1", "at least 0"}},
      {"constant?lr=1&warmup=-1", {"warmup=-1", "at least 0"}},
      {"constant?lr=1&warmup=1.5", {"warmup='1.5'", "integer"}},
      {"cosine?lr=1&total=0", {"total=0", "at least 1"}},
      {"cosine?lr=1&total=-5", {"total=-5", "at least 1"}},
      {"cosine?lr=1&total=10&warmup=11", {"warmup=11", "[0, total=10]"}},
      {"cosine?lr=1&total=10&min_lr=2", {"min_lr=2", "[0, lr=1]"}},
      {"inverse_sqrt?lr=1&min_lr=-1", {"min_lr=-1", "[0, lr=1]"}},
      {"wsd?lr=1&total=10&decay=0", {"decay=0", "[1, total-warmup=10]"}},
      {"wsd?lr=1&total=10&warmup=4&decay=7",
       {"decay=7", "[1, total-warmup=6]"}},
      {"wsd?lr=1&total=10&decay=2&shape=round",
       {"shape=round", "linear, 1-sqrt, cosine"}},
  };
  for (const auto& [text, parts] : kCases) {
    SCOPED_TRACE(text);
    ExpectInvalid(Schedule::Parse(text), parts);
  }
}

}  // namespace
}  // namespace shard::schedule_test
