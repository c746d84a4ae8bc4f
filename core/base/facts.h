// SPDX-License-Identifier: Apache-2.0
//
// Facts: a description of an object as a stream of named values, such as "dtype
// of parameter 'wte'" and "bf16". Two descriptions of the same kind list the
// same facts in the same order, so the first fact that differs tells how two
// objects differ. Describing is cheap: facts are passed on one by one, and
// nothing stores them.

#ifndef SHARD_CORE_BASE_FACTS_H_
#define SHARD_CORE_BASE_FACTS_H_

#include <functional>
#include <string>
#include <string_view>

#include "core/base/strings.h"

namespace shard {

// One named value. The views are valid during FactSink::Take only.
struct Fact {
  std::string_view subject;  // "parameter 'wte'"; empty for the whole.
  std::string_view name;     // "dtype"
  std::string_view value;    // "bf16"
  // Shown beside the value, but not compared.
  std::string_view note;
};

// Returns "dtype of parameter 'wte'".
inline std::string TitleOf(const Fact& fact) {
  return fact.subject.empty() ? std::string(fact.name)
                              : StrCat(fact.name, " of ", fact.subject);
}

class FactSink {
 public:
  virtual ~FactSink() = default;

  virtual void Take(const Fact& fact) = 0;

  // Passes on a fact whose value is anything that StrCat takes; floats keep all
  // their bits.
  template <typename T>
  void Add(std::string_view subject, std::string_view name, const T& value,
           std::string_view note = "") {
    value_.clear();
    StrAppend(&value_, value);
    Take({subject, name, value_, note});
  }

  // Passes on a text in the grammar of core/base/spec.h: its name as the fact
  // `name`, then one fact for each of its keys, such as "lr of param group 0"
  // and "0.001".
  void AddSpec(std::string_view subject, std::string_view name,
               std::string_view text);

 private:
  std::string value_;
};

// Streams a description. Every call streams the same facts.
using DescribeFacts = std::function<void(FactSink* sink)>;

}  // namespace shard

#endif  // SHARD_CORE_BASE_FACTS_H_
