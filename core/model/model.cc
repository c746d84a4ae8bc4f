// SPDX-License-Identifier: Apache-2.0

#include "core/model/model.h"

#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/host_array.h"
#include "core/base/strings.h"
#include "core/model/names.h"

namespace shard {

namespace {

// Leaves room for the entries of the index, 2 t + 2 at most.
constexpr size_t kMaxIds = std::numeric_limits<int32_t>::max() / 2 - 1;

// The entries of the index.
enum class NameKind { kModule, kParam, kHostTensor };
constexpr NameKind KindOf(int32_t entry) {
  if (entry < 0) return NameKind::kModule;
  return entry % 2 == 1 ? NameKind::kParam : NameKind::kHostTensor;
}
constexpr int32_t EntryOfReference(size_t reference) {
  return 2 * static_cast<int32_t>(reference) + 1;
}
constexpr int32_t EntryOfHostTensor(size_t id) {
  return 2 * static_cast<int32_t>(id) + 2;
}
// Returns the reference, or the host tensor, of an entry.
constexpr size_t PositionOf(int32_t entry) {
  return static_cast<size_t>((entry - 1) / 2);
}

constexpr const char* NameOf(NameKind kind) {
  switch (kind) {
    case NameKind::kModule:
      return "module";
    case NameKind::kParam:
      return "parameter";
    case NameKind::kHostTensor:
      break;
  }
  return "buffer";  // The host's word for it.
}

// Returns "module 'layer1'" or "the root module".
std::string Describe(const Model& model, ModuleId module) {
  if (module == kRootModule) return "the root module";
  return StrCat("module ", QuoteName(model.ModuleFqn(module)));
}

Status CheckShape(const std::vector<int64_t>& shape, ElementType type,
                  int64_t* numel) {
  if (shape.size() > static_cast<size_t>(kMaxDims)) {
    return InvalidArgument("the shape has ", shape.size(),
                           " dimensions; at most ", kMaxDims, " are allowed");
  }
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) {
      return InvalidArgument("shape ", FormatList(shape),
                             " has the negative dimension ", size);
    }
    empty = empty || size == 0;
  }
  *numel = empty ? 0 : 1;
  int64_t bytes = empty ? 0 : static_cast<int64_t>(ElementSize(type));
  for (const int64_t size : shape) {
    if (empty) break;
    if (__builtin_mul_overflow(bytes, size, &bytes)) {
      return InvalidArgument("shape ", FormatList(shape), " of ",
                             ElementTypeName(type),
                             " has more than 2^63-1 bytes");
    }
    *numel *= size;
  }
  return Status();
}

Status CheckHostTensorType(ElementType type) {
  const auto is_allowed = [](ElementType each) {
    return IsElementType(static_cast<int32_t>(each)) && !IsQuantized(each) &&
           each != ElementType::kOpaque;
  };
  if (is_allowed(type)) return Status();
  std::string known;
  for (const ElementTypeInfo& info : kElementTypes) {
    if (!is_allowed(info.type)) continue;
    StrAppend(&known, known.empty() ? "" : ", ",
              static_cast<int32_t>(info.type), " (", info.name, ")");
  }
  return InvalidArgument("unknown dtype ", static_cast<int32_t>(type),
                         " of a buffer; known: ", known);
}

uint64_t HashOf(std::string_view name) {
  return XXH3_64bits(name.data(), name.size());
}

uint64_t HashOf(const std::vector<int64_t>& shape) {
  return XXH3_64bits(shape.data(), shape.size() * sizeof(shape[0]));
}

// Makes room for one more element, so that the next push_back allocates
// nothing: a call for which memory runs out leaves the model unchanged.
template <typename T>
void MakeRoom(std::vector<T>* elements) {
  if (elements->size() < elements->capacity()) return;
  elements->reserve(std::max<size_t>(4, 2 * elements->size()));
}

}  // namespace

Model::Model(std::string class_name) {
  Module root;
  root.parent = -1;
  root.name_hash = HashOf(root.name);
  root.class_name = std::move(class_name);
  modules_.push_back(std::move(root));
}

Status Model::CheckModule(ModuleId module) const {
  if (module >= 0 && static_cast<size_t>(module) < modules_.size()) {
    return Status();
  }
  return InvalidArgument("no module has the id ", module,
                         "; known ids are 0 to ", modules_.size() - 1);
}

Status Model::CheckParam(ParamId param) const {
  if (param >= 0 && static_cast<size_t>(param) < params_.size()) {
    return Status();
  }
  return InvalidArgument(
      "no parameter has the id ", param,
      params_.empty() ? "; the model has none"
                      : StrCat("; known ids are 0 to ", params_.size() - 1));
}

bool Model::HasName(int32_t id, ModuleId module, std::string_view name) const {
  const auto matches = [&](const auto& named) {
    return named.module == module && named.name == name;
  };
  switch (KindOf(id)) {
    case NameKind::kParam:
      return matches(references_[PositionOf(id)]);
    case NameKind::kHostTensor:
      return matches(host_tensors_[PositionOf(id)]);
    case NameKind::kModule:
      break;
  }
  const Module& child = modules_[static_cast<size_t>(-id)];
  return child.parent == module && child.name == name;
}

Status Model::CheckName(ModuleId module, std::string_view name,
                        uint64_t* hash) const {
  SHARD_RETURN_IF_ERROR(CheckModule(module));
  if (Status status = shard::CheckName("name", name, kMaxFqnBytes);
      !status.ok()) {
    return status.WithContext(StrCat("in ", Describe(*this, module)));
  }
  if (name.find('.') != std::string_view::npos) {
    return InvalidArgument("the name ", QuoteName(name), " in ",
                           Describe(*this, module),
                           " holds a '.'; add one module per path component");
  }
  const size_t path = modules_[static_cast<size_t>(module)].fqn_bytes;
  const size_t fqn = path + (path > 0 ? 1 : 0) + name.size();
  if (fqn > kMaxFqnBytes) {
    return InvalidArgument(
        "the name ", QuoteName(name), " in ", Describe(*this, module), " has ",
        fqn, " bytes with its path; at most ", kMaxFqnBytes, " are allowed");
  }
  *hash = NameIndex::HashOf(module, name);
  NameKind kind = NameKind::kModule;
  const bool taken = index_.Contains(*hash, [&](int32_t id) {
    kind = KindOf(id);
    return HasName(id, module, name);
  });
  if (taken) {
    return Status(StatusCode::kAlreadyExists,
                  StrCat(Describe(*this, module), " already has a ",
                         NameOf(kind), " named ", QuoteName(name)));
  }
  if (references_.size() >= kMaxIds || modules_.size() >= kMaxIds ||
      host_tensors_.size() >= kMaxIds) {
    return ResourceExhausted("the model is full: it has ", modules_.size(),
                             " modules, ", references_.size(),
                             " parameter names and ", host_tensors_.size(),
                             " buffers");
  }
  return Status();
}

StatusOr<ModuleId> Model::AddModule(ModuleId parent, std::string_view name,
                                    std::string_view class_name) {
  uint64_t hash = 0;
  SHARD_RETURN_IF_ERROR(CheckName(parent, name, &hash));
  if (Status status = CheckClassName(class_name); !status.ok()) {
    return status.WithContext(
        StrCat("module ", QuoteName(name), " in ", Describe(*this, parent)));
  }
  const auto id = static_cast<ModuleId>(modules_.size());
  const size_t path = modules_[static_cast<size_t>(parent)].fqn_bytes;
  Module module;
  module.parent = parent;
  module.name = name;
  module.class_name = class_name;
  module.fqn_bytes = path + (path > 0 ? 1 : 0) + name.size();
  module.name_hash = HashOf(name);
  MakeRoom(&modules_);
  std::vector<ModuleId>& children =
      modules_[static_cast<size_t>(parent)].children;
  MakeRoom(&children);
  index_.MakeRoom();
  children.push_back(id);
  modules_.push_back(std::move(module));
  index_.Insert(hash, -id);
  return id;
}

void Model::AddReference(ModuleId module, std::string_view name, ParamId param,
                         uint64_t hash) {
  const auto index = static_cast<int32_t>(references_.size());
  Reference reference = {module, param, std::string(name), HashOf(name)};
  std::vector<int32_t>& of_module =
      modules_[static_cast<size_t>(module)].references;
  MakeRoom(&references_);
  MakeRoom(&of_module);
  index_.MakeRoom();
  references_.push_back(std::move(reference));
  of_module.push_back(index);
  index_.Insert(hash, EntryOfReference(static_cast<size_t>(index)));
}

StatusOr<ParamId> Model::AddParam(ModuleId module, std::string_view name,
                                  DType dtype,
                                  const std::vector<int64_t>& shape) {
  uint64_t hash = 0;
  SHARD_RETURN_IF_ERROR(CheckName(module, name, &hash));
  int64_t numel = 0;
  Status status = DTypeFromValue(static_cast<int32_t>(dtype)).status();
  if (status.ok()) status = CheckShape(shape, ElementTypeOf(dtype), &numel);
  if (!status.ok()) {
    return status.WithContext(
        StrCat("parameter ", QuoteName(name), " in ", Describe(*this, module)));
  }
  const auto id = static_cast<ParamId>(params_.size());
  Param param = {dtype, shape, numel, HashOf(shape)};
  MakeRoom(&params_);
  AddReference(module, name, id, hash);
  params_.push_back(std::move(param));
  return id;
}

StatusOr<HostTensorId> Model::AddHostTensor(ModuleId module,
                                            std::string_view name,
                                            ElementType type,
                                            const std::vector<int64_t>& shape,
                                            bool persistent) {
  uint64_t hash = 0;
  SHARD_RETURN_IF_ERROR(CheckName(module, name, &hash));
  int64_t numel = 0;
  Status status = CheckHostTensorType(type);
  if (status.ok()) status = CheckShape(shape, type, &numel);
  if (!status.ok()) {
    return status.WithContext(
        StrCat("buffer ", QuoteName(name), " in ", Describe(*this, module)));
  }
  const auto id = static_cast<HostTensorId>(host_tensors_.size());
  HostTensor tensor = {module, std::string(name), type, shape,
                       numel,  persistent};
  std::vector<HostTensorId>& of_module =
      modules_[static_cast<size_t>(module)].host_tensors;
  MakeRoom(&host_tensors_);
  MakeRoom(&of_module);
  index_.MakeRoom();
  host_tensors_.push_back(std::move(tensor));
  of_module.push_back(id);
  index_.Insert(hash, EntryOfHostTensor(static_cast<size_t>(id)));
  return id;
}

Status Model::Tie(ModuleId module, std::string_view name, ParamId param) {
  uint64_t hash = 0;
  SHARD_RETURN_IF_ERROR(CheckParam(param));
  SHARD_RETURN_IF_ERROR(CheckName(module, name, &hash));
  AddReference(module, name, param, hash);
  return Status();
}

Status Model::SetTrainable(ParamId param, bool trainable) {
  SHARD_RETURN_IF_ERROR(CheckParam(param));
  params_[static_cast<size_t>(param)].trainable = trainable;
  return Status();
}

Status Model::SetDType(ParamId param, DType dtype) {
  SHARD_RETURN_IF_ERROR(CheckParam(param));
  Param& info = params_[static_cast<size_t>(param)];
  Status status = DTypeFromValue(static_cast<int32_t>(dtype)).status();
  if (status.ok()) {
    status = CheckShape(info.shape, ElementTypeOf(dtype), &info.numel);
  }
  if (!status.ok()) {
    return status.WithContext(StrCat(
        "parameter ", QuoteName(ParamFqns()[static_cast<size_t>(param)])));
  }
  info.dtype = dtype;
  return Status();
}

StatusOr<GroupId> Model::AddParamGroup(std::string_view optimizer,
                                       std::span<const ParamId> params) {
  SHARD_RETURN_IF_ERROR(
      CheckHostArray("params", params, params_.size(), "parameters"));
  if (params.empty()) {
    return InvalidArgument("the param group ", QuoteName(optimizer),
                           " has no parameters");
  }
  if (!IsPlainText(optimizer)) {
    return InvalidArgument("the optimizer of a param group, ",
                           QuoteName(optimizer),
                           ", is not UTF-8 without control characters");
  }
  const auto name_of = [this](ParamId param) {
    return QuoteName(ParamFqns()[static_cast<size_t>(param)]);
  };
  for (const ParamId param : params) {
    SHARD_RETURN_IF_ERROR(CheckParam(param));
    const GroupId other = params_[static_cast<size_t>(param)].group;
    if (other == kDefaultGroup) continue;
    return InvalidArgument("parameter ", name_of(param), " is in param group ",
                           other, " already; a parameter has one group");
  }
  std::vector<ParamId> sorted(params.begin(), params.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    return InvalidArgument("parameter ", name_of(*twice),
                           " stands twice in the param group ",
                           QuoteName(optimizer));
  }
  const auto id = static_cast<GroupId>(groups_.size());
  groups_.push_back({std::string(optimizer)});
  for (const ParamId param : params) {
    params_[static_cast<size_t>(param)].group = id;
  }
  return id;
}

Status Model::IgnoreParam(ParamId param) {
  SHARD_RETURN_IF_ERROR(CheckParam(param));
  params_[static_cast<size_t>(param)].ignored = true;
  return Status();
}

Status Model::IgnoreModule(ModuleId module) {
  SHARD_RETURN_IF_ERROR(CheckModule(module));
  modules_[static_cast<size_t>(module)].ignored = true;
  return Status();
}

StatusOr<ParamId> Model::FindParam(std::string_view fqn) const {
  ModuleId at = kRootModule;
  for (std::string_view rest = fqn;;) {
    const size_t dot = rest.find('.');
    const std::string_view name = rest.substr(0, dot);
    const bool is_last = dot == std::string_view::npos;
    int32_t found = 0;
    index_.Contains(NameIndex::HashOf(at, name), [&](int32_t id) {
      if (!HasName(id, at, name)) return false;
      found = id;
      return true;
    });
    if (is_last && found > 0 && KindOf(found) == NameKind::kParam) {
      return references_[PositionOf(found)].param;
    }
    if (is_last || found >= 0) {
      return Status(
          StatusCode::kNotFound,
          StrCat("no parameter is named ", QuoteName(fqn), ": ",
                 Describe(*this, at), " has no ",
                 is_last ? "parameter " : "module ", QuoteName(name)));
    }
    at = -found;
    rest.remove_prefix(dot + 1);
  }
}

}  // namespace shard
