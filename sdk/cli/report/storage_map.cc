// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/report/storage_map.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

namespace shardctl {

namespace {

// Role and type; types are ordered by their numbers, opaque ones by their
// names.
using KindKey = std::tuple<int32_t, int32_t, std::string>;

KindKey KeyOf(const TensorView& tensor) {
  return {tensor.info.role, tensor.info.dtype, tensor.type};
}

std::vector<Stripe> StripesOf(const CheckpointView& view,
                              const TensorView& tensor) {
  std::vector<Stripe> stripes;
  for (int32_t s = 0; s < tensor.info.num_slices; ++s) {
    const shard_tensor_slice slice =
        SliceOf(view.handle.get(), tensor.index, s);
    const auto file = static_cast<size_t>(slice.file);
    // Long slices are cut, within one file too.
    if (!stripes.empty() && stripes.back().last == file) {
      stripes.back().numel += slice.numel;
    } else {
      stripes.push_back({file, file, slice.numel});
    }
  }
  return Summarized(stripes);
}

}  // namespace

std::vector<Stripe> Summarized(const std::vector<Stripe>& stripes) {
  const size_t together = (stripes.size() + kMostStripes - 1) / kMostStripes;
  if (together <= 1) return stripes;
  std::vector<Stripe> fewer;
  for (size_t s = 0; s < stripes.size(); ++s) {
    if (s % together == 0) {
      fewer.push_back(stripes[s]);
      continue;
    }
    Stripe& last = fewer.back();
    last.first = std::min(last.first, stripes[s].first);
    last.last = std::max(last.last, stripes[s].last);
    last.numel += stripes[s].numel;
  }
  return fewer;
}

StorageMap BuildStorageMap(const CheckpointView& view) {
  StorageMap storage;
  std::map<KindKey, Kind> kinds;
  for (const TensorView& tensor : view.tensors) {
    if (tensor.is_alias()) continue;
    const shard_tensor_info& info = tensor.info;
    Kind& kind = kinds[KeyOf(tensor)];
    kind.role = info.role;
    kind.type = tensor.type;
    ++kind.tensors;
    AddNumel(tensor, &kind.numel);
    kind.bytes += info.bytes;
  }
  std::map<KindKey, size_t> numbers;
  for (const auto& [key, kind] : kinds) {
    numbers[key] = storage.kinds.size();
    storage.kinds.push_back(kind);
  }

  const size_t files = view.files.size();
  storage.files_per_row =
      std::max<size_t>(1, (files + kMostRows - 1) / kMostRows);
  for (size_t f = 0; f < files; ++f) {
    if (f % storage.files_per_row == 0) {
      FileRow row;
      row.first = f;
      row.by_kind.resize(storage.kinds.size());
      storage.rows.push_back(std::move(row));
    }
    storage.rows.back().last = f;
    storage.rows.back().file_bytes += view.files[f].bytes;
  }
  std::vector<uint64_t> by_file(files);
  for (const TensorView& tensor : view.tensors) {
    if (tensor.is_alias()) continue;
    const size_t kind = numbers[KeyOf(tensor)];
    for (int32_t s = 0; s < tensor.info.num_slices; ++s) {
      const shard_tensor_slice slice =
          SliceOf(view.handle.get(), tensor.index, s);
      const auto file = static_cast<size_t>(slice.file);
      FileRow& row = storage.rows[file / storage.files_per_row];
      row.by_kind[kind] += slice.bytes;
      row.tensor_bytes += slice.bytes;
      by_file[file] += slice.bytes;
    }
  }
  if (files > 0) {
    storage.max_bytes = *std::max_element(by_file.begin(), by_file.end());
    storage.mean_bytes = static_cast<double>(std::accumulate(
                             by_file.begin(), by_file.end(), uint64_t{0})) /
                         static_cast<double>(files);
  }

  std::vector<size_t> order;
  for (size_t t = 0; t < view.tensors.size(); ++t) {
    if (!view.tensors[t].is_alias()) order.push_back(t);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return view.tensors[a].info.bytes > view.tensors[b].info.bytes;
  });
  order.resize(std::min(order.size(), kMostTensors));
  for (const size_t t : order) {
    storage.largest.push_back({t, StripesOf(view, view.tensors[t])});
  }
  return storage;
}

}  // namespace shardctl
