// SPDX-License-Identifier: Apache-2.0

//! Plans: how a model is sharded over ranks, a pure computation. `layout.rs` has
//! what a plan says about places and names.

use std::fmt;
use std::os::raw::c_void;
use std::ptr::{self, NonNull};

use shard_sys as sys;

use crate::error::{check, Result};
use crate::layout::UnitId;
use crate::model::{Model, ModuleId, ParamId};
use crate::plan_options::{Placement, PlanOptions};
use crate::text::{borrowed, copied, copied_bytes};
use crate::version::check_version;

info! {
    /// The decisions of a plan, and the number of its parameters, units and so on.
    PlanInfo from shard_plan_info as raw {
        /// Equal on two ranks exactly when their plans are.
        fingerprint: u64 = raw.fingerprint,
        /// The stage, as asked for; the next two are what is sharded.
        stage: i32 = raw.stage,
        /// A rank keeps the sums of its own part of the gradients.
        shards_grads: bool = raw.shards_grads != 0,
        /// Where ranks share no memory, a rank keeps its own part of the parameters,
        /// and those of a unit are whole while it is acquired.
        shards_params: bool = raw.shards_params != 0,
        /// The number of ranks.
        world_size: i32 = raw.world_size,
        /// Parameters of the model, ignored ones among them.
        num_params: i32 = raw.num_params,
        /// Modules, ignored ones among them.
        num_modules: i32 = raw.num_modules,
        /// Names of parameters.
        num_names: i32 = raw.num_names,
        /// Param groups, group 0 among them.
        num_groups: i32 = raw.num_groups,
        /// Units, from 0, the root, in module-walk order.
        num_units: i32 = raw.num_units,
        /// Flat buffers.
        num_buffers: i32 = raw.num_buffers,
        /// Ranks that shard the parameters among them; without meaning unless
        /// `shards_params`.
        shard_group_size: i32 = raw.shard_group_size,
        /// As in the options.
        keep_after_forward: bool = raw.keep_after_forward != 0,
        /// Buffers of the model, ignored ones among them.
        num_model_buffers: i32 = raw.num_model_buffers,
    }
}

info! {
    /// The memory of engines in bytes, rounded up to pages.
    Memory from shard_memory as raw {
        /// Parameters: per host where its ranks hold one copy, else per rank.
        param_bytes: u64 = raw.param_bytes,
        /// Gradients, per rank.
        grad_bytes: u64 = raw.grad_bytes,
        /// Optimizer state and master weights, per rank.
        state_bytes: u64 = raw.state_bytes,
        /// For lamb, adafactor and muon, per rank; where a GPU steps, for muon alone.
        workspace_bytes: u64 = raw.workspace_bytes,
        /// Slots of units in use or in flight, per rank.
        transient_bytes: u64 = raw.transient_bytes,
        /// All of these in memory of the device's own, per rank.
        device_bytes: u64 = raw.device_bytes,
        /// All of these in memory of the host, per host, for all its ranks.
        host_bytes: u64 = raw.host_bytes,
        /// The page-locked part of `host_bytes`.
        pinned_bytes: u64 = raw.pinned_bytes,
        /// Memory for control data, per host, beside `host_bytes`.
        control_bytes: u64 = raw.control_bytes,
        /// Buffers of the model, per rank, within `host_bytes`.
        model_buffer_bytes: u64 = raw.model_buffer_bytes,
    }
}

/// How a model is sharded: every unit, flat buffer, slot and owner. It does not
/// change, and any thread may use it.
pub struct Plan {
    plan: NonNull<sys::shard_plan>,
}

// SAFETY: plan handles are immutable: any thread.
unsafe impl Send for Plan {}
unsafe impl Sync for Plan {}

impl Plan {
    /// Decides. Pure and local: the same inputs give the same plan on any machine.
    /// Copies the model. Errors name the option, parameter and value. A panic of the
    /// wrap predicate is CANCELLED.
    pub fn create(model: &Model, options: &PlanOptions) -> Result<Plan> {
        let mut plan = ptr::null_mut();
        options.with_c(|c_options| {
            check(unsafe { sys::shard_plan_create(model.as_ptr(), c_options, &mut plan) })
        })?;
        Ok(Plan::own(plan))
    }

    /// Makes a plan from the bytes of [`encode`](Plan::encode), with the same
    /// fingerprint and the same results. Errors: CORRUPT for bytes that make no
    /// plan; UNIMPLEMENTED for those of another libshard.
    pub fn decode(bytes: &[u8]) -> Result<Plan> {
        check_version()?;
        let mut plan = ptr::null_mut();
        check(unsafe {
            sys::shard_plan_decode(bytes.as_ptr() as *const c_void, bytes.len(), &mut plan)
        })?;
        Ok(Plan::own(plan))
    }

    /// Takes the handle that a call gave.
    pub(crate) fn own(plan: *mut sys::shard_plan) -> Plan {
        // SAFETY: success gives a handle.
        Plan {
            plan: unsafe { NonNull::new_unchecked(plan) },
        }
    }

    pub(crate) fn as_ptr(&self) -> *const sys::shard_plan {
        self.plan.as_ptr()
    }

    /// Returns the decisions and the counts.
    pub fn info(&self) -> Result<PlanInfo> {
        let mut info = sys::SHARD_PLAN_INFO_INIT;
        check(unsafe { sys::shard_plan_get_info(self.as_ptr(), &mut info) })?;
        Ok(PlanInfo::new(&info))
    }

    /// Returns the unit that a parameter is in; a tied one is in the unit of its
    /// first name in module-walk order. FAILED_PRECONDITION for an ignored one.
    pub fn unit_of(&self, param: ParamId) -> Result<UnitId> {
        let mut unit = UnitId(0);
        check(unsafe { sys::shard_plan_unit_of(self.as_ptr(), param.0, &mut unit.0) })?;
        Ok(unit)
    }

    /// Returns the unit whose outermost module is `module`, if there is one.
    pub fn unit_of_module(&self, module: ModuleId) -> Result<Option<UnitId>> {
        let mut unit = -1;
        check(unsafe { sys::shard_plan_unit_of_module(self.as_ptr(), module.0, &mut unit) })?;
        Ok(if unit < 0 { None } else { Some(UnitId(unit)) })
    }

    /// Returns a unit's outermost module.
    pub fn unit_module(&self, unit: UnitId) -> Result<ModuleId> {
        let mut module = ModuleId(0);
        check(unsafe { sys::shard_plan_unit_module(self.as_ptr(), unit.0, &mut module.0) })?;
        Ok(module)
    }

    /// Predicts the memory of the plan's engines, which use exactly this:
    /// [`Engine::memory`](crate::Engine::memory).
    pub fn memory(&self, placement: &Placement) -> Result<Memory> {
        let mut memory = sys::SHARD_MEMORY_INIT;
        placement.with_c(|c_placement| {
            check(unsafe { sys::shard_plan_memory(self.as_ptr(), c_placement, &mut memory) })
        })?;
        Ok(Memory::new(&memory))
    }

    /// Returns the plan for people.
    pub fn text(&self) -> Result<String> {
        copied(|buffer, capacity, length| unsafe {
            sys::shard_plan_text(self.as_ptr(), buffer, capacity, length)
        })
    }

    /// Returns the plan for programs.
    pub fn json(&self) -> Result<String> {
        copied(|buffer, capacity, length| unsafe {
            sys::shard_plan_json(self.as_ptr(), buffer, capacity, length)
        })
    }

    /// Returns the warnings, a line each, or "": tensors that are kept whole although
    /// the stage shards them, modules that stay f32, units with frozen and trainable
    /// parameters.
    pub fn warnings(&self) -> Result<&str> {
        let mut text = ptr::null();
        check(unsafe { sys::shard_plan_warnings(self.as_ptr(), &mut text) })?;
        // SAFETY: the text lives as long as the plan.
        unsafe { borrowed(text) }
    }

    /// Returns the plan as bytes, for a host that plans once and hands the plan to
    /// its ranks. RESOURCE_EXHAUSTED when there would be more than 1 GiB.
    pub fn encode(&self) -> Result<Vec<u8>> {
        copied_bytes(0, |buffer, capacity, length| {
            check(unsafe {
                sys::shard_plan_encode(self.as_ptr(), buffer as *mut c_void, capacity, length)
            })
        })
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        unsafe { sys::shard_plan_free(self.plan.as_ptr()) }
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Plan({:?})", self.info())
    }
}
