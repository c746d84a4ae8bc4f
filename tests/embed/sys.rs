// SPDX-License-Identifier: Apache-2.0
//
// The part of shard.h that host.rs calls, written by hand. An option struct may
// end before the header's does: struct_size tells libshard where.

use std::os::raw::{c_char, c_double, c_void};

pub const F32: i32 = 1;
pub const NOT_FOUND: i32 = 5;

macro_rules! opaque {
    ($($name:ident),*) => { $(
        #[repr(C)]
        pub struct $name { _private: [u8; 0] }
    )* };
}
opaque!(Error, Comm, Model, Plan, Engine);

#[repr(C)]
pub struct PlanOptions {
    pub struct_size: usize,
    pub stage: i32,
    pub world_size: i32,
    pub partition: i32,
    pub shard_buckets: i32,
    pub bucket_bytes: i64,
    pub owners: *const i32,
    pub num_owners: usize,
    pub optimizer: *const c_char,
}

#[repr(C)]
#[derive(Default)]
pub struct StepOptions {
    pub struct_size: usize,
    pub max_grad_norm: c_double,
    pub grad_divisor: c_double,
    pub loss_scale: c_double,
    pub timeout: c_double,
    pub skip_nonfinite: i32,
    pub average_active: i32,
}

#[repr(C)]
#[derive(Default)]
pub struct StepReport {
    pub struct_size: usize,
    pub step: i64,
    pub grad_norm: c_double,
    pub skipped: i32,
    pub active_ranks: i32,
    pub bytes_moved: u64,
    pub seconds_wait: c_double,
    pub seconds_reduce: c_double,
    pub seconds_update: c_double,
    pub seconds_total: c_double,
}

extern "C" {
    pub fn shard_error_code(error: *const Error) -> i32;
    pub fn shard_error_message(error: *const Error) -> *const c_char;
    pub fn shard_error_free(error: *mut Error);
    pub fn shard_code_name(code: i32) -> *const c_char;

    pub fn shard_comm_open(
        url: *const c_char,
        options: *const c_void,
        comm: *mut *mut Comm,
    ) -> *mut Error;
    pub fn shard_comm_rank(comm: *const Comm) -> i32;
    pub fn shard_comm_world_size(comm: *const Comm) -> i32;
    pub fn shard_comm_sum(
        comm: *mut Comm,
        values: *mut c_double,
        count: usize,
        timeout: c_double,
    ) -> *mut Error;
    pub fn shard_comm_shutdown(comm: *mut Comm, timeout: c_double) -> *mut Error;
    pub fn shard_comm_free(comm: *mut Comm);

    pub fn shard_model_create(class_name: *const c_char, model: *mut *mut Model) -> *mut Error;
    pub fn shard_model_add_module(
        model: *mut Model,
        parent: i32,
        name: *const c_char,
        class_name: *const c_char,
        module: *mut i32,
    ) -> *mut Error;
    pub fn shard_model_add_param(
        model: *mut Model,
        module: i32,
        name: *const c_char,
        dtype: i32,
        shape: *const i64,
        ndim: usize,
        param: *mut i32,
    ) -> *mut Error;
    pub fn shard_model_tie(
        model: *mut Model,
        module: i32,
        name: *const c_char,
        param: i32,
    ) -> *mut Error;
    pub fn shard_model_freeze(model: *mut Model, param: i32) -> *mut Error;
    pub fn shard_model_free(model: *mut Model);

    pub fn shard_plan_create(
        model: *const Model,
        options: *const PlanOptions,
        plan: *mut *mut Plan,
    ) -> *mut Error;
    pub fn shard_plan_free(plan: *mut Plan);

    pub fn shard_engine_create(
        plan: *const Plan,
        comm: *mut Comm,
        options: *const c_void,
        engine: *mut *mut Engine,
    ) -> *mut Error;
    pub fn shard_engine_param(
        engine: *mut Engine,
        param: i32,
        data: *mut *const c_void,
        numel: *mut i64,
    ) -> *mut Error;
    pub fn shard_engine_grad(
        engine: *mut Engine,
        param: i32,
        data: *mut *mut c_void,
        numel: *mut i64,
    ) -> *mut Error;
    pub fn shard_checkpoint_load(
        engine: *mut Engine,
        path: *const c_char,
        options: *const c_void,
        report: *mut c_void,
    ) -> *mut Error;
    pub fn shard_checkpoint_save(
        engine: *mut Engine,
        root: *const c_char,
        options: *const c_void,
        save: *mut c_void,
    ) -> *mut Error;
    pub fn shard_engine_set_hyper(
        engine: *mut Engine,
        group: i32,
        key: *const c_char,
        value: c_double,
    ) -> *mut Error;
    pub fn shard_engine_zero_grad(engine: *mut Engine) -> *mut Error;
    pub fn shard_engine_set_param(
        engine: *mut Engine,
        param: i32,
        data: *const c_void,
        bytes: usize,
    ) -> *mut Error;
    pub fn shard_engine_broadcast_params(engine: *mut Engine, timeout: c_double) -> *mut Error;
    pub fn shard_engine_step(
        engine: *mut Engine,
        options: *const StepOptions,
        report: *mut StepReport,
    ) -> *mut Error;
    pub fn shard_engine_free(engine: *mut Engine);
}
