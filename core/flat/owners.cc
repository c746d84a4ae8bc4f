// SPDX-License-Identifier: Apache-2.0

#include "core/flat/owners.h"

#include <cstddef>

#include "core/partition/bucket.h"
#include "core/partition/greedy.h"

namespace shard {

namespace {

size_t BufferOf(const Inventory& inventory, ParamId param) {
  return static_cast<size_t>(inventory.buffer_of[static_cast<size_t>(param)]);
}

bool IsTrainable(const Inventory& inventory, ParamId param) {
  return inventory.buffers[BufferOf(inventory, param)].trainable;
}

// Like DistributedDataParallel: gradients become ready from the model's end to
// its front, roughly, and a bucket holds one dtype. `positions[b][i]`: where
// the bucket's i-th parameter stands among the trainable ones.
struct Buckets {
  std::vector<std::vector<int64_t>> numels;
  std::vector<std::vector<size_t>> positions;
};

Buckets FormBuckets(const Model& model, const std::vector<ParamId>& trainable,
                    int64_t bucket_bytes, const Inventory& inventory) {
  struct Open {
    std::vector<int64_t> numels;
    std::vector<size_t> positions;
    int64_t bytes = 0;
  };
  Buckets buckets;
  std::vector<Open> open(inventory.buffers.size());
  const auto close = [&buckets](Open* bucket) {
    buckets.numels.push_back(std::move(bucket->numels));
    buckets.positions.push_back(std::move(bucket->positions));
    *bucket = Open();
  };
  for (size_t i = trainable.size(); i > 0; --i) {
    const auto param = static_cast<size_t>(trainable[i - 1]);
    const Model::Param& info = model.params()[param];
    Open& bucket = open[BufferOf(inventory, trainable[i - 1])];
    bucket.numels.push_back(info.numel);
    bucket.positions.push_back(i - 1);
    const int64_t bytes =
        info.numel * static_cast<int64_t>(DTypeSize(info.dtype));
    // Full as well when its size cannot be counted: the layout will say so.
    if (__builtin_add_overflow(bucket.bytes, bytes, &bucket.bytes) ||
        bucket.bytes >= bucket_bytes) {
      close(&bucket);
    }
  }
  for (Open& bucket : open) {
    if (!bucket.numels.empty()) close(&bucket);
  }
  return buckets;
}

// The owners of `trainable`, one each.
StatusOr<std::vector<int32_t>> OwnersInWalkOrder(
    const Model& model, const PlanOptions& options, const Inventory& inventory,
    const std::vector<ParamId>& trainable) {
  std::vector<int32_t> owners;
  if (options.partition == Partition::kManual) {
    owners.reserve(trainable.size());
    for (const ParamId param : trainable) {
      owners.push_back(options.manual_owners[static_cast<size_t>(param)]);
    }
    return owners;
  }
  if (options.partition == Partition::kBucket) {
    const Buckets buckets =
        FormBuckets(model, trainable, options.bucket_bytes, inventory);
    SHARD_ASSIGN_OR_RETURN(const std::vector<BucketPiece> pieces,
                           AssignBuckets(buckets.numels, options.world_size,
                                         options.shard_buckets));
    owners.resize(trainable.size());
    for (const BucketPiece& piece : pieces) {
      const std::vector<size_t>& positions =
          buckets.positions[static_cast<size_t>(piece.bucket)];
      for (int32_t i = piece.offset; i < piece.offset + piece.count; ++i) {
        owners[positions[static_cast<size_t>(i)]] = piece.rank;
      }
    }
    return owners;
  }
  // Frozen parameters are loads too, as in ZeroRedundancyOptimizer: freezing
  // one moves no other. Their buffers are cut evenly, so they own no place.
  std::vector<int64_t> numels;
  numels.reserve(inventory.walk.size());
  for (const ParamId param : inventory.walk) {
    numels.push_back(model.params()[static_cast<size_t>(param)].numel);
  }
  GreedyPartitioner partitioner(options.world_size);
  Assignment assignment;
  SHARD_RETURN_IF_ERROR(partitioner.AddGroup(numels, &assignment));
  owners.reserve(trainable.size());
  for (size_t i = 0; i < inventory.walk.size(); ++i) {
    if (IsTrainable(inventory, inventory.walk[i])) {
      owners.push_back(assignment.owners[i]);
    }
  }
  return owners;
}

}  // namespace

StatusOr<std::vector<std::vector<int32_t>>> ChooseOwners(
    const Model& model, const PlanOptions& options,
    const Inventory& inventory) {
  std::vector<ParamId> trainable;
  trainable.reserve(inventory.walk.size());
  for (const ParamId param : inventory.walk) {
    if (IsTrainable(inventory, param)) trainable.push_back(param);
  }
  SHARD_ASSIGN_OR_RETURN(
      const std::vector<int32_t> owners,
      OwnersInWalkOrder(model, options, inventory, trainable));
  std::vector<std::vector<int32_t>> by_buffer(inventory.buffers.size());
  for (size_t i = 0; i < trainable.size(); ++i) {
    by_buffer[BufferOf(inventory, trainable[i])].push_back(owners[i]);
  }
  return by_buffer;
}

}  // namespace shard
