// SPDX-License-Identifier: Apache-2.0

#include "api/error.h"

#include <exception>
#include <string>
#include <string_view>

#include "core/base/out_of_memory.h"
#include "core/base/strings.h"

namespace shard::api {

namespace {

// The error for running out of memory. It is made when the library is loaded,
// because there is no memory for it later, in storage that is never destroyed:
// a host may still hold the error while it exits.
alignas(shard_error) unsigned char g_out_of_memory[sizeof(shard_error)];
shard_error* const g_out_of_memory_error =
    new (g_out_of_memory) shard_error{OutOfMemoryStatus()};

bool IsControl(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
}

bool IsOneLine(std::string_view text) {
  for (const char c : text) {
    if (IsControl(c)) return false;
  }
  return IsValidUtf8(text);
}

// Returns the bytes of the character at the front of `text`; 0 when there is no
// valid one.
size_t CharacterSize(std::string_view text) {
  for (size_t size = 1; size <= 4 && size <= text.size(); ++size) {
    if (IsOneLine(text.substr(0, size))) return size;
  }
  return 0;
}

// Makes a message one line of UTF-8, for messages quote texts that hosts pass
// in: other bytes are shown as \xNN.
std::string OneLine(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  while (!text.empty()) {
    const size_t size = CharacterSize(text);
    if (size > 0) {
      out.append(text.substr(0, size));
    } else {
      const auto byte = static_cast<unsigned char>(text[0]);
      StrAppend(&out, "\\x", kDigits[byte >> 4], kDigits[byte & 15]);
    }
    text.remove_prefix(size > 0 ? size : 1);
  }
  return out;
}

}  // namespace

shard_error* OutOfMemory() noexcept { return g_out_of_memory_error; }

shard_error* ToError(const Status& status) noexcept {
  if (status.ok()) return nullptr;
  try {
    if (IsOneLine(status.message())) return new shard_error{status};
    return new shard_error{Status(status.code(), OneLine(status.message()),
                                  status.rank(), status.detail())};
  } catch (...) {
    return OutOfMemory();
  }
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
