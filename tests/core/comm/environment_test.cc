// SPDX-License-Identifier: Apache-2.0

#include "core/comm/env/environment.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace shard::env::environment_test {
namespace {

using Vars = std::map<std::string, std::string>;

StatusOr<Placement> Read(const Vars& vars) {
  return ReadPlacement([&](const char* name) -> const char* {
    const auto found = vars.find(name);
    return found == vars.end() ? nullptr : found->second.c_str();
  });
}

Vars With(Vars vars, const Vars& more) {
  for (const auto& [name, value] : more) vars[name] = value;
  return vars;
}

Vars Without(Vars vars, const std::string& name) {
  vars.erase(name);
  return vars;
}

const Vars kShard = {{"SHARD_RANK", "1"},
                     {"SHARD_WORLD_SIZE", "4"},
                     {"SHARD_RENDEZVOUS", "job-17"}};
const Vars kTorchrun = {{"RANK", "2"},
                        {"WORLD_SIZE", "4"},
                        {"MASTER_ADDR", "127.0.0.1"},
                        {"MASTER_PORT", "29500"}};
const Vars kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                       {"OMPI_COMM_WORLD_SIZE", "4"},
                       {"PMIX_NAMESPACE", "prterun-host-77@1"}};
const Vars kSlurm = {{"SLURM_PROCID", "0"},
                     {"SLURM_STEP_ID", "5"},
                     {"SLURM_NTASKS", "4"},
                     {"SLURM_JOB_ID", "1234"}};

struct GoodCase {
  const char* name;
  Vars vars;
  int rank;
  int world_size;
  const char* url;
  const char* source;
};

TEST(EnvironmentTest, Understood) {
  const GoodCase cases[] = {
      {"nothing", {}, 0, 1, "local:", "no launcher"},
      {"shard", kShard, 1, 4, "shm:job-17", "SHARD_* variables"},
      {"shard with a URL",
       With(kShard, {{"SHARD_RENDEZVOUS", "shm:x?timeout=5"}}), 1, 4,
       "shm:x?timeout=5", "SHARD_* variables"},
      {"shard, local size", With(kShard, {{"SHARD_LOCAL_WORLD_SIZE", "4"}}), 1,
       4, "shm:job-17", "SHARD_* variables"},
      {"shard before torchrun", With(kTorchrun, kShard), 1, 4, "shm:job-17",
       "SHARD_* variables"},
      {"torchrun", kTorchrun, 2, 4, "shm:torchrun-127.0.0.1-29500-none-0",
       "torchrun"},
      {"torchrun, restarted",
       With(kTorchrun, {{"TORCHELASTIC_RUN_ID", "run 9"},
                        {"TORCHELASTIC_RESTART_COUNT", "2"},
                        {"LOCAL_WORLD_SIZE", "4"}}),
       2, 4, "shm:torchrun-127.0.0.1-29500-run_9-2", "torchrun"},
      {"MASTER_* alone is no launcher",
       {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}},
       0,
       1,
       "local:",
       "no launcher"},
      {"Open MPI", kOpenMpi, 3, 4, "shm:ompi-prterun-host-77@1", "Open MPI"},
      {"Open MPI, old",
       With(Without(kOpenMpi, "PMIX_NAMESPACE"),
            {{"OMPI_MCA_ess_base_jobid", "99"},
             {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}),
       3, 4, "shm:ompi-99", "Open MPI"},
      {"Slurm", kSlurm, 0, 4, "shm:slurm-1234-5", "Slurm"},
      {"Slurm, requeued", With(kSlurm, {{"SLURM_RESTART_COUNT", "2"}}), 0, 4,
       "shm:slurm-1234-5-2", "Slurm"},
      {"Slurm, the first start", With(kSlurm, {{"SLURM_RESTART_COUNT", "0"}}),
       0, 4, "shm:slurm-1234-5", "Slurm"},
      {"Slurm, one node of a job of two",
       With(kSlurm,
            {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_JOB_NUM_NODES", "2"}}),
       0, 4, "shm:slurm-1234-5", "Slurm"},
      {"Slurm batch shell", Without(kSlurm, "SLURM_STEP_ID"), 0, 1,
       "local:", "no launcher"},
      {"Slurm allocation",
       {{"SLURM_JOB_ID", "1"}},
       0,
       1,
       "local:",
       "no launcher"},
      {"one rank needs no rendezvous",
       {{"SLURM_PROCID", "0"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_NTASKS", "1"},
        {"SLURM_JOB_ID", "1"}},
       0,
       1,
       "local:",
       "Slurm"},
      {"empty is unset", With(kTorchrun, {{"SHARD_RANK", ""}}), 2, 4,
       "shm:torchrun-127.0.0.1-29500-none-0", "torchrun"},
  };
  for (const GoodCase& good : cases) {
    SCOPED_TRACE(good.name);
    const auto placement = Read(good.vars);
    ASSERT_TRUE(placement.ok()) << placement.status().ToString();
    EXPECT_EQ(placement->rank, good.rank);
    EXPECT_EQ(placement->world_size, good.world_size);
    EXPECT_EQ(placement->url, good.url);
    EXPECT_EQ(placement->source, good.source);
  }
}

TEST(EnvironmentTest, SeveralHostsMeetAtAHostAndAPort) {
  const Vars torchrun = With(kTorchrun, {{"LOCAL_WORLD_SIZE", "2"},
                                         {"MASTER_ADDR", "node-1"},
                                         {"TORCHELASTIC_RUN_ID", "run 7"},
                                         {"TORCHELASTIC_RESTART_COUNT", "3"}});
  const Vars slurm = With(
      kSlurm, {{"SLURM_NNODES", "2"}, {"SLURM_JOB_NODELIST", "gpu[07-08,11]"}});
  const Vars open_mpi = With(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                        {"MASTER_ADDR", "fd00::2"}});
  const struct {
    const char* name;
    Vars vars;
    const char* url;
  } cases[] = {
      {"shard",
       With(kShard, {{"SHARD_LOCAL_WORLD_SIZE", "2"},
                     {"SHARD_RENDEZVOUS", "tcp://node-1:29500?job=a"}}),
       "tcp://node-1:29500?job=a"},
      {"shard",
       With(kShard, {{"SHARD_LOCAL_WORLD_SIZE", "2"},
                     {"SHARD_RENDEZVOUS", "file:/nfs/a?job=a"}}),
       "file:/nfs/a?job=a"},
      {"torchrun", torchrun, "tcp://node-1:29500?job=run_7&restart=3"},
      {"torchrun, whose store has the port",
       With(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}),
       "tcp://node-1:29501?job=run_7&restart=3"},
      {"a port of ours",
       With(torchrun,
            {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"SHARD_PORT", "4000"}}),
       "tcp://node-1:4000?job=run_7&restart=3"},
      {"Slurm", slurm, "tcp://gpu07:30639?job=slurm-1234-5&restart=0"},
      {"Slurm, requeued", With(slurm, {{"SLURM_RESTART_COUNT", "2"}}),
       "tcp://gpu07:30639?job=slurm-1234-5&restart=2"},
      {"Slurm, requeued, a given host",
       With(slurm, {{"SLURM_RESTART_COUNT", "2"}, {"MASTER_ADDR", "head"}}),
       "tcp://head:29400?job=slurm-1234-5&restart=2"},
      {"Slurm, hosts without brackets",
       With(slurm, {{"SLURM_STEP_NODELIST", "a-1,b[2-3]"}}),
       "tcp://a-1:30639?job=slurm-1234-5&restart=0"},
      {"Slurm, two brackets",
       With(slurm, {{"SLURM_STEP_NODELIST", "r[1-2]n[03,05]x"}}),
       "tcp://r1n03x:30639?job=slurm-1234-5&restart=0"},
      {"Slurm, a given host", With(slurm, {{"MASTER_ADDR", "head"}}),
       "tcp://head:29400?job=slurm-1234-5&restart=0"},
      {"Open MPI", open_mpi,
       "tcp://[fd00::2]:29400?job=ompi-prterun-host-77@1&restart=0"},
      {"Open MPI, a port", With(open_mpi, {{"MASTER_PORT", "5000"}}),
       "tcp://[fd00::2]:5000?job=ompi-prterun-host-77@1&restart=0"},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.name);
    const auto placement = Read(each.vars);
    ASSERT_TRUE(placement.ok()) << placement.status().ToString();
    EXPECT_EQ(placement->url, each.url);
  }
}

struct BadCase {
  const char* name;
  Vars vars;
  StatusCode code;
  std::vector<std::string> parts;  // The message has all of them.
};

TEST(EnvironmentTest, Refused) {
  const StatusCode kInvalid = StatusCode::kInvalidArgument;
  const BadCase cases[] = {
      {"half of shard",
       Without(kShard, "SHARD_RENDEZVOUS"),
       kInvalid,
       {"SHARD_RANK=1, SHARD_WORLD_SIZE=4 but not SHARD_RENDEZVOUS"}},
      {"less than half",
       {{"SHARD_RENDEZVOUS", "x"}},
       kInvalid,
       {"SHARD_RENDEZVOUS=x but not SHARD_RANK, SHARD_WORLD_SIZE"}},
      {"half of torchrun",
       Without(kTorchrun, "MASTER_PORT"),
       kInvalid,
       {"torchrun", "not MASTER_PORT"}},
      {"WORLD_SIZE alone",
       {{"WORLD_SIZE", "4"}},
       kInvalid,
       {"WORLD_SIZE=4 but not RANK, MASTER_ADDR, MASTER_PORT"}},
      {"Open MPI without a job",
       Without(kOpenMpi, "PMIX_NAMESPACE"),
       kInvalid,
       {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
      {"half of Slurm",
       Without(kSlurm, "SLURM_NTASKS"),
       kInvalid,
       {"not SLURM_NTASKS"}},
      {"no number",
       With(kShard, {{"SHARD_RANK", "one"}}),
       kInvalid,
       {"SHARD_RANK='one'"}},
      {"negative", With(kTorchrun, {{"RANK", "-1"}}), kInvalid, {"RANK='-1'"}},
      {"a tail",
       With(kTorchrun, {{"WORLD_SIZE", "4 "}}),
       kInvalid,
       {"WORLD_SIZE='4 '"}},
      {"too large",
       With(kShard, {{"SHARD_WORLD_SIZE", "99999999999"}}),
       kInvalid,
       {"SHARD_WORLD_SIZE='99999999999'"}},
      {"size 0",
       With(kShard, {{"SHARD_WORLD_SIZE", "0"}}),
       kInvalid,
       {"SHARD_WORLD_SIZE='0'"}},
      {"rank of size",
       With(kShard, {{"SHARD_RANK", "4"}}),
       kInvalid,
       {"SHARD_RANK=4 is not below SHARD_WORLD_SIZE=4"}},
      {"env: in env:",
       With(kShard, {{"SHARD_RENDEZVOUS", "env:"}}),
       kInvalid,
       {"SHARD_RENDEZVOUS='env:'"}},
      {"shard, two hosts",
       With(kShard, {{"SHARD_LOCAL_WORLD_SIZE", "2"}}),
       kInvalid,
       {"SHARD_RENDEZVOUS='job-17' is a name on one host",
        "tcp://node-1:29500"}},
      {"more ranks on a host than there are",
       With(kTorchrun, {{"LOCAL_WORLD_SIZE", "5"}}),
       kInvalid,
       {"LOCAL_WORLD_SIZE=5 is more than WORLD_SIZE=4"}},
      {"torchrun, two hosts, no port",
       With(kTorchrun, {{"LOCAL_WORLD_SIZE", "2"}, {"MASTER_PORT", "x"}}),
       kInvalid,
       {"MASTER_PORT='x'"}},
      {"Open MPI, two hosts, no place",
       With(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}),
       kInvalid,
       {"Open MPI", "set MASTER_ADDR", "mpirun -x"}},
      {"Slurm, two hosts, no list",
       With(kSlurm, {{"SLURM_NNODES", "2"}}),
       kInvalid,
       {"Slurm", "set MASTER_ADDR"}},
  };
  for (const BadCase& bad : cases) {
    SCOPED_TRACE(bad.name);
    const auto placement = Read(bad.vars);
    ASSERT_FALSE(placement.ok());
    EXPECT_EQ(placement.status().code(), bad.code);
    for (const std::string& part : bad.parts) {
      EXPECT_NE(placement.status().message().find(part), std::string::npos)
          << placement.status().message();
    }
  }
}

// A name that is too long for a socket address is cut, and stays unique.
TEST(EnvironmentTest, LongNamesAreCutAndStayUnique) {
  Vars one = With(kTorchrun, {{"TORCHELASTIC_RUN_ID", std::string(200, 'a')}});
  Vars two = With(one, {{"TORCHELASTIC_RESTART_COUNT", "1"}});
  const auto a = Read(one);
  const auto b = Read(two);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_LE(a->url.size(), std::string("shm:").size() + 80);
  EXPECT_NE(a->url, b->url);
  EXPECT_EQ(a->url, Read(one)->url);
}

}  // namespace
}  // namespace shard::env::environment_test
