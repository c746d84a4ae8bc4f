// SPDX-License-Identifier: Apache-2.0

//! The options of plans.

use std::fmt;
use std::os::raw::c_void;
use std::ptr;
use std::sync::Arc;

use shard_sys as sys;

use crate::callback::{self, Caught};
use crate::dtype::DType;
use crate::error::Result;
use crate::model::ModuleId;
use crate::text::c_text;

c_enum! {
    /// How parameters are divided among ranks.
    Partition {
        /// Flat buffers cut into equal pieces, as FSDP does: the default.
        EVEN = SHARD_PARTITION_EVEN,
        /// Whole parameters, each to the least loaded rank, as
        /// ZeroRedundancyOptimizer does.
        GREEDY = SHARD_PARTITION_GREEDY,
        /// Whole parameters by gradient bucket.
        BUCKET = SHARD_PARTITION_BUCKET,
        /// Whole parameters by [`owners`](PlanOptions::owners).
        MANUAL = SHARD_PARTITION_MANUAL,
    }
}

c_enum! {
    /// The precision in which a bf16 or f16 parameter is stepped.
    Masters {
        /// An fp32 copy: the default.
        F32 = SHARD_MASTERS_F32,
        /// No copy; rounded to nearest even.
        NONE_NEAREST = SHARD_MASTERS_NONE_NEAREST,
        /// No copy; rounded up or down at random such that the mean is right; bf16
        /// only.
        NONE_STOCHASTIC = SHARD_MASTERS_NONE_STOCHASTIC,
    }
}

type WrapFn = dyn Fn(ModuleId, i64) -> bool + Send + Sync;

#[derive(Clone, Default)]
pub(crate) struct WrapPredicate(Option<Arc<WrapFn>>);

impl fmt::Debug for WrapPredicate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(if self.0.is_some() { "Fn" } else { "None" })
    }
}

options! {
    /// Options of [`Plan::create`](crate::Plan::create). `shard/plan.h` says more about
    /// each.
    PlanOptions {
        /// The number of ranks: REQUIRED, and equal to the communicator's.
        world_size: i32,
        /// The ZeRO stage: 0 and 1 shard optimizer states, 2 also gradients, 3 also
        /// parameters.
        stage: i32,
        /// How parameters are divided among ranks; [`Partition::EVEN`] unless given.
        partition: Option<Partition>,
        /// BUCKET only: cuts buckets at total/world_size and spreads the pieces.
        shard_buckets: bool,
        /// BUCKET only: a bucket is closed when it holds this many bytes; 25 MiB
        /// unless given.
        bucket_bytes: i64,
        /// MANUAL only: the rank that owns each parameter.
        owners: Vec<i32>,
        /// The optimizer and its hyperparameters, by torch's names:
        /// "adamw?lr=3e-4&beta1=0.9&weight_decay=0.1". "adamw" unless given.
        optimizer: String,
        /// Keeps gradients of bf16 and f16 parameters in fp32.
        f32_grads: bool,
        /// How bf16 and f16 parameters are stepped; [`Masters::F32`] unless given.
        masters: Option<Masters>,
        /// The seed of stochastic rounding.
        seed: u64,
        /// The policies that make modules units, separated by '|': "always",
        /// "class?names=Block,MLP", "size?min_numel=100000000". Only the root unless
        /// given.
        wrap: String,
        /// The type in which parameters declared as F32 are stored and computed: F32,
        /// BF16 or F16.
        param_dtype: Option<DType>,
        /// Stage 3 without shared memory: the number of consecutive ranks that shard
        /// the parameters among them.
        shard_group_size: i32,
        /// With a narrower `param_dtype`: modules of these classes, separated by
        /// commas, become units of their own that stay f32.
        f32_classes: String,
        /// A flat buffer that is cut evenly is closed before it would take more bytes;
        /// 25 MiB unless given.
        buffer_bytes: i64,
        /// The number of units whose gathers or reductions are in flight beside the
        /// unit in use, up to 64. -1: none. 1 unless given.
        prefetch: i32,
        /// Stages 2 and 3: keeps every rank's gradients whole, so that they accumulate
        /// without communication.
        whole_grads: bool,
        /// Sums gradients in rank order and keeps the sums in fp32, so that no result
        /// depends on stage, units, prefetch, overlap and the like.
        deterministic: bool,
        /// Stage 3: keeps parameters whole, as in stage 2, instead of gathering them
        /// again for each pass.
        keep_after_forward: bool,
        /// Makes it an error instead of a warning when the plan keeps tensors whole
        /// that its stage shards.
        require_sharding: bool,
    } with {
        wrap_predicate: WrapPredicate,
    }
}

/// The user data of the predicate's C function.
struct WrapCall<'p> {
    predicate: &'p WrapFn,
    caught: Caught,
}

/// # Safety
///
/// `user_data` is a WrapCall.
unsafe extern "C" fn ask_predicate(module: i32, numel: i64, user_data: *mut c_void) -> i32 {
    let call = unsafe { &*(user_data as *const WrapCall<'_>) };
    match callback::run(0, || (call.predicate)(ModuleId(module), numel)) {
        Ok(wraps) => wraps.into(),
        Err(text) => {
            call.caught.set(text);
            0
        }
    }
}

impl PlanOptions {
    /// Sets one more policy, asked where `wrap` does not select a module: whether a
    /// module is to be a unit, given the number of its elements, without those of
    /// ignored parameters and of units within it. Runs on the thread that plans, with
    /// inner modules before those around them.
    #[must_use]
    pub fn wrap_predicate(
        mut self,
        predicate: impl Fn(ModuleId, i64) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.wrap_predicate = WrapPredicate(Some(Arc::new(predicate)));
        self
    }

    /// Calls `use_options` with these options as C has them.
    pub(crate) fn with_c(
        &self,
        use_options: impl FnOnce(*const sys::shard_plan_options) -> Result<()>,
    ) -> Result<()> {
        let optimizer = c_text("the optimizer", &self.optimizer)?;
        let wrap = c_text("wrap", &self.wrap)?;
        let f32_classes = c_text("f32_classes", &self.f32_classes)?;
        let call = self.wrap_predicate.0.as_ref().map(|predicate| WrapCall {
            predicate: &**predicate,
            caught: Caught::default(),
        });
        let mut c = sys::SHARD_PLAN_OPTIONS_INIT;
        c.stage = self.stage;
        c.world_size = self.world_size;
        c.partition = self.partition.map_or(0, |partition| partition.0);
        c.shard_buckets = self.shard_buckets.into();
        c.bucket_bytes = self.bucket_bytes;
        if !self.owners.is_empty() {
            c.owners = self.owners.as_ptr();
            c.num_owners = self.owners.len();
        }
        c.optimizer = or_null(&self.optimizer, &optimizer);
        c.f32_grads = self.f32_grads.into();
        c.masters = self.masters.map_or(0, |masters| masters.0);
        c.seed = self.seed;
        c.wrap = or_null(&self.wrap, &wrap);
        if let Some(call) = &call {
            c.wrap_predicate = Some(ask_predicate);
            c.wrap_user_data = call as *const WrapCall<'_> as *mut c_void;
        }
        c.param_dtype = self.param_dtype.map_or(0, |dtype| dtype.0);
        c.shard_group_size = self.shard_group_size;
        c.f32_classes = or_null(&self.f32_classes, &f32_classes);
        c.buffer_bytes = self.buffer_bytes;
        c.prefetch = self.prefetch;
        c.whole_grads = self.whole_grads.into();
        c.deterministic = self.deterministic.into();
        c.keep_after_forward = self.keep_after_forward.into();
        c.require_sharding = self.require_sharding.into();
        let result = use_options(&c);
        match &call {
            None => result,
            Some(call) => call.caught.report("the wrap predicate", result),
        }
    }
}

/// Returns NULL, which means the default, for text that was not given.
fn or_null(text: &str, c_text: &std::ffi::CStr) -> *const std::os::raw::c_char {
    if text.is_empty() {
        ptr::null()
    } else {
        c_text.as_ptr()
    }
}

options! {
    /// Where the ranks of a plan run.
    Placement {
        /// 1 to `world_size`; all on one host, whose memory they share, unless given.
        ranks_per_host: i32,
        /// Ranks of one host share no memory either, as with `direct=0` in a
        /// communicator's URL.
        separate_memory: bool,
        /// As in [`EngineOptions`](crate::EngineOptions).
        device: String,
    }
}

impl Placement {
    /// Calls `use_placement` with this placement as C has it.
    pub(crate) fn with_c(
        &self,
        use_placement: impl FnOnce(*const sys::shard_placement) -> Result<()>,
    ) -> Result<()> {
        let device = c_text("the device", &self.device)?;
        let mut c = sys::SHARD_PLACEMENT_INIT;
        c.ranks_per_host = self.ranks_per_host;
        c.separate_memory = self.separate_memory.into();
        c.device = or_null(&self.device, &device);
        use_placement(&c)
    }
}
