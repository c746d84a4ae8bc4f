// SPDX-License-Identifier: Apache-2.0
//
// Arguments and results of the C interface: strings, elements and handles.

#ifndef SHARD_ARGUMENTS_HPP_
#define SHARD_ARGUMENTS_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "shard/base.h"
#include "shard/error.hpp"
#include "shard/types.hpp"

namespace shard {

// An argument that is text: a literal, another NUL-terminated string, or a
// std::string, which lives as long as the call.
class Text {
 public:
  Text(const char* text) noexcept : text_(text) {}
  // Throws INVALID_ARGUMENT for a string with a NUL, which would end it.
  Text(const std::string& text) : text_(text.c_str()) {
    if (text.find('\0') == std::string::npos) return;
    throw Error(Code::invalid_argument,
                "the text '" + std::string(text.c_str()) +
                    "' goes on behind a NUL, its byte " +
                    std::to_string(text.find('\0')) + "; allowed: no NUL");
  }
  Text(std::nullptr_t) = delete;

  const char* c_str() const noexcept { return text_; }

 private:
  const char* text_;
};

namespace detail {

// Returns an option that is text; an empty one is the default.
inline const char* option(const std::string& text) {
  return text.empty() ? nullptr : Text(text).c_str();
}

// Returns the text that `write` copies into a buffer, as the functions of the C
// interface do.
template <class Write>
std::string copied_text(const Write& write) {
  std::string text;
  std::size_t length = 0;
  check(write(nullptr, std::size_t{0}, &length));
  do {
    // The NUL behind the last byte may be written too.
    text.resize(length);
    check(write(text.data(), text.size() + 1, &length));
  } while (length > text.size());
  text.resize(length);
  return text;
}

// Returns the bytes that `write` copies, without a NUL.
template <class Write>
std::vector<std::byte> copied_bytes(const Write& write) {
  std::size_t length = 0;
  check(write(nullptr, std::size_t{0}, &length));
  std::vector<std::byte> bytes(length);
  check(write(bytes.data(), bytes.size(), &length));
  return bytes;
}

template <class Id>
constexpr std::int32_t raw(Id id) noexcept {
  return static_cast<std::int32_t>(id);
}

template <class Id>
std::vector<std::int32_t> raw(const std::vector<Id>& ids) {
  std::vector<std::int32_t> numbers;
  numbers.reserve(ids.size());
  for (const Id id : ids) numbers.push_back(raw(id));
  return numbers;
}

// Throws unless elements of type `stored` can be seen as T: as std::byte any
// can.
template <class T>
void require_dtype(const char* what, std::int64_t id, DType stored) {
  if constexpr (!std::is_same_v<std::remove_cv_t<T>, std::byte>) {
    if (dtype_of<T> == stored) return;
    throw Error(Code::invalid_argument,
                std::string(what) + " " + std::to_string(id) + " has type " +
                    dtype_name(stored) + ", not " + dtype_name(dtype_of<T>) +
                    "; allowed: the C++ type of " + dtype_name(stored) +
                    ", or std::byte");
  }
}

// Returns `numel` elements of type `stored` as Ts.
template <class T, class Void>
std::span<T> view(const char* what, std::int64_t id, DType stored, Void* data,
                  std::int64_t numel) {
  require_dtype<T>(what, id, stored);
  const std::size_t elements = static_cast<std::size_t>(numel);
  if constexpr (std::is_same_v<std::remove_cv_t<T>, std::byte>) {
    return {static_cast<T*>(data), elements * dtype_size(stored)};
  } else {
    return {static_cast<T*>(data), elements};
  }
}

// Deletes a handle of the C interface.
template <auto kFree>
struct Free {
  template <class T>
  void operator()(T* handle) const noexcept {
    kFree(handle);
  }
};

}  // namespace detail
}  // namespace shard

#endif  // SHARD_ARGUMENTS_HPP_
