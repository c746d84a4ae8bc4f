// SPDX-License-Identifier: Apache-2.0

#include <string>
#include <vector>

#include "tests/api/api_testing.h"

namespace shard_api_testing::model_test {
namespace {

// Adds parameter "x" of this shape to a new model.
shard_error* AddShape(const std::vector<int64_t>& shape,
                      int32_t dtype = SHARD_F32) {
  const Model model = EmptyModel();
  int32_t param = 77;
  shard_error* error = shard_model_add_param(
      model.get(), 0, "x", dtype, shape.data(), shape.size(), &param);
  EXPECT_EQ(param, 0);
  return error;
}

TEST(ModelTest, ClassesAreUtf8) {
  shard_model* out = Garbage<shard_model>();
  EXPECT_FAILS(shard_model_create("\xFF", &out), SHARD_INVALID_ARGUMENT,
               "class '\\xff' is not valid UTF-8");
  EXPECT_EQ(out, nullptr);
  const Model model = EmptyModel();
  int32_t id = 77;
  EXPECT_FAILS(shard_model_add_module(model.get(), 0, "a", "\xFF", &id),
               SHARD_INVALID_ARGUMENT, "UTF-8");
  EXPECT_EQ(id, 0);
}

TEST(ModelTest, OutputsForIdsMayBeNull) {
  const Model model = EmptyModel();
  const int64_t shape[] = {2};
  EXPECT_OK(shard_model_add_module(model.get(), 0, "a", nullptr, nullptr));
  EXPECT_OK(
      shard_model_add_param(model.get(), 1, "w", SHARD_F32, shape, 1, nullptr));
  EXPECT_OK(shard_model_add_buffer(model.get(), 1, "b", SHARD_F32, shape, 1, 1,
                                   nullptr));
  const int32_t members[] = {0};
  EXPECT_OK(
      shard_model_add_param_group(model.get(), "sgd", members, 1, nullptr));
  // The ids count on.
  int32_t id = 77;
  EXPECT_OK(shard_model_add_module(model.get(), 1, "c", nullptr, &id));
  EXPECT_EQ(id, 2);
}

TEST(ModelTest, NullPointersAreErrors) {
  const Model model = SmallModel();
  const int64_t shape[] = {2};
  int32_t id = 77;
  EXPECT_FAILS(shard_model_create("Net", nullptr), SHARD_INVALID_ARGUMENT,
               "model is NULL");
  EXPECT_FAILS(shard_model_add_module(nullptr, 0, "a", nullptr, &id),
               SHARD_INVALID_ARGUMENT, "model is NULL");
  EXPECT_EQ(id, 0);
  EXPECT_FAILS(shard_model_add_module(model.get(), 0, nullptr, nullptr, &id),
               SHARD_INVALID_ARGUMENT, "name is NULL");
  id = 77;
  EXPECT_FAILS(shard_model_add_param(nullptr, 0, "a", SHARD_F32, shape, 1, &id),
               SHARD_INVALID_ARGUMENT, "model is NULL");
  EXPECT_EQ(id, 0);
  EXPECT_FAILS(
      shard_model_add_param(model.get(), 0, nullptr, SHARD_F32, shape, 1, &id),
      SHARD_INVALID_ARGUMENT, "name is NULL");
  EXPECT_FAILS(
      shard_model_add_param(model.get(), 0, "a", SHARD_F32, nullptr, 1, &id),
      SHARD_INVALID_ARGUMENT, "shape is NULL");
  EXPECT_FAILS(shard_model_tie(nullptr, 0, "a", 0), SHARD_INVALID_ARGUMENT,
               "model is NULL");
  EXPECT_FAILS(shard_model_tie(model.get(), 0, nullptr, 0),
               SHARD_INVALID_ARGUMENT, "name is NULL");
  EXPECT_FAILS(shard_model_freeze(nullptr, 0), SHARD_INVALID_ARGUMENT,
               "model is NULL");
  EXPECT_FAILS(shard_model_ignore_param(nullptr, 0), SHARD_INVALID_ARGUMENT,
               "model is NULL");
  EXPECT_FAILS(shard_model_ignore_module(nullptr, 0), SHARD_INVALID_ARGUMENT,
               "model is NULL");
  shard_model_free(nullptr);
  // None of these calls has added anything.
  EXPECT_OK(
      shard_model_add_param(model.get(), 0, "a", SHARD_F32, shape, 1, &id));
  EXPECT_EQ(id, kNumParams);
}

TEST(ModelTest, Shapes) {
  EXPECT_OK(AddShape({}));
  EXPECT_OK(AddShape({0}));
  EXPECT_OK(AddShape({1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_OK(AddShape({INT64_MAX / 4}));
  // A shape with a 0 has no elements, so nothing overflows.
  EXPECT_OK(AddShape({INT64_MAX, INT64_MAX, 0}));
  EXPECT_FAILS(AddShape({1, 1, 1, 1, 1, 1, 1, 1, 1}), SHARD_INVALID_ARGUMENT,
               "'x'", "ndim 9", "0 to 8");
  EXPECT_FAILS(AddShape({3, -2}), SHARD_INVALID_ARGUMENT, "'x'", "-2");
  EXPECT_FAILS(AddShape({-1, 0}), SHARD_INVALID_ARGUMENT, "-1");
  EXPECT_FAILS(AddShape({int64_t{1} << 32, int64_t{1} << 32}),
               SHARD_INVALID_ARGUMENT, "'x'", "4294967296");
  EXPECT_FAILS(AddShape({INT64_MAX / 4 + 1}), SHARD_INVALID_ARGUMENT, "'x'");
  EXPECT_FAILS(AddShape({INT64_MIN}), SHARD_INVALID_ARGUMENT, "'x'");

  const Model model = EmptyModel();
  const int64_t shape[] = {2};
  int32_t id = 77;
  for (const size_t ndim : {size_t{9}, SIZE_MAX}) {
    EXPECT_FAILS(
        shard_model_add_param(model.get(), 0, "x", SHARD_F32, shape, ndim, &id),
        SHARD_INVALID_ARGUMENT, "ndim " + std::to_string(ndim));
  }
  EXPECT_OK(
      shard_model_add_param(model.get(), 0, "x", SHARD_F32, nullptr, 0, &id));
}

TEST(ModelTest, DTypes) {
  for (const int32_t dtype : {SHARD_F32, SHARD_BF16, SHARD_F16, SHARD_F64}) {
    EXPECT_OK(AddShape({2}, dtype));
  }
  for (const int32_t dtype : {0, 5, -1, INT32_MAX}) {
    EXPECT_FAILS(AddShape({2}, dtype), SHARD_INVALID_ARGUMENT,
                 "dtype " + std::to_string(dtype), "1 (f32)", "4 (f64)");
  }
}

TEST(ModelTest, Names) {
  const Model model = SmallModel();
  const int64_t shape[] = {2};
  int32_t id = 77;
  const auto add = [&](const char* name) {
    return shard_model_add_param(model.get(), 0, name, SHARD_F32, shape, 1,
                                 &id);
  };
  EXPECT_FAILS(add(""), SHARD_INVALID_ARGUMENT, "empty");
  EXPECT_FAILS(add("a.b"), SHARD_INVALID_ARGUMENT, "'a.b'", "'.'");
  EXPECT_FAILS(add("\xc3\x28"), SHARD_INVALID_ARGUMENT, "\\xc3", "UTF-8");
  EXPECT_FAILS(add("weight"), SHARD_ALREADY_EXISTS, "'weight'", "root");
  EXPECT_EQ(id, 0);
  EXPECT_FAILS(shard_model_add_module(model.get(), 0, "weight", nullptr, &id),
               SHARD_ALREADY_EXISTS, "'weight'");
  EXPECT_FAILS(shard_model_add_module(model.get(), 0, "", nullptr, &id),
               SHARD_INVALID_ARGUMENT, "empty");
  ASSERT_OK(shard_model_add_module(model.get(), 0, "layer", nullptr, &id));
  EXPECT_EQ(id, 1);
  EXPECT_FAILS(add("layer"), SHARD_ALREADY_EXISTS, "'layer'");
  EXPECT_FAILS(shard_model_tie(model.get(), 0, "bias", kWeight),
               SHARD_ALREADY_EXISTS, "'bias'");
  EXPECT_FAILS(shard_model_tie(model.get(), 0, "x.y", kWeight),
               SHARD_INVALID_ARGUMENT, "'x.y'");
  // The same name in another module is another name.
  EXPECT_OK(shard_model_tie(model.get(), 1, "weight", kWeight));
  EXPECT_OK(add("größe"));
}

TEST(ModelTest, UnknownIdsAreNamed) {
  const Model model = SmallModel();
  const int64_t shape[] = {2};
  int32_t id = 77;
  for (const int32_t bad : {-1, 1, INT32_MAX, INT32_MIN}) {
    const std::string text = std::to_string(bad);
    EXPECT_FAILS(shard_model_add_module(model.get(), bad, "m", nullptr, &id),
                 SHARD_INVALID_ARGUMENT, text);
    EXPECT_FAILS(
        shard_model_add_param(model.get(), bad, "p", SHARD_F32, shape, 1, &id),
        SHARD_INVALID_ARGUMENT, text);
    EXPECT_FAILS(shard_model_tie(model.get(), bad, "t", kWeight),
                 SHARD_INVALID_ARGUMENT, text);
    EXPECT_FAILS(shard_model_ignore_module(model.get(), bad),
                 SHARD_INVALID_ARGUMENT, text);
  }
  for (const int32_t bad : {-1, +kNumParams, INT32_MAX, INT32_MIN}) {
    const std::string text = std::to_string(bad);
    EXPECT_FAILS(shard_model_tie(model.get(), 0, "t", bad),
                 SHARD_INVALID_ARGUMENT, text);
    EXPECT_FAILS(shard_model_freeze(model.get(), bad), SHARD_INVALID_ARGUMENT,
                 text);
    EXPECT_FAILS(shard_model_ignore_param(model.get(), bad),
                 SHARD_INVALID_ARGUMENT, text);
  }
  EXPECT_FAILS(shard_model_freeze(EmptyModel().get(), 0),
               SHARD_INVALID_ARGUMENT, "none");
}

}  // namespace
}  // namespace shard_api_testing::model_test
