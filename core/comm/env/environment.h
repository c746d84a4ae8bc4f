// SPDX-License-Identifier: Apache-2.0
//
// "env:": rank, world size and rendezvous point from the environment of a
// launcher. The groups of variables are looked up in this order, and the first
// one that is set is used; a group that is set in part is an error, and is not
// skipped.
//
//   shardctl run   SHARD_RANK, SHARD_WORLD_SIZE, SHARD_RENDEZVOUS
//                  [SHARD_LOCAL_WORLD_SIZE]
//   torchrun       RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//                  [LOCAL_WORLD_SIZE, TORCHELASTIC_RUN_ID,
//                  TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_USE_AGENT_STORE]
//   Open MPI       OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, PMIX_NAMESPACE
//                  or OMPI_MCA_ess_base_jobid [OMPI_COMM_WORLD_LOCAL_SIZE]
//   Slurm (srun)   SLURM_PROCID, SLURM_STEP_ID, SLURM_NTASKS, SLURM_JOB_ID
//                  [SLURM_STEP_NUM_NODES, SLURM_NNODES, SLURM_JOB_NUM_NODES,
//                  SLURM_STEP_NODELIST, SLURM_JOB_NODELIST, SLURM_NODELIST]
//   none           one rank, alone
//
// Ranks on one host meet by a name that is unique to the job. Those of several
// hosts meet at a host and a port: torchrun's MASTER_ADDR and MASTER_PORT, the
// port after it where torchrun's own store has that one; the first host of
// Slurm's list; MASTER_ADDR for Open MPI. SHARD_PORT replaces the port.
//
// A pure function of the variables.

#ifndef SHARD_CORE_COMM_ENV_ENVIRONMENT_H_
#define SHARD_CORE_COMM_ENV_ENVIRONMENT_H_

#include <functional>
#include <string>

#include "core/base/status.h"

namespace shard::env {

struct Placement {
  int rank = 0;
  int world_size = 1;
  // The rendezvous: a URL for OpenCommunicator, never "env:".
  std::string url = "local:";
  // The launcher for messages: "SHARD_* variables", "torchrun", ..., "no
  // launcher".
  std::string source = "no launcher";
};

// Returns nullptr for a variable that is not set.
using Getenv = std::function<const char*(const char* name)>;

// Reads the placement from the variables. kInvalidArgument names the variables
// and values that are wrong or missing.
StatusOr<Placement> ReadPlacement(const Getenv& getenv);

}  // namespace shard::env

#endif  // SHARD_CORE_COMM_ENV_ENVIRONMENT_H_
