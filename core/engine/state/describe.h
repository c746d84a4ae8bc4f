// SPDX-License-Identifier: Apache-2.0
//
// Facts (core/base/facts.h) that ranks compare before they save, load or
// gather. Modules are named: their ids are each rank's own.

#ifndef SHARD_CORE_ENGINE_STATE_DESCRIBE_H_
#define SHARD_CORE_ENGINE_STATE_DESCRIBE_H_

#include "core/base/facts.h"
#include "core/checkpoint/store/tensor_store.h"
#include "core/model/model.h"
#include "core/state/state_entries.h"

namespace shard {

// Writes the facts of `options`. REQUIRES: options that CheckStateOptions
// accepts.
void DescribeState(const Model& model, const StateOptions& options,
                   FactSink* sink);

// Writes the keys, types, shapes and aliases of a store; no elements.
void DescribeTensors(const TensorStore& store, FactSink* sink);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_DESCRIBE_H_
