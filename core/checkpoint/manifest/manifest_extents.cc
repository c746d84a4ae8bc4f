// SPDX-License-Identifier: Apache-2.0
//
// The checks of places in files.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "core/checkpoint/manifest/manifest.h"
#include "core/checkpoint/manifest/manifest_checks.h"
#include "core/checkpoint/manifest/manifest_structure.h"
#include "core/checkpoint/store/tensor_info.h"
#include "core/model/names.h"

namespace shard {

namespace {

// A slice or a blob, in eight bytes, because there may be over a million.
struct Owner {
  uint32_t number;
  uint32_t tensor;  // The slice's tensor; kBlob: a blob.
};
constexpr uint32_t kBlob = UINT32_MAX;

struct Place {
  uint32_t file;
  uint64_t offset;
  uint32_t reserved;
};

class Extents {
 public:
  explicit Extents(const schema::Manifest& manifest) : manifest_(manifest) {}

  Status Check() {
    SHARD_RETURN_IF_ERROR(Collect());
    std::sort(owners_.begin(), owners_.end(),
              [this](const Owner& a, const Owner& b) {
                const Place x = PlaceOf(a);
                const Place y = PlaceOf(b);
                return x.file != y.file ? x.file < y.file : x.offset < y.offset;
              });
    auto owner = owners_.begin();
    for (uint32_t i = 0; i < num_files(); ++i) {
      const schema::File& file = *manifest_.files()->Get(i);
      uint64_t end = 0;
      for (; owner != owners_.end() && PlaceOf(*owner).file == i; ++owner) {
        const uint64_t offset = PlaceOf(*owner).offset;
        if (offset < end) {
          return Corrupt(Name(*owner), " shares bytes of file ", FileName(i),
                         " with what is before it");
        }
        if (offset - end >= kSliceAlignment) return Gap(i, end, offset);
        end = offset + Bytes(*owner);
      }
      if (file.bytes() - end >= kSliceAlignment) {
        return Gap(i, end, file.bytes());
      }
    }
    return {};
  }

 private:
  uint32_t num_files() const { return CountOf(manifest_.files()); }

  // Lists every owner of bytes, after checking that it is inside its file and
  // aligned.
  Status Collect() {
    const auto* tensors = manifest_.tensors();
    const auto* blobs = manifest_.blobs();
    owners_.reserve(size_t{CountOf(manifest_.slices())} + CountOf(blobs));
    for (uint32_t i = 0; i < CountOf(tensors); ++i) {
      const schema::Tensor& tensor = *tensors->Get(i);
      for (uint32_t s = 0; s < tensor.num_slices(); ++s) {
        owners_.push_back({tensor.first_slice() + s, i});
        SHARD_RETURN_IF_ERROR(CheckPlace(owners_.back()));
      }
    }
    for (uint32_t i = 0; i < CountOf(blobs); ++i) {
      const Owner owner = {i, kBlob};
      if (Bytes(owner) > 0) {
        owners_.push_back(owner);
        SHARD_RETURN_IF_ERROR(CheckPlace(owner));
        continue;
      }
      const Place place = PlaceOf(owner);
      if (place.file != 0 || place.offset != 0 || place.reserved != 0) {
        return Corrupt(Name(owner), " is empty and has a place");
      }
    }
    return {};
  }

  Status CheckPlace(const Owner& owner) const {
    const Place place = PlaceOf(owner);
    const uint64_t bytes = Bytes(owner);
    if (place.reserved != 0) {
      return Corrupt(Name(owner), " has ", place.reserved,
                     " in its reserved field, which is 0 in this version");
    }
    if (place.file >= num_files()) {
      return Corrupt(Name(owner), " is in file ", place.file, "; there are ",
                     num_files());
    }
    const uint64_t size = manifest_.files()->Get(place.file)->bytes();
    if (place.offset > size || bytes > size - place.offset) {
      return Corrupt(Name(owner), " has ", bytes, " bytes from ", place.offset,
                     " of file ", FileName(place.file), ", which has ", size);
    }
    if (owner.tensor != kBlob && bytes > kMaxSliceBytes) {
      return Corrupt(Name(owner), " has ", bytes, " bytes; at most ",
                     kMaxSliceBytes, " are allowed");
    }
    const uint64_t alignment =
        bytes >= kSliceAlignment ? kSliceAlignment : kSmallSliceAlignment;
    if (place.offset % alignment != 0) {
      return Corrupt(Name(owner), " has ", bytes, " bytes from ", place.offset,
                     " of file ", FileName(place.file),
                     ", which is no multiple of ", alignment);
    }
    return {};
  }

  Place PlaceOf(const Owner& owner) const {
    if (owner.tensor == kBlob) {
      const auto& at = *manifest_.blobs()->Get(owner.number)->extent();
      return {at.file(), at.offset(), at.reserved()};
    }
    const schema::Slice& at = *manifest_.slices()->Get(owner.number);
    return {at.file(), at.offset(), at.reserved()};
  }

  uint64_t Bytes(const Owner& owner) const {
    if (owner.tensor == kBlob) {
      return manifest_.blobs()->Get(owner.number)->extent()->bytes();
    }
    const schema::Tensor& tensor = *manifest_.tensors()->Get(owner.tensor);
    const auto& slices = *manifest_.slices();
    const uint32_t next = owner.number + 1;
    const int64_t end = next < tensor.first_slice() + tensor.num_slices()
                            ? slices.Get(next)->begin()
                            : StoredNumel(tensor);
    return static_cast<uint64_t>(end - slices.Get(owner.number)->begin()) *
           ElementSize(static_cast<ElementType>(tensor.type()));
  }

  std::string FileName(uint32_t file) const {
    return QuoteName(manifest_.files()->Get(file)->name()->c_str());
  }

  std::string Name(const Owner& owner) const {
    if (owner.tensor == kBlob) {
      const schema::Blob& blob = *manifest_.blobs()->Get(owner.number);
      return StrCat("blob ", QuoteName(blob.name()->c_str()), " of rank ",
                    blob.rank());
    }
    const schema::Tensor& tensor = *manifest_.tensors()->Get(owner.tensor);
    return StrCat("slice ", owner.number - tensor.first_slice(), " of tensor ",
                  QuoteName(tensor.key()->c_str()));
  }

  Status Gap(uint32_t file, uint64_t begin, uint64_t end) const {
    return Corrupt("bytes ", begin, " to ", end, " of file ", FileName(file),
                   " belong to nothing; padding has less than ",
                   kSliceAlignment, " bytes");
  }

  const schema::Manifest& manifest_;
  std::vector<Owner> owners_;
};

}  // namespace

Status CheckExtents(const schema::Manifest& manifest) {
  return Extents(manifest).Check();
}

}  // namespace shard
