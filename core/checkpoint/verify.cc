// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/verify.h"

#include <string>
#include <utility>
#include <vector>

#include "core/base/json_writer.h"
#include "core/base/strings.h"

namespace shard {

Status VerifyStore(const FileStore& store, const ReadOptions& options) {
  std::vector<std::string> problems;
  const Status status = store.Verify(options, &problems);
  // A file that ends too early ends the reading, too.
  if (status.code() == StatusCode::kCorrupt) {
    problems.push_back(status.message());
  } else if (!status.ok()) {
    return status;
  }
  if (problems.empty()) return Status();
  std::string message = StrCat(store.describe(), ": ", problems[0]);
  if (problems.size() > 1) {
    StrAppend(&message, "; and ", problems.size() - 1, " more");
  }
  JsonWriter json;
  json.BeginObject();
  json.Field("problems", problems);
  json.EndObject();
  return Status(StatusCode::kCorrupt, std::move(message), -1, json.text());
}

}  // namespace shard
