// SPDX-License-Identifier: Apache-2.0

#include "core/base/spec.h"

#include "core/base/strings.h"

namespace shard {

StatusOr<Spec> Spec::Parse(std::string_view text) {
  Spec spec;
  spec.text_ = text;
  const size_t question = text.find('?');
  const std::string_view head = text.substr(0, question);
  const size_t colon = head.find(':');
  spec.name_ = head.substr(0, colon);
  spec.has_colon_ = colon != std::string_view::npos;
  if (spec.has_colon_) spec.body_ = head.substr(colon + 1);
  if (spec.name_.empty()) {
    return InvalidArgument("'", text,
                           "' has no name; the form is "
                           "name[:body][?key=value&key=value]");
  }
  if (question == std::string_view::npos) return spec;

  std::string_view rest = text.substr(question + 1);
  while (!rest.empty()) {
    const size_t ampersand = rest.find('&');
    const std::string_view pair = rest.substr(0, ampersand);
    rest = ampersand == std::string_view::npos ? std::string_view()
                                               : rest.substr(ampersand + 1);
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return InvalidArgument("'", pair, "' in '", text, "' is not key=value");
    }
    const std::string_view key = pair.substr(0, equals);
    for (const Entry& entry : spec.entries_) {
      if (entry.key == key) {
        return InvalidArgument("key '", key, "' stands twice in '", text, "'");
      }
    }
    spec.entries_.push_back(
        {std::string(key), std::string(pair.substr(equals + 1)), false});
  }
  return spec;
}

std::optional<std::string> Spec::Take(std::string_view key) {
  asked_.emplace_back(key);
  for (Entry& entry : entries_) {
    if (entry.key == key) {
      entry.taken = true;
      return entry.value;
    }
  }
  return std::nullopt;
}

StatusOr<double> Spec::TakeDouble(std::string_view key, double fallback) {
  const auto text = Take(key);
  if (!text) return fallback;
  const auto value = ParseDouble(*text);
  if (!value) {
    return InvalidArgument(key, "='", *text, "' in '", text_,
                           "' is not a finite number");
  }
  return *value;
}

StatusOr<int64_t> Spec::TakeInt(std::string_view key, int64_t fallback) {
  const auto text = Take(key);
  if (!text) return fallback;
  const auto value = ParseInt(*text);
  if (!value) {
    return InvalidArgument(key, "='", *text, "' in '", text_,
                           "' is not a 64-bit integer");
  }
  return *value;
}

StatusOr<bool> Spec::TakeBool(std::string_view key, bool fallback) {
  const auto text = Take(key);
  if (!text) return fallback;
  if (*text == "1" || *text == "true") return true;
  if (*text == "0" || *text == "false") return false;
  return InvalidArgument(key, "='", *text, "' in '", text_,
                         "' is not one of 0, 1, true, false");
}

std::string Spec::TakeString(std::string_view key, std::string_view fallback) {
  const auto text = Take(key);
  return text ? *text : std::string(fallback);
}

Status Spec::CheckAllTaken() const {
  for (const Entry& entry : entries_) {
    if (entry.taken) continue;
    std::string known;
    for (const std::string& key : asked_) {
      StrAppend(&known, known.empty() ? "" : ", ", key);
    }
    if (known.empty()) known = "none";
    return InvalidArgument("unknown key '", entry.key, "' in '", text_,
                           "'; known keys of ", name_, ": ", known);
  }
  return Status();
}

}  // namespace shard
