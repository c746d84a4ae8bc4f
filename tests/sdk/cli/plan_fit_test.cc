// SPDX-License-Identifier: Apache-2.0
//
// Compares what `shardctl plan` says of plans that fit, fit with offload or do
// not fit with numbers worked out by hand.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/sdk/cli/plan_testing.h"

namespace shardctl_testing::plan_fit_test {
namespace {

using PlanFitTest = PlanFixture;

TEST_F(PlanFitTest, SaysWhatFits) {
  const Result fits =
      Plan({"--ranks", "1,4", "--stages", "1", "--memory", "60MiB"});
  EXPECT_EQ(fits.code, 0) << fits.error;
  EXPECT_TRUE(Has(fits.out, "    1      1  20.0 MiB  20.0 MiB  40.0 MiB"));
  EXPECT_TRUE(Has(fits.out, "  no, 20.0 MiB missing\n")) << fits.out;
  EXPECT_TRUE(Has(fits.out, "  yes\n"));
  EXPECT_FALSE(Has(fits.out, "Nothing fits"));
  EXPECT_EQ(Plan({"--ranks", "4", "--memory", "1MiB"}).code, 1);
}

// Where nothing fits, the options that are named make a plan fit.
TEST_F(PlanFitTest, SaysWhichOptionsFit) {
  const auto last_line = [&](std::vector<std::string> options) {
    options.insert(options.end(), {"--wrap", "class?names=Block", "--prefetch",
                                   "0", "--stages", "1"});
    const Result result = Plan(options);
    EXPECT_EQ(result.code, 1) << result.error;
    const size_t begin = result.out.find("\nNothing fits. ");
    EXPECT_NE(begin, std::string::npos) << result.out;
    return result.out.substr(begin + 1);
  };
  EXPECT_EQ(last_line({"--ranks", "1,4", "--memory", "43MiB"}),
            "Nothing fits. Stage 1 on 4 ranks comes nearest: 7.00 MiB missing. "
            "It fits with --stages 2.\n");
  EXPECT_EQ(last_line({"--ranks", "4", "--memory", "42MiB"}),
            "Nothing fits. Stage 1 on 4 ranks comes nearest: 8.00 MiB missing. "
            "It fits with --stages 3.\n");
  EXPECT_EQ(last_line({"--ranks", "1", "--memory", "60MiB"}),
            "Nothing fits. Stage 1 on 1 rank comes nearest: 20.0 MiB missing. "
            "It fits with --optimizer 'adamw?states=bf16' (less precise), or "
            "with --ranks 2.\n");
  EXPECT_EQ(last_line({"--ranks", "1", "--memory", "59MiB", "--optimizer",
                       "adamw?lr=0.1&states=bf16"}),
            "Nothing fits. Stage 1 on 1 rank comes nearest: 1.00 MiB missing. "
            "It fits with --optimizer 'adamw?lr=0.1&states=q8' (less precise), "
            "or with --ranks 2.\n");
  // Momentum has one type.
  EXPECT_EQ(last_line({"--ranks", "1", "--memory", "59MiB", "--optimizer",
                       "sgd?momentum=0.9"}),
            "Nothing fits. Stage 1 on 1 rank comes nearest: 1.00 MiB missing. "
            "It fits with --ranks 2.\n");
  // Each of 8 ranks has 10 MiB, and slots of 16.
  EXPECT_EQ(last_line({"--ranks", "1", "--memory", "26MiB"}),
            "Nothing fits. Stage 1 on 1 rank comes nearest: 54.0 MiB missing. "
            "It fits with --ranks 8 --stages 3.\n");
  EXPECT_EQ(last_line({"--ranks", "1", "--memory", "8MiB"}),
            "Nothing fits. Stage 1 on 1 rank comes nearest: 72.0 MiB missing. "
            "No stage, narrower optimizer states or up to 4096 ranks that were "
            "tried make it fit.\n");
  EXPECT_EQ(last_line({"--ranks", "1", "--memory", "8MiB", "--device", "cuda"}),
            "Nothing fits. Stage 1 on 1 rank comes nearest: 32.0 MiB missing "
            "with offload. No stage, narrower optimizer states, offload or up "
            "to 4096 ranks that were tried make it fit.\n");
}

// 10 MiB of bf16 parameters have fp32 gradients of 20 MiB, and masters as much
// beside 40 MiB of states.
TEST_F(PlanFitTest, SaysWhatTakesMemoryAndCouldBeGivenUp) {
  const auto ends = [&](std::vector<std::string> options,
                        const std::string& end) {
    options.insert(options.end(),
                   {"--ranks", "1", "--stages", "1", "--dtype", "bf16"});
    const Result result = Plan(options);
    EXPECT_TRUE(Has(result.out, " It fits " + end)) << result.out;
  };
  ends({"--memory", "80MiB", "--f32-grads"},
       "without --f32-grads (less precise), or with --ranks 2.\n");
  ends({"--memory", "20MiB", "--optimizer", "sgd"},
       "with --masters stochastic (less precise), or with --ranks ");
}

// A GPU without its states has no products, nor have other optimizers.
TEST_F(PlanFitTest, SaysThatTheWorkspaceOfCublasIsNotCounted) {
  const std::string note =
      "\nNot counted is the workspace of cuBLAS for muon's products: at most "
      "32 MiB for each rank.\n";
  const auto has_note = [&](const std::string& optimizer,
                            std::vector<std::string> options) {
    options.insert(options.end(), {"--optimizer", optimizer});
    return Has(Plan(options).out, note);
  };
  EXPECT_TRUE(has_note("muon", {"--device", "cuda"}));
  EXPECT_TRUE(has_note("muon?lr=0.1", {"--device", "cuda:1", "--memory", "1"}));
  EXPECT_TRUE(Has(
      Plan({"--device", "cuda", "--memory", "50MiB", "--optimizer", "muon"})
          .out,
      "32 MiB for each rank. With offload the host makes these products.\n"));
  EXPECT_FALSE(has_note("muon", {"--device", "cuda?offload=states"}));
  EXPECT_FALSE(has_note("muon", {"--device", "cpu"}));
  EXPECT_FALSE(has_note("muon", {}));
  EXPECT_FALSE(has_note("adamw", {"--device", "cuda"}));
}

// One unit shards nothing.
TEST_F(PlanFitTest, SaysWhichUnitsFit) {
  const Result result = Plan({"--ranks", "4", "--stages", "3", "--memory",
                              "36MiB", "--prefetch", "0"});
  EXPECT_TRUE(Has(result.out, "It fits with --wrap always.\n")) << result.out;
}

// Options may keep whole what the stage would shard.
TEST_F(PlanFitTest, SaysWhichOptionsToLeaveOut) {
  const std::vector<std::string> options = {
      "--wrap", "class?names=Block", "--prefetch",          "0", "--ranks",
      "4",      "--whole-grads",     "--keep-after-forward"};
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.end(), options.begin(), options.end());
    return Plan(more).out;
  };
  const std::string of_stage3 =
      plan({"--stages", "3", "--group-size", "2", "--memory", "36MiB"});
  EXPECT_TRUE(Has(of_stage3,
                  "It fits without --whole-grads --keep-after-forward "
                  "--group-size.\n"))
      << of_stage3;
  const std::string of_stage1 = plan({"--stages", "1", "--memory", "36MiB"});
  EXPECT_TRUE(Has(of_stage1,
                  "It fits with --stages 3 without --whole-grads "
                  "--keep-after-forward.\n"))
      << of_stage1;
  const std::string of_more = plan({"--stages", "3", "--memory", "30MiB"});
  EXPECT_TRUE(
      Has(of_more, " --ranks 8 without --whole-grads --keep-after-forward.\n"))
      << of_more;
}

// Without a GPU: the driver is not asked.
TEST_F(PlanFitTest, SaysWhatFitsIntoAGpu) {
  const std::vector<std::string> device = {
      "--ranks", "1,4", "--stages", "1", "--device", "cuda:0", "--memory"};
  const auto with = [&](const std::string& memory) {
    std::vector<std::string> options = device;
    options.push_back(memory);
    return options;
  };
  const Json json = PlanJson(with("60MiB"));
  for (const int i : {0, 1}) {
    const Json& plan = json["plans"][static_cast<size_t>(i)];
    // Parameters and gradients, and two states of this rank's range.
    const uint64_t bytes =
        static_cast<uint64_t>(i == 0 ? 80 : 50) * 1024 * 1024;
    EXPECT_EQ(plan["memory_device"]["device_bytes"], bytes);
    EXPECT_GE(plan["memory_device"]["pinned_bytes"], 4u << 20);
    EXPECT_EQ(plan["fits"], i == 1);
  }
  const Result fits = Plan(with("60MiB"));
  EXPECT_EQ(fits.code, 0) << fits.error;
  for (const char* const text :
       {", on cuda:0\n", "  device", "  pinned", "  50.0 MiB", "  yes\n",
        "  with offload, 60.0 MiB of the host\n"}) {
    EXPECT_TRUE(Has(fits.out, text)) << text << " in\n" << fits.out;
  }
  EXPECT_EQ(Plan(with("39MiB")).code, 1);
  // The CPU's tensors are the host's.
  EXPECT_EQ(Plan({"--device", "cpu", "--memory", "1MiB"}).code, 1);
  EXPECT_EQ(Plan({"--device", "cpu", "--memory", "1TiB"}).code, 0);
  const Result unknown = Plan({"--device", "tpu:0"});
  EXPECT_EQ(unknown.code, 3);
  EXPECT_TRUE(Has(unknown.error, "'tpu:0' names no device")) << unknown.error;
  const Result shared = Plan({"--device", "cuda:0", "--shared"});
  EXPECT_EQ(shared.code, 3);
  EXPECT_TRUE(Has(shared.error, "leave out --shared or --device"));
}

// A GPU multiplies equal matrices together, and a processor these one by one: a
// workspace of two matrices of 4 MiB and two squares of their side for each of
// them, and on a processor the gradient once more.
TEST_F(PlanFitTest, SaysWhatMuonNeedsOnAGpu) {
  const std::vector<std::string> options = {
      "--optimizer", "muon", "--ranks",  "1,5",
      "--stages",    "1",    "--device", "cuda"};
  const Json json = PlanJson(options);
  for (const int i : {0, 1}) {
    const Json& plan = json["plans"][static_cast<size_t>(i)];
    EXPECT_EQ(plan["memory"]["workspace_bytes"], 20 * kMiB);
    // Parameters, gradients, and this rank's momentum and workspace: of all
    // five matrices, or of one.
    EXPECT_EQ(plan["memory_device"]["device_bytes"],
              (i == 0 ? 20 + 20 + 20 + 80 : 20 + 20 + 4 + 16) * kMiB);
  }
  const std::string table = Plan(options).out;
  for (const char* const text :
       {"workspace", "  80.0 MiB", "  140 MiB", "  16.0 MiB", "  60.0 MiB"}) {
    EXPECT_TRUE(Has(table, text)) << text << " in\n" << table;
  }
}

// With offload, a rank has 40 MiB on its GPU: parameters and gradients. Its
// host has 4 MiB of staging memory, the states, and 4 MiB for each MiB of
// elements that a thread steps, up to 4: 60 MiB for 1 rank, and 18 for each
// of 4.
TEST_F(PlanFitTest, SaysWhatFitsWithOffload) {
  const auto options = [](std::vector<std::string> more) {
    more.insert(more.end(), {"--stages", "1", "--device", "cuda", "--wrap",
                             "class?names=Block", "--prefetch", "0"});
    return more;
  };
  const Json json = PlanJson(options(
      {"--ranks", "1,4", "--memory", "40MiB", "--ranks-per-host", "4"}));
  EXPECT_EQ(json["advice"], nullptr);
  EXPECT_EQ(json["ranks_per_host"], 4);
  for (const int i : {0, 1}) {
    const Json& plan = json["plans"][static_cast<size_t>(i)];
    EXPECT_EQ(plan["memory_device"]["device"], "cuda");
    EXPECT_EQ(plan["memory_device"]["pinned_bytes"], 4 * kMiB);
    EXPECT_EQ(plan["memory_device"]["host_bytes"], (i == 0 ? 4 : 16) * kMiB);
    EXPECT_EQ(plan["fits"], false);
    EXPECT_EQ(plan["missing_bytes"], (i == 0 ? 40 : 10) * kMiB);
    EXPECT_EQ(plan["host_missing_bytes"], 0);
    EXPECT_EQ(plan["fits_with_offload"], true);
    const Json& offload = plan["memory_offload"];
    EXPECT_EQ(offload["device_bytes"], 40 * kMiB);
    EXPECT_EQ(offload["host_bytes"], (i == 0 ? 60 : 72) * kMiB);
    EXPECT_EQ(offload["missing_bytes"], 0);
    EXPECT_EQ(offload["host_missing_bytes"], 0);
  }
  // The host has room for 1 rank, and not for 4.
  const Result fits =
      Plan(options({"--ranks", "1,4", "--memory", "40MiB", "--host-memory",
                    "60MiB", "--ranks-per-host", "4"}));
  EXPECT_EQ(fits.code, 0) << fits.error;
  EXPECT_TRUE(Has(fits.out, "  with offload, 60.0 MiB of the host\n"));
  EXPECT_TRUE(Has(fits.out,
                  "  no, 10.0 MiB missing; with offload 12.0 MiB of the "
                  "host\n"))
      << fits.out;
  const Result none =
      Plan(options({"--ranks", "4", "--memory", "26MiB", "--host-memory",
                    "60MiB", "--ranks-per-host", "1"}));
  EXPECT_EQ(none.code, 1);
  EXPECT_TRUE(Has(none.out,
                  "Nothing fits. Stage 1 on 4 ranks comes nearest: 14.0 MiB "
                  "missing with offload. It fits with --stages 3 --device "
                  "'cuda?offload=states'.\n"))
      << none.out;
}

// 6,738,415,616 elements, of which 65 vectors have 266,240.
constexpr const char* kSevenBillion = R"({
  "class": "Llama",
  "params": [{"name": "embed", "shape": [32000, 4096]},
             {"name": "norm", "shape": [4096]},
             {"name": "head", "shape": [32000, 4096]}],
  "modules": [{"name": "layers", "class": "Block", "count": 32,
               "params": [{"name": "q", "shape": [4096, 4096]},
                          {"name": "k", "shape": [4096, 4096]},
                          {"name": "v", "shape": [4096, 4096]},
                          {"name": "o", "shape": [4096, 4096]},
                          {"name": "gate", "shape": [11008, 4096]},
                          {"name": "up", "shape": [11008, 4096]},
                          {"name": "down", "shape": [4096, 11008]},
                          {"name": "norm1", "shape": [4096]},
                          {"name": "norm2", "shape": [4096]}]}]
})";

// Parameters and gradients of bf16 take 4 bytes per element on the device, and
// two states and a master 12, of which a rank of 8 has an eighth. That of the
// vectors is 32.5 pages. The host has 4 MiB of staging memory, and 2 MiB for
// each of the four windows of a MiB of elements, beside the states.
TEST_F(PlanFitTest, SaysWhatFitsOfSevenBillionInBF16) {
  constexpr uint64_t kElements = 6738415616;
  constexpr uint64_t kStates[] = {12 * kElements,
                                  12 * kElements / 8 + 3 * 2048};
  constexpr uint64_t kGB = 1000000000;
  const std::string model = folder_ / "seven.json";
  WriteFile(model, kSevenBillion);
  const auto plan = [&](uint64_t gigabytes, bool json) {
    std::vector<std::string> arguments = {
        "plan",    model,      "--device",
        "cuda",    "--memory", std::to_string(gigabytes) + "GB",
        "--ranks", "1,8",      "--stages",
        "1",       "--dtype",  "bf16"};
    if (json) arguments.push_back("--json");
    return RunShardctl(arguments);
  };
  for (const uint64_t gigabytes : {80, 32}) {
    const Json json = ParseJson(plan(gigabytes, true));
    for (const size_t i : {0, 1}) {
      const Json& of = json["plans"][i];
      const uint64_t needed = 4 * kElements + kStates[i];
      const uint64_t most = gigabytes * kGB;
      EXPECT_EQ(of["memory_device"]["device_bytes"], needed);
      EXPECT_EQ(of["fits"], needed <= most);
      EXPECT_EQ(of["missing_bytes"], needed <= most ? 0 : needed - most);
      EXPECT_EQ(of["fits_with_offload"], true);
      EXPECT_EQ(of["memory_offload"]["device_bytes"], 4 * kElements);
      EXPECT_EQ(of["memory_offload"]["host_bytes"],
                kStates[i] + (4 + 4 * 2) * (uint64_t{1} << 20));
    }
  }
  // docs/shardctl.md has this table.
  const Result table = plan(80, false);
  EXPECT_EQ(table.code, 0) << table.error;
  for (
      const char* const text :
      {"6,738,415,616 elements in 291 parameters\nadamw, even, on cuda\n",
       "    1      1  12.6 GiB  12.6 GiB  75.3 GiB    0 B   100 GiB        0 B "
       " 4.00 MiB  with offload, 75.3 GiB of the host\n",
       "    8      1  12.6 GiB  12.6 GiB  9.41 GiB    0 B  34.5 GiB   22.0 GiB "
       " 4.00 MiB  yes\n"}) {
    EXPECT_TRUE(Has(table.out, text)) << text << " in\n" << table.out;
  }
}

// The memory of an engine that offloads.
TEST_F(PlanFitTest, SaysWhatFitsOfAnOffload) {
  const std::vector<std::string> device = {
      "--ranks", "1", "--stages", "1", "--device", "cuda:0?offload=states"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), device.begin(), device.end());
    return more;
  };
  const Json json = PlanJson(with({"--memory", "40MiB"}));
  const Json& plan = json["plans"][0];
  EXPECT_EQ(plan["memory_device"]["device_bytes"], 40 * kMiB);
  EXPECT_EQ(plan["memory_device"]["host_bytes"], 60 * kMiB);
  EXPECT_EQ(plan["memory_offload"], nullptr);
  EXPECT_EQ(plan["fits"], true);
  EXPECT_EQ(plan["fits_with_offload"], nullptr);
  const Result small =
      Plan(with({"--memory", "80MiB", "--host-memory", "59MiB"}));
  EXPECT_EQ(small.code, 1);
  EXPECT_TRUE(Has(small.out, "  no, 1.00 MiB of the host missing\n"));
  EXPECT_TRUE(Has(small.out,
                  "Nothing fits. Stage 1 on 1 rank comes nearest: 1.00 MiB of "
                  "the host missing. It fits with --device cuda:0.\n"))
      << small.out;
  Json advice = ParseJson(
      Plan(with({"--memory", "80MiB", "--host-memory", "59MiB", "--json"})));
  EXPECT_EQ(advice["advice"],
            Json::parse(R"({"ranks": 1, "stage": 1, "offload": false,
                            "missing_bytes": 0, "host_missing_bytes": 1048576,
                            "options": ["--device cuda:0"]})"));
  const Result no_device = Plan({"--host-memory", "1GiB"});
  EXPECT_EQ(no_device.code, 3);
  EXPECT_TRUE(Has(no_device.error, "give --device cuda")) << no_device.error;
}

// One thread has 4 MiB of the host's memory for windows, and four have 16.
TEST_F(PlanFitTest, OffloadsByOneThreadWhereTheHostHasRoomForNoMore) {
  const auto plan = [&](const std::string& device, const std::string& memory,
                        const std::string& host_memory) {
    return Plan({"--ranks", "1", "--stages", "1", "--device", device,
                 "--memory", memory, "--host-memory", host_memory});
  };
  const Result fits = plan("cuda", "40MiB", "48MiB");
  EXPECT_EQ(fits.code, 0) << fits.error;
  EXPECT_TRUE(
      Has(fits.out, "  with offload by one thread, 48.0 MiB of the host\n"))
      << fits.out;
  const Result more = plan("cuda?offload=states", "40MiB", "48MiB");
  EXPECT_EQ(more.code, 1);
  EXPECT_TRUE(Has(more.out,
                  "It fits with --device "
                  "'cuda?offload=states&offload_threads=1'.\n"))
      << more.out;
  EXPECT_EQ(plan("cuda", "40MiB", "47MiB").code, 1);
}

// Other options of a device are kept, whatever their order.
TEST_F(PlanFitTest, AnOffloadKeepsOtherOptionsOfTheDevice) {
  const auto plan = [&](const std::string& device, const std::string& memory,
                        const std::string& host_memory) {
    return Plan({"--ranks", "4", "--stages", "1", "--wrap", "class?names=Block",
                 "--prefetch", "0", "--ranks-per-host", "1", "--device", device,
                 "--memory", memory, "--host-memory", host_memory})
        .out;
  };
  for (const auto& [device, plain] :
       std::vector<std::pair<std::string, std::string>>{
           {"cuda:0?collectives=nccl&offload=states",
            "'cuda:0?collectives=nccl'"},
           {"cuda?offload=states&offload_threads=2&collectives=auto",
            "'cuda?collectives=auto'"},
           {"cuda?offload=states", "cuda"}}) {
    const std::string text = plan(device, "58MiB", "9MiB");
    EXPECT_TRUE(Has(text, "It fits with --device " + plain + "."))
        << device << ":\n"
        << text;
  }
  // By NCCL, the device needs 4 MiB more.
  for (const auto& [device, memory, offloaded] :
       std::vector<std::array<std::string, 3>>{
           {"cuda?collectives=nccl", "30MiB",
            "'cuda?collectives=nccl&offload=states'"},
           {"cuda?offload=none&collectives=nccl", "30MiB",
            "'cuda?collectives=nccl&offload=states'"},
           {"cuda:1?offload=none", "26MiB", "'cuda:1?offload=states'"}}) {
    const std::string text = plan(device, memory, "60MiB");
    EXPECT_TRUE(
        Has(text, "It fits with --stages 3 --device " + offloaded + "."))
        << device << ":\n"
        << text;
  }
}

// A plan that was read has the options that it has.
TEST_F(PlanFitTest, APlanInAFileThatDoesNotFit) {
  const std::string file = folder_ / "net.plan";
  ASSERT_EQ(Plan({"--ranks", "4", "--stages", "1", "-o", file}).code, 0);
  const Result result = RunShardctl({"plan", file, "--memory", "43MiB"});
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(Has(result.out,
                  "comes nearest: 7.00 MiB missing. A plan is not changed: "
                  "plan the model with other options.\n"))
      << result.out;
  const Result offloaded =
      RunShardctl({"plan", file, "--memory", "43MiB", "--device", "cuda"});
  EXPECT_EQ(offloaded.code, 0);
  EXPECT_TRUE(Has(offloaded.out, "  with offload, ")) << offloaded.out;
}

}  // namespace
}  // namespace shardctl_testing::plan_fit_test
