// SPDX-License-Identifier: Apache-2.0
//
// The parts of `shardctl run` that need no processes: hosts, words, messages,
// and the division of CPUs.

#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "sdk/cli/commands/bind.h"
#include "sdk/cli/commands/host_list.h"
#include "sdk/cli/commands/host_wire.h"
#include "tests/core/base/temp_folder.h"

namespace shardctl::run_parts_test {
namespace {

using shard::testing::TempFolder;
using shard::testing::WriteText;

TEST(HostListTest, HostsWithTheirRanks) {
  std::string problem = "left over";
  const auto hosts =
      ReadHosts("a,ann@node-1.b_c:2,[fd00::7]:3,[fe80::1%eth0]", &problem);
  EXPECT_EQ(problem, "");
  ASSERT_EQ(hosts.size(), 4u);
  EXPECT_EQ(hosts[0].name, "a");
  EXPECT_EQ(hosts[0].ranks, 1);
  EXPECT_EQ(hosts[1].target, "ann@node-1.b_c");
  EXPECT_EQ(hosts[1].name, "node-1.b_c");
  EXPECT_EQ(hosts[1].first_rank, 1);
  EXPECT_EQ(hosts[2].name, "fd00::7");
  EXPECT_EQ(hosts[2].first_rank, 3);
  EXPECT_EQ(hosts[2].ranks, 3);
  EXPECT_EQ(hosts[3].target, "fe80::1%eth0");
  EXPECT_EQ(hosts[3].first_rank, 6);
}

TEST(HostListTest, HostileHosts) {
  std::string many = "h0";
  for (int i = 1; i <= 1024; ++i) many += ",h" + std::to_string(i);
  for (const std::string& text :
       std::vector<std::string>{"",
                                ",",
                                "a,",
                                ",a",
                                "a,,b",
                                ":2",
                                "a:",
                                "a:0",
                                "a:-1",
                                "a:+1",
                                "a:513",
                                "a:1e2",
                                "a:99999999999999999999",
                                "a:2:3",
                                "a: 2",
                                "a :2",
                                " a",
                                "-a",
                                "-oProxyCommand=id:2",
                                "ann@-a",
                                "-ann@a",
                                "@a",
                                "ann@",
                                "ann@bob@a",
                                "a;id",
                                "a$(id)",
                                "a`id`",
                                "a'b",
                                "a\"b",
                                "a/b",
                                "a?b",
                                "a&b=c",
                                "a\nb",
                                "{host}",
                                "{command}",
                                "[",
                                "[]",
                                "[]:2",
                                "[a",
                                "[::1]2",
                                "[::1]x2",
                                "[-1]",
                                "[a]b:2",
                                "::1",
                                "\xff",
                                "größe",
                                std::string("a\0b", 3),
                                std::string(256, 'a'),
                                "a,b:2,a:3",
                                "ann@a,bob@a",
                                many}) {
    std::string problem;
    EXPECT_TRUE(ReadHosts(text, &problem).empty()) << text;
    EXPECT_NE(problem, "") << text;
  }
}

TEST(HostListTest, WordsOfACommand) {
  const auto words = [](const std::string& text) {
    std::string problem;
    auto split = SplitWords(text, &problem);
    EXPECT_EQ(problem, "") << text;
    return split;
  };
  using Words = std::vector<std::string>;
  EXPECT_EQ(words(""), Words());
  EXPECT_EQ(words("  \t\n"), Words());
  EXPECT_EQ(words(" a  b\tc "), (Words{"a", "b", "c"}));
  EXPECT_EQ(words("'a b'\"c d\"e '' \"\""), (Words{"a bc de", "", ""}));
  EXPECT_EQ(words(R"(a\ b '\' "\"" "it's" \')"),
            (Words{"a b", "\\", "\"", "it's", "'"}));
  EXPECT_EQ(words("$HOME;`id`"), (Words{"$HOME;`id`"}));
  for (const char* text : {"'", "\"", "a 'b", "a\\", "\"a\\\""}) {
    std::string problem;
    EXPECT_TRUE(SplitWords(text, &problem).empty());
    EXPECT_NE(problem, "") << text;
  }
}

TEST(HostListTest, QuotedWordsAreTheWords) {
  std::mt19937 random(7);
  const std::string bytes = "ab '\"\\$`\n*{}\xff;&|-~";
  for (int i = 0; i < 1000; ++i) {
    std::vector<std::string> words(1 + random() % 4);
    for (std::string& word : words) {
      for (unsigned n = random() % 6; n > 0; --n) {
        word += bytes[random() % bytes.size()];
      }
    }
    std::string problem;
    EXPECT_EQ(SplitWords(QuoteForShell(words), &problem), words);
  }
  EXPECT_EQ(QuoteForShell({"/usr/bin/x", "it's", ""}),
            R"(/usr/bin/x 'it'\''s' '')");
}

TEST(HostListTest, CommandsOfHosts) {
  const std::vector<std::string> command = {"/a b/shardctl", "agent"};
  using Words = std::vector<std::string>;
  std::string problem;
  EXPECT_EQ(CommandFor("docker exec -i {host}", "web", command, &problem),
            (Words{"docker", "exec", "-i", "web", "/a b/shardctl", "agent"}));
  EXPECT_EQ(
      CommandFor("ssh -p 22 root@{host} {command}", "a", command, &problem),
      (Words{"ssh", "-p", "22", "root@a", "'/a b/shardctl' agent"}));
  const Words ssh = CommandFor(SshTemplate(2.5), "ann@a", command, &problem);
  EXPECT_EQ(ssh.front(), "ssh");
  EXPECT_EQ(ssh[ssh.size() - 2], "ann@a");
  EXPECT_EQ(ssh.back(), "'/a b/shardctl' agent");
  EXPECT_EQ(ssh[4], "-oConnectTimeout=3");
  EXPECT_EQ(problem, "");
  EXPECT_TRUE(CommandFor("docker exec", "a", command, &problem).empty());
  EXPECT_EQ(problem,
            "'docker exec' does not have {host}, which becomes the name of "
            "each host");
}

HostJob SomeJob() {
  HostJob job;
  job.setup.first_rank = 3;
  job.setup.ranks = 2;
  job.setup.world_size = 7;
  job.setup.columns = 80;
  job.setup.binding = Binding::kNuma;
  job.setup.environment = {{"A", "b=c"}, {"EMPTY", ""}};
  job.setup.command = {"prog", "", std::string("x\0\xff", 3)};
  job.folder = "/some where";
  job.silence_seconds = 2.5;
  return job;
}

TEST(HostWireTest, AJobArrives) {
  const HostJob job = SomeJob();
  const auto read = UnpackJob(PackJob(job));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->setup.first_rank, 3);
  EXPECT_EQ(read->setup.ranks, 2);
  EXPECT_EQ(read->setup.world_size, 7);
  EXPECT_EQ(read->setup.columns, 80);
  EXPECT_EQ(read->setup.binding, Binding::kNuma);
  EXPECT_EQ(read->setup.environment, job.setup.environment);
  EXPECT_EQ(read->setup.command, job.setup.command);
  EXPECT_EQ(read->folder, job.folder);
  EXPECT_EQ(read->silence_seconds, 2.5);
}

TEST(HostWireTest, APartOfAJobIsNone) {
  const std::string body = PackJob(SomeJob());
  // A cut between two arguments leaves a job with fewer of them.
  const size_t arguments = body.find("prog") + 4;
  for (size_t size = 0; size < arguments; ++size) {
    EXPECT_FALSE(UnpackJob(body.substr(0, size))) << size;
  }
  std::mt19937 random(7);
  for (int i = 0; i < 10000; ++i) {
    std::string wrong = body;
    wrong[random() % wrong.size()] = static_cast<char>(random());
    (void)UnpackJob(wrong);  // Whatever it is, nothing is read outside it.
  }
}

TEST(HostWireTest, FramesArriveInAnyPieces) {
  const std::string stream = Frame(Message::kPing) +
                             Frame(Message::kSignal, Packer().Int(15).body()) +
                             Frame(Message::kJob, PackJob(SomeJob()));
  for (size_t piece = 1; piece < stream.size(); ++piece) {
    FrameReader frames;
    std::vector<Message> messages;
    for (size_t at = 0; at < stream.size(); at += piece) {
      frames.Feed(std::string_view(stream).substr(at, piece));
      Message message;
      std::string_view body;
      while (frames.Next(&message, &body)) {
        messages.push_back(message);
        if (message == Message::kSignal) {
          EXPECT_EQ(Unpacker(body).Int(), 15);
        }
      }
    }
    EXPECT_EQ(messages, (std::vector<Message>{Message::kPing, Message::kSignal,
                                              Message::kJob}))
        << piece;
    EXPECT_FALSE(frames.broken());
  }
  FrameReader text;
  text.Feed("bash: shardctl: command not found\n");
  Message message;
  std::string_view body;
  EXPECT_FALSE(text.Next(&message, &body));
  EXPECT_TRUE(text.broken());
}

TEST(BindTest, ListsOfCpus) {
  using Cpus = std::vector<int>;
  EXPECT_EQ(ReadCpuList("0-3,8,10-11\n"), (Cpus{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(ReadCpuList("7"), (Cpus{7}));
  for (const char* text : {"", "\n", "x", "-1", "3-1", "70000"}) {
    EXPECT_EQ(ReadCpuList(text), Cpus()) << text;
  }
  EXPECT_EQ(ReadCpuList("1,2-x"), (Cpus{1}));
}

// Two nodes of two cores with two hyperthreads each: the core c of node n has
// the CPUs 2n + c and 2n + c + 4.
std::vector<Cpu> TwoNodes(const std::vector<int>& allowed) {
  std::vector<Cpu> cpus;
  for (const int cpu : allowed) cpus.push_back({cpu, cpu % 4, cpu % 4 / 2});
  return cpus;
}

const std::vector<int> kAll = {0, 1, 2, 3, 4, 5, 6, 7};

std::vector<std::vector<int>> Divide(Binding binding,
                                     const std::vector<Cpu>& cpus, int ranks,
                                     std::string* problem) {
  std::vector<std::vector<int>> lists;
  for (const auto& place : DivideCpus(binding, cpus, {0, 1}, ranks, problem)) {
    lists.push_back(place.cpus);
  }
  return lists;
}

TEST(BindTest, CpusOfAMachineAsItsFilesSay) {
  const TempFolder sys;
  for (const int node : {0, 1}) {
    const std::string folder =
        sys / ("devices/system/node/node" + std::to_string(node));
    std::filesystem::create_directories(folder);
    WriteText(folder + "/cpulist", node == 0 ? "0-1,4-5\n" : "2-3,6-7\n");
  }
  std::filesystem::create_directories(sys / "devices/system/node/nodeX");
  std::filesystem::create_directories(sys / "devices/system/node/power");
  for (const int cpu : kAll) {
    const std::string folder =
        sys / ("devices/system/cpu/cpu" + std::to_string(cpu) + "/topology");
    std::filesystem::create_directories(folder);
    WriteText(folder + "/thread_siblings_list",
              std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4));
  }
  const auto cpus = ReadCpus(sys.path(), kAll);
  const auto expected = TwoNodes(kAll);
  ASSERT_EQ(cpus.size(), expected.size());
  for (size_t i = 0; i < cpus.size(); ++i) {
    EXPECT_EQ(cpus[i].cpu, expected[i].cpu);
    EXPECT_EQ(cpus[i].core, expected[i].core);
    EXPECT_EQ(cpus[i].node, expected[i].node);
  }
  // Without files each CPU is a core of one node.
  const auto unknown = ReadCpus(sys / "nothing", {3, 5});
  ASSERT_EQ(unknown.size(), 2u);
  EXPECT_EQ(unknown[1].core, 5);
  EXPECT_EQ(unknown[1].node, 0);
}

TEST(BindTest, CoresAreDividedEqually) {
  using Lists = std::vector<std::vector<int>>;
  std::string problem;
  const auto all = TwoNodes(kAll);
  EXPECT_EQ(Divide(Binding::kCores, all, 1, &problem),
            (Lists{{0, 4, 1, 5, 2, 6, 3, 7}}));
  EXPECT_EQ(Divide(Binding::kCores, all, 2, &problem),
            (Lists{{0, 4, 1, 5}, {2, 6, 3, 7}}));
  EXPECT_EQ(Divide(Binding::kCores, all, 3, &problem),
            (Lists{{0, 4}, {1, 5}, {2, 6}}));
  EXPECT_EQ(Divide(Binding::kCores, all, 4, &problem),
            (Lists{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(problem, "");
  // Only what a cgroup has left.
  EXPECT_EQ(Divide(Binding::kCores, TwoNodes({1, 2, 5}), 2, &problem),
            (Lists{{1, 5}, {2}}));
  EXPECT_EQ(problem, "");
  EXPECT_EQ(Divide(Binding::kCores, all, 5, &problem), Lists());
  EXPECT_NE(problem.find("5 ranks are to run on this host, and there are 4 "
                         "cores"),
            std::string::npos)
      << problem;
  problem.clear();
  EXPECT_EQ(Divide(Binding::kCores, {}, 1, &problem), Lists());
  EXPECT_NE(problem, "");
}

TEST(BindTest, NodesAreDividedOrShared) {
  using Lists = std::vector<std::vector<int>>;
  std::string problem;
  const auto all = TwoNodes(kAll);
  const std::vector<int> first = {0, 1, 4, 5};
  const std::vector<int> second = {2, 3, 6, 7};
  EXPECT_EQ(Divide(Binding::kNuma, all, 2, &problem), (Lists{first, second}));
  EXPECT_EQ(Divide(Binding::kNuma, all, 3, &problem),
            (Lists{first, first, second}));
  EXPECT_EQ(Divide(Binding::kNuma, all, 4, &problem),
            (Lists{first, first, second, second}));
  EXPECT_EQ(Divide(Binding::kNuma, all, 1, &problem),
            (Lists{{0, 1, 4, 5, 2, 3, 6, 7}}));
  EXPECT_EQ(problem, "");

  // A rank's memory comes from its node, if there is a choice.
  const auto memory_of = [&](int ranks, const std::vector<int>& nodes) {
    std::vector<int> memory;
    for (const auto& place :
         DivideCpus(Binding::kNuma, all, nodes, ranks, &problem)) {
      memory.push_back(place.memory_node);
    }
    return memory;
  };
  EXPECT_EQ(memory_of(2, {0, 1}), (std::vector<int>{0, 1}));
  EXPECT_EQ(memory_of(2, {0}), (std::vector<int>{-1, -1}));
  EXPECT_EQ(memory_of(2, {1, 2}), (std::vector<int>{-1, 1}));
  EXPECT_EQ(memory_of(1, {0, 1}), (std::vector<int>{-1}));
}

}  // namespace
}  // namespace shardctl::run_parts_test
