// SPDX-License-Identifier: Apache-2.0
//
// Manifest: lists the contents of a checkpoint and their places.
// docs/checkpoint-format.md specifies the file byte by byte; the schema is
// schema/manifest.fbs.
//
// A manifest describes elements, not ranks: a tensor is a list of slices, each
// of which has some of the elements at a place in a file, with a checksum. The
// slices of a tensor hold every element exactly once, in ascending order.
//
// Manifest keeps the file's bytes and reads them in place. Parse checks all
// bytes, so no other function can fail; whatever the bytes, Parse takes beside
// them memory of at most a third of their size and 16 MiB, and time in
// proportion to their size. Immutable; any number of threads may use it.

#ifndef SHARD_CORE_CHECKPOINT_MANIFEST_MANIFEST_H_
#define SHARD_CORE_CHECKPOINT_MANIFEST_MANIFEST_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/checkpoint/manifest/checksum.h"
#include "core/checkpoint/store/tensor_info.h"

namespace shard {

class KeyIndex;
namespace schema {
struct Manifest;
}  // namespace schema

// The newest version that this library reads. Versions differ in their limits
// alone, which include the types that tensors may have; this library writes the
// first whose limits suffice.
inline constexpr uint32_t kManifestVersion = 3;
inline constexpr const char* kManifestName = "manifest.shard";

// The limits of a manifest of one version.
struct ManifestLimits {
  uint64_t bytes;
  size_t tensors;
  bool opaque;  // Whether tensors may have the type kOpaque.
};
// REQUIRES: 1 <= version <= kManifestVersion.
constexpr ManifestLimits LimitsOf(uint32_t version) {
  if (version == 1) return {uint64_t{64} << 20, size_t{1} << 20, false};
  return {uint64_t{1} << 30, size_t{1} << 23, version >= 3};
}
inline constexpr uint64_t kMaxManifestBytes = LimitsOf(kManifestVersion).bytes;
inline constexpr size_t kMaxManifestTensors =
    LimitsOf(kManifestVersion).tensors;
// A slice is checked as a whole, so its size bounds the memory of a reader.
inline constexpr uint64_t kMaxSliceBytes = uint64_t{64} << 20;
// Slices of at least this many bytes begin at a multiple of it in their file,
// smaller ones at a multiple of kSmallSliceAlignment.
inline constexpr uint64_t kSliceAlignment = 4096;
inline constexpr uint64_t kSmallSliceAlignment = 64;
inline constexpr size_t kMaxTensorDims = 8;
inline constexpr size_t kMaxFileNameBytes = 255;

// The place of bytes in a file.
struct Extent {
  uint32_t file = 0;  // Index into the files.
  uint64_t offset = 0;
  uint64_t bytes = 0;
  Checksum checksum;
};

// Elements of a tensor; see StoredNumel.
struct Slice {
  int64_t begin = 0;  // First element.
  int64_t numel = 0;  // > 0
  Extent extent;
};

// How a blob is mapped to another world size. The values go into files and are
// frozen.
enum class BlobRule : int32_t {
  kPerRank = 1,     // Each rank has its own.
  kReplicated = 2,  // All ranks have the same.
  kSummed = 3,      // int64 numbers, little-endian, that add up over the ranks.
};

// Data of the host, such as its data loader's position or the state of its
// random numbers.
struct BlobInfo {
  std::string_view name;
  BlobRule rule = BlobRule::kPerRank;
  int32_t rank = 0;  // The rank that saved it; 0 when replicated.
  Extent extent;     // File and offset are 0 when there are no bytes.
};

struct ScalarInfo {
  std::string_view name;  // "loss_scale.scale"
  double value = 0;
};

// The contents from which a manifest is made.
struct ManifestContents {
  struct File {
    std::string name;  // A plain name: no '/', not "." or "..".
    uint64_t bytes = 0;
  };
  // The type of an opaque tensor and its bytes, as in TensorInfo.
  struct Opaque {
    std::string type;
    uint64_t bytes = 0;
  };
  struct Tensor {
    std::string key;
    ElementType type = ElementType::kF32;
    TensorRole role = TensorRole::kParam;
    std::vector<int64_t> shape;
    // The index of the tensor that this one is an alias of; -1: none. An alias
    // has no slices, and takes the fields after them from that tensor.
    int64_t alias_of = -1;
    std::vector<Slice> slices;
    // For parameters, and with the same value for their states. A frozen
    // parameter has no state.
    bool trainable = true;
    int32_t group = -1;  // Index into groups; -1: none.
    int64_t step = -1;   // Number of its steps; -1: as the checkpoint.
    // For states in q8: a StateKind of kernels/formula/state_kind.h. Their
    // scales are another tensor, with this one's key and ".q8_scale": f32, one
    // dimension, a scale for each kQ8Block elements.
    int32_t codebook = 0;
    // For kOpaque; null for other types, of which there may be millions.
    std::shared_ptr<const Opaque> opaque = {};
  };
  struct Blob {
    std::string name;
    BlobRule rule = BlobRule::kPerRank;
    int32_t rank = 0;
    Extent extent;
  };
  struct Scalar {
    std::string name;
    double value = 0;
  };

  std::string writer;  // "libshard 0.2.0", for people.
  int64_t step = 0;
  int32_t world_size = 1;  // The ranks that saved, for people and blobs.
  std::vector<File> files;
  std::vector<Tensor> tensors;
  // Param groups, each as its optimizer in canonical text form, with all
  // values: "adamw?lr=0.001&...".
  std::vector<std::string> groups;
  std::vector<Scalar> scalars;
  std::vector<Blob> blobs;
};

// Returns what a manifest has of an opaque tensor; null for other types.
std::shared_ptr<const ManifestContents::Opaque> OpaqueOf(
    const TensorInfo& info);

// Encodes a manifest file. Errors: kInvalidArgument for contents that
// Manifest::Parse would reject, with the same message; kResourceExhausted
// beyond the limits of version `newest`. REQUIRES: 1 <= newest <=
// kManifestVersion.
StatusOr<std::vector<std::byte>> EncodeManifest(
    const ManifestContents& contents, uint32_t newest = kManifestVersion);

class Manifest {
 public:
  ~Manifest();

  // Takes the bytes of a manifest file. kCorrupt says what is wrong;
  // kUnimplemented for a version that is newer than kManifestVersion.
  static StatusOr<std::shared_ptr<const Manifest>> Parse(
      std::vector<std::byte> bytes);
  // Returns the status that Parse would return for these bytes, without keeping
  // them. REQUIRES: the bytes are aligned to 8 bytes.
  static Status Verify(std::span<const std::byte> bytes);

  // Return the contents from which the manifest was encoded, for a checkpoint
  // that is written from this one: every field of the file, so that none is
  // lost, but for the places of data. Contents leaves out the files and the
  // tensors, TensorContents the slices; an alias has the values of its target.
  // REQUIRES: index < num_tensors().
  ManifestContents Contents() const;
  ManifestContents::Tensor TensorContents(size_t index) const;

  // Returns the version of the format.
  uint32_t version() const { return version_; }
  // Returns the XXH3-128 of the file, which identifies the checkpoint.
  const Checksum& id() const { return id_; }
  std::string_view writer() const;
  int64_t step() const;
  int32_t world_size() const;

  size_t num_files() const;
  std::string_view file_name(size_t file) const;
  uint64_t file_bytes(size_t file) const;

  size_t num_tensors() const;
  TensorInfo tensor(size_t index) const;
  // Returns the number of the tensor with this key, or -1. O(1).
  int64_t Find(std::string_view key) const;
  // Return the slices of a tensor by ascending first element; for an alias, the
  // slices of its target.
  size_t num_slices(size_t tensor) const;
  Slice slice(size_t tensor, size_t index) const;
  // Returns the number of the slice with this element. O(log slices). REQUIRES:
  // the tensor has the element.
  size_t SliceAt(size_t tensor, int64_t element) const;

  // Return the values of a tensor; for an alias those of its target.
  bool trainable(size_t tensor) const;
  int32_t group(size_t tensor) const;
  // Returns the step as in ManifestContents, but never -1.
  int64_t tensor_step(size_t tensor) const;

  size_t num_groups() const;
  std::string_view group_optimizer(size_t group) const;
  size_t num_scalars() const;
  ScalarInfo scalar(size_t index) const;
  size_t num_blobs() const;
  BlobInfo blob(size_t index) const;

 private:
  Manifest();

  // Checks all of a file, which is aligned to 8 bytes and outlives this.
  Status Read(std::span<const std::byte> file);
  // Returns the tensor that has the values: `tensor` itself unless it is an
  // alias.
  size_t Target(size_t tensor) const;

  // The bytes of the file. A vector's memory is aligned for any number type, so
  // that the file can be read in place.
  std::vector<std::byte> bytes_;
  uint32_t version_ = 0;
  const schema::Manifest* root_ = nullptr;  // In bytes_.
  std::unique_ptr<KeyIndex> index_;
  Checksum id_;
};

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_MANIFEST_MANIFEST_H_
