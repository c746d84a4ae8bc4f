// SPDX-License-Identifier: Apache-2.0

#include "core/model/directory.h"

#include <cstddef>
#include <limits>

#include "core/model/walk.h"

namespace shard {

ModelDirectory::ModelDirectory(const Model& model) {
  const std::vector<Model::Reference>& references = model.references();
  modules_.reserve(model.modules().size());
  names_.reserve(references.size());
  begins_.resize(model.params().size() + 1);
  constexpr int kNowhere = std::numeric_limits<int>::max();
  int ignored_below = kNowhere;
  WalkModel(
      model,
      [&](ModuleId id, int depth) {
        if (depth <= ignored_below) {
          const bool ignored = model.modules()[static_cast<size_t>(id)].ignored;
          ignored_below = ignored ? depth : kNowhere;
        }
        modules_.push_back({id, depth, static_cast<int32_t>(names_.size()), 0,
                            ignored_below != kNowhere});
        return true;
      },
      [&](int32_t reference) {
        const auto param = static_cast<size_t>(
            references[static_cast<size_t>(reference)].param);
        if (modules_.back().ignored || model.params()[param].ignored) return;
        names_.push_back(reference);
        ++modules_.back().num_names;
        ++begins_[param + 1];
      });

  // A counting sort by parameter, which keeps the order of names.
  for (size_t i = 1; i < begins_.size(); ++i) begins_[i] += begins_[i - 1];
  std::vector<int32_t> next(begins_);
  by_param_.resize(names_.size());
  for (size_t i = 0; i < names_.size(); ++i) {
    const ParamId param = references[static_cast<size_t>(names_[i])].param;
    int32_t& at = next[static_cast<size_t>(param)];
    by_param_[static_cast<size_t>(at++)] = static_cast<int32_t>(i);
  }
}

std::span<const int32_t> ModelDirectory::NamesOf(ParamId param) const {
  const auto begin = static_cast<size_t>(begins_[static_cast<size_t>(param)]);
  const auto end = static_cast<size_t>(begins_[static_cast<size_t>(param) + 1]);
  return std::span<const int32_t>(by_param_).subspan(begin, end - begin);
}

}  // namespace shard
