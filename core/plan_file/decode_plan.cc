// SPDX-License-Identifier: Apache-2.0
//
// Decodes hostile bytes to a plan. Sizes are those of verified vectors, so that
// nothing is allocated for claimed sizes; text, which alone is longer in a plan
// than in the bytes, is counted before it is made.

#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/strings.h"
#include "core/checkpoint/manifest/flatbuffer_walk.h"
#include "core/flat/plan_fields.h"
#include "core/model/model.h"
#include "core/model/names.h"
#include "core/optim/groups.h"
#include "core/optim/optimizer.h"
#include "core/plan_file/plan_file.h"
#include "core/plan_file/plan_generated.h"

namespace shard {

namespace {

// A limit above the length of any optimizer's text with all its values. Each of
// its keys is compared with all others, so the length must be limited.
constexpr size_t kMaxOptimizerBytes = 4096;

std::string_view View(const flatbuffers::String& text) {
  return {text.c_str(), text.size()};
}

// The elements of a vector; a missing vector is an empty one.
template <typename T>
class Elements {
 public:
  explicit Elements(const flatbuffers::Vector<flatbuffers::Offset<T>>* vector)
      : vector_(vector) {}

  size_t size() const { return vector_ == nullptr ? 0 : vector_->size(); }
  // REQUIRES: i < size().
  const T& operator[](size_t i) const {
    return *vector_->Get(static_cast<flatbuffers::uoffset_t>(i));
  }

 private:
  const flatbuffers::Vector<flatbuffers::Offset<T>>* vector_;
};

StatusOr<std::vector<int64_t>> ShapeOf(
    const char* what, const flatbuffers::Vector<int64_t>* shape) {
  if (shape == nullptr) return std::vector<int64_t>();
  // Before they are copied.
  if (shape->size() > static_cast<size_t>(kMaxDims)) {
    return Corrupt("a ", what, " has ", shape->size(), " dimensions; at most ",
                   kMaxDims, " are allowed");
  }
  return std::vector<int64_t>(shape->begin(), shape->end());
}

// Enum values count up from 1, and a newer library may have more.
template <typename Enum>
Status CheckKnown(const char* what, int32_t value, Enum last) {
  if (value <= static_cast<int32_t>(last)) return {};
  return Unimplemented("the plan has ", what, " ", value,
                       ", and this library knows 1 to ",
                       static_cast<int32_t>(last),
                       ": a newer one wrote it, so read it with that");
}

// Returns the root of a body that is a FlatBuffer of plan.fbs, in which every
// object is inside, aligned, and no part of another.
StatusOr<const plan_schema::Plan*> ReadBody(std::span<const std::byte> body) {
  if (!IsFlatBuffer(body, [](flatbuffers::Verifier& verifier) {
        return plan_schema::VerifyPlanBuffer(verifier);
      })) {
    return Corrupt("the plan is not a FlatBuffer of its schema, SHPL");
  }
  const plan_schema::Plan* plan = plan_schema::GetPlan(body.data());
  const plan_schema::Options* options = plan->options();
  FlatBufferWalk walk(body);
  walk.Table(reinterpret_cast<const flatbuffers::Table*>(plan));
  walk.Table(reinterpret_cast<const flatbuffers::Table*>(options));
  walk.Strings(options->f32_classes());
  walk.String(options->wrap());
  walk.Strings(plan->classes());
  walk.Tables(plan->modules(), [&](const plan_schema::Module& module) {
    walk.String(module.name());
  });
  walk.Tables(plan->params(), [&](const plan_schema::Param& param) {
    walk.Vector(param.shape(), sizeof(int64_t), alignof(int64_t));
  });
  walk.Tables(plan->names(),
              [&](const plan_schema::Name& name) { walk.String(name.name()); });
  walk.Strings(plan->optimizers());
  walk.Tables(plan->host_tensors(), [&](const plan_schema::HostTensor& tensor) {
    walk.String(tensor.name());
    walk.Vector(tensor.shape(), sizeof(int64_t), alignof(int64_t));
  });
  if (!walk.ok()) {
    return Corrupt(
        "the plan has an object that is misaligned, or two that share bytes");
  }
  return plan;
}

// The arguments for making a plan, read from a FlatBuffer that ReadBody
// accepted. Errors are kUnimplemented for values that only other libraries
// write, and otherwise have any code: the caller turns those into kCorrupt.
class Inputs {
 public:
  Inputs(const plan_schema::Plan& root, uint64_t file_bytes)
      : classes_(root.classes()),
        modules_(root.modules()),
        params_(root.params()),
        names_(root.names()),
        optimizers_(root.optimizers()),
        host_tensors_(root.host_tensors()),
        given_(*root.options()),
        text_left_(MaxPlanTextBytes(file_bytes)) {}

  StatusOr<std::shared_ptr<const Plan>> MakePlan() {
    SHARD_RETURN_IF_ERROR(AddModules());
    SHARD_RETURN_IF_ERROR(AddParams());
    SHARD_RETURN_IF_ERROR(AddHostTensors());
    SHARD_RETURN_IF_ERROR(AddGroups());
    SHARD_RETURN_IF_ERROR(ReadOptions());
    return Plan::Create(std::move(model_), std::move(options_));
  }

 private:
  // Takes the text of a path. REQUIRES: a module that was added.
  Status TakePath(ModuleId module, const flatbuffers::String& name) {
    return TakeText(PlanPathBytes(*model_, module, name.size()));
  }

  // Takes text from the total that MaxPlanTextBytes allows.
  Status TakeText(uint64_t bytes) {
    if (bytes > text_left_) {
      return Corrupt("its names are too long with their paths");
    }
    text_left_ -= bytes;
    return Status();
  }

  StatusOr<std::string> ClassOf(size_t module) {
    const uint32_t index = modules_[module].class_name();
    if (index >= classes_.size()) {
      return Corrupt("module ", module, " has class ", index, " of ",
                     classes_.size());
    }
    const std::string_view name = View(classes_[index]);
    SHARD_RETURN_IF_ERROR(TakeText(name.size()));
    return std::string(name);
  }

  Status AddModules() {
    if (modules_.size() == 0) return Corrupt("it has no modules");
    if (modules_[0].name()->size() > 0) {
      return Corrupt("its first module, the root, has a name");
    }
    std::vector<bool> wrapped(modules_.size());
    for (size_t i = 0; i < modules_.size(); ++i) {
      const plan_schema::Module& module = modules_[i];
      SHARD_ASSIGN_OR_RETURN(std::string class_name, ClassOf(i));
      if (i == 0) {
        SHARD_RETURN_IF_ERROR(CheckClassName(class_name));
        model_ = std::make_shared<Model>(std::move(class_name));
      } else {
        if (module.parent() >= i) {
          return Corrupt("module ", i, " is in module ", module.parent());
        }
        const auto parent = static_cast<ModuleId>(module.parent());
        SHARD_RETURN_IF_ERROR(TakePath(parent, *module.name()));
        SHARD_RETURN_IF_ERROR(
            model_->AddModule(parent, View(*module.name()), class_name)
                .status());
      }
      if (module.ignored()) {
        SHARD_RETURN_IF_ERROR(model_->IgnoreModule(static_cast<ModuleId>(i)));
      }
      wrapped[i] = module.unit();
    }
    const std::string_view wrap =
        given_.wrap() == nullptr ? std::string_view() : View(*given_.wrap());
    if (!IsValidUtf8(wrap)) {
      return Corrupt("its wrap policy ", QuoteName(wrap),
                     " is not valid UTF-8 without NUL");
    }
    options_.wrap =
        WrapPolicy::OfModules(std::move(wrapped), std::string(wrap));
    return Status();
  }

  Status AddParams() {
    size_t next = 0;  // The parameter to be named next.
    for (size_t i = 0; i < names_.size(); ++i) {
      const plan_schema::Name& name = names_[i];
      if (name.in_module() >= modules_.size()) {
        return Corrupt("name ", i, " is in module ", name.in_module(), " of ",
                       modules_.size());
      }
      const auto module = static_cast<ModuleId>(name.in_module());
      SHARD_RETURN_IF_ERROR(TakePath(module, *name.name()));
      if (name.alias_of() != -1) {
        SHARD_RETURN_IF_ERROR(
            model_->Tie(module, View(*name.name()), name.alias_of()));
        continue;
      }
      if (next == params_.size()) {
        return Corrupt("name ", i, " is of a parameter beyond the last");
      }
      const plan_schema::Param& param = params_[next++];
      SHARD_RETURN_IF_ERROR(
          CheckKnown("a parameter with dtype", param.dtype(), DType::kF64));
      SHARD_ASSIGN_OR_RETURN(const DType dtype, DTypeFromValue(param.dtype()));
      SHARD_ASSIGN_OR_RETURN(const std::vector<int64_t> shape,
                             ShapeOf("parameter", param.shape()));
      SHARD_ASSIGN_OR_RETURN(
          const ParamId id,
          model_->AddParam(module, View(*name.name()), dtype, shape));
      SHARD_RETURN_IF_ERROR(model_->SetTrainable(id, param.trainable()));
      if (param.ignored()) SHARD_RETURN_IF_ERROR(model_->IgnoreParam(id));
    }
    if (next < params_.size()) {
      return Corrupt("parameter ", next, " has no name");
    }
    return Status();
  }

  Status AddHostTensors() {
    for (size_t i = 0; i < host_tensors_.size(); ++i) {
      const plan_schema::HostTensor& tensor = host_tensors_[i];
      if (tensor.in_module() >= modules_.size()) {
        return Corrupt("buffer ", i, " is in module ", tensor.in_module(),
                       " of ", modules_.size());
      }
      const auto module = static_cast<ModuleId>(tensor.in_module());
      SHARD_RETURN_IF_ERROR(TakePath(module, *tensor.name()));
      SHARD_RETURN_IF_ERROR(CheckKnown("a buffer with dtype", tensor.dtype(),
                                       ElementType::kBool));
      SHARD_ASSIGN_OR_RETURN(const std::vector<int64_t> shape,
                             ShapeOf("buffer", tensor.shape()));
      SHARD_RETURN_IF_ERROR(
          model_
              ->AddHostTensor(module, View(*tensor.name()),
                              static_cast<ElementType>(tensor.dtype()), shape,
                              tensor.persistent())
              .status());
    }
    return Status();
  }

  Status AddGroups() {
    if (optimizers_.size() == 0) return Corrupt("it has no optimizers");
    std::vector<std::vector<ParamId>> members(optimizers_.size());
    for (size_t i = 0; i < params_.size(); ++i) {
      const uint32_t group = params_[i].group();
      if (group >= members.size()) {
        return Corrupt("parameter ", i, " is in param group ", group, " of ",
                       members.size());
      }
      members[group].push_back(static_cast<ParamId>(i));
    }
    for (size_t g = 0; g < members.size(); ++g) {
      const std::string_view text = View(optimizers_[g]);
      if (text.size() > kMaxOptimizerBytes) {
        return Corrupt("the optimizer of param group ", g, " has ", text.size(),
                       " bytes");
      }
      if (text.empty() || !IsPlainText(text)) {
        return Corrupt("the optimizer of param group ", g, ", ",
                       QuoteName(text), ", is no optimizer's text");
      }
      if (g != kDefaultGroup) {
        SHARD_RETURN_IF_ERROR(model_->AddParamGroup(text, members[g]).status());
      }
      const auto optimizer =
          Optimizer::Parse(text, nullptr, StatusCode::kUnimplemented);
      if (!optimizer.ok()) {
        if (optimizer.status().code() != StatusCode::kUnimplemented) {
          return optimizer.status().WithContext(StrCat("param group ", g));
        }
        return Unimplemented("the plan's param group ", g,
                             " has the optimizer ", QuoteName(text),
                             ", which this library does not know: ",
                             optimizer.status().message(),
                             "; read the plan with the library that wrote it, "
                             "or make it again");
      }
      options_.groups.push_back(PlanGroup(*optimizer));
      if (options_.groups.back().optimizer == text) continue;
      return Unimplemented("the plan's param group ", g, " has the optimizer ",
                           QuoteName(text), ", which this library writes as ",
                           QuoteName(options_.groups.back().optimizer),
                           ": make the plan again");
    }
    return Status();
  }

  // Reads the options; Plan::Create makes all further checks.
  Status ReadOptions() {
    SHARD_RETURN_IF_ERROR(
        CheckKnown("partition", given_.partition(), Partition::kManual));
    SHARD_RETURN_IF_ERROR(
        CheckKnown("masters", given_.masters(), Masters::kNoneStochastic));
    SHARD_RETURN_IF_ERROR(
        CheckKnown("param_dtype", given_.param_dtype(), DType::kF16));
    PlanOptions& options = options_;
    options.stage = given_.stage();
    options.world_size = given_.world_size();
    options.partition = static_cast<Partition>(given_.partition());
    options.masters = static_cast<Masters>(given_.masters());
    options.bucket_bytes = given_.bucket_bytes();
    options.buffer_bytes = given_.buffer_bytes();
    options.seed = given_.seed();
    options.param_dtype = static_cast<DType>(given_.param_dtype());
    options.shard_group_size = given_.shard_group_size();
    options.prefetch = given_.prefetch();
    options.shard_buckets = given_.shard_buckets();
    options.f32_grads = given_.f32_grads();
    options.whole_grads = given_.whole_grads();
    options.deterministic = given_.deterministic();
    options.keep_after_forward = given_.keep_after_forward();
    const Elements<flatbuffers::String> f32_classes(given_.f32_classes());
    for (size_t i = 0; i < f32_classes.size(); ++i) {
      options.f32_classes.emplace_back(View(f32_classes[i]));
    }
    if (options.partition != Partition::kManual) return Status();
    options.manual_owners.reserve(params_.size());
    for (size_t i = 0; i < params_.size(); ++i) {
      options.manual_owners.push_back(params_[i].owner());
    }
    return Status();
  }

  const Elements<flatbuffers::String> classes_;
  const Elements<plan_schema::Module> modules_;
  const Elements<plan_schema::Param> params_;
  const Elements<plan_schema::Name> names_;
  const Elements<flatbuffers::String> optimizers_;
  const Elements<plan_schema::HostTensor> host_tensors_;
  const plan_schema::Options& given_;
  uint64_t text_left_;
  std::shared_ptr<Model> model_;
  PlanOptions options_;
};

}  // namespace

StatusOr<std::shared_ptr<const Plan>> DecodePlan(
    std::span<const std::byte> bytes) {
  SHARD_ASSIGN_OR_RETURN(const FileHeader header,
                         ReadFileHeader(kPlanFormat, bytes));
  // Numbers are read in place, so the body must be aligned.
  std::vector<std::byte> aligned;
  std::span<const std::byte> body = header.body;
  if (reinterpret_cast<uintptr_t>(body.data()) % alignof(uint64_t) != 0) {
    aligned.assign(body.begin(), body.end());
    body = aligned;
  }
  SHARD_ASSIGN_OR_RETURN(const plan_schema::Plan* root, ReadBody(body));
  if (root->layout_version() != kLayoutVersion) {
    return Unimplemented("the plan has version ", root->layout_version(),
                         " of the layout, and this library makes version ",
                         kLayoutVersion, ": make the plan again");
  }
  auto plan = Inputs(*root, bytes.size()).MakePlan();
  if (!plan.ok()) {
    if (plan.status().code() == StatusCode::kUnimplemented) {
      return plan.status();
    }
    return Corrupt("the plan is wrong: ", plan.status().message());
  }
  if ((*plan)->fingerprint() != root->fingerprint()) {
    return Corrupt("the plan is wrong: its fingerprint is ",
                   FormatHex(root->fingerprint()),
                   ", but what it was made from has ",
                   FormatHex((*plan)->fingerprint()));
  }
  return plan;
}

}  // namespace shard
