// SPDX-License-Identifier: Apache-2.0
//
// Agreements, built on AllGather alone so that every backend has them.

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"

namespace shard {

namespace {

// Longer texts are cut: W of them are gathered on every rank.
constexpr size_t kMaxText = size_t{64} << 10;

template <typename T>
StatusOr<std::vector<T>> GatherValues(Communicator* comm, std::string_view what,
                                      const T& mine, const Deadline& deadline) {
  std::vector<T> all(static_cast<size_t>(comm->world_size()));
  SHARD_RETURN_IF_ERROR(
      comm->AllGather(what, &mine, sizeof(T), all.data(), deadline));
  return all;
}

// Gathers texts. COLLECTIVE. `sizes` are those of all ranks' texts.
StatusOr<std::vector<std::string>> GatherTexts(Communicator* comm,
                                               std::string_view what,
                                               std::string_view mine,
                                               const std::vector<size_t>& sizes,
                                               const Deadline& deadline) {
  const size_t width = *std::max_element(sizes.begin(), sizes.end());
  std::string send(mine);
  send.resize(width);
  std::string all(width * sizes.size(), '\0');
  SHARD_RETURN_IF_ERROR(
      comm->AllGather(what, send.data(), width, all.data(), deadline));
  std::vector<std::string> texts;
  for (size_t r = 0; r < sizes.size(); ++r) {
    texts.push_back(all.substr(r * width, sizes[r]));
  }
  return texts;
}

}  // namespace

Status AllReduceSum(Communicator* comm, std::string_view what, double* values,
                    size_t count, const Deadline& deadline) {
  const auto world_size = static_cast<size_t>(comm->world_size());
  std::vector<double> all(world_size * count);
  SHARD_RETURN_IF_ERROR(comm->AllGather(what, values, count * sizeof(double),
                                        all.data(), deadline));
  for (size_t i = 0; i < count; ++i) {
    double sum = 0;
    for (size_t r = 0; r < world_size; ++r) sum += all[r * count + i];
    values[i] = sum;
  }
  return Status();
}

Status AgreeOnStatus(Communicator* comm, std::string_view what,
                     const Status& local, const Deadline& deadline) {
  struct Entry {
    int32_t code;
    int32_t unused;
    uint64_t message_bytes;
    uint64_t detail_bytes;
  };
  const std::string_view message =
      std::string_view(local.message()).substr(0, kMaxText);
  const std::string_view detail =
      local.detail().size() <= kMaxText ? local.detail() : std::string_view();
  SHARD_ASSIGN_OR_RETURN(
      const auto all, GatherValues(comm, what,
                                   Entry{static_cast<int32_t>(local.code()), 0,
                                         message.size(), detail.size()},
                                   deadline));
  const auto failed =
      std::find_if(all.begin(), all.end(),
                   [](const Entry& entry) { return entry.code != 0; });
  if (failed == all.end()) return Status();

  std::vector<size_t> sizes;
  for (const Entry& entry : all) {
    sizes.push_back(entry.message_bytes + entry.detail_bytes);
  }
  SHARD_ASSIGN_OR_RETURN(const auto texts,
                         GatherTexts(comm, StrCat(what, ": errors"),
                                     StrCat(message, detail), sizes, deadline));
  const auto rank = static_cast<size_t>(failed - all.begin());
  return Status(
      static_cast<StatusCode>(failed->code),
      StrCat("rank ", rank, ": ", texts[rank].substr(0, failed->message_bytes)),
      static_cast<int>(rank), texts[rank].substr(failed->message_bytes));
}

}  // namespace shard
