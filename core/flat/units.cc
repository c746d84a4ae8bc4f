// SPDX-License-Identifier: Apache-2.0

#include "core/flat/units.h"

#include <cstddef>
#include <limits>
#include <utility>

#include "core/model/walk.h"

namespace shard {

ClassSet F32Classes(const PlanOptions& options) {
  if (options.param_dtype == DType::kF32) return ClassSet();
  return ClassSet(options.f32_classes);
}

StatusOr<std::shared_ptr<const Model>> WithParamDType(
    std::shared_ptr<const Model> model, const PlanOptions& options) {
  if (options.param_dtype == DType::kF32) return model;
  constexpr int kNone = std::numeric_limits<int>::max();
  const ClassSet f32_classes = F32Classes(options);
  std::vector<ParamId> narrowed;
  std::vector<bool> seen(model->params().size(), false);
  int f32_from = kNone;  // The depth of the outermost module that stays f32.
  WalkModel(
      *model,
      [&](ModuleId id, int depth) {
        const Model::Module& module = model->modules()[static_cast<size_t>(id)];
        if (module.ignored) return false;
        if (depth <= f32_from) {
          f32_from = f32_classes.Contains(module.class_name) ? depth : kNone;
        }
        return true;
      },
      [&](int32_t reference) {
        const ParamId param =
            model->references()[static_cast<size_t>(reference)].param;
        const auto index = static_cast<size_t>(param);
        if (seen[index] || model->params()[index].ignored) return;
        seen[index] = true;
        if (model->params()[index].dtype == DType::kF32 && f32_from == kNone) {
          narrowed.push_back(param);
        }
      });
  if (narrowed.empty()) return model;
  auto copy = std::make_shared<Model>(*model);
  for (const ParamId param : narrowed) {
    SHARD_RETURN_IF_ERROR(copy->SetDType(param, options.param_dtype));
  }
  return std::shared_ptr<const Model>(std::move(copy));
}

std::vector<ModuleId> ChooseUnits(const Model& model,
                                  const PlanOptions& options) {
  return options.wrap.Run(model, F32Classes(options));
}

}  // namespace shard
