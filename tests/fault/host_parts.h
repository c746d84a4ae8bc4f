// SPDX-License-Identifier: Apache-2.0
//
// The parts of flows: calls by which a host makes its handles, trains and
// saves. A part ends at the first error, which is then rank->code.

#ifndef SHARD_TESTS_FAULT_HOST_PARTS_H_
#define SHARD_TESTS_FAULT_HOST_PARTS_H_

#include <cstdint>

#include "shard/shard.h"
#include "tests/fault/host_flows.h"

namespace shard {

// Takes `error` over. Returns true when it ends the flow.
bool Failed(HostRank* rank, const char* call, shard_error* error);

// Ends the part when a call fails.
#define TRY(call) \
  if (Failed(rank, #call, call)) return
// Makes a call that changes nothing when it fails.
#define TRY_TWICE(call)                      \
  do {                                       \
    shard_error* error = call;               \
    if (rank->retries && error != nullptr) { \
      shard_error_free(error);               \
      error = call;                          \
    }                                        \
    if (Failed(rank, #call, error)) return;  \
  } while (false)

// The parameters of the model, by id: an embedding, a weight and a bias for
// each of five blocks, and a frozen one.
enum : int32_t { kEmbedding, kBias0 = 2, kFrozen = 11 };
inline constexpr int kParams = kFrozen + 1;
inline constexpr int64_t kRows = 6;  // The elements of a bias.
inline bool IsWeight(int32_t param) {
  return param % 2 == 1 && param != kFrozen;
}

void MakeModel(HostRank* rank);
void MakePlan(HostRank* rank);
void Open(HostRank* rank);
void MakeEngine(HostRank* rank);
// Gives parameters and buffers their first values.
void Fill(HostRank* rank);
// Writes the gradients of the unit's parameters.
void WriteGrads(HostRank* rank, int32_t unit);
void Step(HostRank* rank);
// Saves to folder `name`, in the background where `save` is not null.
void Save(HostRank* rank, const char* name, shard_save** save);

}  // namespace shard

#endif  // SHARD_TESTS_FAULT_HOST_PARTS_H_
