// SPDX-License-Identifier: Apache-2.0

#include "core/flat/owners.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "core/partition/bucket.h"
#include "core/partition/greedy.h"

namespace shard {

namespace {

bool IsTrainable(const Model& model, ParamId param) {
  return model.params()[static_cast<size_t>(param)].trainable;
}

int Dims(const Model::Param& info) {
  return static_cast<int>(info.shape.size());
}

// Buckets as in DistributedDataParallel: gradients become ready roughly from
// the model's end to its front, and a bucket holds one dtype, but any groups.
struct Buckets {
  std::vector<std::vector<int64_t>> numels;
  std::vector<std::vector<ParamId>> params;
};

Buckets FormBuckets(const Model& model, const std::vector<ParamId>& trainable,
                    int64_t bucket_bytes) {
  struct Open {
    std::vector<int64_t> numels;
    std::vector<ParamId> params;
    int64_t bytes = 0;
  };
  Buckets buckets;
  // In order of first occurrence from the front, as buffers are.
  std::vector<DType> dtypes;
  for (const ParamId param : trainable) {
    const DType dtype = model.params()[static_cast<size_t>(param)].dtype;
    if (std::find(dtypes.begin(), dtypes.end(), dtype) == dtypes.end()) {
      dtypes.push_back(dtype);
    }
  }
  std::vector<Open> open(dtypes.size());
  const auto close = [&buckets](Open* bucket) {
    buckets.numels.push_back(std::move(bucket->numels));
    buckets.params.push_back(std::move(bucket->params));
    *bucket = Open();
  };
  for (size_t i = trainable.size(); i > 0; --i) {
    const ParamId param = trainable[i - 1];
    const Model::Param& info = model.params()[static_cast<size_t>(param)];
    Open& bucket = open[static_cast<size_t>(
        std::find(dtypes.begin(), dtypes.end(), info.dtype) - dtypes.begin())];
    bucket.numels.push_back(info.numel);
    bucket.params.push_back(param);
    const int64_t bytes =
        info.numel * static_cast<int64_t>(DTypeSize(info.dtype));
    // A bucket is also full when its size is beyond int64; the layout reports
    // that.
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

Status OwnByBucket(const Model& model, const PlanOptions& options,
                   const std::vector<ParamId>& walk,
                   std::vector<int32_t>* owner_of) {
  std::vector<ParamId> trainable;
  trainable.reserve(walk.size());
  for (const ParamId param : walk) {
    if (IsTrainable(model, param)) trainable.push_back(param);
  }
  const Buckets buckets = FormBuckets(model, trainable, options.bucket_bytes);
  SHARD_ASSIGN_OR_RETURN(
      const std::vector<BucketPiece> pieces,
      AssignBuckets(buckets.numels, options.world_size, options.shard_buckets));
  for (const BucketPiece& piece : pieces) {
    const std::vector<ParamId>& params =
        buckets.params[static_cast<size_t>(piece.bucket)];
    for (int32_t i = piece.offset; i < piece.offset + piece.count; ++i) {
      const ParamId param = params[static_cast<size_t>(i)];
      (*owner_of)[static_cast<size_t>(param)] = piece.rank;
    }
  }
  return Status();
}

Status OwnGreedily(const Model& model, const PlanOptions& options,
                   const std::vector<ParamId>& walk,
                   std::vector<int32_t>* owner_of) {
  std::vector<std::vector<ParamId>> members(options.groups.size());
  for (const ParamId param : walk) {
    const Model::Param& info = model.params()[static_cast<size_t>(param)];
    const auto group = static_cast<size_t>(info.group);
    // Costs are defined only for parameters that are stepped.
    if (!info.trainable && options.groups[group].tensor != nullptr) continue;
    members[group].push_back(param);
  }
  // By the unit of the loads; null stands for elements.
  std::map<const TensorTraits*, GreedyPartitioner> partitioners;
  std::vector<int64_t> weights;
  for (size_t g = 0; g < members.size(); ++g) {
    const TensorTraits* tensor = options.groups[g].tensor;
    if (tensor == nullptr && options.partition == Partition::kEven) continue;
    weights.clear();
    for (const ParamId param : members[g]) {
      const Model::Param& info = model.params()[static_cast<size_t>(param)];
      weights.push_back(tensor == nullptr
                            ? info.numel
                            : tensor->cost(info.shape.data(), Dims(info)));
    }
    Assignment assignment;
    GreedyPartitioner& partitioner =
        partitioners.try_emplace(tensor, options.world_size).first->second;
    SHARD_RETURN_IF_ERROR(partitioner.AddGroup(weights, &assignment));
    for (size_t i = 0; i < members[g].size(); ++i) {
      (*owner_of)[static_cast<size_t>(members[g][i])] = assignment.owners[i];
    }
  }
  return Status();
}

}  // namespace

bool IsOwnedWhole(const PlanOptions& options, bool trainable, GroupId group) {
  return trainable &&
         (options.partition != Partition::kEven ||
          options.groups[static_cast<size_t>(group)].tensor != nullptr);
}

StatusOr<std::vector<int32_t>> ChooseOwners(const Model& model,
                                            const PlanOptions& options,
                                            const Inventory& inventory) {
  std::vector<int32_t> owners;
  const bool any =
      std::any_of(inventory.kinds.begin(), inventory.kinds.end(),
                  [](const BufferKind& kind) { return kind.owned_whole; });
  if (!any) return owners;

  std::vector<int32_t> owner_of;  // By ParamId.
  if (options.partition == Partition::kManual) {
    owner_of = options.manual_owners;
  } else {
    owner_of.resize(model.params().size());
    const std::vector<ParamId> walk =
        WalkOf(inventory.places, inventory.slots.size());
    SHARD_RETURN_IF_ERROR(options.partition == Partition::kBucket
                              ? OwnByBucket(model, options, walk, &owner_of)
                              : OwnGreedily(model, options, walk, &owner_of));
  }
  owners.resize(inventory.slots.size());
  for (const BufferInventory& buffer : inventory.buffers) {
    if (!inventory.KindOf(buffer).owned_whole) continue;
    size_t next = buffer.first;
    for (const Slot& slot : inventory.SlotsOf(buffer)) {
      owners[next++] = owner_of[static_cast<size_t>(slot.param)];
    }
  }
  return owners;
}

}  // namespace shard
