// SPDX-License-Identifier: Apache-2.0
//
// Runs Manifest::Parse on any bytes: those of a file, and those of a body that
// gets a correct header, since no fuzzer finds a checksum. A manifest that is
// accepted is read in full, written, and read again.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "core/checkpoint/manifest/manifest.h"
#include "core/checkpoint/manifest/manifest_header.h"
#include "tests/core/checkpoint/read_manifest.h"
#include "tests/fuzz/fuzz.h"

namespace shard {
namespace {

void ParseAndRead(std::span<const std::byte> file) {
  const auto parsed = WithinLimits(file.size(), [&] {
    return Manifest::Parse({file.begin(), file.end()});
  });
  if (!parsed.ok()) {
    FUZZ_CHECK(parsed.status().code() == StatusCode::kCorrupt ||
               parsed.status().code() == StatusCode::kUnimplemented);
    return;
  }
  const Manifest& manifest = **parsed;
  for (size_t i = 0; i < manifest.num_tensors(); ++i) {
    const TensorInfo info = manifest.tensor(i);
    FUZZ_CHECK(manifest.Find(info.key) == static_cast<int64_t>(i));
    int64_t next = 0;
    for (size_t s = 0; s < manifest.num_slices(i); ++s) {
      const Slice slice = manifest.slice(i, s);
      FUZZ_CHECK(slice.begin == next && slice.numel > 0);
      next += slice.numel;
      FUZZ_CHECK(manifest.SliceAt(i, slice.begin) == s);
      FUZZ_CHECK(manifest.SliceAt(i, next - 1) == s);
      const Extent& at = slice.extent;
      FUZZ_CHECK(at.offset + at.bytes <= manifest.file_bytes(at.file));
    }
    FUZZ_CHECK(next == StoredNumel(info));
  }
  const auto written = EncodeManifest(ContentsOf(manifest));
  FUZZ_CHECK(written.ok());
  const auto again = Manifest::Parse(*written);
  FUZZ_CHECK(again.ok() && Describe(**again) == Describe(manifest));
}

}  // namespace
}  // namespace shard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shard;
  const auto file = std::as_bytes(std::span(data, size));
  ParseAndRead(file);
  if (size < kManifestHeaderBytes) return 0;
  const auto body = file.subspan(kManifestHeaderBytes);
  std::vector<std::byte> sealed(file.begin(), file.end());
  WriteManifestHeader(body, kManifestVersion, sealed.data());
  ParseAndRead(sealed);
  return 0;
}
