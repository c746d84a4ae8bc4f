// SPDX-License-Identifier: Apache-2.0

#include "core/engine/engine_options.h"

#include <cstdint>

namespace shard {

Status CheckEngineOptions(const EngineOptions& options) {
  const auto missing = static_cast<int32_t>(options.missing_grads);
  if (missing >= 0 && missing <= 2) return Status();
  return InvalidArgument("unknown missing_grads ", missing,
                         "; known: 0 (an error), 1 (zero), 2 (skip)");
}

void DescribeEngineOptions(const EngineOptions& options, FactSink* sink) {
  sink->AddSpec("loss_scaling", "kind", options.loss_scaler.ToString());
  sink->Add("", "missing_grads", options.missing_grads);
  sink->Add("", "overlap", options.overlap);
}

}  // namespace shard
