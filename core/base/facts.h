// SPDX-License-Identifier: Apache-2.0
//
// Facts: a description of something as a stream of named values, such as "dtype
// of parameter 'wte'" and "bf16". Two descriptions of one kind list the same
// facts in the same order, so that the first fact in which they differ says
// what differs. Describing is cheap: facts are passed on one by one, and
// nothing keeps them.

#ifndef SHARD_CORE_BASE_FACTS_H_
#define SHARD_CORE_BASE_FACTS_H_

#include <functional>
#include <string>
#include <string_view>

#include "core/base/strings.h"

namespace shard {

// The views are valid during FactSink::Take only.
struct Fact {
  std::string_view subject;  // "parameter 'wte'"; empty: the whole.
  std::string_view name;     // "dtype"
  std::string_view value;    // "bf16"
  // Shown beside the value, and not compared.
  std::string_view note;
};

// "dtype of parameter 'wte'"
inline std::string TitleOf(const Fact& fact) {
  return fact.subject.empty() ? std::string(fact.name)
                              : StrCat(fact.name, " of ", fact.subject);
}

class FactSink {
 public:
  virtual ~FactSink() = default;

  virtual void Take(const Fact& fact) = 0;

  // A value that StrCat takes; floats keep all their bits.
  template <typename T>
  void Add(std::string_view subject, std::string_view name, const T& value,
           std::string_view note = "") {
    value_.clear();
    StrAppend(&value_, value);
    Take({subject, name, value_, note});
  }

  // A text in the grammar of core/base/spec.h: its name as `name`, then each of
  // its keys: "lr of param group 0" and "0.001".
  void AddSpec(std::string_view subject, std::string_view name,
               std::string_view text);

 private:
  std::string value_;
};

// Streams a description. Called several times, it streams the same facts.
using DescribeFacts = std::function<void(FactSink* sink)>;

}  // namespace shard

#endif  // SHARD_CORE_BASE_FACTS_H_
