// SPDX-License-Identifier: Apache-2.0
//
// Optimizer: a formula and the values of its hyperparameters, read from text
// such as "adamw?lr=3e-4&profile=apex" (grammar: core/base/spec.h).
//
// Names, defaults and allowed ranges are in kernels/formula; no code here knows
// a particular optimizer. A hyperparameter is a number, a flag (0 or 1) or a
// choice, whose text is one of a few names and which is fixed at Parse.

#ifndef SHARD_CORE_OPTIM_OPTIMIZER_H_
#define SHARD_CORE_OPTIM_OPTIMIZER_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/flat/plan.h"
#include "kernels/formula/registry.h"

namespace shard {

class Optimizer {
 public:
  // Parses the text. "" is "adamw", or `base` where there is one, and
  // "?key=value" is `base` with other values. Errors name an unknown optimizer
  // or key and list the known ones, or name key, value and allowed range or
  // names. `unknown` is the code of errors about optimizers, keys and names of
  // choices that this library does not have, but another one may.
  static StatusOr<Optimizer> Parse(
      std::string_view text, const Optimizer* base = nullptr,
      StatusCode unknown = StatusCode::kInvalidArgument);

  Formula formula() const { return formula_; }
  // Returns the values of the hyperparameters, in the order in which the
  // formula declares them.
  const std::vector<double>& hypers() const { return hypers_; }
  // Returns the names of the states: "exp_avg", ... Each is one tensor, of the
  // parameter's shape unless tensor() says otherwise.
  const std::vector<std::string>& state_names() const { return state_names_; }
  // Returns the dtype of the states: kF32 unless the text has states=bf16 or
  // q8.
  DType state_dtype() const { return state_dtype_; }

  // Returns the properties that follow from a parameter's shape; null for
  // optimizers that step one element at a time.
  const TensorTraits* tensor() const;

  // Returns the value of a number or flag; for a choice the index of its name,
  // which may change between versions, while ToString has the name.
  StatusOr<double> Get(std::string_view key) const;

  // Returns the numbers and flags by name, for Get and Set; without choices.
  std::vector<std::pair<std::string, double>> Numbers() const;

  // Sets a number or flag. Errors leave the old value: kFailedPrecondition for
  // a change that would need other state tensors, such as momentum from 0 to
  // 0.9, and for any change of a choice.
  Status Set(std::string_view key, double value);

  // Copies the numbers and flags of another optimizer; choices stay. Errors
  // leave the old values: kFailedPrecondition for another formula, or for
  // values that would need other state tensors.
  Status RestoreNumbers(const Optimizer& other);

  // Sets all values to those of an optimizer whose text differs only in
  // numbers: as many as hypers() has.
  void SetHypers(const double* hypers) {
    hypers_.assign(hypers, hypers + hypers_.size());
  }

  // Returns every key with its value, so that equal optimizers have equal
  // texts: "sgd?lr=0.1&momentum=0&...".
  std::string ToString() const;

 private:
  Optimizer() = default;

  Formula formula_ = Formula::kAdamW;
  std::vector<double> hypers_;
  std::vector<std::string> state_names_;
  DType state_dtype_ = DType::kF32;
};

}  // namespace shard

#endif  // SHARD_CORE_OPTIM_OPTIMIZER_H_
