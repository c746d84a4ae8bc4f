// SPDX-License-Identifier: Apache-2.0
//
// Manifests with correct checksums and one defect in each.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/checkpoint/raw_manifest.h"

namespace shard::manifest_checks_test {
namespace {

using Raw = RawManifest;
using Change = void (*)(Raw*);

constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();

struct Case {
  Change change;
  std::vector<std::string_view> message;
};

void ExpectEach(const std::vector<Case>& cases,
                const Raw& sample = Raw::Sample(), uint32_t version = 1) {
  ASSERT_OK(Manifest::Parse(sample.Build(version)));
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(StrCat("case ", i));
    Raw raw = sample;
    cases[i].change(&raw);
    const auto parsed = Manifest::Parse(raw.Build(version));
    ExpectError(parsed, StatusCode::kCorrupt, {"the manifest is wrong"});
    for (const std::string_view part : cases[i].message) {
      ExpectError(parsed, StatusCode::kCorrupt, {part});
    }
  }
}

void ExpectFine(const std::vector<Change>& changes,
                const Raw& sample = Raw::Sample(), uint32_t version = 1) {
  for (size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(StrCat("change ", i));
    Raw raw = sample;
    changes[i](&raw);
    EXPECT_OK(Manifest::Parse(raw.Build(version)));
  }
}

// The manifest is whole, but from a version that coded in another way.
TEST(ManifestChecks, OlderCodeBooks) {
  Raw raw = Raw::Sample();
  raw.tensors[4].codebook = 2;
  ExpectError(Manifest::Parse(raw.Build()), StatusCode::kUnimplemented,
              {"code book 2", "states=f32"});
}

TEST(ManifestChecks, Manifest) {
  ExpectEach({
      {[](Raw* r) { r->writer = "a\nb"; }, {"writer"}},
      {[](Raw* r) { r->step = -1; }, {"step -1"}},
      {[](Raw* r) { r->world_size = 0; }, {"0 ranks"}},
      {[](Raw* r) { r->world_size = -5; }, {"-5 ranks"}},
  });
}

TEST(ManifestChecks, Files) {
  ExpectEach({
      {[](Raw* r) { r->files[0].name = ""; }, {"file 0", "no name"}},
      {[](Raw* r) { r->files[0].name = "."; }, {"file 0", "'.'"}},
      {[](Raw* r) { r->files[0].name = ".."; }, {"'..'", "plain"}},
      {[](Raw* r) { r->files[0].name = "../x"; }, {"'../x'"}},
      {[](Raw* r) { r->files[0].name = "/etc/passwd"; }, {"plain"}},
      {[](Raw* r) { r->files[0].name = "manifest.shard"; }, {"plain"}},
      {[](Raw* r) { r->files[0].name = std::string(256, 'x'); }, {"plain"}},
      {[](Raw* r) { r->files[0].name = "a\x1b[2J"; }, {"control"}},
      {[](Raw* r) { r->files[0].name = std::string("a\0b", 3); }, {"control"}},
      {[](Raw* r) { r->files[0].name = "data-00001.bin"; },
       {"two files", "data-00001.bin"}},
      {[](Raw* r) { r->files[0].bytes = uint64_t{1} << 63; },
       {"9223372036854775808 bytes; at most 2^63 - 1"}},
      {[](Raw* r) { r->files[0].bytes -= 1; },
       {"69631 bytes", "multiple of 4096"}},
  });
  ExpectFine({[](Raw* r) { r->files[0].name = std::string(255, 'x'); },
              [](Raw* r) {
                r->files.push_back({"...", 0});
              }});
}

TEST(ManifestChecks, Keys) {
  ExpectEach({
      {[](Raw* r) { r->tensors[1].key = ""; }, {"tensor 1", "no name"}},
      {[](Raw* r) { r->tensors[1].key = std::string(65536, 'x'); },
       {"65536 bytes", "65535"}},
      {[](Raw* r) { r->tensors[1].key = "\xFF"; }, {"UTF-8"}},
      {[](Raw* r) { r->tensors[1].key = "a\xC3"; }, {"UTF-8"}},
      {[](Raw* r) { r->tensors[1].key = "a\tb"; }, {"control"}},
      {[](Raw* r) { r->tensors[1].key = "a\x7F"; }, {"control"}},
      {[](Raw* r) { r->tensors[1].key = "a\xC2\x85"; }, {"control"}},
      {[](Raw* r) { r->tensors[1].key = std::string("a\0", 2); }, {"control"}},
      {[](Raw* r) { r->tensors[1].key = "tied"; },
       {"same key", "numbers 1 and 2"}},
  });
  ExpectFine({
      [](Raw* r) { r->tensors[1].key = std::string(65535, 'x'); },
      [](Raw* r) { r->tensors[1].key = "a\xC2\xA0 \xE2\x82\xAC"; },
  });
}

TEST(ManifestChecks, TypesAndShapes) {
  ExpectEach({
      {[](Raw* r) { r->tensors[1].type = 0; }, {"'b'", "type 0"}},
      {[](Raw* r) { r->tensors[1].type = 8; }, {"type 8"}},
      {[](Raw* r) { r->tensors[1].type = 255; }, {"type 255"}},
      {[](Raw* r) { r->tensors[1].role = 0; }, {"role 0"}},
      {[](Raw* r) { r->tensors[1].role = 4; }, {"role 4"}},
      {[](Raw* r) { r->tensors[4].role = 1; }, {"q8"}},
      {[](Raw* r) { r->tensors[1].shape.assign(9, 1); }, {"at most 8"}},
      {[](Raw* r) {
         r->tensors[3].shape = {-1, 0};
       },
       {"[-1, 0]"}},
      {[](Raw* r) {
         r->tensors[3].shape = {0, kInt64Max, 2};
       },
       {"2^63 - 1"}},
      // The shape describes 2^62 elements of four bytes.
      {[](Raw* r) {
         r->tensors[3].shape = {0, int64_t{1} << 62};
       },
       {"2^63 - 1"}},
      {[](Raw* r) { r->tensors[1].group = 1; }, {"group 1", "there are 1"}},
      {[](Raw* r) { r->tensors[1].group = -2; }, {"group -2"}},
      {[](Raw* r) { r->tensors[1].step = -2; }, {"-2 steps"}},
      {[](Raw* r) { r->tensors[4].codebook = 6; }, {"code book 6", "q8"}},
      {[](Raw* r) { r->tensors[1].codebook = 1; }, {"code book 1", "f32"}},
  });
  ExpectFine({
      [](Raw* r) { r->tensors[1].shape.assign(8, 1); },
      [](Raw* r) {
        r->tensors[3].shape = {0, int64_t{1} << 60};
      },
      [](Raw* r) { r->tensors[4].codebook = 5; },
  });
}

TEST(ManifestChecks, Aliases) {
  ExpectEach({
      {[](Raw* r) { r->tensors[2].alias_of = 6; }, {"'tied'", "tensor 6"}},
      {[](Raw* r) { r->tensors[2].alias_of = -2; }, {"tensor -2"}},
      {[](Raw* r) { r->tensors[2].alias_of = 2; }, {"an alias itself"}},
      {[](Raw* r) {
         r->tensors.push_back(r->tensors[2]);
         r->tensors[6].key = "tied2";
         r->tensors[6].alias_of = 2;
       },
       {"'tied2'", "an alias itself"}},
      {[](Raw* r) { r->tensors[2].type = 18; }, {"another type"}},
      {[](Raw* r) { r->tensors[2].role = 2; }, {"role"}},
      {[](Raw* r) {
         r->tensors[2].shape = {4096, 3};
       },
       {"shape"}},
      {[](Raw* r) {
         r->tensors[2].shape = {3, 4096, 1};
       },
       {"shape"}},
      {[](Raw* r) { r->tensors[2].num_slices = 1; }, {"of its own"}},
      {[](Raw* r) { r->tensors[2].group = 0; }, {"of its own"}},
      {[](Raw* r) { r->tensors[2].step = 3; }, {"of its own"}},
      {[](Raw* r) { r->tensors[2].trainable = false; }, {"of its own"}},
      {[](Raw* r) { r->tensors[2].codebook = 1; }, {"of its own"}},
      {[](Raw* r) { r->tensors[2].first_slice = 1; }, {"of its own"}},
  });
}

// Tensors 6 to 8 are "c" of 7200 bytes, its alias "c2", and "t" of 7 bytes of
// an unknown type.
TEST(ManifestChecks, Opaque) {
  const std::vector<Case> cases = {
      {[](Raw* r) { r->tensors[6].opaque_type.reset(); },
       {"'c'", "opaque_type ''"}},
      {[](Raw* r) { r->tensors[6].opaque_type = ""; }, {"opaque_type ''"}},
      {[](Raw* r) { r->tensors[6].opaque_type = "F32"; },
       {"'F32'", "not opaque"}},
      {[](Raw* r) { r->tensors[6].opaque_type = "BOOL"; }, {"'BOOL'"}},
      {[](Raw* r) { r->tensors[6].opaque_type = "C 64"; }, {"'C 64'"}},
      {[](Raw* r) { r->tensors[6].opaque_type = "C64\n"; }, {"letters"}},
      {[](Raw* r) { r->tensors[6].opaque_type = std::string("C64\0", 4); },
       {"letters"}},
      {[](Raw* r) { r->tensors[6].opaque_type = "\xC3\x89"; }, {"letters"}},
      {[](Raw* r) { r->tensors[6].opaque_type = std::string(33, 'T'); },
       {"1 to 32"}},
      {[](Raw* r) { r->tensors[6].opaque_bytes = 7199; },
       {"'c'", "7199 bytes", "C64", "[3, 300]", "64 bits"}},
      {[](Raw* r) { r->tensors[6].opaque_bytes = 0; }, {"0 bytes", "C64"}},
      {[](Raw* r) { r->tensors[8].opaque_bytes = uint64_t{1} << 63; },
       {"'t'", "9223372036854775808 bytes"}},
      {[](Raw* r) { r->tensors[8].opaque_bytes = (uint64_t{1} << 63) - 1; },
       {"slice 0 of tensor 't'", "9223372036854775807 bytes"}},
      {[](Raw* r) { r->tensors[8].opaque_bytes = 4097; }, {"which has 12288"}},
      {[](Raw* r) { r->tensors[8].opaque_bytes = 0; },
       {"'t'", "element 0 of 0"}},
      {[](Raw* r) {
         r->tensors[6].opaque_type = "F4", r->tensors[6].opaque_bytes = 450;
       },
       {"'c'", "element 4096 of 450"}},
      {[](Raw* r) {
         r->tensors[8].shape = {0, kInt64Max, 2};
       },
       {"'t'", "2^63 - 1"}},
      {[](Raw* r) { r->tensors[8].shape = {-1}; }, {"[-1]"}},
      {[](Raw* r) { r->tensors[8].shape.assign(9, 1); }, {"at most 8"}},
      {[](Raw* r) { r->tensors[8].codebook = 3; }, {"code book 3", "opaque"}},
      {[](Raw* r) { r->tensors[7].opaque_type = "C64"; }, {"of its own"}},
      {[](Raw* r) { r->tensors[7].opaque_bytes = 7200; }, {"of its own"}},
      {[](Raw* r) { r->tensors[7].type = 1; }, {"another type"}},
      {[](Raw* r) { r->tensors[0].opaque_type = "C64"; }, {"it is not opaque"}},
      {[](Raw* r) { r->tensors[0].opaque_type = ""; }, {"it is not opaque"}},
      {[](Raw* r) { r->tensors[0].opaque_bytes = 1; }, {"it is not opaque"}},
      {[](Raw* r) { r->tensors[6].key = "t"; }, {"same key"}},
  };
  ExpectEach(cases, Raw::OpaqueSample(), 3);
  ExpectFine(
      {
          // Any number of bytes of an unknown type.
          [](Raw* r) { r->tensors[8].opaque_bytes = 4095; },
          [](Raw* r) { r->tensors[8].shape = {0}; },
          [](Raw* r) { r->tensors[8].shape.clear(); },
          [](Raw* r) { r->tensors[8].shape = {int64_t{1} << 62}; },
          [](Raw* r) {
            r->tensors[8].opaque_bytes = 0, r->tensors[8].num_slices = 0;
            r->tensors[8].first_slice = 0;
            r->slices.pop_back(), r->files[2].bytes = 8192;
          },
          [](Raw* r) { r->tensors[6].opaque_type = std::string(32, 'T'); },
          // A slice may begin within an element.
          [](Raw* r) { r->slices[6].begin = 4095; },
          [](Raw* r) { r->tensors[6].role = r->tensors[7].role = 3; },
      },
      Raw::OpaqueSample(), 3);
  for (const uint32_t version : {1, 2}) {
    ExpectError(Manifest::Parse(Raw::OpaqueSample().Build(version)),
                StatusCode::kCorrupt,
                {"'c'", "no element type 32 in this version"});
  }
}

TEST(ManifestChecks, Slices) {
  ExpectEach({
      {[](Raw* r) { r->slices[0].begin = 1; }, {"slice 0", "element 1"}},
      {[](Raw* r) { r->slices[1].begin = 0; }, {"slice 1", "element 0"}},
      {[](Raw* r) { r->slices[1].begin = -1; }, {"element -1"}},
      {[](Raw* r) { r->slices[1].begin = 12288; }, {"12288 of 12288"}},
      {[](Raw* r) { r->tensors[0].num_slices = 0; }, {"no slices", "12288"}},
      {[](Raw* r) {
         r->tensors[3].num_slices = 1, r->tensors[3].first_slice = 3;
       },
       {"element 0 of 0"}},
      {[](Raw* r) { r->tensors[3].first_slice = 3; }, {"its first is 3"}},
      {[](Raw* r) { r->tensors[1].first_slice = 1; }, {"from number 1"}},
      {[](Raw* r) { r->tensors[1].first_slice = 3; }, {"from number 3"}},
      {[](Raw* r) { r->tensors[5].num_slices = 2; }, {"are 2 from number 4"}},
      {[](Raw* r) { r->tensors[5].num_slices = 0xFFFFFFFF; }, {"4294967295"}},
      {[](Raw* r) {
         r->slices.push_back({0, 70000});
       },
       {"6 slices", "5"}},
      {[](Raw* r) { r->slices[1].reserved = 1; }, {"reserved"}},
  });
}

TEST(ManifestChecks, Places) {
  ExpectEach({
      {[](Raw* r) { r->slices[2].file = 2; }, {"'b'", "file 2"}},
      {[](Raw* r) { r->slices[2].offset += 32; }, {"49184", "multiple of 64"}},
      {[](Raw* r) { r->slices[1].offset += 64; }, {"multiple of 4096"}},
      {[](Raw* r) { r->slices[2].offset = 1 << 20; }, {"which has 69632"}},
      {[](Raw* r) { r->slices[2].offset = ~uint64_t{63}; }, {"which has"}},
      {[](Raw* r) { r->files[0].bytes = 65536; }, {"which has 65536"}},
      {[](Raw* r) { r->blobs[0].bytes = 4096; }, {"'loader' of rank 0"}},
      {[](Raw* r) {
         r->tensors[1].shape = {(1 << 24) + 1};
         r->files[0].bytes += 64 << 20;
       },
       {"slice 0 of tensor 'b'", "67108868 bytes", "67108864"}},
      {[](Raw* r) { r->slices[1].offset = 0; }, {"shares bytes"}},
      {[](Raw* r) { r->slices[1].offset = 12288; },
       {"slice 1 of tensor 'a.weight'", "shares bytes"}},
      {[](Raw* r) { r->blobs[1].file = 0, r->blobs[1].offset = 49152; },
       {"shares bytes"}},
      {[](Raw* r) { r->blobs[4].offset = 128; }, {"shares bytes"}},
      // Bytes that nothing refers to: in front, in the middle, at the end, in a
      // file.
      {[](Raw* r) {
         r->files[1].bytes += 4096;
         for (int i = 1; i < 5; ++i) {
           r->blobs[static_cast<size_t>(i)].offset += 4096;
         }
       },
       {"bytes 0 to 4096", "data-00001.bin", "belong to nothing"}},
      {[](Raw* r) { r->blobs[4].offset += 4096, r->files[1].bytes += 4096; },
       {"bytes 144 to 4288"}},
      {[](Raw* r) { r->files[1].bytes += 4096; }, {"bytes 197 to 8192"}},
      {[](Raw* r) {
         r->files.push_back({"x", 4096});
       },
       {"bytes 0 to 4096", "'x'"}},
      {[](Raw* r) { r->blobs[0].reserved = 5; }, {"reserved"}},
  });
  ExpectFine({
      [](Raw* r) { r->blobs[4].offset = 4032; },
      [](Raw* r) { r->blobs[4].offset += 4032, r->files[1].bytes += 4096; },
  });
}

TEST(ManifestChecks, GroupsAndScalars) {
  ExpectEach({
      {[](Raw* r) { r->groups[0] = ""; }, {"param group 0"}},
      {[](Raw* r) { r->groups[0] = "sgd?lr=\x01"; }, {"control"}},
      {[](Raw* r) { r->scalars[0].name = ""; }, {"scalar 0"}},
      {[](Raw* r) { r->scalars[0].name = "other"; }, {"two scalars", "other"}},
      {[](Raw* r) { r->scalars[0].value = NAN; }, {"loss_scale.scale"}},
      {[](Raw* r) { r->scalars[0].value = -INFINITY; }, {"not finite"}},
  });
}

TEST(ManifestChecks, Blobs) {
  ExpectEach({
      {[](Raw* r) { r->blobs[0].name = ""; }, {"blob 0"}},
      {[](Raw* r) { r->blobs[0].name = "\n"; }, {"blob 0", "control"}},
      {[](Raw* r) { r->blobs[4].rule = 0; }, {"'rng'", "rule 0"}},
      {[](Raw* r) { r->blobs[4].rule = 4; }, {"rule 4"}},
      {[](Raw* r) { r->blobs[4].rank = 1; }, {"replicated", "rank 1"}},
      {[](Raw* r) { r->blobs[0].rank = 2; }, {"rank 2 of 2"}},
      {[](Raw* r) { r->blobs[0].rank = -1; }, {"rank -1"}},
      {[](Raw* r) { r->blobs[0].rank = 1; }, {"rank 1 has two", "loader"}},
      {[](Raw* r) { r->blobs[4].name = "none"; }, {"'none'", "rules"}},
      {[](Raw* r) { r->blobs[2].bytes = 15; }, {"15 bytes", "multiple of 8"}},
      {[](Raw* r) { r->blobs[2].bytes = 8; }, {"'counts'", "sizes differ"}},
      {[](Raw* r) { r->blobs[5].offset = 64; }, {"empty and has a place"}},
      {[](Raw* r) { r->blobs[5].file = 1; }, {"empty and has a place"}},
      {[](Raw* r) { r->blobs[5].reserved = 1; }, {"empty and has a place"}},
  });
}

TEST(ManifestChecks, Scales) {
  ExpectEach({
      {[](Raw* r) { r->tensors[5].key = "other"; },
       {"'state.a.weight.v'", "no .q8_scale"}},
      {[](Raw* r) { r->tensors[5].type = 18; }, {"48 scales"}},
      {[](Raw* r) { r->tensors[5].role = 2; }, {"48 scales"}},
      {[](Raw* r) { r->tensors[5].shape = {47}; }, {"48 scales"}},
      {[](Raw* r) {
         r->tensors[5].shape = {48, 1};
       },
       {"48 scales"}},
  });
}

}  // namespace
}  // namespace shard::manifest_checks_test
