// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/model_description.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "sdk/cli/dtypes.h"
#include "sdk/cli/text.h"

namespace shardctl {

namespace {

// The most modules, parameters and buffers of a description: with counts within
// counts a short one could ask for more memory than there is.
constexpr int64_t kMaxThings = 10'000'000;
constexpr int kMaxDepth = 100;

std::string Join(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

// Returns the names of the modules around a tensor, and its own.
std::vector<std::string> NamesOf(const std::string& fqn) {
  std::vector<std::string> names(1);
  for (const char c : fqn) {
    if (c == '.') {
      names.emplace_back();
    } else {
      names.back() += c;
    }
  }
  return names;
}

bool IsNumber(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return c >= '0' && c <= '9';
  });
}

class JsonReader {
 public:
  explicit JsonReader(const Json& root)
      : root_(root), builder_(TextOr(root, "", "class", "")) {}

  ModelDescription Read() {
    if (Things(root_, 0) > kMaxThings) {
      Wrong("", "has more than " + std::to_string(kMaxThings) +
                    " modules, parameters and buffers");
    }
    Module(root_, "", 0, 0);
    ForEach(root_, "", "ties", [&](const Json& tie, const std::string& at) {
      OnlyKeys(tie, at, {"name", "param"});
      builder_.Tie(TextOf(tie, at, "name"), TextOf(tie, at, "param"));
    });
    ForEach(root_, "", "groups", [&](const Json& group, const std::string& at) {
      OnlyKeys(group, at, {"optimizer", "match"});
      std::vector<std::string> globs;
      ForEach(group, at, "match", [&](const Json& glob, const std::string& to) {
        if (!glob.is_string()) Wrong(to, "is no text");
        globs.push_back(glob.get<std::string>());
      });
      builder_.AddGroup(TextOf(group, at, "optimizer"), globs);
    });
    return builder_.Finish();
  }

 private:
  [[noreturn]] static void Wrong(const std::string& at,
                                 const std::string& what) {
    throw Failure("model description: " + (at.empty() ? "the root" : at) + " " +
                  what);
  }

  static void OnlyKeys(const Json& json, const std::string& at,
                       std::initializer_list<std::string_view> keys) {
    if (!json.is_object()) Wrong(at, "is no object");
    for (const auto& [key, value] : json.items()) {
      if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
      std::string known;
      for (const std::string_view name : keys) {
        known += (known.empty() ? "" : ", ") + std::string(name);
      }
      Wrong(at, "has the unknown key '" + key + "'; known: " + known);
    }
  }

  static std::string TextOr(const Json& json, const std::string& at,
                            const char* key, const char* otherwise) {
    if (!json.is_object() || !json.contains(key)) return otherwise;
    if (!json[key].is_string())
      Wrong(at, std::string("has a ") + key + " that is no text");
    return json[key].get<std::string>();
  }

  static std::string TextOf(const Json& json, const std::string& at,
                            const char* key) {
    if (!json.contains(key)) Wrong(at, std::string("has no ") + key);
    return TextOr(json, at, key, "");
  }

  template <typename Visit>
  static void ForEach(const Json& json, const std::string& at, const char* key,
                      const Visit& visit) {
    if (!json.contains(key)) return;
    const std::string list = Join(at, key);
    if (!json[key].is_array()) Wrong(list, "is no list");
    for (size_t i = 0; i < json[key].size(); ++i) {
      visit(json[key][i], list + "[" + std::to_string(i) + "]");
    }
  }

  // Returns the number of modules, parameters and buffers at or below a module,
  // or more than kMaxThings. Wrong values count as little: Module reports them.
  static int64_t Things(const Json& json, int depth) {
    if (!json.is_object() || depth > kMaxDepth) return 0;
    int64_t things = 1;
    for (const char* key : {"params", "buffers"}) {
      if (json.contains(key)) things += static_cast<int64_t>(json[key].size());
    }
    if (json.contains("modules") && json["modules"].is_array()) {
      for (const Json& child : json["modules"]) {
        things = std::min(things + Things(child, depth + 1), kMaxThings + 1);
      }
    }
    int64_t count = 1;
    if (depth > 0 && json.contains("count") &&
        json["count"].is_number_integer()) {
      count = std::clamp<int64_t>(json["count"].get<int64_t>(), 0, kMaxThings);
    }
    return std::min(things * count + 1, kMaxThings + 1);
  }

  void Param(const Json& json, const std::string& at, int32_t module) {
    OnlyKeys(json, at, {"name", "shape", "dtype", "frozen"});
    builder_.AddParam(module, TextOf(json, at, "name"),
                      ParseParamDType(TextOr(json, at, "dtype", "f32")),
                      ShapeOf(json, at), FlagOr(json, at, "frozen", false));
  }

  void Buffer(const Json& json, const std::string& at, int32_t module) {
    OnlyKeys(json, at, {"name", "shape", "dtype", "persistent"});
    builder_.AddBuffer(module, TextOf(json, at, "name"),
                       ParseBufferDType(TextOr(json, at, "dtype", "f32")),
                       ShapeOf(json, at), FlagOr(json, at, "persistent", true));
  }

  static std::vector<int64_t> ShapeOf(const Json& json, const std::string& at) {
    std::vector<int64_t> shape;
    ForEach(json, at, "shape", [&](const Json& size, const std::string& to) {
      if (!size.is_number_integer()) Wrong(to, "is no whole number");
      shape.push_back(size.get<int64_t>());
    });
    return shape;
  }

  static bool FlagOr(const Json& json, const std::string& at, const char* key,
                     bool otherwise) {
    if (!json.contains(key)) return otherwise;
    if (!json[key].is_boolean()) {
      Wrong(at,
            std::string("has a ") + key + " that is neither true nor false");
    }
    return json[key].get<bool>();
  }

  void Module(const Json& json, const std::string& at, int32_t module,
              int depth) {
    if (depth > kMaxDepth) {
      Wrong(at, "is nested deeper than " + std::to_string(kMaxDepth));
    }
    if (depth == 0) {
      OnlyKeys(json, at,
               {"class", "params", "buffers", "modules", "ties", "groups"});
    } else {
      OnlyKeys(json, at,
               {"name", "class", "count", "params", "buffers", "modules"});
    }
    ForEach(json, at, "params", [&](const Json& param, const std::string& to) {
      Param(param, to, module);
    });
    ForEach(json, at, "buffers",
            [&](const Json& buffer, const std::string& to) {
              Buffer(buffer, to, module);
            });
    ForEach(json, at, "modules", [&](const Json& child, const std::string& to) {
      if (!child.is_object()) Wrong(to, "is no object");
      const std::string name = TextOf(child, to, "name");
      const std::string class_name = TextOr(child, to, "class", "");
      if (!child.contains("count")) {
        const int32_t id = builder_.AddModule(module, name, class_name);
        Module(child, to, id, depth + 1);
        return;
      }
      const Json& count = child["count"];
      if (!count.is_number_integer() || count.get<int64_t>() < 1 ||
          count.get<int64_t>() > kMaxThings) {
        Wrong(to, "has a count that is no whole number from 1 to " +
                      std::to_string(kMaxThings));
      }
      const int32_t list = builder_.AddModule(module, name, "ModuleList");
      for (int64_t i = 0; i < count.get<int64_t>(); ++i) {
        const int32_t id =
            builder_.AddModule(list, std::to_string(i), class_name);
        Module(child, to, id, depth + 1);
      }
    });
  }

  const Json& root_;
  ModelBuilder builder_;
};

}  // namespace

ModelBuilder::ModelBuilder(const std::string& class_name) {
  shard_model* model = nullptr;
  Check(shard_model_create(class_name.c_str(), &model));
  result_.model.reset(model);
  result_.class_name = class_name;
}

std::string ModelBuilder::PathOf(const Place& place) const {
  std::vector<const std::string*> names = {&place.second};
  for (int32_t at = place.first; at != 0;) {
    const Place& outer = module_places_[static_cast<size_t>(at)]->first;
    names.push_back(&outer.second);
    at = outer.first;
  }
  std::string path;
  for (size_t i = names.size(); i > 0; --i) {
    path += *names[i - 1];
    if (i > 1) path += '.';
  }
  return path;
}

template <typename Call>
void ModelBuilder::Do(const Place& place, const Call& call) const {
  try {
    Check(call());
  } catch (const Failure& failure) {
    throw Failure("'" + PathOf(place) + "': " + failure.what());
  }
}

ModelBuilder::Place ModelBuilder::NewPlace(int32_t module,
                                           const std::string& name) const {
  const size_t outer = path_bytes_[static_cast<size_t>(module)];
  const size_t bytes = outer + (outer > 0 ? 1 : 0) + name.size();
  if (bytes > kMaxPathBytes) {
    throw Failure("the name that begins with '" +
                  PathOf({module, name}).substr(0, 40) + "' is " +
                  std::to_string(bytes) + " bytes long; names have at most " +
                  std::to_string(kMaxPathBytes) + ", with their modules'");
  }
  return {module, name};
}

int32_t ModelBuilder::AddModule(int32_t parent, const std::string& name,
                                const std::string& class_name) {
  const Place place = NewPlace(parent, name);
  int32_t id = 0;
  Do(place, [&] {
    return shard_model_add_module(
        result_.model.get(), parent, name.c_str(),
        class_name.empty() ? nullptr : class_name.c_str(), &id);
  });
  const size_t outer = path_bytes_[static_cast<size_t>(parent)];
  path_bytes_.push_back(outer + (outer > 0 ? 1 : 0) + name.size());
  module_places_.push_back(&*modules_.emplace(place, id).first);
  return id;
}

void ModelBuilder::AddParam(int32_t module, const std::string& name,
                            int32_t dtype, const std::vector<int64_t>& shape,
                            bool frozen) {
  const Place place = NewPlace(module, name);
  int32_t id = 0;
  Do(place, [&] {
    return shard_model_add_param(result_.model.get(), module, name.c_str(),
                                 dtype, shape.data(), shape.size(), &id);
  });
  params_.emplace(place, id);
  int64_t elements = 1;  // The library has checked that they fit.
  for (const int64_t size : shape) elements *= size;
  ++result_.params;
  result_.elements += elements;
  if (!frozen) return;
  Do(place, [&] { return shard_model_freeze(result_.model.get(), id); });
  result_.frozen_elements += elements;
}

void ModelBuilder::AddBuffer(int32_t module, const std::string& name,
                             int32_t dtype, const std::vector<int64_t>& shape,
                             bool persistent) {
  int32_t id = 0;
  Do(NewPlace(module, name), [&] {
    return shard_model_add_buffer(result_.model.get(), module, name.c_str(),
                                  dtype, shape.data(), shape.size(),
                                  persistent ? 1 : 0, &id);
  });
}

ModelBuilder::Place ModelBuilder::PlaceOf(const std::string& fqn) {
  std::vector<std::string> names = NamesOf(fqn);
  Place place = {0, std::move(names.back())};
  names.pop_back();
  const std::string* outer = nullptr;
  for (const std::string& name : names) {
    const auto found = modules_.find({place.first, name});
    if (found != modules_.end()) {
      place.first = found->second;
    } else {
      const bool is_item = outer != nullptr && IsNumber(name);
      place.first = AddModule(place.first, name, is_item ? *outer : name);
    }
    outer = &name;
  }
  return place;
}

void ModelBuilder::AddParam(const std::string& fqn, int32_t dtype,
                            const std::vector<int64_t>& shape, bool frozen) {
  const Place place = PlaceOf(fqn);
  AddParam(place.first, place.second, dtype, shape, frozen);
}

void ModelBuilder::AddBuffer(const std::string& fqn, int32_t dtype,
                             const std::vector<int64_t>& shape) {
  const Place place = PlaceOf(fqn);
  AddBuffer(place.first, place.second, dtype, shape, true);
}

void ModelBuilder::Tie(const std::string& name, const std::string& param) {
  std::vector<std::string> names = NamesOf(param);
  Place target = {0, std::move(names.back())};
  names.pop_back();
  auto found = params_.end();
  const bool is_there =
      std::all_of(names.begin(), names.end(), [&](const std::string& each) {
        const auto inner = modules_.find({target.first, each});
        if (inner == modules_.end()) return false;
        target.first = inner->second;
        return true;
      });
  if (is_there) found = params_.find(target);
  if (found == params_.end()) {
    throw Failure("'" + name + "' is tied to '" + param +
                  "', which is no parameter");
  }
  const Place place = PlaceOf(name);
  Do(NewPlace(place.first, place.second), [&] {
    return shard_model_tie(result_.model.get(), place.first,
                           place.second.c_str(), found->second);
  });
}

void ModelBuilder::AddGroup(const std::string& optimizer,
                            const std::vector<std::string>& globs) {
  std::vector<int32_t> ids;
  for (const auto& [place, id] : params_) {
    const std::string name = PathOf(place);
    const bool matches = std::any_of(
        globs.begin(), globs.end(),
        [&](const std::string& glob) { return Matches(glob, name); });
    if (matches && grouped_.insert(id).second) ids.push_back(id);
  }
  if (ids.empty()) {
    throw Failure("model description: the group '" + optimizer +
                  "' matches no parameter that is in no other");
  }
  std::sort(ids.begin(), ids.end());
  int32_t group = 0;
  Check(shard_model_add_param_group(result_.model.get(), optimizer.c_str(),
                                    ids.data(), ids.size(), &group));
}

ModelDescription ReadModelDescription(const std::string& text) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw Failure(std::string("model description: no JSON: ") + error.what());
  }
  return JsonReader(json).Read();
}

ModelDescription ModelOfKeys(const shard_checkpoint* checkpoint) {
  shard_checkpoint_info info = SHARD_CHECKPOINT_INFO_INIT;
  Check(shard_checkpoint_get_info(checkpoint, &info));
  ModelBuilder builder("");
  int64_t left_out = 0;
  std::vector<std::pair<std::string, int64_t>> aliases;
  std::map<int64_t, std::string> keys;
  for (int64_t t = 0; t < info.num_tensors; ++t) {
    shard_tensor_info tensor = SHARD_TENSOR_INFO_INIT;
    Check(shard_checkpoint_tensor(checkpoint, t, &tensor));
    const std::string key = TextOf(shard_checkpoint_tensor_key, checkpoint, t);
    if (tensor.role == SHARD_ROLE_BUFFER && tensor.alias_of < 0 &&
        tensor.dtype != SHARD_Q8 && tensor.dtype != SHARD_OPAQUE) {
      builder.AddBuffer(key, tensor.dtype,
                        {tensor.shape, tensor.shape + tensor.ndim});
      continue;
    }
    if (tensor.role != SHARD_ROLE_PARAM || tensor.dtype > SHARD_F64) {
      ++left_out;
      continue;
    }
    if (tensor.alias_of >= 0) {
      aliases.emplace_back(key, tensor.alias_of);
      continue;
    }
    builder.AddParam(key, tensor.dtype,
                     {tensor.shape, tensor.shape + tensor.ndim},
                     tensor.trainable == 0);
    keys.emplace(t, key);
  }
  for (const auto& [key, target] : aliases) {
    if (const auto found = keys.find(target); found != keys.end()) {
      builder.Tie(key, found->second);
    }
  }
  ModelDescription result = builder.Finish();
  result.left_out = left_out;
  return result;
}

ModelDescription OpenModelDescription(const std::string& path) {
  if (path.ends_with(".json") && !path.ends_with(".safetensors.index.json")) {
    errno = 0;
    std::ifstream file(path);
    std::stringstream text;
    // Text without characters makes the stream fail, too.
    if (!file || (!(text << file.rdbuf()) && errno != 0)) {
      throw Failure("cannot read '" + path + "': " + std::strerror(errno));
    }
    return ReadModelDescription(text.str());
  }
  shard_checkpoint* checkpoint = nullptr;
  Check(shard_checkpoint_open(path.c_str(), &checkpoint));
  const Checkpoint owned(checkpoint);
  return ModelOfKeys(checkpoint);
}

}  // namespace shardctl
