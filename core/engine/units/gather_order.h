// SPDX-License-Identifier: Apache-2.0
//
// GatherOrder: the order in which a host acquires units, recorded since the
// last step, from which follows what to gather ahead. An acquire out of that
// order starts a new record. The order depends on the calls alone, so ranks
// that make the same calls prefetch the same units.
//
// Pure bookkeeping. Thread-compatible.

#ifndef SHARD_CORE_ENGINE_UNITS_GATHER_ORDER_H_
#define SHARD_CORE_ENGINE_UNITS_GATHER_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace shard {

class GatherOrder {
 public:
  // `units`: how many there are. `prefetch`: how many to gather ahead.
  GatherOrder(size_t units, int32_t prefetch)
      : units_(units), prefetch_(static_cast<size_t>(prefetch)) {}

  // Records that the host acquires `unit`.
  void Record(int32_t unit);
  // Returns the units that it is expected to acquire next, which may name one
  // several times; none before a whole step was recorded. Valid until the next
  // call.
  std::span<const int32_t> Next() const;
  // Begins at the first unit again, after a step.
  void FinishStep();
  // Forgets the order.
  void Forget();

 private:
  const size_t units_;
  const size_t prefetch_;
  std::vector<int32_t> order_;
  size_t position_ = 0;  // Of the next acquire in order_.
  bool recording_ = true;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_UNITS_GATHER_ORDER_H_
