// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/safetensors/json_events.h"

#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/strings.h"

namespace shard {

namespace {

// The parser writes control characters in its messages as 8 bytes each. They
// are white space, or an error.
constexpr size_t kMaxControlRun = size_t{64} << 10;

// The text of the parser. It ends early when no event has come for too long,
// because the parser keeps all text since the last event.
struct Input {
  const char* next;
  const char* end;
  size_t since_event = 0;
  size_t controls = 0;

  bool too_long() const {
    return since_event > kMaxJsonToken || controls > kMaxControlRun;
  }
  bool at_end() const { return next == end || too_long(); }
  void Event() {
    since_event = 0;
    controls = 0;
  }
};

class InputIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  // A null `input` is the end.
  explicit InputIterator(Input* input) : input_(input) {}

  reference operator*() const { return *input_->next; }
  InputIterator& operator++() {
    if (static_cast<unsigned char>(*input_->next) < 0x20) ++input_->controls;
    ++input_->since_event;
    ++input_->next;
    return *this;
  }
  bool operator==(const InputIterator& other) const {
    return at_end() == other.at_end();
  }

 private:
  bool at_end() const { return input_ == nullptr || input_->at_end(); }

  Input* input_;
};

std::string WithoutControls(std::string_view text, size_t bytes) {
  const bool utf8 = IsValidUtf8(text);
  const bool cut = text.size() > bytes;
  if (cut) {
    text = text.substr(0, bytes);
    // Not within a character.
    while (utf8 && !text.empty() && (text.back() & 0x80) != 0) {
      const bool first = (text.back() & 0x40) != 0;
      text.remove_suffix(1);
      if (first) break;
    }
  }
  std::string result(text);
  for (char& c : result) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || (byte >= 0x80 && !utf8)) c = '?';
  }
  if (cut) result += "...";
  return result;
}

// The callbacks of nlohmann's parser, which throws only if they do.
class Sax {
 public:
  Sax(Input* input, JsonHandler* handler) : input_(input), handler_(handler) {}

  const Status& status() const { return status_; }
  Status TooLong() const {
    return Corrupt("the JSON has more than ", FormatBytes(kMaxJsonToken),
                   " in one piece, ", input_->end - input_->next,
                   " bytes before its end");
  }

  bool null() { return Take(handler_->Other("null")); }
  bool boolean(bool value) {
    return Take(handler_->Other(value ? "true" : "false"));
  }
  bool number_integer(int64_t value) {
    return Take(handler_->Other(StrCat(value)));
  }
  bool number_unsigned(uint64_t value) {
    return Take(handler_->Unsigned(value));
  }
  bool number_float(double, const std::string& text) {
    return Take(handler_->Other(WithoutControls(text, 40)));
  }
  bool string(std::string& value) { return Take(handler_->String(value)); }
  bool binary(nlohmann::json::binary_t&) { return false; }
  bool start_object(size_t) { return Take(handler_->BeginObject()); }
  bool key(std::string& value) { return Take(handler_->Key(value)); }
  bool end_object() { return Take(handler_->EndObject()); }
  bool start_array(size_t) { return Take(handler_->BeginArray()); }
  bool end_array() { return Take(handler_->EndArray()); }

  bool parse_error(size_t, const std::string&,
                   const nlohmann::detail::exception& error) {
    if (input_->too_long()) {
      status_ = TooLong();
      return false;
    }
    // Removes the prefix "[json.exception.parse_error.101] ".
    std::string_view what = error.what();
    const size_t space = what.find("] ");
    if (space != std::string_view::npos) what.remove_prefix(space + 2);
    status_ = Corrupt("not JSON: ", WithoutControls(what, 200));
    return false;
  }

 private:
  bool Take(Status status) {
    input_->Event();
    status_ = std::move(status);
    return status_.ok();
  }

  Input* input_;
  JsonHandler* handler_;
  Status status_;
};

}  // namespace

Status ReadJson(std::string_view text, JsonHandler* handler) {
  Input input{.next = text.data(), .end = text.data() + text.size()};
  Sax sax(&input, handler);
  nlohmann::json::sax_parse(InputIterator(&input), InputIterator(nullptr),
                            &sax);
  if (sax.status().ok() && input.next != input.end) return sax.TooLong();
  return sax.status();
}

std::string QuoteForMessage(std::string_view text) {
  return StrCat("'", WithoutControls(text, 100), "'");
}

}  // namespace shard
