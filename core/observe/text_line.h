// SPDX-License-Identifier: Apache-2.0
//
// TextLine: one line of text, built in memory of its own. It allocates nothing,
// so an event can be written where memory has run out. Text that does not fit
// is cut: a line has at most PIPE_BUF bytes, which the kernel writes into a
// pipe as a whole or not at all, so that lines of several ranks do not mix
// there.

#ifndef SHARD_CORE_OBSERVE_TEXT_LINE_H_
#define SHARD_CORE_OBSERVE_TEXT_LINE_H_

#include <limits.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace shard {

class TextLine {
 public:
  // The most bytes of one quoted text, with its escapes.
  static constexpr size_t kMostQuoted = 1500;

  TextLine() = default;
  TextLine(const TextLine&) = delete;
  TextLine& operator=(const TextLine&) = delete;

  TextLine& operator<<(std::string_view text) {
    const size_t fits = text.size() < Room() ? text.size() : Room();
    if (fits > 0) std::memcpy(text_ + size_, text.data(), fits);
    size_ += fits;
    return *this;
  }
  TextLine& operator<<(int64_t number) {
    size_ = static_cast<size_t>(
        std::to_chars(text_ + size_, text_ + kCapacity, number).ptr - text_);
    return *this;
  }

  // Appends nanoseconds with the point before the last `decimals` digits:
  // (1234567, 3) is "1234.567". REQUIRES: not negative; 1 <= decimals <= 9.
  TextLine& AppendFixed(int64_t number, int decimals);

  // Appends `text` in quotes, as a JSON string. A byte that is part of no
  // character becomes a question mark.
  TextLine& AppendQuoted(std::string_view text);

  std::string_view view() const { return {text_, size_}; }

 private:
  // Two texts, and the rest of a line.
  static constexpr size_t kCapacity = 2 * kMostQuoted + 1024;
  static_assert(kCapacity <= PIPE_BUF);

  size_t Room() const { return kCapacity - size_; }

  size_t size_ = 0;
  char text_[kCapacity];
};

}  // namespace shard

#endif  // SHARD_CORE_OBSERVE_TEXT_LINE_H_
