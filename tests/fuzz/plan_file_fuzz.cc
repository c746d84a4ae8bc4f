// SPDX-License-Identifier: Apache-2.0
//
// Runs DecodePlan on any bytes: those of a file; those of a body that gets a
// correct header, since no fuzzer finds a checksum; and those of a body that
// also gets the fingerprint of its contents. A plan that is accepted is
// written, and decoded again.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint/manifest/flatbuffer_walk.h"
#include "core/plan_file/plan_file.h"
#include "core/plan_file/plan_generated.h"
#include "tests/fuzz/fuzz.h"

namespace shard {
namespace {

using Decoded = StatusOr<std::shared_ptr<const Plan>>;

// Returns the world size in `file`, or 0 where no plan can be made.
int32_t WorldSizeOf(std::span<const std::byte> file) {
  const auto header = ReadFileHeader(kPlanFormat, file);
  if (!header.ok()) return 0;
  const std::vector<std::byte> body(header->body.begin(), header->body.end());
  if (!IsFlatBuffer(body, [](flatbuffers::Verifier& verifier) {
        return plan_schema::VerifyPlanBuffer(verifier);
      })) {
    return 0;
  }
  const int32_t ranks =
      plan_schema::GetPlan(body.data())->options()->world_size();
  return ranks < 0 || ranks > kMaxWorldSize ? 0 : ranks;
}

// Decodes `file`, and checks the limits that plan_file.h promises.
Decoded DecodeWithinLimits(std::span<const std::byte> file) {
  const double most = 64.0 * static_cast<double>(file.size()) +
                      96.0 * WorldSizeOf(file) + (32 << 20);
  return WithinLimits(file.size(), most, [&] { return DecodePlan(file); });
}

Decoded DecodeAndWrite(std::span<const std::byte> file) {
  Decoded decoded = DecodeWithinLimits(file);
  if (!decoded.ok()) {
    FUZZ_CHECK(decoded.status().code() == StatusCode::kCorrupt ||
               decoded.status().code() == StatusCode::kUnimplemented);
    return decoded;
  }
  const Plan& plan = **decoded;
  const auto written = EncodePlan(plan);
  // The file that the library writes may be smaller than the input, and its
  // names then too long for a file of its size.
  if (written.status().code() == StatusCode::kResourceExhausted) return decoded;
  FUZZ_CHECK(written.ok());
  const auto again = DecodePlan(*written);
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK((*again)->fingerprint() == plan.fingerprint());
  FUZZ_CHECK(*EncodePlan(**again) == *written);
  FUZZ_CHECK((*again)->ToJson() == plan.ToJson());
  FUZZ_CHECK((*again)->ToText() == plan.ToText());
  return decoded;
}

// Writes the fingerprint that `error` says a plan should have into the body of
// `file`. Returns false when the error is another one.
bool CorrectFingerprint(const Status& error, std::vector<std::byte>* file) {
  constexpr const char kBefore[] = "made from has ";
  const std::string message(error.message());
  const size_t at = message.find(kBefore);
  if (at == std::string::npos) return false;
  const uint64_t right =
      std::strtoull(message.c_str() + at + std::strlen(kBefore), nullptr, 16);
  // The FlatBuffer was verified, or the error would be another one.
  std::byte* const body = file->data() + kFileHeaderBytes;
  auto* const root = flatbuffers::GetMutableRoot<flatbuffers::Table>(body);
  uint8_t* const field = root->GetAddressOf(plan_schema::Plan::VT_FINGERPRINT);
  if (field == nullptr) return false;
  std::memcpy(field, &right, sizeof(right));
  return true;
}

}  // namespace
}  // namespace shard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shard;
  const auto file = std::as_bytes(std::span(data, size));
  (void)DecodeAndWrite(file);
  if (size < kFileHeaderBytes) return 0;
  std::vector<std::byte> sealed(file.begin(), file.end());
  const auto body = std::span(sealed).subspan(kFileHeaderBytes);
  WriteFileHeader(kPlanFormat, body, kPlanFileVersion, sealed.data());
  const Decoded decoded = DecodeAndWrite(sealed);
  if (!CorrectFingerprint(decoded.status(), &sealed)) return 0;
  WriteFileHeader(kPlanFormat, body, kPlanFileVersion, sealed.data());
  // Any result is fine: a vtable may lie where the fingerprint is.
  (void)DecodeAndWrite(sealed);
  return 0;
}
