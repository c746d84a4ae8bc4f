// SPDX-License-Identifier: Apache-2.0

#include "api/error.h"

#include <exception>

namespace shard::api {

namespace {

// Made when the library is loaded, so that running out of memory later needs
// none, and in storage that is never destroyed: a host may still hold it while
// it exits.
alignas(shard_error) unsigned char g_out_of_memory[sizeof(shard_error)];
shard_error* const g_out_of_memory_error = new (g_out_of_memory) shard_error{
    Status(StatusCode::kResourceExhausted,
           "out of memory: the allocator of this process gave none")};

}  // namespace

shard_error* OutOfMemory() noexcept { return g_out_of_memory_error; }

shard_error* ToError(const Status& status) noexcept {
  if (status.ok()) return nullptr;
  auto* error = new (std::nothrow) shard_error{status};
  return error != nullptr ? error : OutOfMemory();
}

shard_error* FromException() noexcept {
  try {
    try {
      throw;
    } catch (const std::exception& e) {
      return ToError(Internal("unexpected exception: ", e.what(),
                              "; please report this as a bug"));
    } catch (...) {
      return ToError(Internal("unexpected exception of unknown type"));
    }
  } catch (...) {
    return OutOfMemory();
  }
}

}  // namespace shard::api

extern "C" {

shard_code shard_error_code(const shard_error* error) noexcept {
  if (error == nullptr) return SHARD_OK;
  return static_cast<shard_code>(error->status.code());
}

const char* shard_error_message(const shard_error* error) noexcept {
  return error == nullptr ? "" : error->status.message().c_str();
}

int32_t shard_error_rank(const shard_error* error) noexcept {
  return error == nullptr ? -1 : error->status.rank();
}

const char* shard_error_detail(const shard_error* error) noexcept {
  return error == nullptr ? "" : error->status.detail().c_str();
}

void shard_error_free(shard_error* error) noexcept {
  if (error != shard::api::OutOfMemory()) delete error;
}

const char* shard_code_name(shard_code code) noexcept {
  return shard::StatusCodeName(static_cast<shard::StatusCode>(code));
}

}  // extern "C"
