// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/dump_file.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "sdk/cli/handles.h"
#include "sdk/cli/text.h"

namespace shardctl {

namespace {

// A dump of 1024 collectives, all of whose texts are escaped, has less.
constexpr size_t kMostBytes = size_t{4} << 20;
constexpr int kMostDepth = 8;
constexpr int64_t kMostWorld = 1'000'000;
constexpr int64_t kVersion = 1;

class DumpReader {
 public:
  explicit DumpReader(std::string path) : path_(std::move(path)) {}

  Dump Read() const {
    const Json root = Parse(ReadBytes());
    if (!root.is_object() || root.value("format", Json()) != "shard_dump") {
      Wrong("is no dump of collectives, which SHARD_DUMP makes");
    }
    Dump dump;
    dump.path = path_;
    const int64_t version = Integer(root, "", "version", 0, INT64_MAX);
    if (version != kVersion) {
      Wrong("is a dump of version " + std::to_string(version) +
            "; this shardctl reads version " + std::to_string(kVersion));
    }
    dump.world_size = Integer(root, "", "world_size", 1, kMostWorld);
    dump.rank = Integer(root, "", "rank", 0, dump.world_size - 1);
    dump.host = Text(root, "", "host");
    dump.pid = Integer(root, "", "pid", 0, INT64_MAX);
    dump.reason = Text(root, "", "reason");
    dump.recorded = Unsigned(root, "", "recorded");
    const Json& error = Member(root, "", "error");
    if (!error.is_null()) {
      if (!error.is_object()) Wrong("error is no object");
      dump.error = {Text(error, "error.", "code"),
                    Integer(error, "error.", "rank", -1, kMostWorld),
                    Text(error, "error.", "message")};
    }
    const Json& collectives = Member(root, "", "collectives");
    if (!collectives.is_array()) Wrong("collectives is no list");
    if (collectives.size() > dump.recorded) {
      Wrong("recorded is less than the number of collectives that follow");
    }
    std::set<std::pair<std::string, uint64_t>> seen;
    for (size_t c = 0; c < collectives.size(); ++c) {
      const std::string at = "collectives[" + std::to_string(c) + "].";
      dump.collectives.push_back(Collective(collectives[c], at));
      const DumpedCollective& read = dump.collectives.back();
      if (!seen.emplace(read.group, read.number).second) {
        Wrong(at + "number is that of an earlier collective of the group");
      }
    }
    return dump;
  }

 private:
  [[noreturn]] void Wrong(const std::string& what) const {
    throw Failure("'" + Shown(path_) + "': " + what);
  }

  std::string ReadBytes() const {
    std::error_code error;
    // A FIFO might never end.
    if (std::filesystem::exists(path_, error) &&
        !std::filesystem::is_regular_file(path_, error)) {
      Wrong("is no regular file; name the dumps, such as dump.rank*.json");
    }
    errno = 0;
    std::ifstream file(path_, std::ios::binary);
    std::string bytes(kMostBytes + 1, '\0');
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!file.eof() && !file) {
      throw Failure("cannot read '" + Shown(path_) +
                    "': " + std::strerror(errno));
    }
    bytes.resize(static_cast<size_t>(file.gcount()));
    if (bytes.size() > kMostBytes) {
      Wrong("has more than " + CountText(kMostBytes) +
            " bytes, the most of a dump");
    }
    if (bytes.empty()) Wrong("is empty; the rank has not begun its dump");
    return bytes;
  }

  Json Parse(const std::string& bytes) const {
    const auto check_depth = [this](int depth, Json::parse_event_t, Json&) {
      if (depth > kMostDepth) Wrong("is nested too deeply for a dump");
      return true;
    };
    try {
      return Json::parse(bytes, check_depth);
    } catch (const Json::exception& error) {
      Wrong(std::string("is no JSON document: ") + error.what());
    }
  }

  const Json& Member(const Json& object, const std::string& at,
                     const char* key) const {
    const auto found = object.find(key);
    if (found == object.end()) Wrong(at + key + " is not there");
    return *found;
  }

  int64_t Integer(const Json& object, const std::string& at, const char* key,
                  int64_t least, int64_t most) const {
    const Json& value = Member(object, at, key);
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() &&
         value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) ||
        value.get<int64_t>() < least || value.get<int64_t>() > most) {
      Wrong(at + key + " is no number from " + std::to_string(least) + " to " +
            std::to_string(most));
    }
    return value.get<int64_t>();
  }

  uint64_t Unsigned(const Json& object, const std::string& at,
                    const char* key) const {
    const Json& value = Member(object, at, key);
    if (!value.is_number_unsigned()) {
      Wrong(at + key + " is no number of at least 0");
    }
    return value.get<uint64_t>();
  }

  double Number(const Json& object, const std::string& at,
                const char* key) const {
    const Json& value = Member(object, at, key);
    if (!value.is_number()) Wrong(at + key + " is no number");
    return value.get<double>();
  }

  std::string Text(const Json& object, const std::string& at,
                   const char* key) const {
    const Json& value = Member(object, at, key);
    if (!value.is_string()) Wrong(at + key + " is no text");
    return value.get<std::string>();
  }

  DumpedCollective Collective(const Json& json, const std::string& at) const {
    if (!json.is_object()) Wrong(at.substr(0, at.size() - 1) + " is no object");
    const auto text_or_none = [&](const char* key) {
      return json.contains(key) ? Text(json, at, key) : "";
    };
    const auto integer_or_none = [&](const char* key) {
      return json.contains(key) ? Integer(json, at, key, 0, kMostWorld)
                                : int64_t{-1};
    };
    DumpedCollective read;
    read.group = Text(json, at, "group");
    read.name = Text(json, at, "name");
    read.number = Unsigned(json, at, "number");
    read.call.operation = Text(json, at, "operation");
    read.call.what = Text(json, at, "what");
    read.call.bytes = Unsigned(json, at, "bytes");
    read.call.dtype = text_or_none("dtype");
    read.call.recv_dtype = text_or_none("recv_dtype");
    read.call.ranks = integer_or_none("ranks");
    read.call.stride = integer_or_none("stride");
    read.call.root = integer_or_none("root");
    read.begin = Number(json, at, "begin");
    read.state = Text(json, at, "state");
    if (read.state != "running" && read.state != "posted" &&
        read.state != "done" && read.state != "failed") {
      Wrong(at + "state is none of running, posted, done and failed");
    }
    if (!Member(json, at, "seconds").is_null()) {
      read.seconds = Number(json, at, "seconds");
    }
    if (read.has_failed()) read.error = Text(json, at, "error");
    return read;
  }

  const std::string path_;
};

}  // namespace

Dump ReadDump(const std::string& path) { return DumpReader(path).Read(); }

}  // namespace shardctl
