// SPDX-License-Identifier: Apache-2.0
//
// `shardctl doctor --nccl`, with fakes of the driver and of NCCL.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/collectives/nccl/conf_files.h"
#include "sdk/cli/commands/nccl_variables.h"
#include "tests/sdk/cli/doctor_testing.h"

namespace shardctl_testing::doctor_nccl_test {
namespace {

// Sets a variable of the environment while it lives.
class Variable {
 public:
  Variable(std::string name, const std::string& value)
      : name_(std::move(name)) {
    const char* const before = std::getenv(name_.c_str());
    if (before != nullptr) before_ = before;
    EXPECT_EQ(::setenv(name_.c_str(), value.c_str(), 1), 0);
  }
  ~Variable() {
    if (before_) {
      ::setenv(name_.c_str(), before_->c_str(), 1);
    } else {
      ::unsetenv(name_.c_str());
    }
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const std::string name_;
  std::optional<std::string> before_;
};

class DoctorNcclTest : public DoctorTest {
 protected:
  DoctorNcclTest() : DoctorTest("nccl", {"--nccl"}) {}

  void ExamineWithBoth() { Examine({kFakeDriver, kFakeNccl}); }

  static void ExpectHas(const std::string& text,
                        const std::vector<std::string>& parts) {
    for (const std::string& part : parts) {
      EXPECT_TRUE(Has(text, part)) << part << " in: " << text;
    }
  }

 private:
  const Variable strict_{"SHARD_FAKE_NCCL_STRICT", "1"};
  // Where a machine has a file of NCCL's.
  const Variable no_file_{"NCCL_CONF_FILE", "/dev/null"};
};

TEST_F(DoctorNcclTest, EachGpuWorksAloneAndAllTogether) {
  ExamineWithBoth();
  ExpectHas(Found("library"),
            {"ok /", "tests/fake_nccl/libnccl.so.2, version 2.28.9",
             "(at least 2.18.0 is needed), which the loader found"});
  ExpectHas(Found("functions of later versions"),
            {"info ", "ncclMemAlloc", "ncclCommRevoke"});
  ExpectHas(Found("ranks"), {"ok at most 2 of this host"});
  for (const char* const name : {"cuda:0 alone", "cuda:1 alone", "all GPUs"}) {
    ExpectHas(Found(name), {"ok all-gather, broadcast, send, receive and "});
  }
  EXPECT_NE(Found("/dev/shm"), "");
  EXPECT_NE(Found("network interfaces"), "");
}

TEST_F(DoctorNcclTest, AFailedCallIsNamedWithARemedy) {
  const Variable fail("SHARD_FAKE_NCCL_FAIL", "ncclBroadcast:2:2");
  ExamineWithBoth();
  ExpectHas(Found("cuda:0 alone"), {"ok "});
  ExpectHas(Found("cuda:1 alone"), {"warn ", "ncclBroadcast"});
  ExpectHas(Remedy("cuda:1 alone"), {"NCCL_DEBUG=INFO"});
}

TEST_F(DoctorNcclTest, WithoutALibraryThereIsARemedy) {
  const Folder folder;
  WriteNoLibrary(folder / "libnccl.so.2");
  Examine({folder / "", kFakeDriver});
  ExpectHas(Found("library"), {"warn no usable NCCL: ", "libnccl.so.2"});
  ExpectHas(Remedy("library"), {"install NCCL", "collectives=staged"});
  EXPECT_EQ(Found("cuda:0 alone"), "");
}

TEST_F(DoctorNcclTest, AnOldLibraryIsNamed) {
  const std::map<std::string, std::string> cases = {
      {"v2_12", "is of version 2.12.12; libshard needs 2.18.0"},
      {"v3_0", "is of version 3.0.0; libshard needs 2.18.0"},
      {"partial", "lacks nccl"}};
  for (const auto& [folder, reason] : cases) {
    Examine({"tests/fake_nccl/" + folder, kFakeDriver});
    ExpectHas(Found("library"),
              {"warn ", folder + "/libnccl.so.2", reason, "LD_LIBRARY_PATH"});
  }
}

TEST_F(DoctorNcclTest, AStartThatFailsIsNamedWithItsInterfaces) {
  const Variable names("NCCL_SOCKET_IFNAME", "no_such");
  ExamineWithBoth();
  ExpectHas(Found("cuda:0 alone"),
            {"warn ", "ncclGetUniqueId", "no socket interface found",
             "(NCCL_SOCKET_IFNAME=no_such)"});
  ExpectHas(Remedy("NCCL_SOCKET_IFNAME"), {"name one of: "});
}

TEST_F(DoctorNcclTest, WithoutAGpuThereIsARemedy) {
  const Folder folder;
  WriteNoLibrary(folder / "libcuda.so.1");
  Examine({folder / "", kFakeNccl});
  EXPECT_EQ(Found("library"), "info not looked for: there is no driver");
  ExpectHas(Found("ranks"), {"warn no CUDA driver: "});
  ExpectHas(Remedy("ranks"), {"install NVIDIA's driver", "--gpus all"});
  EXPECT_EQ(RunShardctl({"doctor", "--nccl", "--strict"}).code, 1);
  EXPECT_EQ(RunShardctl({"doctor", "--nccl"}).code, 0);
}

TEST_F(DoctorNcclTest, VariablesAreListedWithTheirEffects) {
  const Folder folder;
  WriteFile(folder / "nccl.conf",
            "# NCCL_DEBUG=INFO\nNCCL_COMM_BLOCKING=1\nNCCL_PROTO=Simple\n");
  const Variable file("NCCL_CONF_FILE", folder / "nccl.conf");
  const Variable debug("NCCL_DEBUG", "WARN");
  const Variable algo("NCCL_ALGO", "Ring");
  const Variable id("NCCL_COMM_ID", "10.0.0.1:5000");
  const Variable mine("NCCL_OF_TOMORROW", "1");
  const Variable names("NCCL_SOCKET_IFNAME", "=lo");
  ExamineWithBoth();
  ExpectHas(Found("NCCL_DEBUG"), {"info WARN: harmless"});
  ExpectHas(Found("NCCL_ALGO"), {"info Ring: changes speed, and the order"});
  ExpectHas(Found("NCCL_PROTO"), {"info Simple, in ", "nccl.conf: changes"});
  ExpectHas(Found("NCCL_COMM_ID"), {"warn 10.0.0.1:5000: "});
  ExpectHas(Found("NCCL_OF_TOMORROW"), {"info 1: not known"});
  ExpectHas(Found("NCCL_SOCKET_IFNAME"), {"ok =lo: lo"});
  ExpectHas(Found("NCCL_COMM_BLOCKING"), {"warn 1, in ", "refused"});
  ExpectHas(Found("library"), {"warn ", "NCCL_COMM_BLOCKING=1, in ",
                               "nccl.conf, makes its calls wait for ever"});
  ExpectHas(Remedy("NCCL_COMM_BLOCKING"), {"remove it from ", "nccl.conf"});
  EXPECT_EQ(Found("NCCL_DEBUG_FILE"), "");
}

// NCCL asks the system for the user's folder, and so do all who read its files.
TEST_F(DoctorNcclTest, TheFileInAnotherHomeIsNotRead) {
  const Folder folder;
  WriteFile(folder / ".nccl.conf", "NCCL_COMM_BLOCKING=1\n");
  const Variable no_name("NCCL_CONF_FILE", "");
  const Variable home("HOME", folder / "");
  ExamineWithBoth();
  EXPECT_EQ(Found("NCCL_COMM_BLOCKING"), "");
  EXPECT_EQ(Found("library").find("no usable NCCL"), std::string::npos);
  for (const std::string& file : shard::nccl::ConfFiles()) {
    EXPECT_EQ(file.find(folder / ""), std::string::npos) << file;
  }
}

TEST_F(DoctorNcclTest, WhatIsRefusedIsSaid) {
  const Variable blocking("NCCL_COMM_BLOCKING", "1");
  const Variable names("NCCL_SOCKET_IFNAME", "no_such");
  ExamineWithBoth();
  ExpectHas(Found("library"), {"warn ", "NCCL_COMM_BLOCKING=1"});
  ExpectHas(Found("NCCL_COMM_BLOCKING"), {"warn 1: refused"});
  EXPECT_EQ(Remedy("NCCL_COMM_BLOCKING"), "unset it");
  ExpectHas(Found("NCCL_SOCKET_IFNAME"), {"warn no_such: no interface"});
}

TEST(NcclVariablesTest, InterfacesAreNamedAsNcclDoes) {
  const std::vector<std::string> all = {"docker0", "eth0", "eth1", "eth10"};
  const std::map<std::string, std::vector<std::string>> cases = {
      {"eth", {"eth0", "eth1", "eth10"}},
      {"eth1", {"eth1", "eth10"}},
      {"=eth1", {"eth1"}},
      {"=eth0,eth1", {"eth0", "eth1"}},
      {"^docker", {"eth0", "eth1", "eth10"}},
      {"^=eth1,docker0", {"eth0", "eth10"}},
      {"ib", {}},
  };
  for (const auto& [value, named] : cases) {
    EXPECT_EQ(shardctl::NamedInterfaces(value, all), named) << value;
  }
}

}  // namespace
}  // namespace shardctl_testing::doctor_nccl_test
