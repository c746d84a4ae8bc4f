// SPDX-License-Identifier: Apache-2.0
//
// EngineBuffers: the memory of one rank's engine, allocated exactly as the plan
// predicts.
//
//   parameters   one SymmetricBuffer per host, in every stage
//   gradients    one region per rank, which its peers read during a step
//   states       this rank's range only, the master weights among them; in
//                stage 0 its peers can see them
//   workspace    private

#ifndef SHARD_CORE_ENGINE_BUFFERS_H_
#define SHARD_CORE_ENGINE_BUFFERS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/mapping.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/flat/plan.h"

namespace shard {

// The memory of one FlatBufferPlan.
struct EngineBuffer {
  const FlatBufferPlan* plan = nullptr;
  std::shared_ptr<SymmetricBuffer> params;
  std::shared_ptr<SymmetricBuffer> grads;  // Null when frozen.

  // By FlatBufferPlan::states: this rank's part. Not read when it is empty.
  std::vector<unsigned char*> states;

  // What holds the states: private pages, or in stage 0 symmetric ones.
  std::vector<Mapping> private_states;
  std::vector<std::shared_ptr<SymmetricBuffer>> visible_states;

  // An element of the flat buffer, and of `rank`'s gradients.
  void* ParamAt(int64_t element) const {
    return params->region(0) + DTypeBytes(plan->dtype, element);
  }
  void* GradAt(int rank, int64_t element) const {
    return grads->region(rank) + DTypeBytes(plan->grad_dtype, element);
  }
};

// COLLECTIVE. One EngineBuffer per plan buffer, in its order. The plan must
// outlive the result.
StatusOr<std::vector<EngineBuffer>> AllocateBuffers(const Plan& plan,
                                                    Communicator* comm,
                                                    const Deadline& deadline);

// What is really allocated, in the plan's terms.
MemoryReport MeasureMemory(const std::vector<EngineBuffer>& buffers, int rank);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_BUFFERS_H_
