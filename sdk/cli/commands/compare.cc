// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string_view>

#include "sdk/cli/dtypes.h"

namespace shardctl {

namespace {

// The selected tensors of one side, by all of their names.
class Side {
 public:
  Side(const CheckpointView& view, int32_t content)
      : view_(view), content_(content), paired_(view.tensors.size(), false) {
    for (const TensorView& tensor : view.tensors) {
      by_key_.emplace(tensor.key, BaseOf(tensor));
    }
  }

  bool Counts(const TensorView& tensor) const {
    if (content_ == SHARD_CONTENT_ALL) return true;
    return (tensor.info.role == SHARD_ROLE_STATE) ==
           (content_ == SHARD_CONTENT_OPTIMIZER);
  }

  static size_t BaseOf(const TensorView& tensor) {
    return static_cast<size_t>(tensor.is_alias() ? tensor.info.alias_of
                                                 : tensor.index);
  }

  // -1: none.
  int64_t Find(const std::string& key) const {
    const auto found = by_key_.find(key);
    if (found == by_key_.end() || !Counts(view_.tensors[found->second])) {
      return -1;
    }
    return static_cast<int64_t>(found->second);
  }

  void SetPaired(size_t base) { paired_[base] = true; }
  bool IsPaired(size_t base) const { return paired_[base]; }
  const std::vector<TensorView>& tensors() const { return view_.tensors; }

 private:
  const CheckpointView& view_;
  const int32_t content_;
  std::vector<bool> paired_;
  // The map is ordered because a hostile file could have keys that collide
  // under a known hash.
  std::map<std::string_view, size_t> by_key_;
};

void ListOnly(const Side& side, const Side& other,
              std::vector<std::string>* tensors,
              std::vector<std::string>* names) {
  for (const TensorView& tensor : side.tensors()) {
    if (!side.Counts(tensor) || other.Find(tensor.key) >= 0) continue;
    if (side.IsPaired(Side::BaseOf(tensor))) {
      names->push_back(tensor.key);
    } else if (!tensor.is_alias()) {
      tensors->push_back(tensor.key);
    }
  }
}

}  // namespace

Pairing PairUp(const CheckpointView& a, const CheckpointView& b,
               int32_t content) {
  Side in_a(a, content);
  Side in_b(b, content);
  Pairing pairing;
  // A tensor that is tied on one side only has several partners: each pair is
  // found from the other side, which has a tensor for each name.
  const auto pair = [&](size_t from_a, size_t from_b) {
    in_a.SetPaired(from_a);
    in_b.SetPaired(from_b);
    pairing.pairs.emplace_back(from_a, from_b);
  };
  for (const TensorView& tensor : a.tensors) {
    const size_t base = Side::BaseOf(tensor);
    if (!in_a.Counts(tensor) || in_a.IsPaired(base)) continue;
    if (const int64_t found = in_b.Find(tensor.key); found >= 0) {
      pair(base, static_cast<size_t>(found));
    }
  }
  for (const TensorView& tensor : b.tensors) {
    const size_t base = Side::BaseOf(tensor);
    if (!in_b.Counts(tensor) || in_b.IsPaired(base)) continue;
    if (const int64_t found = in_a.Find(tensor.key); found >= 0) {
      pair(static_cast<size_t>(found), base);
    }
  }
  ListOnly(in_a, in_b, &pairing.only_in_a, &pairing.names_only_in_a);
  ListOnly(in_b, in_a, &pairing.only_in_b, &pairing.names_only_in_b);
  return pairing;
}

void Difference::Add(int64_t index, double a, double b,
                     const Tolerance& tolerance) {
  if (a == b) return;
  const bool nan_a = std::isnan(a);
  const bool nan_b = std::isnan(b);
  if (nan_a && nan_b) return;
  if (!nan_a && !nan_b) {
    const double distance = std::fabs(a - b);
    const double size = std::max(std::fabs(a), std::fabs(b));
    // An infinity equals nothing but itself, whatever the tolerance.
    if (!std::isinf(distance) &&
        distance <= tolerance.absolute + tolerance.relative * size) {
      return;
    }
    max_abs = std::max(max_abs, distance);
    max_rel = std::max(max_rel, std::isinf(size) ? 1 : distance / size);
  } else {
    ++nans;
  }
  if (differing++ == 0) {
    first = index;
    first_a = a;
    first_b = b;
  }
}

bool AreComparable(const TensorView& a, const TensorView& b) {
  const int32_t from = a.info.dtype;
  const int32_t to = b.info.dtype;
  if (from == SHARD_OPAQUE && to == SHARD_OPAQUE) {
    return a.type == b.type && a.info.bytes == b.info.bytes;
  }
  if (shard_dtype_size(from) == 0 || shard_dtype_size(to) == 0) return false;
  return (from == SHARD_Q8) == (to == SHARD_Q8);
}

Difference CompareValues(const CheckpointView& a, const TensorView& in_a,
                         const CheckpointView& b, const TensorView& in_b,
                         const Tolerance& given, uint64_t done, uint64_t total,
                         Progress* progress) {
  const Tolerance tolerance =
      in_a.info.dtype == SHARD_OPAQUE ? Tolerance() : given;
  Difference difference;
  std::vector<std::byte> bytes_a;
  std::vector<std::byte> bytes_b;
  constexpr size_t kBlock = 4096;
  // Filled where bytes differ: a checkpoint may have many small tensors.
  std::vector<double> values_a;
  std::vector<double> values_b;
  const size_t size_a = in_a.stored_size();
  const size_t size_b = in_b.stored_size();
  const bool same_type = in_a.info.dtype == in_b.info.dtype;
  for (const Piece& piece : PiecesOf(a.handle.get(), in_a)) {
    ReadPiece(a.handle.get(), in_a, piece, &bytes_a);
    ReadPiece(b.handle.get(), in_b, piece, &bytes_b);
    done += bytes_a.size() + bytes_b.size();
    progress->Set(done, total);
    const auto numel = static_cast<size_t>(piece.numel);
    for (size_t at = 0; at < numel; at += kBlock) {
      const size_t count = std::min(kBlock, numel - at);
      const std::byte* const from_a = bytes_a.data() + at * size_a;
      const std::byte* const from_b = bytes_b.data() + at * size_b;
      if (same_type && std::memcmp(from_a, from_b, count * size_a) == 0) {
        continue;
      }
      values_a.resize(kBlock);
      values_b.resize(kBlock);
      ToDoubles(in_a.info.dtype, from_a, count, values_a.data());
      ToDoubles(in_b.info.dtype, from_b, count, values_b.data());
      for (size_t i = 0; i < count; ++i) {
        difference.Add(piece.begin + static_cast<int64_t>(at + i), values_a[i],
                       values_b[i], tolerance);
      }
    }
  }
  return difference;
}

}  // namespace shardctl
