// SPDX-License-Identifier: Apache-2.0
//
// The names of a plan's parameters, and its modules in walk order.

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "tests/api/api_testing.h"

namespace shard_api_testing::plan_names_test {
namespace {

// Returns the text that a call writes into (buffer, capacity, length).
template <typename Call>
std::string Text(const Call& call) {
  size_t length = 77;
  Outcome outcome = Take(call(nullptr, 0, &length));
  if (outcome.code != SHARD_OK) {
    EXPECT_EQ(length, 0u);
    return "!" + outcome.message;
  }
  std::string text(length + 1, '?');
  EXPECT_OK(call(text.data(), text.size(), &length));
  EXPECT_EQ(text.back(), '\0');
  text.pop_back();
  return text;
}

std::string ParamName(const Plan& plan, int32_t param, int32_t index = 0) {
  return TextOf(shard_plan_param_name, plan.get(), param, index);
}

std::string ModuleName(const Plan& plan, int32_t module) {
  return TextOf(shard_plan_module_name, plan.get(), module);
}

std::string ModuleClass(const Plan& plan, int32_t module) {
  return TextOf(shard_plan_module_class, plan.get(), module);
}

std::string Clean(const char* name, int32_t strip = 0) {
  return Text([&](char* buffer, size_t capacity, size_t* length) {
    return shard_clean_tensor_name(name, strip, buffer, capacity, length);
  });
}

// A model whose head is tied to the embedding, which comes later in the walk
// though it was added first. An ignored module is beside them.
struct Net {
  Net() {
    shard_model* made = nullptr;
    EXPECT_OK(shard_model_create("Gpt", &made));
    model.reset(made);
    embed = AddModule(0, "embed", "Embedding");
    ignored = AddModule(0, "probe", "Probe");
    head = AddModule(0, "head", "Linear");
    inner = AddModule(embed, "norm", nullptr);
    weight = Add(head, "weight");
    EXPECT_OK(shard_model_tie(model.get(), embed, "weight", weight));
    gain = Add(inner, "gain");
    EXPECT_OK(shard_model_tie(model.get(), head, "gain", gain));
    probe = Add(ignored, "weight");
    EXPECT_OK(shard_model_ignore_module(model.get(), ignored));
    plan = MakePlan(model.get(), PlanOptions(2));
  }
  int32_t AddModule(int32_t parent, const char* name, const char* class_name) {
    int32_t module = 0;
    EXPECT_OK(
        shard_model_add_module(model.get(), parent, name, class_name, &module));
    return module;
  }
  int32_t Add(int32_t module, const char* name) {
    const int64_t numel = 4;
    int32_t param = 0;
    EXPECT_OK(shard_model_add_param(model.get(), module, name, SHARD_F32,
                                    &numel, 1, &param));
    return param;
  }
  Model model;
  Plan plan;
  int32_t embed, ignored, head, inner, weight, gain, probe;
};

TEST(PlanNamesTest, NamesOfAParameter) {
  const Net net;
  EXPECT_EQ(ParamName(net.plan, net.weight), "embed.weight");
  EXPECT_EQ(ParamName(net.plan, net.weight, 1), "head.weight");
  EXPECT_EQ(ParamName(net.plan, net.gain), "embed.norm.gain");
  EXPECT_EQ(ParamName(net.plan, net.gain, 1), "head.gain");

  const shard_plan* const plan = net.plan.get();
  const char* name = "stale";
  EXPECT_FAILS(shard_plan_param_name(plan, net.weight, 2, &name),
               SHARD_INVALID_ARGUMENT, "'embed.weight' has no name 2", "2");
  EXPECT_EQ(name, nullptr);
  EXPECT_FAILS(shard_plan_param_name(plan, net.weight, -1, &name),
               SHARD_INVALID_ARGUMENT, "no name -1");
  EXPECT_FAILS(shard_plan_param_name(plan, net.probe, 0, &name),
               SHARD_FAILED_PRECONDITION, "'probe.weight' is ignored");
  EXPECT_FAILS(shard_plan_param_name(plan, 3, 0, &name), SHARD_INVALID_ARGUMENT,
               "parameter 3");
  EXPECT_FAILS(shard_plan_param_name(nullptr, 0, 0, &name),
               SHARD_INVALID_ARGUMENT, "plan is NULL");
  EXPECT_FAILS(shard_plan_param_name(plan, 0, 0, nullptr),
               SHARD_INVALID_ARGUMENT, "name is NULL");
}

// The pointer to a name stays the same, whatever else is asked for: each name
// is made once.
TEST(PlanNamesTest, NamesLiveAsLongAsThePlan) {
  const Net net;
  const char* first = nullptr;
  ASSERT_OK(shard_plan_param_name(net.plan.get(), net.weight, 0, &first));
  for (const int32_t param : {net.weight, net.gain}) {
    for (const int32_t index : {0, 1}) ParamName(net.plan, param, index);
  }
  for (int32_t module = 0; module < 5; ++module) ModuleName(net.plan, module);
  const char* again = nullptr;
  ASSERT_OK(shard_plan_param_name(net.plan.get(), net.weight, 0, &again));
  EXPECT_EQ(first, again);
  EXPECT_STREQ(first, "embed.weight");
}

// Each name leads to its parameter, and its index distinguishes a parameter's
// names.
TEST(PlanNamesTest, NamesInWalkOrder) {
  const Net net;
  const int32_t count = InfoOf(net.plan).num_names;
  ASSERT_EQ(count, 4);
  const std::vector<std::string> fqns = {"embed.weight", "embed.norm.gain",
                                         "head.weight", "head.gain"};
  const std::vector<int32_t> modules = {net.embed, net.inner, net.head,
                                        net.head};
  std::vector<std::string> once;
  for (int32_t i = 0; i < count; ++i) {
    shard_name_info name = SHARD_NAME_INFO_INIT;
    ASSERT_OK(shard_plan_name_info(net.plan.get(), i, &name));
    const std::string fqn = ParamName(net.plan, name.param, name.index);
    EXPECT_EQ(fqn, fqns[static_cast<size_t>(i)]);
    EXPECT_EQ(name.module, modules[static_cast<size_t>(i)]);
    if (name.index == 0) once.push_back(fqn);
    int32_t found = -1;
    EXPECT_OK(shard_plan_find_param(net.plan.get(), fqn.c_str(), &found));
    EXPECT_EQ(found, name.param);
  }
  EXPECT_EQ(once,
            (std::vector<std::string>{"embed.weight", "embed.norm.gain"}));

  shard_name_info name = SHARD_NAME_INFO_INIT;
  for (const int32_t bad : {-1, 4, INT32_MAX}) {
    name.param = 9;
    EXPECT_FAILS(shard_plan_name_info(net.plan.get(), bad, &name),
                 SHARD_INVALID_ARGUMENT, "name " + std::to_string(bad), "4");
    EXPECT_EQ(name.param, 0);
  }
  EXPECT_FAILS(shard_plan_name_info(nullptr, 0, &name), SHARD_INVALID_ARGUMENT,
               "plan is NULL");
  EXPECT_FAILS(shard_plan_name_info(net.plan.get(), 0, nullptr),
               SHARD_INVALID_ARGUMENT, "info is NULL");
}

TEST(PlanNamesTest, FindsParametersByAnyName) {
  const Net net;
  int32_t param = -7;
  EXPECT_OK(shard_plan_find_param(net.plan.get(), "probe.weight", &param));
  EXPECT_EQ(param, net.probe);  // It is ignored, and found.
  const auto missing = [&](const char* fqn, const std::string& text) {
    param = -7;
    EXPECT_FAILS(shard_plan_find_param(net.plan.get(), fqn, &param),
                 SHARD_NOT_FOUND, text);
    EXPECT_EQ(param, 0);
  };
  missing("embed.norm.bias", "module 'embed.norm' has no parameter 'bias'");
  missing("embed.layer.bias", "module 'embed' has no module 'layer'");
  missing("embed.weight.x", "module 'embed' has no module 'weight'");
  missing("embed", "the root module has no parameter 'embed'");
  missing("", "the root module has no parameter ''");
  missing("embed.", "module 'embed' has no parameter ''");
  missing(".weight", "the root module has no module ''");
  EXPECT_FAILS(shard_plan_find_param(nullptr, "a", &param),
               SHARD_INVALID_ARGUMENT, "plan is NULL");
  EXPECT_FAILS(shard_plan_find_param(net.plan.get(), nullptr, &param),
               SHARD_INVALID_ARGUMENT, "fqn is NULL");
  EXPECT_FAILS(shard_plan_find_param(net.plan.get(), "a", nullptr),
               SHARD_INVALID_ARGUMENT, "param is NULL");
}

TEST(PlanNamesTest, ModulesInWalkOrder) {
  const Net net;
  const shard_plan* plan = net.plan.get();
  ASSERT_EQ(InfoOf(net.plan).num_modules, 5);
  struct Row {
    int32_t module, parent, depth, ignored, first_name, num_names;
    const char* fqn;
    const char* class_name;
  };
  const std::vector<Row> rows = {
      {0, -1, 0, 0, 0, 0, "", "Gpt"},
      {net.embed, 0, 1, 0, 0, 1, "embed", "Embedding"},
      {net.inner, net.embed, 2, 0, 1, 1, "embed.norm", ""},
      {net.ignored, 0, 1, 1, 2, 0, "probe", "Probe"},
      {net.head, 0, 1, 0, 2, 2, "head", "Linear"},
  };
  for (int32_t i = 0; i < 5; ++i) {
    SCOPED_TRACE(i);
    const Row& row = rows[static_cast<size_t>(i)];
    shard_module_info info = SHARD_MODULE_INFO_INIT;
    ASSERT_OK(shard_plan_module_info(plan, i, &info));
    EXPECT_EQ(info.module, row.module);
    EXPECT_EQ(info.parent, row.parent);
    EXPECT_EQ(info.depth, row.depth);
    EXPECT_EQ(info.ignored, row.ignored);
    EXPECT_EQ(info.first_name, row.first_name);
    EXPECT_EQ(info.num_names, row.num_names);
    EXPECT_EQ(ModuleName(net.plan, info.module), row.fqn);
    EXPECT_EQ(ModuleClass(net.plan, info.module), row.class_name);
  }

  shard_module_info info = SHARD_MODULE_INFO_INIT;
  for (const int32_t bad : {-1, 5, INT32_MAX}) {
    info.depth = 9;
    const std::string text = "module " + std::to_string(bad);
    EXPECT_FAILS(shard_plan_module_info(plan, bad, &info),
                 SHARD_INVALID_ARGUMENT, text, "5");
    EXPECT_EQ(info.depth, 0);
    for (const auto call : {shard_plan_module_name, shard_plan_module_class}) {
      const char* name = "stale";
      EXPECT_FAILS(call(plan, bad, &name), SHARD_INVALID_ARGUMENT, text);
      EXPECT_EQ(name, nullptr);
    }
  }
  EXPECT_FAILS(shard_plan_module_info(nullptr, 0, &info),
               SHARD_INVALID_ARGUMENT, "plan is NULL");
  EXPECT_FAILS(shard_plan_module_info(plan, 0, nullptr), SHARD_INVALID_ARGUMENT,
               "info is NULL");
  const char* text = nullptr;
  for (const auto call : {shard_plan_module_name, shard_plan_module_class}) {
    EXPECT_FAILS(call(nullptr, 0, &text), SHARD_INVALID_ARGUMENT,
                 "plan is NULL");
    EXPECT_FAILS(call(plan, 0, nullptr), SHARD_INVALID_ARGUMENT,
                 "name is NULL");
  }
}

// Any thread may use a plan, though names are sorted at the first question.
TEST(PlanNamesTest, AnyThreadMayAsk) {
  const Net net;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      shard_module_info info = SHARD_MODULE_INFO_INIT;
      EXPECT_OK(shard_plan_module_info(net.plan.get(), 4, &info));
      EXPECT_EQ(info.num_names, 2);
      EXPECT_EQ(ParamName(net.plan, net.weight, 1), "head.weight");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(PlanNamesTest, CleanTensorName) {
  EXPECT_EQ(
      Clean("_fsdp_wrapped_module.a._checkpoint_wrapped_module.b._orig_mod"
            "._fpw_module.w"),
      "a.b.w");
  EXPECT_EQ(Clean("module.a.w"), "module.a.w");
  EXPECT_EQ(Clean("module.a.w", 1), "a.w");
  EXPECT_EQ(Clean(""), "");
  EXPECT_EQ(Clean("w", 2), "!strip_leading_module is 2; allowed: 0 or 1");
  EXPECT_EQ(Clean(nullptr), "!name is NULL");
  EXPECT_FAILS(shard_clean_tensor_name("w", 0, nullptr, 0, nullptr),
               SHARD_INVALID_ARGUMENT, "length is NULL");
}

}  // namespace
}  // namespace shard_api_testing::plan_names_test
