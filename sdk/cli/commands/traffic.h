// SPDX-License-Identifier: Apache-2.0
//
// Predicts the bytes that ranks which share no memory send each other for one
// step, and the operations of its computation. Pure functions of a plan.
//
// A rank of W sends, with G bytes of gradients and P of trainable parameters in
// padded buffers, F of frozen ones, m micro-batches and S = shard_group_size:
//
//   stages 0, 1, 2   reduce-scatter  G (W-1)/W, in stage 2 m times
//                    all-gather      P (W-1)/W
//   stage 3          reduce-scatter  m G (W-1)/W
//                    all-gather      2 m (P+F) (S-1)/S, for the forward and for
//                                    the backward pass, and P (1/S - 1/W) to
//                                    the other shard groups
//
// A rank receives as much. An all-reduce is a reduce-scatter and an all-gather,
// so that stages 0 to 2 cost what plain data parallelism does, 2 P (W-1)/W, and
// stage 3 half as much again: Rajbhandari et al., ZeRO (arXiv:1910.02054),
// section 7; Thakur et al., Optimization of Collective Communication Operations
// in MPICH, section 4. With keep_after_forward stage 3 gathers once per step;
// with whole_grads, and where a plan shards no gradients though its stage
// would, gradients are reduced once. A unit that is not gathered again, because
// its slot was not needed, is counted all the same.

#ifndef SHARD_SDK_CLI_COMMANDS_TRAFFIC_H_
#define SHARD_SDK_CLI_COMMANDS_TRAFFIC_H_

#include <cstdint>

#include "shard/shard.h"

namespace shardctl {

struct Traffic {
  double reduce_bytes = 0;
  double gather_bytes = 0;
  bool shards_params = false;
  bool shards_grads = false;

  double total() const { return reduce_bytes + gather_bytes; }
};

// Returns the traffic of a rank in a step. REQUIRES: micro_batches is at least
// 1. Throws Failure.
Traffic TrafficOf(const shard_plan* plan, int micro_batches);

// Returns the floating-point operations of a rank's step: 6 per parameter and
// token, 2 of them in the forward pass, without attention's products of
// activations: Kaplan et al., Scaling Laws (arXiv:2001.08361), section 2.1.
inline double StepFlops(int64_t elements, double tokens) {
  return 6 * static_cast<double>(elements) * tokens;
}

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_TRAFFIC_H_
