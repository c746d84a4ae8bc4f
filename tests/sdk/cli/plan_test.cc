// SPDX-License-Identifier: Apache-2.0
//
// Compares `shardctl plan` with numbers worked out by hand.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/core/base/sanitizers.h"
#include "tests/sdk/cli/checkpoint_testing.h"
#include "tests/sdk/cli/plan_testing.h"

namespace shardctl_testing::plan_test {
namespace {

using PlanTest = PlanFixture;

TEST_F(PlanTest, MemoryOfEveryStage) {
  const Json json = PlanJson(
      {"--ranks", "4", "--wrap", "class?names=Block", "--prefetch", "0"});
  EXPECT_EQ(json["model"]["params"], 5);
  EXPECT_EQ(json["model"]["elements"], 5 * kMiB);
  ASSERT_EQ(json["plans"].size(), 4u);
  // The sizes in MiB of all elements in f32, and of a rank's quarter. AdamW has
  // two states.
  const double whole = 20, part = 5, states = 10, slots = 2 * 4;
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    const Json& memory = json["plans"][static_cast<size_t>(stage)]["memory"];
    EXPECT_EQ(memory["param_bytes"], (stage < 3 ? whole : part) * kMiB);
    EXPECT_EQ(memory["grad_bytes"], (stage < 2 ? whole : part) * kMiB);
    EXPECT_EQ(memory["state_bytes"], states * kMiB);
    // There is one slot for each depth: a block's and the root's.
    EXPECT_EQ(memory["transient_bytes"], (stage < 2    ? 0
                                          : stage == 2 ? slots
                                                       : 2 * slots) *
                                             kMiB);
    EXPECT_EQ(json["plans"][static_cast<size_t>(stage)]["units"], 5);
  }
}

TEST_F(PlanTest, Traffic) {
  const Json json = PlanJson({"--ranks", "4", "--wrap", "class?names=Block",
                              "--prefetch", "0", "--micro-batches", "3"});
  const double share = 0.75 * 20 * kMiB;
  const auto traffic = [&](size_t stage) {
    return json["plans"][stage]["traffic"];
  };
  for (const size_t stage : {0u, 1u}) {
    EXPECT_EQ(traffic(stage)["reduce_bytes"], share);
    EXPECT_EQ(traffic(stage)["gather_bytes"], share);
  }
  EXPECT_EQ(traffic(2)["reduce_bytes"], 3 * share);
  EXPECT_EQ(traffic(2)["gather_bytes"], share);
  EXPECT_EQ(traffic(3)["reduce_bytes"], 3 * share);
  EXPECT_EQ(traffic(3)["gather_bytes"], 6 * share);
  EXPECT_EQ(traffic(3)["total_bytes"], 9 * share);
}

TEST_F(PlanTest, TrafficOfShardGroupsAndOfWhatIsKept) {
  const std::vector<std::string> options = {
      "--ranks",           "4",          "--stages", "3", "--wrap",
      "class?names=Block", "--prefetch", "0"};
  auto grouped = options;
  grouped.insert(grouped.end(), {"--group-size", "2"});
  // A rank gathers half of the model twice within the group, and a quarter once
  // from the other group.
  EXPECT_EQ(PlanJson(grouped)["plans"][0]["traffic"]["gather_bytes"],
            (2 * 0.5 + 0.25) * 20 * kMiB);
  auto kept = options;
  kept.insert(kept.end(), {"--keep-after-forward", "--micro-batches", "5"});
  EXPECT_EQ(PlanJson(kept)["plans"][0]["traffic"]["gather_bytes"],
            0.75 * 20 * kMiB);
  auto whole = options;
  whole.insert(whole.end(), {"--whole-grads", "--micro-batches", "5"});
  EXPECT_EQ(PlanJson(whole)["plans"][0]["traffic"]["reduce_bytes"],
            0.75 * 20 * kMiB);
}

TEST_F(PlanTest, OneRankSendsNothing) {
  const Json json = PlanJson({"--ranks", "1"});
  for (const Json& plan : json["plans"]) {
    EXPECT_EQ(plan["traffic"]["total_bytes"], 0);
  }
}

// One unit shards nothing: the plan says so, and the traffic is that of whole
// tensors.
TEST_F(PlanTest, APlanThatDoesNotShardIsNotCountedAsIfItDid) {
  const Json json = PlanJson({"--ranks", "4", "--stages", "3"});
  EXPECT_EQ(json["plans"][0]["shards_params"], false);
  EXPECT_EQ(json["plans"][0]["traffic"]["gather_bytes"], 0.75 * 20 * kMiB);
  EXPECT_NE(json["plans"][0]["warnings"], "");
}

TEST_F(PlanTest, Times) {
  const Json json =
      PlanJson({"--ranks", "4", "--stages", "1", "--bandwidth", "31457280",
                "--flops", "1e12", "--tokens", "1000"});
  const Json& seconds = json["plans"][0]["seconds"];
  // 30 MiB at 30 MiB/s.
  EXPECT_DOUBLE_EQ(seconds["communication"], 1);
  const double computation = 6 * 5 * kMiB * 1000 / 1e12;
  EXPECT_DOUBLE_EQ(seconds["computation"], computation);
  EXPECT_DOUBLE_EQ(seconds["step_hidden"], 1);
  EXPECT_DOUBLE_EQ(seconds["step_exposed"], 1 + computation);
}

TEST_F(PlanTest, TextOfAPlan) {
  const Result result = Plan({"--ranks", "4", "--stages", "1"});
  EXPECT_EQ(result.out,
            model_ +
                ": 5,242,880 elements in 5 parameters\n"
                "adamw, even\n"
                "\n"
                "ranks  stage    params     grads    states  slots     total  "
                "sent/step\n"
                "    4      1  20.0 MiB  20.0 MiB  10.0 MiB    0 B  50.0 MiB  "
                " 30.0 MiB\n");
  EXPECT_EQ(result.error, "");
}

// A plan that was written is read again, and shown as it was when it was made.
TEST_F(PlanTest, APlanInAFile) {
  const std::string file = folder_ / "net.plan";
  const std::vector<std::string> options = {"--ranks",
                                            "4",
                                            "--stages",
                                            "3",
                                            "--wrap",
                                            "class?names=Block",
                                            "--prefetch",
                                            "0",
                                            "--partition",
                                            "greedy",
                                            "--group-size",
                                            "2",
                                            "--keep-after-forward"};
  auto writing = options;
  writing.insert(writing.end(), {"--output", file});
  const Json made = PlanJson(writing);
  const Json read =
      ParseJson(RunShardctl({"plan", file, "--micro-batches", "1", "--json"}));
  EXPECT_EQ(read["plans"], made["plans"]);
  EXPECT_EQ(read["partition"], "greedy");
  EXPECT_EQ(std::string(read["optimizer"]).rfind("adamw?lr=0.001&", 0), 0u);
  Json model = made["model"];
  model["path"] = file;
  EXPECT_EQ(read["model"], model);
  // It is also shown as text, with options that do not change a plan, and
  // written again.
  const std::string copy = folder_ / "copy.plan";
  const Result text = RunShardctl({"plan", file, "--shared", "--memory", "1GiB",
                                   "--bandwidth", "1GB", "-o", copy});
  EXPECT_EQ(text.code, 0) << text.error;
  EXPECT_TRUE(Has(text.out, file + ": 5,242,880 elements in 5 parameters"));
  EXPECT_TRUE(Has(text.out, "    4      3  "));
  EXPECT_EQ(ReadFile(copy), ReadFile(file));
  // On stdout there is the plan, and no table.
  EXPECT_EQ(RunShardctl({"plan", file, "-o", "/dev/stdout"}).out,
            ReadFile(file));
}

TEST_F(PlanTest, PlansInFilesThatAreWrong) {
  const std::string file = folder_ / "net.plan";
  const auto expect = [&](const Result& result, const std::string& message) {
    EXPECT_EQ(result.code, 3) << result.out;
    EXPECT_EQ(result.out, "");
    EXPECT_TRUE(Has(result.error, message)) << result.error;
  };
  expect(Plan({"-o", file}), "--output writes one plan; give one world size");
  expect(Plan({"--ranks", "2", "--stages", "1", "--json", "-o", "/dev/stdout"}),
         "leave out one of them");
  expect(Plan({"--ranks", "2", "--stages", "1", "-o", folder_ / "no/net.plan"}),
         "does not exist");
  ASSERT_EQ(Plan({"--ranks", "2", "--stages", "1", "-o", file}).code, 0);
  expect(RunShardctl({"plan", file, "--stages", "2"}),
         "is a plan, which is not changed; leave out --stages");
  expect(RunShardctl({"plan", file, "--deterministic"}), "--deterministic");
  // The defaults of options are not those of the plan.
  expect(RunShardctl({"plan", file, "-n", "1,8,64"}), "leave out --ranks");
  expect(RunShardctl({"plan", file, "--partition", "even"}),
         "leave out --partition");
  std::string bytes = ReadFile(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  WriteFile(file, bytes);
  expect(RunShardctl({"plan", file}),
         "cannot read '" + file + "': the plan's bytes do not match");
  WriteFile(file, bytes.substr(0, 20));
  expect(RunShardctl({"plan", file}), "less than its header");
}

TEST_F(PlanTest, BuffersAreWholeOnEveryRank) {
  const std::vector<std::string> options = {"--ranks", "4", "--stages", "3"};
  const Json without = PlanJson(options)["plans"][0];
  WriteFile(model_, R"({
    "class": "Net",
    "params": [{"name": "embed", "shape": [1024, 1024]}],
    "modules": [{"name": "h", "class": "Block", "count": 4,
                 "params": [{"name": "w", "shape": [1024, 1024]}],
                 "buffers": [{"name": "mask", "shape": [1024, 256],
                              "dtype": "bool", "persistent": false}]}],
    "ties": [{"name": "head.out.weight", "param": "embed"}]
  })");
  const Json with = PlanJson(options)["plans"][0];
  EXPECT_NE(with["fingerprint"], without["fingerprint"]);
  EXPECT_EQ(without["memory"]["model_buffer_bytes"], 0);
  EXPECT_EQ(with["memory"]["model_buffer_bytes"], kMiB);
  EXPECT_EQ(with["memory"]["total_bytes"].get<double>(),
            without["memory"]["total_bytes"].get<double>() + kMiB);
  const std::string file = folder_ / "buffers.plan";
  std::vector<std::string> writing = options;
  writing.insert(writing.end(), {"--output", file});
  EXPECT_EQ(Plan(writing).code, 0);
  const Json read = ParseJson(RunShardctl({"plan", file, "--json"}));
  EXPECT_EQ(read["plans"][0]["fingerprint"], with["fingerprint"]);
  EXPECT_EQ(read["plans"][0]["memory"], with["memory"]);
}

TEST_F(PlanTest, FrozenAndGroups) {
  WriteFile(model_, R"({
    "params": [{"name": "a", "shape": [1024], "frozen": true},
               {"name": "b", "shape": [1024], "dtype": "bf16"},
               {"name": "c.bias", "shape": [1]}]})");
  // The library refuses a dot in a name; the message has the name.
  const Result dotted = Plan({});
  EXPECT_EQ(dotted.code, 3);
  EXPECT_TRUE(Has(dotted.error, "c.bias")) << dotted.error;
  WriteFile(model_, R"({
    "params": [{"name": "a", "shape": [1024], "frozen": true},
               {"name": "b", "shape": [1024], "dtype": "bf16"},
               {"name": "c", "shape": [1024]}],
    "groups": [{"optimizer": "sgd", "match": ["c"]}]})");
  const Json json = PlanJson({"--ranks", "1", "--stages", "1"});
  EXPECT_EQ(json["model"]["frozen_elements"], 1024);
  // b has AdamW's two states and a master; c has no states.
  EXPECT_EQ(json["plans"][0]["memory"]["state_bytes"], 3 * 4096);
}

TEST_F(PlanTest, WrongDescriptionsAreNamed) {
  const auto error = [&](const char* json) {
    WriteFile(model_, json);
    const Result result = Plan({});
    EXPECT_EQ(result.code, 3) << result.out;
    EXPECT_EQ(result.out, "");
    return result.error;
  };
  EXPECT_TRUE(Has(error(""), "no JSON"));
  EXPECT_TRUE(Has(error("{"), "no JSON"));
  EXPECT_TRUE(Has(error("[]"), "the root is no object"));
  EXPECT_TRUE(Has(error(R"({"parms": []})"),
                  "the root has the unknown key 'parms'; known: class, params, "
                  "buffers, modules, ties, groups"));
  EXPECT_TRUE(Has(error(R"({"buffers": [{"name": "a", "dtype": "q8"}]})"),
                  "unknown element type 'q8'; give one of f32, bf16"));
  EXPECT_TRUE(Has(error(R"({"buffers": [{"name": "a", "frozen": true}]})"),
                  "buffers[0] has the unknown key 'frozen'"));
  EXPECT_TRUE(Has(error(R"({"buffers": [{"name": "a", "persistent": 1}]})"),
                  "has a persistent that is neither true nor false"));
  EXPECT_TRUE(Has(error(R"({"params": [{"name": "a"}],
                            "buffers": [{"name": "a"}]})"),
                  "parameter named 'a'"));
  EXPECT_TRUE(
      Has(error(R"({"modules": [{"class": "x"}]})"), "modules[0] has no name"));
  EXPECT_TRUE(Has(error(R"({"params": [{"name": "a", "shape": ["x"]}]})"),
                  "params[0].shape[0] is no whole number"));
  EXPECT_TRUE(Has(error(R"({"params": [{"name": "a", "dtype": "int3"}]})"),
                  "unknown element type 'int3'; give f32, bf16, f16 or f64"));
  EXPECT_TRUE(
      Has(error(R"({"params": [{"name": "a", "shape": [-1]}]})"), "'a': "));
  EXPECT_TRUE(Has(error(R"({"ties": [{"name": "b", "param": "a"}]})"),
                  "'b' is tied to 'a', which is no parameter"));
  EXPECT_TRUE(Has(error(R"({"params": [{"name": "a"}],
                            "groups": [{"optimizer": "", "match": ["b"]}]})"),
                  "matches no parameter"));
  EXPECT_TRUE(Has(error(R"({"modules": [{"name": "h", "count": 0}]})"),
                  "modules[0] has a count that is no whole number from 1"));
  // This short text asks for more modules than memory can hold.
  EXPECT_TRUE(Has(error(R"({"modules": [{"name": "a", "count": 10000000,
        "modules": [{"name": "b", "count": 10000000}]}]})"),
                  "more than 10000000 modules, parameters"));
  const std::string long_name(5000, 'a');
  EXPECT_TRUE(
      Has(error((R"({"params": [{"name": ")" + long_name + R"("}]})").c_str()),
          "is 5000 bytes long; names have at most 4096"));
}

TEST_F(PlanTest, PlansSafetensors) {
  const std::string path = folder_ / "model.safetensors";
  WriteSafetensors(path, {{"h.0.w", std::vector<float>(1024)},
                          {"h.1.w", std::vector<float>(1024)},
                          {"out", std::vector<float>(2048)}});
  const Result result = RunShardctl({"plan", path, "--ranks", "2", "--stages",
                                     "3", "--wrap", "class?names=h", "--json"});
  const Json json = ParseJson(result);
  EXPECT_EQ(json["model"]["params"], 3);
  EXPECT_EQ(json["model"]["elements"], 4096);
  // h.0 and h.1 are of class "h", as is the module around them.
  EXPECT_EQ(json["plans"][0]["units"], 4);
}

// Keys have 800 KB in all, in which the name of each module is one letter.
TEST_F(PlanTest, DeepKeysTakeMemoryAsTheyAreLong) {
  // Memory that grew with the square of the keys would be gigabytes. A
  // sanitizer's own memory would count too, so there few keys are planned, and
  // memory is not measured.
  constexpr int kKeys = shard::kSanitized ? 20 : 200;
  const auto expect_little_memory = [](const Result& result) {
    if (shard::kSanitized) return;
    EXPECT_LT(result.max_rss_kib, 512 * 1024);
  };
  const std::string path = folder_ / "model.safetensors";
  std::vector<std::pair<std::string, std::vector<float>>> tensors;
  const auto deep = [](int number, size_t modules) {
    std::string key = std::to_string(number);
    for (size_t i = 0; i < modules; ++i) key += ".a";
    return key;
  };
  for (int i = 0; i < kKeys; ++i) tensors.push_back({deep(i, 2000), {0}});
  WriteSafetensors(path, tensors);
  // Every module is a unit, too.
  const Result fits = RunShardctl(
      {"plan", path, "--ranks", "2", "--stages", "3", "--wrap", "always"});
  EXPECT_EQ(fits.code, 0) << fits.error;
  EXPECT_TRUE(Has(fits.out, "in " + std::to_string(kKeys) + " parameters"));
  expect_little_memory(fits);

  WriteSafetensors(path, {{deep(1, 30000), {0}}});
  const Result refused = RunShardctl({"plan", path});
  EXPECT_EQ(refused.code, 3);
  EXPECT_TRUE(Has(refused.error, "'1.a.a")) << refused.error;
  EXPECT_TRUE(Has(refused.error, "bytes long; names have at most 4096"))
      << refused.error;
  expect_little_memory(refused);
}

TEST_F(PlanTest, NamesThatAreEmptyAreRefused) {
  const std::string path = folder_ / "model.safetensors";
  for (const char* key : {".a", "a..b", "a."}) {
    WriteSafetensors(path, {{key, {0}}});
    const Result result = RunShardctl({"plan", path});
    EXPECT_EQ(result.code, 3) << key;
    EXPECT_TRUE(Has(result.error, "is empty")) << result.error;
  }
}

TEST_F(PlanTest, PlansACheckpoint) {
  const std::string root = folder_ / "ckpt";
  SaveCheckpoint(root, 2, 1);
  const Json json =
      ParseJson(RunShardctl({"plan", root, "--ranks", "2", "--json"}));
  EXPECT_EQ(json["model"]["elements"], kElements);
  EXPECT_EQ(json["model"]["frozen_elements"], 8);
  EXPECT_EQ(json["model"]["params"], 6);
}

TEST_F(PlanTest, SixteenThousandRanks) {
  const Json json = PlanJson({"--ranks", "16384", "--wrap", "always"});
  EXPECT_EQ(json["plans"].size(), 4u);
  EXPECT_EQ(json["plans"][1]["memory"]["state_bytes"], 5 * 2 * 4096);
}

TEST_F(PlanTest, WrongUse) {
  EXPECT_EQ(Plan({"--ranks", "0"}).code, 2);
  EXPECT_EQ(Plan({"--stages", "4"}).code, 2);
  EXPECT_EQ(Plan({"--flops", "inf", "--tokens", "1"}).code, 2);
  EXPECT_EQ(Plan({"--flops", "1e12", "--tokens", "nan"}).code, 2);
  const Result group = Plan({"--group-size", "0"});
  EXPECT_EQ(group.code, 2);
  EXPECT_TRUE(
      Has(group.error, "--group-size: Value 0 not in range 1 to 1048576; see "))
      << group.error;
  EXPECT_EQ(RunShardctl({"plan", "/no/such/model"}).code, 2);
  EXPECT_TRUE(Has(Plan({"--partition", "odd"}).error,
                  "unknown partition 'odd'; known: even greedy bucket"));
  EXPECT_TRUE(Has(Plan({"--optimizer", "none"}).error, "known: "));
}

}  // namespace
}  // namespace shardctl_testing::plan_test
