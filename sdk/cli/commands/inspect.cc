// SPDX-License-Identifier: Apache-2.0
//
// `shardctl inspect`: lists the contents of a checkpoint, or those of a tensor.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sdk/cli/checkpoint.h"
#include "sdk/cli/command.h"
#include "sdk/cli/dtypes.h"
#include "sdk/cli/progress.h"
#include "sdk/cli/table.h"
#include "sdk/cli/text.h"

namespace shardctl {

namespace {

constexpr const char* kInspectHelp =
    R"(
--match takes shell patterns, in which * is any text, dots too; several: those
that match one. --tensor reads the whole tensor.

Examples:
  shardctl inspect ckpt --role param --match 'h.*.weight' --sort bytes
  shardctl inspect ckpt --tensor state.wte.weight.exp_avg
  shardctl inspect model.safetensors --json | jq .tensors[].key)";

struct InspectArguments {
  std::string path;
  std::string tensor;
  std::string role;
  std::vector<std::string> match;
  std::string sort = "file";
  bool json = false;
};

Json OrNull(int64_t value) { return value < 0 ? Json() : Json(value); }

Json TensorJson(const CheckpointView& view, const TensorView& tensor) {
  const shard_tensor_info& info = tensor.info;
  return {{"key", tensor.key},
          {"role", RoleText(info.role)},
          {"dtype", tensor.type},
          {"shape", ShapeJson(info)},
          {"numel", info.numel},
          {"bytes", info.bytes},
          {"alias_of",
           tensor.is_alias()
               ? Json(view.tensors[static_cast<size_t>(info.alias_of)].key)
               : Json()},
          {"trainable",
           info.role == SHARD_ROLE_PARAM ? Json(info.trainable != 0) : Json()},
          {"group", OrNull(info.group)},
          {"step", OrNull(info.step)},
          {"slices", info.num_slices}};
}

std::vector<const TensorView*> Chosen(const CheckpointView& view,
                                      const InspectArguments& arguments) {
  std::vector<const TensorView*> chosen;
  for (const TensorView& tensor : view.tensors) {
    if (!arguments.role.empty() &&
        RoleText(tensor.info.role) != arguments.role) {
      continue;
    }
    const auto& globs = arguments.match;
    if (globs.empty() ||
        std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) {
          return Matches(glob, tensor.key);
        })) {
      chosen.push_back(&tensor);
    }
  }
  if (arguments.sort == "key") {
    std::stable_sort(chosen.begin(), chosen.end(),
                     [](auto* a, auto* b) { return a->key < b->key; });
  } else if (arguments.sort == "bytes") {
    std::stable_sort(chosen.begin(), chosen.end(), [](auto* a, auto* b) {
      return a->info.bytes > b->info.bytes;
    });
  }
  return chosen;
}

struct Totals {
  int64_t tensors = 0;
  int64_t aliases = 0;
  int64_t numel = 0;
  uint64_t bytes = 0;

  void Add(const TensorView& tensor) {
    if (tensor.is_alias()) {
      ++aliases;
      return;
    }
    ++tensors;
    AddNumel(tensor, &numel);
    bytes += tensor.info.bytes;
  }
  Json ToJson() const {
    return {{"tensors", tensors},
            {"aliases", aliases},
            {"numel", numel},
            {"bytes", bytes}};
  }
};

Json InspectJson(const CheckpointView& view,
                 const std::vector<const TensorView*>& chosen) {
  Json json = SummaryJson(view);
  json["files"] = Json::array();
  for (const FileView& file : view.files) {
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}});
  }
  json["groups"] = view.groups;
  json["scalars"] = Json::object();
  for (const ScalarView& scalar : view.scalars) {
    json["scalars"][scalar.name] = scalar.value;
  }
  json["blobs"] = Json::array();
  for (const BlobView& blob : view.blobs) {
    json["blobs"].push_back({{"name", blob.name},
                             {"rule", BlobRuleText(blob.rule)},
                             {"rank", blob.rank},
                             {"bytes", blob.bytes}});
  }
  Totals totals;
  json["tensors"] = Json::array();
  for (const TensorView* const tensor : chosen) {
    totals.Add(*tensor);
    json["tensors"].push_back(TensorJson(view, *tensor));
  }
  json["totals"] = totals.ToJson();
  return json;
}

std::string HeadText(const CheckpointView& view) {
  const shard_checkpoint_info& info = view.info;
  std::string text = Shown(view.path) + "\n";
  const auto line = [&](const char* name, const std::string& value) {
    text += "  " + std::string(name) +
            std::string(10 - std::string(name).size(), ' ') + value + "\n";
  };
  line("format",
       FormatText(info.format) +
           (info.version > 0 ? ", version " + std::to_string(info.version)
                             : ""));
  if (info.step >= 0) line("step", CountText(static_cast<uint64_t>(info.step)));
  if (info.world_size > 0) {
    line("saved by", CountText(static_cast<uint64_t>(info.world_size)) +
                         (info.world_size == 1 ? " rank" : " ranks"));
  }
  if (const std::string id = IdText(info); !id.empty()) line("id", id);
  line("bytes", BytesText(info.tensor_bytes) + " of tensors, " +
                    BytesText(info.file_bytes) + " in files");
  constexpr size_t kMostFiles = 16;
  for (size_t f = 0; f < view.files.size() && f < kMostFiles; ++f) {
    line(f == 0 ? "files" : "",
         Shown(view.files[f].name) + "  " + BytesText(view.files[f].bytes));
  }
  if (view.files.size() > kMostFiles) {
    line("", "and " + CountText(view.files.size() - kMostFiles) + " more");
  }
  for (size_t g = 0; g < view.groups.size(); ++g) {
    line(g == 0 ? "groups" : "",
         std::to_string(g) + "  " + Shown(view.groups[g]));
  }
  for (size_t s = 0; s < view.scalars.size(); ++s) {
    line(s == 0 ? "scalars" : "", Shown(view.scalars[s].name) + " = " +
                                      NumberText(view.scalars[s].value));
  }
  for (size_t b = 0; b < view.blobs.size() && b < kMostFiles; ++b) {
    const BlobView& blob = view.blobs[b];
    line(b == 0 ? "blobs" : "",
         Shown(blob.name) + "  " + BlobRuleText(blob.rule) + ", rank " +
             std::to_string(blob.rank) + ", " + BytesText(blob.bytes));
  }
  if (view.blobs.size() > kMostFiles) {
    line("", "and " + CountText(view.blobs.size() - kMostFiles) + " more");
  }
  return text;
}

std::string InspectText(const CheckpointView& view,
                        const std::vector<const TensorView*>& chosen) {
  std::string text = HeadText(view) + "\n";
  Table table({"key", "role", "dtype", "shape", ">bytes", "of"});
  std::map<std::string, Totals> by_kind;
  Totals all;
  for (const TensorView* const tensor : chosen) {
    const shard_tensor_info& info = tensor->info;
    std::string note;
    if (tensor->is_alias()) {
      note = "alias of " +
             Shown(view.tensors[static_cast<size_t>(info.alias_of)].key);
    } else if (info.role == SHARD_ROLE_PARAM && info.trainable == 0) {
      note = "frozen";
    } else if (info.group > 0) {
      note = "group " + std::to_string(info.group);
    }
    table.Add({Shown(tensor->key), RoleText(info.role), tensor->type,
               ShapeText(info.shape, info.ndim), BytesText(info.bytes), note});
    by_kind[RoleText(info.role) + " " + tensor->type].Add(*tensor);
    all.Add(*tensor);
  }
  if (!table.empty()) text += table.Text() + "\n";
  const auto line = [&](const std::string& name, const Totals& totals) {
    text += name + ": " + CountText(static_cast<uint64_t>(totals.tensors)) +
            (totals.tensors == 1 ? " tensor, " : " tensors, ") +
            CountText(static_cast<uint64_t>(totals.numel)) + " elements, " +
            BytesText(totals.bytes);
    if (totals.aliases > 0) {
      text += ", and " + CountText(static_cast<uint64_t>(totals.aliases)) +
              (totals.aliases == 1 ? " alias" : " aliases");
    }
    text += "\n";
  };
  for (const auto& [kind, totals] : by_kind) line(kind, totals);
  if (by_kind.size() != 1) line("total", all);
  return text;
}

// Statistics of a tensor's finite elements.
struct Values {
  std::vector<double> first;
  double min = INFINITY;
  double max = -INFINITY;
  double sum = 0;
  double squares = 0;
  int64_t finite = 0;
  int64_t nans = 0;
  int64_t infinities = 0;
  int64_t zeros = 0;

  void Add(double value) {
    constexpr size_t kFirst = 8;
    if (first.size() < kFirst) first.push_back(value);
    if (std::isnan(value)) {
      ++nans;
    } else if (std::isinf(value)) {
      ++infinities;
    } else {
      ++finite;
      if (value == 0) ++zeros;
      min = std::min(min, value);
      max = std::max(max, value);
      sum += value;
      squares += value * value;
    }
  }
  double mean() const { return sum / static_cast<double>(finite); }
  double rms() const {
    return std::sqrt(squares / static_cast<double>(finite));
  }
};

Values ValuesOf(const CheckpointView& view, const TensorView& tensor) {
  Values values;
  std::vector<std::byte> bytes;
  // A block fits into the caches.
  double doubles[4096];
  const size_t size = shard_dtype_size(tensor.info.dtype);
  Progress progress("reading");
  for (const Piece& piece : PiecesOf(view.handle.get(), tensor)) {
    ReadPiece(view.handle.get(), tensor, piece, &bytes);
    const auto numel = static_cast<size_t>(piece.numel);
    for (size_t at = 0; at < numel; at += std::size(doubles)) {
      const size_t count = std::min(std::size(doubles), numel - at);
      ToDoubles(tensor.info.dtype, bytes.data() + at * size, count, doubles);
      for (size_t i = 0; i < count; ++i) values.Add(doubles[i]);
    }
    progress.Set(static_cast<uint64_t>(piece.begin + piece.numel) * size,
                 tensor.info.bytes);
  }
  return values;
}

int InspectTensor(const CheckpointView& view, const std::string& key,
                  bool as_json) {
  int64_t index = 0;
  Check(shard_checkpoint_find(view.handle.get(), key.c_str(), &index));
  const TensorView& tensor = view.tensors[static_cast<size_t>(index)];
  const bool readable = shard_dtype_size(tensor.info.dtype) > 0;
  const Values values = readable ? ValuesOf(view, tensor) : Values();
  const bool any = values.finite > 0;

  Json json = TensorJson(view, tensor);
  json["slices"] = Json::array();
  Table table({readable ? ">elements" : ">bytes", ">first", "file", ">offset",
               ">bytes", "checksum"});
  constexpr int32_t kMostSlices = 32;
  for (int32_t s = 0; s < tensor.info.num_slices; ++s) {
    const shard_tensor_slice slice = SliceOf(view.handle.get(), index, s);
    const std::string& file = view.files[static_cast<size_t>(slice.file)].name;
    char sum[40] = "";
    if (slice.has_checksum != 0) {
      std::snprintf(sum, sizeof(sum), "%016llx%016llx",
                    static_cast<unsigned long long>(slice.checksum_high),
                    static_cast<unsigned long long>(slice.checksum_low));
    }
    json["slices"].push_back(
        {{"begin", slice.begin},
         {"numel", slice.numel},
         {"file", file},
         {"offset", slice.offset},
         {"bytes", slice.bytes},
         {"checksum", slice.has_checksum != 0 ? Json(sum) : Json()}});
    if (s >= kMostSlices) continue;
    table.Add({CountText(static_cast<uint64_t>(slice.numel)),
               CountText(static_cast<uint64_t>(slice.begin)), Shown(file),
               CountText(slice.offset), BytesText(slice.bytes), sum});
  }
  json["values"] = {};
  if (readable)
    json["values"] = {{"min", any ? Json(values.min) : Json()},
                      {"max", any ? Json(values.max) : Json()},
                      {"mean", any ? Json(values.mean()) : Json()},
                      {"rms", any ? Json(values.rms()) : Json()},
                      {"zeros", values.zeros},
                      {"nans", values.nans},
                      {"infinities", values.infinities},
                      {"first", values.first}};
  if (as_json) {
    PrintJson(json);
    return kFine;
  }
  const shard_tensor_info& info = tensor.info;
  std::string text = Shown(tensor.key) + "\n  " + RoleText(info.role) + ", " +
                     tensor.type + " " + ShapeText(info.shape, info.ndim) +
                     ", " + CountText(static_cast<uint64_t>(info.numel)) +
                     " elements, " + BytesText(info.bytes) + "\n";
  if (tensor.is_alias()) {
    text += "  alias of " +
            Shown(view.tensors[static_cast<size_t>(info.alias_of)].key) + "\n";
  }
  if (info.dtype == SHARD_Q8) {
    text += "  values are codes, 0 to 255; their scales are in the tensor " +
            Shown(tensor.key) + ".q8_scale\n";
  }
  if (any) {
    text += "  min " + NumberText(values.min) + ", max " +
            NumberText(values.max) + ", mean " + NumberText(values.mean()) +
            ", rms " + NumberText(values.rms()) + "\n";
  }
  if (!readable) text += "  values of this type cannot be read\n";
  if (readable)
    text += "  " + CountText(static_cast<uint64_t>(values.zeros)) + " zeros, " +
            CountText(static_cast<uint64_t>(values.nans)) + " NaNs, " +
            CountText(static_cast<uint64_t>(values.infinities)) +
            " infinities\n";
  for (size_t i = 0; i < values.first.size(); ++i) {
    text += (i == 0 ? "  first: " : ", ") + NumberText(values.first[i]);
  }
  if (!values.first.empty()) {
    text += static_cast<size_t>(info.numel) > values.first.size() ? ", ...\n"
                                                                  : "\n";
  }
  if (!table.empty()) text += "\n" + table.Text("  ");
  if (info.num_slices > kMostSlices) {
    text += "  and " +
            CountText(static_cast<uint64_t>(info.num_slices - kMostSlices)) +
            " more slices: see --json\n";
  }
  PrintText(text);
  return kFine;
}

int RunInspect(const InspectArguments& arguments) {
  const CheckpointView view = ReadCheckpoint(arguments.path);
  if (!arguments.tensor.empty()) {
    return InspectTensor(view, arguments.tensor, arguments.json);
  }
  const std::vector<const TensorView*> chosen = Chosen(view, arguments);
  if (arguments.json) {
    PrintJson(InspectJson(view, chosen));
  } else {
    PrintText(InspectText(view, chosen));
  }
  return kFine;
}

}  // namespace

void AddInspect(CommandLine* line) {
  const auto inspect = std::make_shared<InspectArguments>();
  Command command = line->AddCommand(
      "inspect", "What is in a checkpoint or in safetensors", kInspectHelp);
  command.AddOption("path", &inspect->path, "The checkpoint").Required();
  command.AddOption("--tensor", &inspect->tensor,
                    "Show one tensor: slices, and what its values are");
  command.AddOption("--role", &inspect->role, "Only param, buffer or state")
      .OneOf({"param", "buffer", "state"});
  command.AddOption("--match", &inspect->match, "Only keys that match");
  command.AddOption("--sort", &inspect->sort, "By file, key or bytes")
      .OneOf({"file", "key", "bytes"})
      .ShowDefault();
  command.AddFlag("--json", &inspect->json, "One JSON document");
  command.Runs([inspect] { return RunInspect(*inspect); });
}

}  // namespace shardctl
