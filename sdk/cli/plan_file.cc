// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/plan_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "sdk/cli/output_file.h"
#include "sdk/cli/text.h"

namespace shardctl {

namespace {

// No plan has more: a file that does is not read to its end.
constexpr uintmax_t kMostBytes = uintmax_t{1} << 30;

std::string ReadBytes(const std::string& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (!error && size > kMostBytes) {
    throw Failure(SHARD_CORRUPT,
                  "'" + Shown(path) + "' has " + std::to_string(size) +
                      " bytes; a plan has at most " +
                      std::to_string(kMostBytes),
                  "");
  }
  std::string bytes(error ? 0 : size, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (error || !file) {
    // A file that ends early leaves errno as it was.
    throw Failure("cannot read '" + Shown(path) + "': " +
                  (file.eof() ? "it became shorter while it was read"
                              : std::strerror(error ? error.value() : errno)));
  }
  return bytes;
}

// Returns the plan's JSON without its lists.
Json SummaryOf(const shard_plan* plan) {
  size_t length = 0;
  Check(shard_plan_json(plan, nullptr, 0, &length));
  std::string text(length + 1, '\0');
  Check(shard_plan_json(plan, text.data(), text.size(), &length));
  text.resize(length);
  const auto keep = [](int depth, Json::parse_event_t event, Json& key) {
    return event != Json::parse_event_t::key || depth != 1 ||
           key == "options" || key == "params_total" || key == "numel_total";
  };
  return Json::parse(text, keep);
}

int64_t FrozenElements(const shard_plan* plan) {
  shard_plan_info info = SHARD_PLAN_INFO_INIT;
  Check(shard_plan_get_info(plan, &info));
  int64_t frozen = 0;
  for (int32_t b = 0; b < info.num_buffers; ++b) {
    shard_buffer_info buffer = SHARD_BUFFER_INFO_INIT;
    Check(shard_plan_buffer_info(plan, b, &buffer));
    if (buffer.trainable == 0) frozen += buffer.full_numel;
  }
  return frozen;
}

}  // namespace

bool IsPlanFile(const std::string& path) {
  constexpr std::string_view kMagic = "SHRDPLAN";
  std::error_code error;
  // Reading a FIFO would take what is in it.
  if (!std::filesystem::is_regular_file(path, error)) return false;
  std::string start(kMagic.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  return file.read(start.data(), static_cast<std::streamsize>(start.size())) &&
         start == kMagic;
}

PlanFile ReadPlanFile(const std::string& path) {
  const std::string bytes = ReadBytes(path);
  shard_plan* decoded = nullptr;
  if (const Error error{
          shard_plan_decode(bytes.data(), bytes.size(), &decoded)}) {
    throw Failure(shard_error_code(error.get()),
                  "cannot read '" + Shown(path) +
                      "': " + shard_error_message(error.get()),
                  "");
  }
  PlanFile file;
  file.plan.reset(decoded);
  const Json summary = SummaryOf(decoded);
  file.model.class_name = TextOf(shard_plan_module_class, decoded, 0);
  file.model.params = summary["params_total"];
  file.model.elements = summary["numel_total"];
  file.model.frozen_elements = FrozenElements(decoded);
  const Json& options = summary["options"];
  file.optimizer = options["groups"][0]["optimizer"];
  file.partition = options["partition"];
  return file;
}

void WritePlanFile(const std::string& path, const shard_plan* plan) {
  size_t length = 0;
  Check(shard_plan_encode(plan, nullptr, 0, &length));
  std::string bytes(length, '\0');
  Check(shard_plan_encode(plan, bytes.data(), bytes.size(), &length));
  WriteOutput(path, bytes);
}

}  // namespace shardctl
