// SPDX-License-Identifier: Apache-2.0

package shard

// #include "callbacks.h"
import "C"

import "unsafe"

// Partition is how parameters are divided among ranks.
type Partition int32

// The partitions. 0 is PartitionEven.
const (
	PartitionEven   Partition = C.SHARD_PARTITION_EVEN   // Flat buffers cut into equal pieces, as FSDP does.
	PartitionGreedy Partition = C.SHARD_PARTITION_GREEDY // Whole parameters, each to the least loaded rank.
	PartitionBucket Partition = C.SHARD_PARTITION_BUCKET // Whole parameters by gradient bucket.
	PartitionManual Partition = C.SHARD_PARTITION_MANUAL // Whole parameters by Owners.
)

// Masters is the precision in which a bf16 or f16 parameter is stepped.
type Masters int32

// The kinds of master weights. 0 is MastersF32.
const (
	MastersF32            Masters = C.SHARD_MASTERS_F32
	MastersNoneNearest    Masters = C.SHARD_MASTERS_NONE_NEAREST
	MastersNoneStochastic Masters = C.SHARD_MASTERS_NONE_STOCHASTIC
)

// PlanOptions are the options of PlanCreate. Zero fields have their defaults;
// shard_plan_options in shard/plan.h documents each.
type PlanOptions struct {
	Stage        int // ZeRO stage, 0 to 3.
	WorldSize    int // Required: the communicator's.
	Partition    Partition
	ShardBuckets bool  // PartitionBucket only.
	BucketBytes  int64 // PartitionBucket only. Default 25 MiB.
	// PartitionManual only: the rank that owns each parameter, by ParamID.
	Owners []int32
	// Optimizer and hyperparameters: "adamw?lr=3e-4&weight_decay=0.1".
	Optimizer string
	F32Grads  bool // Gradients of bf16 and f16 parameters are kept in fp32.
	Masters   Masters
	Seed      uint64 // For stochastic rounding.
	// The modules that become units: "class?names=Block". Default: the root only.
	Wrap string
	// One more policy, asked where Wrap does not take a module, inner modules
	// first; during PlanCreate only. nonwrappedNumel counts the module's elements
	// without those of units within it.
	WrapPredicate    func(module ModuleID, nonwrappedNumel int64) bool
	ParamDType       DType // In which F32 parameters are stored and computed.
	ShardGroupSize   int
	F32Classes       string // Modules of these classes stay F32, with ParamDType.
	BufferBytes      int64  // Default 25 MiB.
	Prefetch         int    // Units in flight beside the one in use. -1: none. Default 1.
	WholeGrads       bool
	Deterministic    bool
	KeepAfterForward bool
	RequireSharding  bool
}

// PlanCreate decides every unit, flat buffer, slot and owner. Pure and local.
func PlanCreate(model *Model, options *PlanOptions) (*Plan, error) {
	if err := required("model", model); err != nil {
		return nil, err
	}
	if options == nil {
		options = &PlanOptions{}
	}
	var in arguments
	defer in.free()
	given := C.shard_plan_options{
		struct_size:        C.sizeof_shard_plan_options,
		stage:              in.int32("Stage", options.Stage),
		world_size:         in.int32("WorldSize", options.WorldSize),
		partition:          C.shard_partition(options.Partition),
		shard_buckets:      flag(options.ShardBuckets),
		bucket_bytes:       C.int64_t(options.BucketBytes),
		owners:             in.int32s(options.Owners),
		num_owners:         C.size_t(len(options.Owners)),
		optimizer:          in.option("Optimizer", options.Optimizer),
		f32_grads:          flag(options.F32Grads),
		masters:            C.shard_masters(options.Masters),
		seed:               C.uint64_t(options.Seed),
		wrap:               in.option("Wrap", options.Wrap),
		param_dtype:        C.shard_dtype(options.ParamDType),
		shard_group_size:   in.int32("ShardGroupSize", options.ShardGroupSize),
		f32_classes:        in.option("F32Classes", options.F32Classes),
		buffer_bytes:       C.int64_t(options.BufferBytes),
		prefetch:           in.int32("Prefetch", options.Prefetch),
		whole_grads:        flag(options.WholeGrads),
		deterministic:      flag(options.Deterministic),
		keep_after_forward: flag(options.KeepAfterForward),
		require_sharding:   flag(options.RequireSharding),
	}
	if in.wrong != nil {
		return nil, in.wrong
	}
	var wrap *callback
	if options.WrapPredicate != nil {
		wrap = &callback{name: "WrapPredicate", guard: model.h.guard, wrap: options.WrapPredicate}
		wrap.register()
		defer wrap.delete()
		given.wrap_predicate = C.shard_wrap_fn(C.shard_go_wrap)
		given.wrap_user_data = wrap.userData()
	}
	var object *C.shard_plan
	err := model.h.exclusive(func(model unsafe.Pointer) error {
		return wrap.result(takeError(C.shard_plan_create((*C.shard_model)(model), &given, &object)))
	})
	return newPlan(object, err)
}
