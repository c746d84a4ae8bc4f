// SPDX-License-Identifier: Apache-2.0

#include "core/observe/collective_ring.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/json_writer.h"
#include "core/base/strings.h"

namespace shard {

namespace {

// The progress of a collective, in one word, so that it changes at once. The
// low byte is kRunningMark or kPostedMark, and the rest is the ticket; or the
// low byte is the code of its result, and the rest is nanoseconds from begin to
// end, up to two years.
constexpr unsigned kMarkBits = 8;
constexpr uint64_t kRunningMark = 0xFF;
constexpr uint64_t kPostedMark = 0xFE;

constexpr uint64_t Progress(uint64_t value, uint64_t mark) {
  return value << kMarkBits | mark;
}
constexpr uint64_t MarkOf(uint64_t progress) {
  return progress & ((uint64_t{1} << kMarkBits) - 1);
}

uint64_t Ended(int64_t begin, int64_t now, StatusCode result) {
  const int64_t taken = std::max<int64_t>(now - begin, 0);
  return Progress(static_cast<uint64_t>(taken), static_cast<uint64_t>(result));
}

// Copies what fits of a text, never half a UTF-8 character.
template <size_t N>
void CopyText(std::string_view text, std::array<char, N>* to) {
  size_t size = std::min(text.size(), N);
  if (size < text.size()) {
    while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80)
      --size;
  }
  if (size > 0) std::memcpy(to->data(), text.data(), size);
}

template <size_t N>
std::string_view TextIn(const std::array<char, N>& text) {
  return {text.data(), ::strnlen(text.data(), N)};
}

std::string_view NameOf(int8_t dtype) {
  return DTypeName(static_cast<DType>(dtype));
}

double Seconds(int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-9;
}

}  // namespace

void CollectiveSequence::SetName(std::string_view name) {
  CopyText(name, &name_);
}

uint64_t CollectiveSequence::LastId() const {
  // The finalizer of splitmix64, by Sebastiano Vigna:
  // https://prng.di.unimi.it/splitmix64.c
  uint64_t hash = group_ + (number_ + 1) * 0x9e3779b97f4a7c15u;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
  return hash ^ (hash >> 31);
}

CollectiveRing::CollectiveRing() : slots_(std::make_unique<Slot[]>(kEntries)) {}

CollectiveRing::~CollectiveRing() = default;

uint64_t CollectiveRing::Begin(const CollectiveSequence& sequence,
                               const CollectiveCall& call, int64_t now) {
  Record record{};
  record.group = sequence.group_;
  record.number = sequence.number_;
  record.bytes = call.bytes;
  record.begin = now;
  record.set_first = call.set_first;
  record.set_stride = call.set_stride;
  record.set_ranks = call.set_ranks;
  record.root = call.root;
  record.name = sequence.name_;
  CopyText(call.what, &record.what);
  record.operation = static_cast<uint32_t>(call.operation);
  record.dtype = call.dtype;
  record.recv_dtype = call.recv_dtype;
  std::array<uint64_t, kWords> words;
  std::memcpy(words.data(), &record, sizeof(record));

  const uint64_t ticket = next_.fetch_add(1, std::memory_order_relaxed);
  Slot& slot = SlotOf(ticket);
  const uint64_t version = 2 * (ticket + 1);
  uint64_t before = slot.version.load(std::memory_order_relaxed);
  // A thread that was stopped within this for kEntries collectives still
  // writes here: one of the two entries is dropped.
  if (before % 2 != 0 || before > version ||
      !slot.version.compare_exchange_strong(before, version - 1,
                                            std::memory_order_acq_rel)) {
    return ticket;
  }
  // Release, here and below: a reader that sees one of these sees the odd
  // version too.
  slot.progress.store(Progress(ticket, kRunningMark),
                      std::memory_order_release);
  for (size_t i = 0; i < kWords; ++i) {
    slot.words[i].store(words[i], std::memory_order_release);
  }
  slot.version.store(version, std::memory_order_release);
  return ticket;
}

void CollectiveRing::Change(uint64_t ticket, uint64_t to) {
  std::atomic<uint64_t>& progress = SlotOf(ticket).progress;
  // The entry of another ticket has another progress.
  for (const uint64_t mark : {kRunningMark, kPostedMark}) {
    uint64_t expected = Progress(ticket, mark);
    if (progress.compare_exchange_strong(expected, to,
                                         std::memory_order_acq_rel)) {
      return;
    }
  }
}

void CollectiveRing::Post(uint64_t ticket) {
  Change(ticket, Progress(ticket, kPostedMark));
}

void CollectiveRing::Await(uint64_t ticket) {
  Change(ticket, Progress(ticket, kRunningMark));
}

void CollectiveRing::End(uint64_t ticket, int64_t now, StatusCode result) {
  Entry entry;
  if (!Read(SlotOf(ticket), &entry) || entry.ticket != ticket) return;
  Change(ticket, Ended(entry.record.begin, now, result));
}

void CollectiveRing::EndPosted(const CollectiveSequence& sequence,
                               uint64_t number, int64_t now,
                               StatusCode result) {
  Entry entry;
  for (size_t s = 0; s < kEntries; ++s) {
    if (!Read(slots_[s], &entry) || entry.record.group != sequence.group_ ||
        entry.record.number > number || MarkOf(entry.progress) != kPostedMark) {
      continue;
    }
    Change(entry.ticket, Ended(entry.record.begin, now, result));
  }
}

bool CollectiveRing::Read(const Slot& slot, Entry* entry) {
  const uint64_t version = slot.version.load(std::memory_order_acquire);
  if (version == 0 || version % 2 != 0) return false;
  entry->ticket = version / 2 - 1;
  entry->progress = slot.progress.load(std::memory_order_acquire);
  std::array<uint64_t, kWords> words;
  for (size_t i = 0; i < kWords; ++i) {
    words[i] = slot.words[i].load(std::memory_order_acquire);
  }
  std::memcpy(&entry->record, words.data(), sizeof(entry->record));
  return slot.version.load(std::memory_order_relaxed) == version;
}

std::vector<CollectiveRing::Entry> CollectiveRing::ReadAll() const {
  std::vector<Entry> entries;
  entries.reserve(kEntries);
  Entry entry;
  for (size_t s = 0; s < kEntries; ++s) {
    if (Read(slots_[s], &entry)) entries.push_back(entry);
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.ticket < b.ticket; });
  return entries;
}

void CollectiveRing::AppendEntry(const Entry& entry, int64_t to_unix,
                                 JsonWriter* json) {
  const Record& record = entry.record;
  json->BeginObject();
  json->Field("group", FormatHex(record.group));
  json->Field("name", TextIn(record.name));
  json->Field("number", record.number);
  json->Field("operation", TypeOf(static_cast<EventId>(record.operation)).name);
  json->Field("what", TextIn(record.what));
  json->Field("bytes", record.bytes);
  if (record.dtype >= 0) json->Field("dtype", NameOf(record.dtype));
  if (record.recv_dtype >= 0) {
    json->Field("recv_dtype", NameOf(record.recv_dtype));
  }
  if (record.set_ranks > 0) {
    json->Field("ranks", record.set_ranks);
    if (record.set_first >= 0) json->Field("first", record.set_first);
    json->Field("stride", record.set_stride);
  }
  if (record.root >= 0) json->Field("root", record.root);
  json->Field("begin", Seconds(record.begin + to_unix));
  const uint64_t mark = MarkOf(entry.progress);
  if (mark == kRunningMark || mark == kPostedMark) {
    json->Field("state", mark == kRunningMark ? "running" : "posted");
    json->NullField("seconds");
  } else {
    const auto result = static_cast<StatusCode>(mark);
    json->Field("state", result == StatusCode::kOk ? "done" : "failed");
    json->Field("seconds",
                Seconds(static_cast<int64_t>(entry.progress >> kMarkBits)));
    if (result != StatusCode::kOk) {
      json->Field("error", StatusCodeName(result));
    }
  }
  json->EndObject();
}

void CollectiveRing::AppendTo(JsonWriter* json, int64_t to_unix) const {
  // Read first: no entry is then newer than the number says.
  const std::vector<Entry> entries = ReadAll();
  json->Field("recorded", next_.load(std::memory_order_relaxed));
  json->Key("collectives");
  json->BeginArray();
  for (const Entry& entry : entries) AppendEntry(entry, to_unix, json);
  json->EndArray();
}

}  // namespace shard
