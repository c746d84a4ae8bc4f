// SPDX-License-Identifier: Apache-2.0
//
// The parameters, flat buffers, names, modules and buffers of a plan: the
// structs of shard/plan.h and shard/layout.h, with ids and shapes for numbers.
// Each owns what it says.

#ifndef SHARD_LAYOUT_HPP_
#define SHARD_LAYOUT_HPP_

#include <cstddef>
#include <cstdint>
#include <span>

#include "shard/layout.h"
#include "shard/plan.h"
#include "shard/types.hpp"

namespace shard {

using PlanInfo = shard_plan_info;
using Memory = shard_memory;
using Range = shard_range;

// Where a parameter is, and of what kind: shard_param_info.
struct ParamInfo {
  std::int64_t begin;
  std::int64_t numel;
  Shape shape;
  DType dtype;
  bool trainable;
  GroupId group;
  UnitId unit;
  BufferId buffer;
  std::int32_t num_names;
  std::int32_t first_rank;
  std::int32_t last_rank;
};

// A flat buffer: shard_buffer_info. A frozen one has group -1 and DType{} for
// its gradients.
struct BufferInfo {
  std::int64_t full_numel;
  std::int64_t num_padded;
  std::int64_t shard_numel;
  std::int32_t num_params;
  UnitId unit;
  DType dtype;
  bool trainable;
  GroupId group;
  DType grad_dtype;
};

// The part of a parameter that is in some range of its buffer: shard_slice.
struct Slice {
  std::int64_t begin;
  std::int64_t numel;
  std::int64_t param_begin;
  ParamId param;
};

// A name of a parameter: shard_name_info.
struct NameInfo {
  ParamId param;
  ModuleId module;
  std::int32_t index;
};

// A module of the plan's model: shard_module_info. The root's parent is -1.
struct ModuleInfo {
  ModuleId module;
  ModuleId parent;
  std::int32_t depth;
  bool ignored;
  NameId first_name;
  std::int32_t num_names;
};

// A buffer of the plan's model: shard_model_buffer_info.
struct ModelBufferInfo {
  std::int64_t numel;
  Shape shape;
  DType dtype;
  ModuleId module;
  bool persistent;
};

namespace detail {

inline Shape shape_of(const std::int64_t* dims, std::int32_t ndim) {
  return Shape(
      std::span<const std::int64_t>(dims, static_cast<std::size_t>(ndim)));
}

inline ParamInfo from_c(const shard_param_info& c) {
  return {
      .begin = c.begin,
      .numel = c.numel,
      .shape = shape_of(c.shape, c.ndim),
      .dtype = DType{c.dtype},
      .trainable = c.trainable != 0,
      .group = GroupId{c.group},
      .unit = UnitId{c.unit},
      .buffer = BufferId{c.buffer},
      .num_names = c.num_names,
      .first_rank = c.first_rank,
      .last_rank = c.last_rank,
  };
}

inline BufferInfo from_c(const shard_buffer_info& c) {
  return {
      .full_numel = c.full_numel,
      .num_padded = c.num_padded,
      .shard_numel = c.shard_numel,
      .num_params = c.num_params,
      .unit = UnitId{c.unit},
      .dtype = DType{c.dtype},
      .trainable = c.trainable != 0,
      .group = GroupId{c.group},
      .grad_dtype = DType{c.grad_dtype},
  };
}

inline Slice from_c(const shard_slice& c) {
  return {
      .begin = c.begin,
      .numel = c.numel,
      .param_begin = c.param_begin,
      .param = ParamId{c.param},
  };
}

inline NameInfo from_c(const shard_name_info& c) {
  return {
      .param = ParamId{c.param},
      .module = ModuleId{c.module},
      .index = c.index,
  };
}

inline ModuleInfo from_c(const shard_module_info& c) {
  return {
      .module = ModuleId{c.module},
      .parent = ModuleId{c.parent},
      .depth = c.depth,
      .ignored = c.ignored != 0,
      .first_name = NameId{c.first_name},
      .num_names = c.num_names,
  };
}

inline ModelBufferInfo from_c(const shard_model_buffer_info& c) {
  return {
      .numel = c.numel,
      .shape = shape_of(c.shape, c.ndim),
      .dtype = DType{c.dtype},
      .module = ModuleId{c.module},
      .persistent = c.persistent != 0,
  };
}

}  // namespace detail
}  // namespace shard

#endif  // SHARD_LAYOUT_HPP_
