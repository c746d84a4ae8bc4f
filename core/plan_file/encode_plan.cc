// SPDX-License-Identifier: Apache-2.0

#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "core/flat/plan_fields.h"
#include "core/plan_file/plan_file.h"
#include "core/plan_file/plan_generated.h"

namespace shard {

namespace {

template <typename T>
using Offsets = std::vector<flatbuffers::Offset<T>>;
template <typename T>
using ListOffset =
    flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<T>>>;

// The classes of modules. Each is stored in the bytes once.
struct Classes {
  // Makes views into `model`.
  explicit Classes(const Model& model) {
    // The map is ordered because a hostile file could have classes that collide
    // under a known hash.
    std::map<std::string_view, uint32_t> indices;
    of_module.reserve(model.modules().size());
    for (const Model::Module& module : model.modules()) {
      const auto [at, is_new] = indices.try_emplace(
          module.class_name, static_cast<uint32_t>(names.size()));
      if (is_new) names.push_back(module.class_name);
      of_module.push_back(at->second);
    }
  }

  std::vector<std::string_view> names;
  std::vector<uint32_t> of_module;  // Indices into names, by ModuleId.
};

// Returns slightly fewer bytes than the body will have. With it, a plan beyond
// the limit is refused before it is built: building it would need memory and,
// at 2 GiB, end in FlatBuffers' assertion.
uint64_t AtLeastBytes(const Plan& plan, const Classes& classes) {
  // An offset in a vector and a length, without padding.
  constexpr uint64_t kText = 8;
  // An offset in a vector, a table's first number, and the length of a name
  // with padding.
  constexpr uint64_t kNamedTable = 16;
  const Model& model = plan.model();
  const PlanOptions& options = plan.options();
  uint64_t bytes = options.wrap.text().size();
  for (const std::string_view name : classes.names) {
    bytes += kText + name.size();
  }
  for (const std::string& name : options.f32_classes) {
    bytes += kText + name.size();
  }
  for (const GroupOptions& group : options.groups) {
    bytes += kText + group.optimizer.size();
  }
  bytes += kNamedTable * model.modules().size();
  for (const Model::Module& module : model.modules()) {
    bytes += module.name.size();
  }
  for (const Model::Param& param : model.params()) {
    bytes += 12 + 8 * param.shape.size();
  }
  for (const Model::Reference& reference : model.references()) {
    bytes += kNamedTable + reference.name.size();
  }
  for (const Model::HostTensor& tensor : model.host_tensors()) {
    bytes += kNamedTable + tensor.name.size() + 8 * tensor.shape.size();
  }
  return bytes;
}

// Returns the bytes that MaxPlanTextBytes limits.
uint64_t TextBytes(const Model& model) {
  uint64_t bytes = 0;
  const auto add_path = [&](ModuleId in, const std::string& name) {
    bytes += PlanPathBytes(model, in, name.size());
  };
  for (const Model::Module& module : model.modules()) {
    bytes += module.class_name.size();
    if (module.parent >= 0) add_path(module.parent, module.name);
  }
  for (const Model::Reference& reference : model.references()) {
    add_path(reference.module, reference.name);
  }
  for (const Model::HostTensor& tensor : model.host_tensors()) {
    add_path(tensor.module, tensor.name);
  }
  return bytes;
}

Status TooLarge(uint64_t bytes) {
  return ResourceExhausted("the plan would have ", bytes, " bytes; at most ",
                           kMaxPlanFileBytes, " are possible");
}

Status CheckEncodable(const PlanOptions& options) {
  const int64_t alignment = PlanOptions().alignment_bytes;
  if (options.alignment_bytes != alignment) {
    return InvalidArgument("a plan with alignment_bytes ",
                           options.alignment_bytes,
                           " cannot be written; only with ", alignment);
  }
  for (size_t g = 0; g < options.groups.size(); ++g) {
    if (!options.groups[g].optimizer.empty()) continue;
    return InvalidArgument("a plan whose param group ", g,
                           " has no optimizer cannot be written");
  }
  return Status();
}

class Encoder {
 public:
  Encoder(const Plan& plan, const Classes& classes, size_t room)
      : plan_(plan), model_(plan.model()), classes_(classes), builder_(room) {}

  // The body.
  std::span<const std::byte> Encode() {
    const auto modules = Modules();
    const auto params = Params();
    const auto names = Names();
    const auto classes = Texts(classes_.names);
    std::vector<std::string_view> optimizer_texts;
    for (const GroupOptions& group : plan_.options().groups) {
      optimizer_texts.push_back(group.optimizer);
    }
    const auto optimizers = Texts(optimizer_texts);
    const auto host_tensors = HostTensors();
    const auto options = Options();
    plan_schema::FinishPlanBuffer(
        builder_,
        plan_schema::CreatePlan(builder_, kLayoutVersion, plan_.fingerprint(),
                                options, classes, modules, params, names,
                                optimizers, host_tensors));
    return std::as_bytes(
        std::span(builder_.GetBufferPointer(), builder_.GetSize()));
  }

 private:
  flatbuffers::Offset<flatbuffers::String> Text(std::string_view text) {
    return builder_.CreateString(text.data(), text.size());
  }

  template <typename Strings>
  ListOffset<flatbuffers::String> Texts(const Strings& texts) {
    Offsets<flatbuffers::String> offsets;
    offsets.reserve(texts.size());
    for (const auto& text : texts) offsets.push_back(Text(text));
    return builder_.CreateVector(offsets);
  }

  ListOffset<plan_schema::Module> Modules() {
    std::vector<bool> is_unit(model_.modules().size());
    for (const UnitPlan& unit : plan_.units()) {
      is_unit[static_cast<size_t>(unit.module)] = true;
    }
    Offsets<plan_schema::Module> modules;
    modules.reserve(model_.modules().size());
    for (size_t i = 0; i < model_.modules().size(); ++i) {
      const Model::Module& module = model_.modules()[i];
      const uint32_t parent = i == 0 ? 0 : static_cast<uint32_t>(module.parent);
      modules.push_back(plan_schema::CreateModule(builder_, Text(module.name),
                                                  parent, classes_.of_module[i],
                                                  module.ignored, is_unit[i]));
    }
    return builder_.CreateVector(modules);
  }

  ListOffset<plan_schema::Param> Params() {
    const PlanOptions& options = plan_.options();
    Offsets<plan_schema::Param> params;
    params.reserve(model_.params().size());
    for (size_t i = 0; i < model_.params().size(); ++i) {
      const Model::Param& param = model_.params()[i];
      const auto shape =
          param.shape.empty() ? 0 : builder_.CreateVector(param.shape);
      const int32_t owner = options.partition == Partition::kManual
                                ? options.manual_owners[i]
                                : 0;
      params.push_back(plan_schema::CreateParam(
          builder_, shape, static_cast<int32_t>(param.dtype),
          static_cast<uint32_t>(param.group), owner, param.trainable,
          param.ignored));
    }
    return builder_.CreateVector(params);
  }

  ListOffset<plan_schema::Name> Names() {
    Offsets<plan_schema::Name> names;
    names.reserve(model_.references().size());
    ParamId next = 0;
    for (const Model::Reference& reference : model_.references()) {
      int32_t alias_of = reference.param;
      if (reference.param == next) {
        alias_of = -1;
        ++next;
      }
      names.push_back(plan_schema::CreateName(
          builder_, Text(reference.name),
          static_cast<uint32_t>(reference.module), alias_of));
    }
    return builder_.CreateVector(names);
  }

  // No vector for none, so that such plans have the bytes that they had before
  // there were host tensors.
  ListOffset<plan_schema::HostTensor> HostTensors() {
    if (model_.host_tensors().empty()) return 0;
    Offsets<plan_schema::HostTensor> tensors;
    tensors.reserve(model_.host_tensors().size());
    for (const Model::HostTensor& tensor : model_.host_tensors()) {
      const auto name = Text(tensor.name);
      const auto shape =
          tensor.shape.empty() ? 0 : builder_.CreateVector(tensor.shape);
      tensors.push_back(plan_schema::CreateHostTensor(
          builder_, name, static_cast<uint32_t>(tensor.module), shape,
          static_cast<int32_t>(tensor.type), tensor.persistent));
    }
    return builder_.CreateVector(tensors);
  }

  flatbuffers::Offset<plan_schema::Options> Options() {
    const PlanOptions& options = plan_.options();
    const auto f32_classes = Texts(options.f32_classes);
    const auto wrap = Text(options.wrap.text());
    return plan_schema::CreateOptions(
        builder_, options.stage, options.world_size,
        static_cast<int32_t>(options.partition),
        static_cast<int32_t>(options.masters), options.bucket_bytes,
        options.buffer_bytes, options.seed,
        static_cast<int32_t>(options.param_dtype), options.shard_group_size,
        options.prefetch, options.shard_buckets, options.f32_grads,
        options.whole_grads, options.deterministic, options.keep_after_forward,
        f32_classes, wrap);
  }

  const Plan& plan_;
  const Model& model_;
  const Classes& classes_;
  flatbuffers::FlatBufferBuilder builder_;
};

}  // namespace

StatusOr<std::vector<std::byte>> EncodePlan(const Plan& plan) {
  SHARD_RETURN_IF_ERROR(CheckEncodable(plan.options()));
  const Classes classes(plan.model());
  const uint64_t least = AtLeastBytes(plan, classes);
  if (least > kMaxPlanFileBytes) return TooLarge(least);
  // The additional bytes are for tables and alignment.
  Encoder encoder(plan, classes, 2 * least + 1024);
  const std::span<const std::byte> body = encoder.Encode();
  const uint64_t size = kFileHeaderBytes + body.size();
  if (size > kMaxPlanFileBytes) return TooLarge(size);
  const uint64_t text = TextBytes(plan.model());
  if (const uint64_t most = MaxPlanTextBytes(size); text > most) {
    return ResourceExhausted(
        "the names of the plan's modules and parameters, with their paths and "
        "classes, have ",
        text, " bytes; at most ", most,
        " can be written: nest modules less deeply, or shorten names and "
        "classes");
  }
  std::vector<std::byte> file(size);
  WriteFileHeader(kPlanFormat, body, kPlanFileVersion, file.data());
  std::memcpy(file.data() + kFileHeaderBytes, body.data(), body.size());
  return file;
}

}  // namespace shard
