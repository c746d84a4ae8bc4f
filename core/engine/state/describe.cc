// SPDX-License-Identifier: Apache-2.0

#include "core/engine/state/describe.h"

#include <cstddef>
#include <string>

#include "core/base/strings.h"
#include "core/engine/params/module_text.h"

namespace shard {

namespace {

const char* ContentName(StateContent content) {
  switch (content) {
    case StateContent::kAll:
      return "all";
    case StateContent::kModel:
      return "model";
    case StateContent::kOptimizer:
      return "optimizer";
  }
  return "unknown";
}

}  // namespace

void DescribeState(const Model& model, const StateOptions& options,
                   FactSink* sink) {
  sink->Add("", "content", ContentName(options.content));
  sink->Add("", "ignore_frozen", options.ignore_frozen);
  sink->Add("", "strip_prefix", options.strip_prefix);
  for (size_t m = 0; m < options.submodules.size(); ++m) {
    sink->Add("", StrCat("submodule ", m),
              ModuleText(model, options.submodules[m]));
  }
  sink->Add("", "number of submodules", options.submodules.size());
}

void DescribeTensors(const TensorStore& store, FactSink* sink) {
  for (size_t t = 0; t < store.num_tensors(); ++t) {
    const TensorInfo info = store.tensor(t);
    const std::string subject = StrCat("'", info.key, "'");
    sink->Add("", StrCat("tensor ", t), subject);
    sink->Add(subject, "type", TypeNameOf(info));
    sink->Add(subject, "role", TensorRoleName(info.role));
    sink->Add(subject, "shape", FormatList(info.shape));
    sink->Add(subject, "alias_of", info.alias_of);
    sink->Add(subject, "codebook", info.codebook);
  }
  sink->Add("", StrCat("tensor ", store.num_tensors()), "the end");
}

}  // namespace shard
