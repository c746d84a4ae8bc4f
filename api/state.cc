// SPDX-License-Identifier: Apache-2.0
//
// State dicts.

#include <cstddef>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "api/collective.h"
#include "api/error.h"
#include "api/handles.h"
#include "api/options.h"
#include "api/state_options.h"
#include "api/tensor_info.h"
#include "api/text.h"
#include "core/base/element_type.h"
#include "core/engine/engine.h"
#include "core/state/memory_store.h"

namespace {

using shard::FailedPrecondition;
using shard::InvalidArgument;
using shard::LoadOptions;
using shard::LoadReport;
using shard::MemoryStore;
using shard::StateOptions;
using shard::Status;
using shard::StatusOr;
using shard::TensorInfo;
using shard::TensorRole;
using shard::api::CommOf;
using shard::api::Guard;
using shard::api::GuardCollective;
using shard::api::GuardTraining;
using shard::api::ToTensorInfo;

struct ReadState {
  StateOptions state;
  double timeout = 0;
  bool copy = false;
};

StatusOr<ReadState> ReadStateDictOptions(
    const shard::Plan& plan, const shard_state_dict_options* given) {
  shard_state_dict_options read;
  SHARD_RETURN_IF_ERROR(
      shard::api::ReadOptions("shard_state_dict_options", given, &read));
  SHARD_RETURN_IF_ERROR(
      shard::api::CheckReserved("shard_state_dict_options", read.reserved));
  ReadState options;
  SHARD_RETURN_IF_ERROR(
      shard::api::ReadStateFilter(plan, read.filter, &options.state));
  SHARD_ASSIGN_OR_RETURN(options.copy, shard::api::ReadFlag("copy", read.copy));
  options.timeout = read.timeout;
  return options;
}

Status CheckTensor(const shard_state_dict* state, int64_t tensor) {
  SHARD_API_REQUIRE(state);
  const size_t count = state->store.num_tensors();
  if (tensor >= 0 && static_cast<uint64_t>(tensor) < count) return Status();
  return InvalidArgument("tensor ", tensor,
                         " does not exist; the state dict has ", count);
}

// Returns where the elements of a tensor lie.
shard::DeviceId DeviceOf(const shard_state_dict& state, size_t tensor) {
  if (state.store.part(tensor).numel == 0) return {};
  switch (state.store.tensor(tensor).role) {
    case TensorRole::kParam:
      return state.param_device;
    case TensorRole::kState:
      return state.state_device;
    case TensorRole::kBuffer:
      return {};
  }
  return {};
}

// Copies the engine's tensors, so that later steps do not change them.
Status CopyParts(MemoryStore* from, shard_state_dict* to) {
  for (size_t t = 0; t < from->num_tensors(); ++t) {
    const TensorInfo info = from->tensor(t);
    MemoryStore::Part part = from->part(t);
    if (part.numel > 0) {
      SHARD_ASSIGN_OR_RETURN(std::vector<std::byte> copy, from->CopyPart(t));
      to->copies.push_back(std::move(copy));
      part.data = to->copies.back().data();
    }
    MemoryStore::Tensor tensor;
    tensor.key = info.key;
    tensor.type = info.type;
    tensor.role = info.role;
    tensor.shape.assign(info.shape.begin(), info.shape.end());
    tensor.alias_of = info.alias_of;
    tensor.codebook = info.codebook;
    SHARD_RETURN_IF_ERROR(to->store.AddPart(std::move(tensor), part));
  }
  for (const auto& [key, value] : from->numbers()) {
    SHARD_RETURN_IF_ERROR(to->store.AddNumber(key, value));
  }
  return Status();
}

}  // namespace

extern "C" {

shard_error* shard_state_dict_get(shard_engine* engine,
                                  const shard_state_dict_options* options,
                                  shard_state_dict** state) noexcept {
  if (state != nullptr) *state = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    SHARD_API_REQUIRE(state);
    SHARD_ASSIGN_OR_RETURN(
        const ReadState read,
        ReadStateDictOptions(engine->engine->plan(), options));
    auto made = std::make_unique<shard_state_dict>();
    made->of_engine = true;
    MemoryStore parts;
    SHARD_RETURN_IF_ERROR(engine->engine->AddLocalState(
        read.state, read.copy ? &parts : &made->store));
    if (read.copy) {
      SHARD_RETURN_IF_ERROR(CopyParts(&parts, made.get()));
    } else {
      made->param_device = engine->engine->DeviceOf(TensorRole::kParam);
      made->state_device = engine->engine->DeviceOf(TensorRole::kState);
    }
    *state = made.release();
    return Status();
  });
}

int64_t shard_state_dict_num_tensors(const shard_state_dict* state) noexcept {
  return state == nullptr ? 0
                          : static_cast<int64_t>(state->store.num_tensors());
}

shard_error* shard_state_dict_tensor(const shard_state_dict* state,
                                     int64_t tensor,
                                     shard_tensor_info* info) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(info);
    SHARD_RETURN_IF_ERROR(shard::api::ClearResult("shard_tensor_info", info));
    SHARD_RETURN_IF_ERROR(CheckTensor(state, tensor));
    shard::api::WriteResult(
        ToTensorInfo(state->store.tensor(static_cast<size_t>(tensor))), info);
    return Status();
  });
}

shard_error* shard_state_dict_tensor_key(const shard_state_dict* state,
                                         int64_t tensor, char* buffer,
                                         size_t capacity,
                                         size_t* length) noexcept {
  if (length != nullptr) *length = 0;
  return Guard([&]() -> Status {
    SHARD_RETURN_IF_ERROR(CheckTensor(state, tensor));
    return shard::api::CopyText(
        state->store.tensor(static_cast<size_t>(tensor)).key, buffer, capacity,
        length);
  });
}

shard_error* shard_state_dict_local(const shard_state_dict* state,
                                    int64_t tensor, int64_t* begin,
                                    int64_t* numel,
                                    const void** data) noexcept {
  if (begin != nullptr) *begin = 0;
  if (numel != nullptr) *numel = 0;
  if (data != nullptr) *data = nullptr;
  return Guard([&]() -> Status {
    SHARD_RETURN_IF_ERROR(CheckTensor(state, tensor));
    const MemoryStore::Part& part =
        state->store.part(static_cast<size_t>(tensor));
    if (begin != nullptr) *begin = part.begin;
    if (numel != nullptr) *numel = part.numel;
    if (data != nullptr && part.numel > 0) *data = part.data;
    return Status();
  });
}

shard_error* shard_state_dict_device(const shard_state_dict* state,
                                     int64_t tensor, shard_device_kind* kind,
                                     int32_t* ordinal) noexcept {
  if (kind != nullptr) *kind = 0;
  if (ordinal != nullptr) *ordinal = 0;
  return Guard([&]() -> Status {
    SHARD_RETURN_IF_ERROR(CheckTensor(state, tensor));
    SHARD_API_REQUIRE(kind);
    const shard::DeviceId device =
        DeviceOf(*state, static_cast<size_t>(tensor));
    *kind = static_cast<shard_device_kind>(device.kind);
    if (ordinal != nullptr) *ordinal = device.ordinal;
    return Status();
  });
}

shard_error* shard_state_dict_find(const shard_state_dict* state,
                                   const char* key, int64_t* tensor) noexcept {
  if (tensor != nullptr) *tensor = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(state);
    SHARD_API_REQUIRE(key);
    SHARD_API_REQUIRE(tensor);
    const int64_t found = state->store.Find(key);
    if (found < 0) {
      return shard::NotFound("the state dict has no tensor '", key, "'");
    }
    *tensor = found;
    return Status();
  });
}

int64_t shard_state_dict_num_numbers(const shard_state_dict* state) noexcept {
  return state == nullptr ? 0
                          : static_cast<int64_t>(state->store.numbers().size());
}

shard_error* shard_state_dict_number(const shard_state_dict* state,
                                     int64_t number, double* value,
                                     char* buffer, size_t capacity,
                                     size_t* length) noexcept {
  if (value != nullptr) *value = 0;
  if (length != nullptr) *length = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(state);
    const auto& numbers = state->store.numbers();
    if (number < 0 || static_cast<uint64_t>(number) >= numbers.size()) {
      return InvalidArgument("number ", number,
                             " does not exist; the state dict has ",
                             numbers.size());
    }
    const auto at = std::next(numbers.begin(), number);
    if (value != nullptr) *value = at->second;
    return shard::api::CopyText(at->first, buffer, capacity, length);
  });
}

shard_error* shard_state_dict_gather(shard_engine* engine,
                                     const shard_state_dict_options* options,
                                     int32_t rank, shard_tensor_fn take,
                                     void* user_data) noexcept {
  return GuardCollective(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    double timeout = 0;
    const auto read = [&]() -> StatusOr<StateOptions> {
      SHARD_ASSIGN_OR_RETURN(
          const ReadState ready,
          ReadStateDictOptions(engine->engine->plan(), options));
      timeout = ready.timeout;
      if (rank < 0 || rank == engine->engine->comm()->rank()) {
        SHARD_API_REQUIRE(take);
      }
      return ready.state;
    };
    const StatusOr<StateOptions> ready = read();
    return engine->engine->GatherState(
        ready, rank, timeout,
        [&](const shard::StateEntry& entry, const std::byte* data) -> Status {
          TensorInfo tensor;
          tensor.type = entry.type;
          tensor.role = entry.role;
          tensor.shape = entry.shape;
          tensor.numel = entry.numel;
          tensor.alias_of = entry.alias_of;
          const shard_tensor_info info = ToTensorInfo(tensor);
          if (take(entry.key.c_str(), &info, data, user_data) == 0) {
            return Status();
          }
          return shard::Cancelled("cancelled by the host at tensor '",
                                  entry.key, "'");
        });
  });
}

shard_error* shard_state_dict_create(shard_state_dict** state) noexcept {
  if (state != nullptr) *state = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(state);
    *state = new shard_state_dict;
    return Status();
  });
}

shard_error* shard_state_dict_add(shard_state_dict* state, const char* key,
                                  int32_t dtype, const int64_t* shape,
                                  size_t ndim, const void* data,
                                  size_t bytes) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(state);
    SHARD_API_REQUIRE(key);
    if (ndim > SHARD_MAX_DIMS) {
      return InvalidArgument("'", key, "' has ", ndim,
                             " dimensions; allowed: 0 to ", SHARD_MAX_DIMS);
    }
    if (ndim > 0) SHARD_API_REQUIRE(shape);
    if (bytes > 0) SHARD_API_REQUIRE(data);
    if (state->of_engine) {
      return FailedPrecondition(
          "a state dict of shard_state_dict_get takes no tensors; add them to "
          "one of shard_state_dict_create");
    }
    MemoryStore::Tensor tensor;
    tensor.key = key;
    tensor.type = static_cast<shard::ElementType>(dtype);
    if (tensor.key.starts_with(shard::kStatePrefix)) {
      tensor.role = shard::TensorRole::kState;
    }
    if (shard::IsQuantized(tensor.type)) tensor.codebook = -1;
    if (ndim > 0) tensor.shape.assign(shape, shape + ndim);
    return state->store.Add(std::move(tensor), data, bytes);
  });
}

shard_error* shard_state_dict_add_number(shard_state_dict* state,
                                         const char* key,
                                         double value) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(state);
    SHARD_API_REQUIRE(key);
    return state->store.AddNumber(key, value);
  });
}

shard_error* shard_state_dict_load(shard_engine* engine,
                                   const shard_state_dict* state,
                                   const shard_load_options* options,
                                   int32_t from_rank0,
                                   shard_load_report* report) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    shard::api::ClearWithoutHandle(CommOf(engine), "shard_load_report", report);
    SHARD_API_REQUIRE_HANDLE(engine);
    const auto read = [&]() -> StatusOr<LoadOptions> {
      SHARD_ASSIGN_OR_RETURN(
          LoadOptions ready,
          shard::api::ReadLoadOptions(engine->engine->plan(), options, report));
      SHARD_ASSIGN_OR_RETURN(ready.from_rank0,
                             shard::api::ReadFlag("from_rank0", from_rank0));
      if (!ready.from_rank0 || engine->engine->comm()->rank() == 0) {
        SHARD_API_REQUIRE(state);
      }
      return ready;
    };
    LoadReport loaded;
    SHARD_RETURN_IF_ERROR(engine->engine->LoadState(
        state == nullptr ? nullptr : &state->store, read(), &loaded));
    engine->last_load_report_json = loaded.match.ToJson();
    shard::api::WriteLoadReport(loaded, report);
    return Status();
  });
}

void shard_state_dict_free(shard_state_dict* state) noexcept { delete state; }

}  // extern "C"
