// SPDX-License-Identifier: Apache-2.0
//
// Spec: the one grammar in which a host names a thing and its parameters in
// text:  name[:body][?key=value[&key=value...]]
//
//   shm:job-17?timeout=30        a communicator
//   adamw?lr=3e-4&beta2=0.95     an optimizer
//
// A consumer takes the keys it knows and then calls CheckAllTaken, so that a
// misspelt key is an error that lists the known ones.

#ifndef SHARD_CORE_BASE_SPEC_H_
#define SHARD_CORE_BASE_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace shard {

class Spec {
 public:
  static StatusOr<Spec> Parse(std::string_view text);

  const std::string& name() const { return name_; }
  // Returns the text between ':' and '?'. has_colon() tells "shm" from "shm:".
  const std::string& body() const { return body_; }
  bool has_colon() const { return has_colon_; }

  // Returns the value of `key`, or `fallback` when the key is absent. The error
  // for a value that is not a number (for a flag: not 0, 1, true or false)
  // names the key and the value.
  StatusOr<double> TakeDouble(std::string_view key, double fallback);
  StatusOr<int64_t> TakeInt(std::string_view key, int64_t fallback);
  StatusOr<bool> TakeBool(std::string_view key, bool fallback);
  std::string TakeString(std::string_view key, std::string_view fallback);

  // Returns an error that names the first key that was not taken and lists the
  // keys that were asked for.
  Status CheckAllTaken() const;

 private:
  struct Entry {
    std::string key;
    std::string value;
    bool taken = false;
  };
  std::optional<std::string> Take(std::string_view key);

  std::string text_;
  std::string name_;
  std::string body_;
  bool has_colon_ = false;
  std::vector<Entry> entries_;
  std::vector<std::string> asked_;
};

// Returns the error for the value of a key that is out of its range: "dynamic:
// growth_factor=0.5 is out of range; allowed: above 1".
template <typename Number>
Status ValueOutOfRange(std::string_view name, std::string_view key,
                       Number value, std::string_view allowed) {
  return InvalidArgument(name, ": ", key, "=", value,
                         " is out of range; allowed: ", allowed);
}

}  // namespace shard

#endif  // SHARD_CORE_BASE_SPEC_H_
