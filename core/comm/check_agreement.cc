// SPDX-License-Identifier: Apache-2.0

#include "core/comm/check_agreement.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/base/strings.h"

namespace shard {

namespace {

constexpr size_t kMarks = 256;
// A fact's texts are cut: world_size of them are gathered on every rank.
constexpr size_t kMaxText = 4096;
// Two long values are shown only near their difference.
constexpr size_t kShownText = 200;

// Hashes facts one after the other.
class HashingSink : public FactSink {
 public:
  void Take(const Fact& fact) override {
    bytes_.clear();
    for (const std::string_view text : {fact.subject, fact.name, fact.value}) {
      const uint64_t size = text.size();
      bytes_.append(reinterpret_cast<const char*>(&size), sizeof(size));
      bytes_.append(text);
    }
    hash_ = XXH3_64bits_withSeed(bytes_.data(), bytes_.size(), hash_);
  }

  uint64_t hash() const { return hash_; }

 private:
  std::string bytes_;
  uint64_t hash_ = 0;
};

// The hashes of facts [begin, end): from `begin` up to every `stride`-th fact.
// Sent as they are.
struct Marks {
  uint64_t count;   // The number of facts.
  uint64_t last;    // The hash of all facts.
  uint64_t stride;  // A power of two.
  std::array<uint64_t, kMarks> hashes;

  // Returns the hash after `facts` facts, a multiple of the stride; nullopt
  // beyond the last.
  std::optional<uint64_t> After(uint64_t facts) const {
    if (facts > count) return std::nullopt;
    return hashes[facts / stride - 1];
  }
};

class MarkingSink final : public HashingSink {
 public:
  MarkingSink(uint64_t begin, uint64_t end) : begin_(begin), end_(end) {
    marks_.stride = 1;
  }

  void Take(const Fact& fact) override {
    const uint64_t index = next_++;
    if (index < begin_ || index >= end_) return;
    HashingSink::Take(fact);
    marks_.count = index - begin_ + 1;
    marks_.last = hash();
    if (marks_.count % marks_.stride != 0) return;
    if (used_ == kMarks) {
      // Every second mark is removed. The place of this fact is then an odd
      // one.
      for (size_t i = 0; i < kMarks / 2; ++i) {
        marks_.hashes[i] = marks_.hashes[2 * i + 1];
      }
      used_ = kMarks / 2;
      marks_.stride *= 2;
      return;
    }
    marks_.hashes[used_++] = hash();
  }

  const Marks& marks() const { return marks_; }

 private:
  const uint64_t begin_;
  const uint64_t end_;
  uint64_t next_ = 0;
  size_t used_ = 0;
  Marks marks_{};
};

// Keeps one fact.
class PickingSink final : public FactSink {
 public:
  explicit PickingSink(uint64_t index) : index_(index) {}

  void Take(const Fact& fact) override {
    if (next_++ != index_) return;
    title = TitleOf(fact);
    value = fact.value;
    note = fact.note;
  }

  std::string title;
  std::string value;
  std::string note;

 private:
  const uint64_t index_;
  uint64_t next_ = 0;
};

// A rank's value of the fact that differs, as it is sent: texts are cut.
struct SentFact {
  uint64_t hash;  // Hash of title and value, uncut.
  uint64_t title_bytes;
  uint64_t value_bytes;
  uint64_t note_bytes;
  std::array<char, kMaxText> text;

  std::string_view title() const { return {text.data(), title_bytes}; }
  std::string_view value() const {
    return {text.data() + title_bytes, value_bytes};
  }
  std::string_view note() const {
    return {text.data() + title_bytes + value_bytes, note_bytes};
  }
};

SentFact Truncate(const PickingSink& fact) {
  SentFact sent{};
  size_t used = 0;
  const auto put = [&](std::string_view text, size_t most) {
    const size_t size = text.copy(sent.text.data() + used, most);
    used += size;
    return uint64_t{size};
  };
  constexpr size_t kMaxNote = 512;
  sent.hash =
      XXH3_64bits_withSeed(fact.value.data(), fact.value.size(),
                           XXH3_64bits(fact.title.data(), fact.title.size()));
  sent.title_bytes = put(fact.title, kMaxText / 4);
  sent.value_bytes = put(fact.value, kMaxText - kMaxNote - used);
  sent.note_bytes = put(fact.note, kMaxNote);
  return sent;
}

// The ranks divided by the most frequent value. REQUIRES: one of `voters`.
struct Division {
  size_t most;                  // The lowest rank that has that value.
  std::vector<int64_t> others;  // Voters that have another value.
};

Division DivideByValue(const std::vector<uint64_t>& values,
                       const std::vector<size_t>& voters) {
  size_t most = voters.front();
  size_t best = 0;
  std::vector<uint64_t> sorted;
  for (const size_t r : voters) sorted.push_back(values[r]);
  std::sort(sorted.begin(), sorted.end());
  for (const size_t r : voters) {
    const auto [first, last] =
        std::equal_range(sorted.begin(), sorted.end(), values[r]);
    if (static_cast<size_t>(last - first) <= best) continue;
    best = static_cast<size_t>(last - first);
    most = r;
  }
  Division division{most, {}};
  for (const size_t r : voters) {
    if (values[r] != values[most]) {
      division.others.push_back(static_cast<int64_t>(r));
    }
  }
  return division;
}

// Returns "; 2 of 8 ranks differ from rank 0: [3, 4]"; "" for two ranks.
std::string CountOf(const Division& division, size_t voters) {
  if (voters <= 2) return "";
  constexpr size_t kListed = 32;
  const size_t count = division.others.size();
  std::vector<int64_t> listed = division.others;
  if (count > kListed) listed.resize(kListed);
  return StrCat("; ", count, " of ", voters,
                count == 1 ? " ranks differs" : " ranks differ", " from rank ",
                division.most, ": ", FormatList(listed),
                count > kListed ? " and more" : "");
}

// Returns the part of a long text near `difference`, the first byte that
// differs from another text.
std::string ExcerptAround(std::string_view text, size_t difference) {
  if (text.size() <= kShownText) return std::string(text);
  const auto is_inside = [&](size_t at) {  // A UTF-8 character.
    return at < text.size() &&
           (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  };
  size_t begin = difference > kShownText / 2 ? difference - kShownText / 2 : 0;
  while (is_inside(begin)) ++begin;
  size_t end = std::min(text.size(), begin + kShownText);
  while (end > begin && is_inside(end)) --end;
  return StrCat(begin > 0 ? "..." : "", text.substr(begin, end - begin),
                end < text.size() ? "..." : "");
}

// One comparison of facts, on one rank.
class Comparison {
 public:
  Comparison(Communicator* comm, std::string_view what,
             const DescribeFacts& describe, std::vector<size_t> voters,
             const Deadline& deadline)
      : comm_(comm),
        phase_(StrCat(what, ": differences")),
        describe_(describe),
        voters_(std::move(voters)),
        deadline_(deadline) {}

  // Finds the first fact that differs, and the ranks on which it does; nullopt
  // when none does. COLLECTIVE.
  struct Difference {
    std::string text;
    int rank;
  };
  StatusOr<std::optional<Difference>> Find() {
    uint64_t begin = 0;
    uint64_t end = std::numeric_limits<uint64_t>::max();
    for (;;) {
      MarkingSink sink(begin, end);
      Describe(&sink);
      SHARD_ASSIGN_OR_RETURN(const std::vector<Marks> all,
                             Gather(sink.marks()));
      uint64_t stride = 1;
      for (const size_t r : voters_) stride = std::max(stride, all[r].stride);
      const auto at = FindFirstRange(all, stride);
      if (!at) return std::optional<Difference>();
      begin += *at * stride;
      end = begin + stride;
      if (stride == 1) break;
    }
    PickingSink sink(begin);
    Describe(&sink);
    SHARD_ASSIGN_OR_RETURN(const std::vector<SentFact> all,
                           Gather(Truncate(sink)));
    return DescribeDifference(all);
  }

 private:
  void Describe(FactSink* sink) const {
    if (describe_) describe_(sink);
  }

  template <typename T>
  StatusOr<std::vector<T>> Gather(const T& mine) const {
    std::vector<T> all(static_cast<size_t>(comm_->world_size()));
    SHARD_RETURN_IF_ERROR(
        comm_->AllGather(phase_, &mine, sizeof(T), all.data(), deadline_));
    return all;
  }

  // Returns the first range of `stride` facts in which two ranks differ.
  std::optional<uint64_t> FindFirstRange(const std::vector<Marks>& all,
                                         uint64_t stride) const {
    const Marks& first = all[voters_.front()];
    const auto any = [&](const auto& differs) {
      return std::any_of(voters_.begin(), voters_.end(),
                         [&](size_t r) { return differs(all[r]); });
    };
    for (uint64_t k = 0;; ++k) {
      const auto mark = first.After((k + 1) * stride);
      if (any([&](const Marks& other) {
            return other.After((k + 1) * stride) != mark;
          })) {
        return k;
      }
      if (mark) continue;
      // The facts of all ranks end in this range.
      const bool differ = any([&](const Marks& other) {
        return other.count != first.count || other.last != first.last;
      });
      return differ ? std::optional<uint64_t>(k) : std::nullopt;
    }
  }

  std::optional<Difference> DescribeDifference(
      const std::vector<SentFact>& all) const {
    std::vector<uint64_t> hashes;
    for (const SentFact& sent : all) hashes.push_back(sent.hash);
    const Division division = DivideByValue(hashes, voters_);
    // The facts differed when they were hashed, but not when they were sent.
    if (division.others.empty()) return std::nullopt;
    const auto other = static_cast<size_t>(division.others.front());
    const SentFact& a = all[division.most];
    const SentFact& b = all[other];
    const size_t common =
        static_cast<size_t>(std::mismatch(a.value().begin(), a.value().end(),
                                          b.value().begin(), b.value().end())
                                .first -
                            a.value().begin());
    const bool same_title = a.title() == b.title();
    const auto has = [&](size_t r) {
      const SentFact& sent = all[r];
      std::string text = StrCat("rank ", r, " has ");
      if (sent.title().empty()) return StrCat(text, "nothing there");
      if (!same_title) StrAppend(&text, sent.title(), " ");
      StrAppend(&text, sent.value().empty()
                           ? "''"
                           : ExcerptAround(sent.value(), common));
      if (!sent.note().empty()) StrAppend(&text, " (", sent.note(), ")");
      return text;
    };
    return Difference{
        StrCat(same_title ? StrCat(a.title(), ": ") : "", has(division.most),
               ", ", has(other), CountOf(division, voters_.size())),
        static_cast<int>(other)};
  }

  Communicator* const comm_;
  const std::string phase_;
  const DescribeFacts& describe_;
  const std::vector<size_t> voters_;
  const Deadline deadline_;
};

}  // namespace

Status CheckAgreement(Communicator* comm, std::string_view what,
                      uint64_t fingerprint, const DescribeFacts& describe,
                      const Deadline& deadline) {
  struct Entry {
    uint64_t fingerprint;
    uint64_t counts;
  };
  const Entry mine = {fingerprint, describe ? uint64_t{1} : 0};
  std::vector<Entry> all(static_cast<size_t>(comm->world_size()));
  SHARD_RETURN_IF_ERROR(
      comm->AllGather(what, &mine, sizeof(mine), all.data(), deadline));
  std::vector<FingerprintVote> votes;
  for (const Entry& entry : all) {
    votes.push_back({entry.fingerprint, entry.counts != 0});
  }
  return CompareFingerprints(comm, what, votes, describe, deadline);
}

Status CheckAgreement(Communicator* comm, std::string_view what,
                      const DescribeFacts& describe, const Deadline& deadline) {
  return CheckAgreement(comm, what, HashFacts(describe), describe, deadline);
}

uint64_t HashFacts(const DescribeFacts& describe) {
  HashingSink sink;
  if (describe) describe(&sink);
  return sink.hash();
}

Status CompareFingerprints(Communicator* comm, std::string_view what,
                           const std::vector<FingerprintVote>& votes,
                           const DescribeFacts& describe,
                           const Deadline& deadline) {
  std::vector<size_t> voters;
  std::vector<uint64_t> fingerprints;
  for (size_t r = 0; r < votes.size(); ++r) {
    fingerprints.push_back(votes[r].fingerprint);
    if (votes[r].counts) voters.push_back(r);
  }
  if (voters.empty()) return Status();
  const Division division = DivideByValue(fingerprints, voters);
  if (division.others.empty()) return Status();

  const auto found = Comparison(comm, what, describe, voters, deadline).Find();
  if (found.ok() && *found) {
    return Desync((*found)->rank, "the ranks differ in ", what, ": ",
                  (*found)->text);
  }
  const auto other = static_cast<size_t>(division.others.front());
  return Desync(
      static_cast<int>(other), "the ranks differ in ", what, ": rank ",
      division.most, " has fingerprint ",
      FormatHex(fingerprints[division.most]), ", rank ", other, " has ",
      FormatHex(fingerprints[other]), CountOf(division, voters.size()),
      found.ok() ? "; no fact that they describe differs"
                 : StrCat("; the ranks could not compare what they have: ",
                          found.status().message()));
}

}  // namespace shard
