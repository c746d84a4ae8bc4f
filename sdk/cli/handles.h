// SPDX-License-Identifier: Apache-2.0
//
// shard.h for the programs in this folder: handles that free themselves, and
// errors that are thrown.
//
// Check throws a shard_error as a Failure, which main() prints, so that
// commands handle no errors themselves. Thread contract: that of the handles in
// shard.h.

#ifndef SHARD_SDK_CLI_HANDLES_H_
#define SHARD_SDK_CLI_HANDLES_H_

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>

#include "shard/shard.h"

namespace shardctl {

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* handle) const {
    Free(handle);
  }
};

using Error = std::unique_ptr<shard_error, Freed<shard_error_free>>;
using Model = std::unique_ptr<shard_model, Freed<shard_model_free>>;
using Plan = std::unique_ptr<shard_plan, Freed<shard_plan_free>>;
using Checkpoint =
    std::unique_ptr<shard_checkpoint, Freed<shard_checkpoint_free>>;

// The exception that ends a command. The message says what was wrong and what
// to do. `detail` is shard_error_detail, or empty.
class Failure : public std::runtime_error {
 public:
  explicit Failure(const std::string& message) : Failure(3, message, "") {}
  Failure(shard_code code, const std::string& message,
          const std::string& detail)
      : std::runtime_error(message), code_(code), detail_(detail) {}

  shard_code code() const { return code_; }
  const std::string& detail() const { return detail_; }

 private:
  shard_code code_;
  std::string detail_;
};

// Throws the error as a Failure, or does nothing for NULL. Frees `error`.
inline void Check(shard_error* error) {
  if (error == nullptr) return;
  const Error owned(error);
  throw Failure(shard_error_code(error), shard_error_message(error),
                shard_error_detail(error));
}

// Returns the text that `get` writes as its last argument: TextOf(
// shard_checkpoint_tensor_key, checkpoint, tensor).
template <typename Get, typename... Arguments>
std::string TextOf(const Get& get, Arguments... arguments) {
  const char* text = nullptr;
  Check(get(arguments..., &text));
  return text;
}

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_HANDLES_H_
