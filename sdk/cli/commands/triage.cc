// SPDX-License-Identifier: Apache-2.0
//
// `shardctl triage`: names the collective at which a run of several ranks broke
// off, from the ranks' dumps.

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sdk/cli/command.h"
#include "sdk/cli/commands/triage_dumps.h"
#include "sdk/cli/table.h"
#include "sdk/cli/text.h"

namespace shardctl {

namespace {

constexpr const char* kTriageHelp =
    R"(
A rank writes a dump of its last 1,024 collectives when one of them fails, where
SHARD_DUMP=dump.json is set: dump.rank0.json, dump.rank1.json, ... Give those of
all ranks, of all hosts. The first collective is named that ranks called
differently, or that not all ranks came to.

Exit code: 1 when there is one, an error, or a rank without a dump.

Example: shardctl triage dump.rank*.json)";

struct TriageArguments {
  std::vector<std::string> paths;
  bool json = false;
};

// The ranks that a text lists, a line or two; --json has all.
constexpr size_t kMostNamed = 16;

std::string RanksText(const std::vector<int64_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t r = 0; r < ranks.size() && r < kMostNamed; ++r) {
    text += (r == 0 ? "" : ", ") + std::to_string(ranks[r]);
  }
  if (ranks.size() > kMostNamed) {
    text += " and " + CountText(ranks.size() - kMostNamed) + " more";
  }
  return text;
}

std::string CallText(const DumpedCall& call) {
  std::string text = Shown(call.operation);
  if (!call.what.empty()) text += " '" + Shown(call.what) + "'";
  if (call.bytes > 0) text += ", " + CountText(call.bytes) + " bytes";
  if (!call.dtype.empty()) {
    text += " of " + Shown(call.dtype) + " to " + Shown(call.recv_dtype);
  }
  if (call.root >= 0) text += " from rank " + std::to_string(call.root);
  if (call.ranks >= 0) {
    text += " over " + std::to_string(call.ranks) + " ranks in steps of " +
            std::to_string(call.stride);
  }
  return text;
}

std::string StateText(const DumpedCollective& collective) {
  if (collective.is_running()) return "running";
  std::string text = Shown(collective.state);
  if (collective.has_failed()) text += " (" + Shown(collective.error) + ")";
  if (collective.seconds) {
    text += " after " + SecondsText(*collective.seconds);
  }
  return text;
}

const char* KindName(DivergenceKind kind) {
  switch (kind) {
    case DivergenceKind::kDifferent:
      return "different";
    case DivergenceKind::kIncomplete:
      return "incomplete";
    default:
      return "failed";
  }
}

std::string FindingText(const Triage& triage) {
  const Style& style = OutStyle();
  if (!triage.first) {
    return "no collective differs, and none was cut off\n";
  }
  const Divergence& first = *triage.first;
  const char* title = "the first collective that failed";
  if (first.kind == DivergenceKind::kDifferent) {
    title = "the first collective that the ranks called differently";
  } else if (first.kind == DivergenceKind::kIncomplete) {
    title = "the first collective that not all ranks are known to have come to";
  }
  std::string text = std::string(style.red) + title + style.reset +
                     ": number " + CountText(first.number) + " of '" +
                     Shown(first.name) + "'\n";
  const auto line = [&](const std::vector<int64_t>& ranks,
                        const std::string& what) {
    if (!ranks.empty()) text += "  " + RanksText(ranks) + ": " + what + "\n";
  };
  for (const CalledBy& called : first.calls) {
    line(called.ranks, CallText(called.call));
  }
  line(first.running, "in it when the dump was written");
  line(first.posted, "announced it, and did not see its end");
  line(first.failed, "failed in it");
  line(first.not_come, "did not come to it");
  std::vector<int64_t> unknown = triage.missing;
  unknown.insert(unknown.end(), triage.silent.begin(), triage.silent.end());
  std::sort(unknown.begin(), unknown.end());
  line(unknown, "not known");
  return text;
}

// Returns the collective that a rank was in, or began last.
const DumpedCollective* LastOf(const Dump& dump) {
  const auto& all = dump.collectives;
  const auto running =
      std::find_if(all.begin(), all.end(),
                   [](const DumpedCollective& it) { return it.is_running(); });
  if (running != all.end()) return &*running;
  return all.empty() ? nullptr : &all.back();
}

std::string ToText(const std::vector<Dump>& dumps, const Triage& triage) {
  std::string text = "a world of " +
                     CountText(static_cast<uint64_t>(triage.world_size)) +
                     " ranks, dumps of " + CountText(dumps.size()) + "\n";
  if (!triage.missing.empty()) {
    text += "no dump of " + RanksText(triage.missing) + "\n";
  }
  if (!triage.silent.empty()) {
    text += "nothing written since the start by " + RanksText(triage.silent) +
            ": they hang outside of collectives, were killed, or still run\n";
  }
  text += FindingText(triage);
  Table table({">rank", "host", "dump", "last collective", "state"});
  std::string errors;
  for (const Dump& dump : dumps) {
    const DumpedCollective* const last = LastOf(dump);
    const std::string rank = std::to_string(dump.rank);
    table.Add({rank, Shown(dump.host), Shown(dump.reason),
               last == nullptr
                   ? "none"
                   : std::to_string(last->number) + " of '" +
                         Shown(last->name) + "': " + CallText(last->call),
               last == nullptr ? "" : StateText(*last)});
    if (dump.error) {
      errors += "rank " + rank + ": " + Shown(dump.error->code) + ": " +
                ShownMessage(dump.error->message) + "\n";
    }
  }
  return text + "\n" + table.Text() + (errors.empty() ? "" : "\n" + errors);
}

Json CallJson(const DumpedCall& call) {
  const auto number = [](int64_t value) {
    return value < 0 ? Json() : Json(value);
  };
  const auto text = [](const std::string& value) {
    return value.empty() ? Json() : Json(value);
  };
  return {{"operation", call.operation},
          {"what", call.what},
          {"bytes", call.bytes},
          {"dtype", text(call.dtype)},
          {"recv_dtype", text(call.recv_dtype)},
          {"ranks", number(call.ranks)},
          {"stride", number(call.stride)},
          {"root", number(call.root)}};
}

Json DivergenceJson(const Divergence& found) {
  Json calls = Json::array();
  for (const CalledBy& called : found.calls) {
    calls.push_back(
        {{"call", CallJson(called.call)}, {"by_ranks", called.ranks}});
  }
  return {{"kind", KindName(found.kind)}, {"group", found.group},
          {"name", found.name},           {"number", found.number},
          {"begin", found.begin},         {"calls", std::move(calls)},
          {"running", found.running},     {"posted", found.posted},
          {"failed", found.failed},       {"not_come", found.not_come}};
}

Json RankJson(const Dump& dump) {
  Json json = {{"rank", dump.rank},     {"path", dump.path},
               {"host", dump.host},     {"pid", dump.pid},
               {"reason", dump.reason}, {"error", nullptr},
               {"last", nullptr}};
  if (dump.error) {
    json["error"] = {{"code", dump.error->code},
                     {"rank", dump.error->rank},
                     {"message", dump.error->message}};
  }
  if (const DumpedCollective* const last = LastOf(dump)) {
    json["last"] = {{"group", last->group},
                    {"name", last->name},
                    {"number", last->number},
                    {"call", CallJson(last->call)},
                    {"state", last->state}};
  }
  return json;
}

Json ToJson(const std::vector<Dump>& dumps, const Triage& triage) {
  Json ranks = Json::array();
  for (const Dump& dump : dumps) ranks.push_back(RankJson(dump));
  return {{"fine", triage.is_fine},
          {"world_size", triage.world_size},
          {"missing", triage.missing},
          {"silent", triage.silent},
          {"first", triage.first ? DivergenceJson(*triage.first) : Json()},
          {"ranks", std::move(ranks)}};
}

int RunTriage(const TriageArguments& arguments) {
  std::vector<Dump> dumps;
  for (const std::string& path : arguments.paths) {
    dumps.push_back(ReadDump(path));
  }
  std::stable_sort(
      dumps.begin(), dumps.end(),
      [](const Dump& a, const Dump& b) { return a.rank < b.rank; });
  const Triage triage = CompareDumps(dumps);
  if (arguments.json) {
    PrintJson(ToJson(dumps, triage));
  } else {
    PrintText(ToText(dumps, triage));
  }
  return triage.is_fine ? kFine : kDifferent;
}

}  // namespace

void AddTriage(CommandLine* line) {
  const auto triage = std::make_shared<TriageArguments>();
  Command command = line->AddCommand(
      "triage", "Where ranks that hang or disagree parted", kTriageHelp);
  command.AddOption("dumps", &triage->paths, "A dump of each rank").Required();
  command.AddFlag("--json", &triage->json, "One JSON document");
  command.Runs([triage] { return RunTriage(*triage); });
}

}  // namespace shardctl
