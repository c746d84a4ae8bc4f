// SPDX-License-Identifier: Apache-2.0
//
// RawPlan: the contents of a plan file, for building files with any defect.
// EncodePlan never writes one.

#ifndef SHARD_TESTS_CORE_PLAN_FILE_RAW_PLAN_H_
#define SHARD_TESTS_CORE_PLAN_FILE_RAW_PLAN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/flat/plan_fields.h"
#include "core/plan_file/plan_file.h"
#include "core/plan_file/plan_generated.h"

namespace shard {

// Returns a body with a correct header in front of it.
inline std::vector<std::byte> SealPlan(std::span<const std::byte> body) {
  std::vector<std::byte> file(kFileHeaderBytes + body.size());
  WriteFileHeader(kPlanFormat, body, kPlanFileVersion, file.data());
  std::copy(body.begin(), body.end(), file.begin() + kFileHeaderBytes);
  return file;
}

struct RawPlan {
  struct Module {
    std::string name;
    uint32_t parent = 0;
    uint32_t class_name = 0;
    bool ignored = false;
    bool unit = false;
  };
  struct Param {
    std::vector<int64_t> shape;
    int32_t dtype = 1;
    uint32_t group = 0;
    int32_t owner = 0;
    bool trainable = true;
    bool ignored = false;
  };
  struct Name {
    std::string name;
    uint32_t in_module = 0;
    int32_t alias_of = -1;
  };

  struct HostTensor {
    std::string name;
    uint32_t in_module = 0;
    std::vector<int64_t> shape;
    int32_t dtype = 1;
    bool persistent = true;
  };

  uint32_t layout_version = kLayoutVersion;
  uint64_t fingerprint = 0;
  std::vector<std::string> classes = {""};
  std::vector<Module> modules = {{""}};
  std::vector<Param> params;
  std::vector<Name> names;
  std::vector<HostTensor> host_tensors;
  std::vector<std::string> optimizers = {kSgd};
  int32_t stage = 1;
  int32_t world_size = 2;
  int32_t partition = 1;
  int32_t masters = 1;
  int64_t bucket_bytes = 1 << 20;
  int64_t buffer_bytes = 1 << 20;
  int32_t param_dtype = 1;
  int32_t shard_group_size = 0;
  int32_t prefetch = 1;
  std::vector<std::string> f32_classes;
  std::string wrap;

  static constexpr const char* kSgd =
      "sgd?lr=0.001&momentum=0&dampening=0&weight_decay=0&nesterov=0&maximize="
      "0";

  void AddParam(const std::string& name, uint32_t in_module = 0) {
    params.push_back({{2, 3}});
    names.push_back({name, in_module});
  }

  std::vector<std::byte> Build() const {
    flatbuffers::FlatBufferBuilder fbb;
    const auto texts = [&fbb](const std::vector<std::string>& list) {
      std::vector<flatbuffers::Offset<flatbuffers::String>> offsets;
      for (const std::string& text : list) {
        offsets.push_back(fbb.CreateString(text));
      }
      return fbb.CreateVector(offsets);
    };
    std::vector<flatbuffers::Offset<plan_schema::Module>> module_list;
    for (const Module& m : modules) {
      module_list.push_back(
          plan_schema::CreateModule(fbb, fbb.CreateString(m.name), m.parent,
                                    m.class_name, m.ignored, m.unit));
    }
    std::vector<flatbuffers::Offset<plan_schema::Param>> param_list;
    for (const Param& p : params) {
      const auto shape = p.shape.empty() ? 0 : fbb.CreateVector(p.shape);
      param_list.push_back(plan_schema::CreateParam(
          fbb, shape, p.dtype, p.group, p.owner, p.trainable, p.ignored));
    }
    std::vector<flatbuffers::Offset<plan_schema::Name>> name_list;
    for (const Name& n : names) {
      name_list.push_back(plan_schema::CreateName(fbb, fbb.CreateString(n.name),
                                                  n.in_module, n.alias_of));
    }
    std::vector<flatbuffers::Offset<plan_schema::HostTensor>> host_list;
    for (const HostTensor& t : host_tensors) {
      const auto name = fbb.CreateString(t.name);
      const auto shape = t.shape.empty() ? 0 : fbb.CreateVector(t.shape);
      host_list.push_back(plan_schema::CreateHostTensor(
          fbb, name, t.in_module, shape, t.dtype, t.persistent));
    }
    const auto f32 = texts(f32_classes);
    const auto wrap_text = fbb.CreateString(wrap);
    const auto options = plan_schema::CreateOptions(
        fbb, stage, world_size, partition, masters, bucket_bytes, buffer_bytes,
        0, param_dtype, shard_group_size, prefetch, false, false, false, false,
        false, f32, wrap_text);
    const auto class_list = texts(classes);
    const auto m = fbb.CreateVector(module_list);
    const auto p = fbb.CreateVector(param_list);
    const auto n = fbb.CreateVector(name_list);
    const auto optimizer_list = texts(optimizers);
    const auto h = fbb.CreateVector(host_list);
    plan_schema::FinishPlanBuffer(
        fbb, plan_schema::CreatePlan(fbb, layout_version, fingerprint, options,
                                     class_list, m, p, n, optimizer_list, h));
    return SealPlan(
        std::as_bytes(std::span(fbb.GetBufferPointer(), fbb.GetSize())));
  }
};

}  // namespace shard

#endif  // SHARD_TESTS_CORE_PLAN_FILE_RAW_PLAN_H_
