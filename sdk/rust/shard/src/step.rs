// SPDX-License-Identifier: Apache-2.0

//! Steps: from the gradients of all ranks to new parameters.

use std::os::raw::c_void;
use std::ptr;
use std::time::Duration;

use shard_sys as sys;

use crate::device::DeviceKind;
use crate::engine::Engine;
use crate::error::Result;
use crate::text::{copied, seconds};

options! {
    /// Options of [`Engine::step`]: how a step treats the gradients. The same on every
    /// rank.
    StepOptions {
        /// Scales gradients down so that their global norm is at most this. No clipping
        /// unless given, and the norm is not computed.
        max_grad_norm: f64,
        /// The divisor of the sum of the ranks' gradients; world_size unless given.
        grad_divisor: f64,
        /// The factor that the loss was multiplied by; that of
        /// [`Engine::loss_scale`] unless given.
        loss_scale: f64,
        /// For this call; the engine's unless given.
        timeout: Option<Duration>,
        /// Skips the step, on all ranks, when a gradient is not finite.
        skip_nonfinite: bool,
        /// Divides by the number of ranks that have not joined, not by world_size.
        average_active: bool,
        /// The norm that `max_grad_norm` bounds: 1, 2, any p above 0, or infinity. 2
        /// unless given.
        grad_norm_type: f64,
        /// Bounds every element of the averaged gradient to [-clip_value, clip_value].
        clip_value: f64,
    }
}

impl StepOptions {
    fn to_c(&self) -> sys::shard_step_options {
        let mut c = sys::SHARD_STEP_OPTIONS_INIT;
        c.max_grad_norm = self.max_grad_norm;
        c.grad_divisor = self.grad_divisor;
        c.loss_scale = self.loss_scale;
        c.timeout = seconds(self.timeout);
        c.skip_nonfinite = self.skip_nonfinite.into();
        c.average_active = self.average_active.into();
        c.grad_norm_type = self.grad_norm_type;
        c.clip_value = self.clip_value;
        c
    }
}

info! {
    /// The results and the times of a step.
    StepReport from shard_step_report as raw {
        /// Steps done so far, skipped ones not counted.
        step: i64 = raw.step,
        /// Before clipping, after division; None: not computed.
        grad_norm: Option<f64> = Some(raw.grad_norm).filter(|&norm| norm != -1.0),
        /// Gradients were not finite, and parameters are as before.
        skipped: bool = raw.skipped != 0,
        /// Ranks that have not joined.
        active_ranks: i32 = raw.active_ranks,
        /// Read and written by this rank's kernels.
        bytes_moved: u64 = raw.bytes_moved,
        /// For other ranks.
        seconds_wait: f64 = raw.seconds_wait,
        /// Sum and norm; 0 in the one-pass form.
        seconds_reduce: f64 = raw.seconds_reduce,
        /// Update and publish; with the sum in one pass.
        seconds_update: f64 = raw.seconds_update,
        /// All of the step.
        seconds_total: f64 = raw.seconds_total,
        /// This step divided the gradients by it.
        loss_scale: f64 = raw.loss_scale,
        /// Bytes of tensors that this rank has sent since the step before.
        bytes_communicated: u64 = raw.bytes_communicated,
        /// Those that were through before the host waited for them.
        bytes_overlapped: u64 = raw.bytes_overlapped,
        /// The seconds that the transfers took.
        seconds_communication: f64 = raw.seconds_communication,
        /// The seconds that the host waited for them.
        seconds_exposed: f64 = raw.seconds_exposed,
    }
}

impl Engine {
    /// Reduces the gradients of all ranks, updates the parameters, and publishes them:
    /// when the call returns, every rank sees all new values and may write gradients
    /// again. COLLECTIVE, blocks. DESYNC when options differ between ranks;
    /// FAILED_PRECONDITION before [`broadcast_params`](Engine::broadcast_params), while
    /// units are acquired, and for missing gradients.
    pub fn step(&mut self, options: &StepOptions) -> Result<StepReport> {
        let mut report = sys::SHARD_STEP_REPORT_INIT;
        self.step_into(options, &mut report)?;
        Ok(StepReport::new(&report))
    }

    /// The same. On a device with streams it may return once the step is enqueued: after
    /// [`set_stream`](Engine::set_stream). COLLECTIVE, blocks.
    pub fn step_without_report(&mut self, options: &StepOptions) -> Result<()> {
        self.step_into(options, ptr::null_mut())
    }

    // `report`: valid for a write, or NULL.
    fn step_into(
        &mut self,
        options: &StepOptions,
        report: *mut sys::shard_step_report,
    ) -> Result<()> {
        let options = options.to_c();
        let logged =
            self.call_logged(|engine| unsafe { sys::shard_engine_step(engine, &options, report) })?;
        self.begun = false;
        self.borrows.begin_epoch();
        logged
    }

    /// Returns the report of the last finished step. FAILED_PRECONDITION before the
    /// first one. Local, blocks.
    pub fn last_report(&self) -> Result<StepReport> {
        let mut report = sys::SHARD_STEP_REPORT_INIT;
        self.call(|engine| unsafe { sys::shard_engine_last_report(engine, &mut report) })?;
        Ok(StepReport::new(&report))
    }

    /// Sets the stream on which the host enqueues its own work, in the device's own
    /// form: a CUstream on a GPU; NULL is the device's usual one. INVALID_ARGUMENT for a
    /// stream that is not of the engine's device. Local.
    ///
    /// # Safety
    ///
    /// The stream lives until the engine and all that keeps it alive are dropped, or
    /// another one is set.
    pub unsafe fn set_stream(&mut self, stream: *mut c_void) -> Result<()> {
        self.call(|engine| unsafe { sys::shard_engine_set_stream(engine, stream) })
    }

    /// Begins a capture: until [`capture_end`](Engine::capture_end), `zero_grad` and one
    /// `step_without_report` become part of the CUDA graph that the host captures on the
    /// stream of [`set_stream`](Engine::set_stream). UNIMPLEMENTED for several ranks
    /// without NCCL, and on devices without graphs. Local, blocks.
    ///
    /// # Safety
    ///
    /// The graph is launched only after [`before_replay`](Engine::before_replay), on that
    /// stream, before another step, and neither after another step was captured nor
    /// after the engine is dropped.
    pub unsafe fn capture_begin(&mut self) -> Result<()> {
        self.call(|engine| unsafe { sys::shard_engine_capture_begin(engine) })
    }

    /// Ends the capture; call it before the host ends its own. COLLECTIVE where several
    /// ranks have captured a step.
    pub fn capture_end(&mut self) -> Result<()> {
        self.call_logged(|engine| unsafe { sys::shard_engine_capture_end(engine) })?
    }

    /// Gives the captured step the values of the next one: before each launch of the
    /// graph. COLLECTIVE, blocks until the step before has ended.
    pub fn before_replay(&mut self, options: &StepOptions) -> Result<()> {
        let options = options.to_c();
        let logged = self
            .call_logged(|engine| unsafe { sys::shard_engine_before_replay(engine, &options) })?;
        self.borrows.begin_epoch();
        logged
    }

    /// Gets where the engine's tensors lie: the kind, and the number of the device among
    /// those of its kind.
    pub fn device(&self) -> Result<(DeviceKind, i32)> {
        let mut kind = 0;
        let mut ordinal = 0;
        self.call(|engine| unsafe { sys::shard_engine_device(engine, &mut kind, &mut ordinal) })?;
        Ok((DeviceKind(kind), ordinal))
    }

    /// Describes how the engine works, for programs: `shard/engine.h` has the keys. Local.
    pub fn json(&self) -> Result<String> {
        let _held = self.comm.gate().enter()?;
        copied(|buffer, capacity, length| unsafe {
            sys::shard_engine_json(self.as_ptr(), buffer, capacity, length)
        })
    }

    /// Waits until everything that the engine was given has run, at most for `timeout`;
    /// None: the engine's. Local, blocks.
    pub fn synchronize(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.call(|engine| unsafe { sys::shard_engine_synchronize(engine, seconds(timeout)) })
    }

    /// Announces the options of the next step before the backward pass, so that each
    /// unit is updated as soon as its gradients are ready on all ranks, while the host
    /// still computes others. Optional. From then on parameters are seen through
    /// acquired units only. FAILED_PRECONDITION with options that need all gradients
    /// first. COLLECTIVE, blocks.
    pub fn begin_step(&mut self, options: &StepOptions) -> Result<()> {
        let options = options.to_c();
        let logged =
            self.call_logged(|engine| unsafe { sys::shard_engine_begin_step(engine, &options) })?;
        self.begun = true;
        logged
    }

    /// Takes part in the exchanges and steps of the other ranks, with gradients of zero,
    /// until every rank has joined, and returns the number of these steps. For a rank
    /// that is out of input while others still have some. COLLECTIVE with their calls,
    /// blocks.
    pub fn join(&mut self, timeout: Option<Duration>) -> Result<i64> {
        let mut steps = 0;
        let logged = self.call_logged(|engine| unsafe {
            sys::shard_engine_join(engine, seconds(timeout), &mut steps)
        })?;
        self.borrows.begin_epoch();
        logged.map(|()| steps)
    }
}
