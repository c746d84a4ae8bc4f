// SPDX-License-Identifier: Apache-2.0
//
// `shardctl diff`: lists the differences between two checkpoints.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sdk/cli/checkpoint.h"
#include "sdk/cli/command.h"
#include "sdk/cli/commands/compare.h"
#include "sdk/cli/dtypes.h"
#include "sdk/cli/progress.h"
#include "sdk/cli/table.h"
#include "sdk/cli/text.h"

namespace shardctl {

namespace {

constexpr const char* kDiffHelp =
    R"(
Keys, shapes, element types and values; of two checkpoints also steps, param
groups and scalars. NaN equals NaN, and -0 equals 0. A tied weight that one side
knows under fewer names is no difference, but is mentioned. Safetensors have
parameters only: give --content model then.

Tensors of a type that cannot be read, such as C64, are compared byte by byte.
Values that are not compared, such as codes with numbers, are listed; where
nothing else differs, the result is "not known".

Exit code: 1 when they differ, or when values were not compared.

Examples:
  shardctl diff ckpt/step-000100 ckpt/step-000200
  shardctl diff ckpt model.safetensors --content model --tolerance 1e-6)";

struct DiffArguments {
  std::string a;
  std::string b;
  std::string content = "all";
  Tolerance tolerance;
  bool ignore_dtypes = false;
  bool tensors_only = false;
  bool json = false;
};

struct ValueRow {
  std::string key;
  int64_t numel = 0;
  Difference difference;
};

struct TextRow {
  std::string key;
  std::string a;
  std::string b;
};

struct Result {
  Pairing pairing;
  std::vector<TextRow> shapes;
  std::vector<TextRow> dtypes;
  std::vector<TextRow> training;  // Step, groups, scalars.
  std::vector<ValueRow> values;
  // Keys of tensors with elements whose types cannot be compared.
  std::vector<std::string> not_compared;
  int64_t tensors = 0;  // With values that were compared.
  uint64_t bytes = 0;

  bool Differs(bool ignore_dtypes) const {
    return !pairing.only_in_a.empty() || !pairing.only_in_b.empty() ||
           !shapes.empty() || (!ignore_dtypes && !dtypes.empty()) ||
           !training.empty() || !values.empty();
  }
  bool Same(bool ignore_dtypes) const {
    return !Differs(ignore_dtypes) && not_compared.empty();
  }
};

void CompareTraining(const CheckpointView& a, const CheckpointView& b,
                     Result* result) {
  const auto add = [&](const std::string& name, const std::string& from,
                       const std::string& to) {
    if (from != to) result->training.push_back({name, from, to});
  };
  add("step", std::to_string(a.info.step), std::to_string(b.info.step));
  for (size_t g = 0; g < std::max(a.groups.size(), b.groups.size()); ++g) {
    add("group " + std::to_string(g),
        g < a.groups.size() ? a.groups[g] : "none",
        g < b.groups.size() ? b.groups[g] : "none");
  }
  const auto exact = [](double value) {
    char text[40];
    std::snprintf(text, sizeof(text), "%.17g", value);
    return std::string(text);
  };
  std::map<std::string, TextRow> scalars;
  for (const ScalarView& scalar : a.scalars) {
    scalars[scalar.name] = {"", exact(scalar.value), "none"};
  }
  for (const ScalarView& scalar : b.scalars) {
    TextRow& row = scalars[scalar.name];
    if (row.a.empty()) row.a = "none";
    row.b = exact(scalar.value);
  }
  for (const auto& [name, row] : scalars) add(name, row.a, row.b);
}

Result Compare(const CheckpointView& a, const CheckpointView& b,
               const DiffArguments& arguments) {
  Result result;
  const int32_t content = ParseContent(arguments.content);
  result.pairing = PairUp(a, b, content);
  std::vector<std::pair<const TensorView*, const TensorView*>> comparable;
  uint64_t total = 0;
  for (const auto& [from, to] : result.pairing.pairs) {
    const TensorView& in_a = a.tensors[from];
    const TensorView& in_b = b.tensors[to];
    const std::string shape_a = ShapeText(in_a.info.shape, in_a.info.ndim);
    const std::string shape_b = ShapeText(in_b.info.shape, in_b.info.ndim);
    if (in_a.type != in_b.type) {
      result.dtypes.push_back({in_a.key, in_a.type, in_b.type});
    }
    if (shape_a != shape_b) {
      result.shapes.push_back({in_a.key, shape_a, shape_b});
    } else if (in_a.type == in_b.type && in_a.info.bytes != in_b.info.bytes) {
      // A shape of an opaque type may have any number of bytes.
      result.shapes.push_back(
          {in_a.key, shape_a + ", " + CountText(in_a.info.bytes) + " B",
           shape_b + ", " + CountText(in_b.info.bytes) + " B"});
    } else if (AreComparable(in_a, in_b)) {
      comparable.emplace_back(&in_a, &in_b);
      total += in_a.info.bytes + in_b.info.bytes;
    } else if (in_a.info.bytes + in_b.info.bytes > 0) {
      result.not_compared.push_back(in_a.key);
    }
  }
  const bool trained = !a.is_safetensors() && !b.is_safetensors();
  if (trained && !arguments.tensors_only && content != SHARD_CONTENT_MODEL) {
    CompareTraining(a, b, &result);
  }
  Progress progress("comparing");
  for (const auto& [in_a, in_b] : comparable) {
    const Difference difference =
        CompareValues(a, *in_a, b, *in_b, arguments.tolerance, result.bytes,
                      total, &progress);
    ++result.tensors;
    result.bytes += in_a->info.bytes + in_b->info.bytes;
    if (difference.differing > 0) {
      result.values.push_back({in_a->key, in_a->stored_numel(), difference});
    }
  }
  return result;
}

Json RowsJson(const std::vector<TextRow>& rows, const char* name) {
  Json json = Json::array();
  for (const TextRow& row : rows) {
    json.push_back({{name, row.key}, {"a", row.a}, {"b", row.b}});
  }
  return json;
}

// Returns a number as JSON, infinities and NaN as text: JSON has neither, and a
// comparison has to show them.
Json NumberJson(double value) {
  return std::isfinite(value) ? Json(value) : Json(NumberText(value));
}

Json ToJson(const CheckpointView& a, const CheckpointView& b,
            const Result& result, bool same) {
  Json values = Json::array();
  for (const ValueRow& row : result.values) {
    const Difference& difference = row.difference;
    values.push_back({{"key", row.key},
                      {"numel", row.numel},
                      {"differing", difference.differing},
                      {"nans", difference.nans},
                      {"max_abs", NumberJson(difference.max_abs)},
                      {"max_rel", NumberJson(difference.max_rel)},
                      {"first",
                       {{"index", difference.first},
                        {"a", NumberJson(difference.first_a)},
                        {"b", NumberJson(difference.first_b)}}}});
  }
  return {{"same", same},
          {"a", SummaryJson(a)},
          {"b", SummaryJson(b)},
          {"only_in_a", result.pairing.only_in_a},
          {"only_in_b", result.pairing.only_in_b},
          {"names_only_in_a", result.pairing.names_only_in_a},
          {"names_only_in_b", result.pairing.names_only_in_b},
          {"shapes", RowsJson(result.shapes, "key")},
          {"dtypes", RowsJson(result.dtypes, "key")},
          {"training", RowsJson(result.training, "name")},
          {"values", std::move(values)},
          {"not_compared", result.not_compared},
          {"compared", {{"tensors", result.tensors}, {"bytes", result.bytes}}}};
}

// The rows of a list that are shown, a screen or two; --json has all.
constexpr size_t kMostRows = 50;

std::string Rest(size_t count) {
  if (count <= kMostRows) return "";
  return "  and " + CountText(count - kMostRows) + " more: see --json\n";
}

std::string ListText(const std::string& title,
                     const std::vector<std::string>& keys) {
  if (keys.empty()) return "";
  std::string text = title + ":\n";
  for (size_t i = 0; i < keys.size() && i < kMostRows; ++i) {
    text += "  " + Shown(keys[i]) + "\n";
  }
  return text + Rest(keys.size());
}

std::string RowsText(const std::string& title,
                     const std::vector<TextRow>& rows) {
  if (rows.empty()) return "";
  Table table({title, "a", "b"});
  for (size_t i = 0; i < rows.size() && i < kMostRows; ++i) {
    table.Add({Shown(rows[i].key), Shown(rows[i].a), Shown(rows[i].b)});
  }
  return table.Text() + Rest(rows.size());
}

std::string ToText(const CheckpointView& a, const CheckpointView& b,
                   const Result& result, bool ignore_dtypes) {
  std::string text = "a: " + Shown(a.path) + "\nb: " + Shown(b.path) + "\n";
  text += ListText("only in a", result.pairing.only_in_a);
  text += ListText("only in b", result.pairing.only_in_b);
  text += RowsText("shape", result.shapes);
  text += RowsText("dtype", result.dtypes);
  text += RowsText("training", result.training);
  if (!result.values.empty()) {
    Table table({"values", ">differing", ">of", ">max abs", ">max rel", ">NaNs",
                 ">first", ">a", ">b"});
    for (size_t i = 0; i < result.values.size() && i < kMostRows; ++i) {
      const ValueRow& row = result.values[i];
      const Difference& difference = row.difference;
      table.Add({Shown(row.key),
                 CountText(static_cast<uint64_t>(difference.differing)),
                 CountText(static_cast<uint64_t>(row.numel)),
                 NumberText(difference.max_abs), NumberText(difference.max_rel),
                 CountText(static_cast<uint64_t>(difference.nans)),
                 CountText(static_cast<uint64_t>(difference.first)),
                 NumberText(difference.first_a),
                 NumberText(difference.first_b)});
    }
    text += table.Text() + Rest(result.values.size());
  }
  text += ListText("names only in a, of tensors that b has as well",
                   result.pairing.names_only_in_a);
  text += ListText("names only in b, of tensors that a has as well",
                   result.pairing.names_only_in_b);
  text += ListText("values not compared, of types that differ",
                   result.not_compared);
  const Style& style = OutStyle();
  if (result.Same(ignore_dtypes)) {
    text += std::string(style.green) + "same" + style.reset;
  } else {
    text += std::string(style.red) +
            (result.Differs(ignore_dtypes) ? "different" : "not known") +
            style.reset;
  }
  text += ": compared " + CountText(static_cast<uint64_t>(result.tensors)) +
          (result.tensors == 1 ? " tensor, " : " tensors, ") +
          BytesText(result.bytes) + "\n";
  return text;
}

int RunDiff(const DiffArguments& arguments) {
  const CheckpointView a = ReadCheckpoint(arguments.a);
  const CheckpointView b = ReadCheckpoint(arguments.b);
  const Result result = Compare(a, b, arguments);
  const bool same = result.Same(arguments.ignore_dtypes);
  if (arguments.json) {
    PrintJson(ToJson(a, b, result, same));
  } else {
    PrintText(ToText(a, b, result, arguments.ignore_dtypes));
  }
  return same ? kFine : kDifferent;
}

}  // namespace

void AddDiff(CommandLine* line) {
  const auto diff = std::make_shared<DiffArguments>();
  Command command =
      line->AddCommand("diff", "In what two checkpoints differ", kDiffHelp);
  command.AddOption("a", &diff->a, "A checkpoint").Required();
  command.AddOption("b", &diff->b, "Another one").Required();
  command.AddOption("--content", &diff->content, "all, model or optimizer")
      .OneOf({"all", "model", "optimizer"})
      .ShowDefault();
  command
      .AddOption("--tolerance", &diff->tolerance.absolute,
                 "How far numbers may be from each other")
      .NonNegative()
      .ShowDefault();
  command
      .AddOption("--relative", &diff->tolerance.relative,
                 "And this times the larger one of them")
      .NonNegative()
      .ShowDefault();
  command.AddFlag("--ignore-dtypes", &diff->ignore_dtypes,
                  "Other element types are no difference");
  command.AddFlag("--tensors-only", &diff->tensors_only,
                  "Nor are steps, groups and scalars");
  command.AddFlag("--json", &diff->json, "One JSON document");
  command.Runs([diff] { return RunDiff(*diff); });
}

}  // namespace shardctl
