// SPDX-License-Identifier: Apache-2.0

//! Engines: one rank's training. This file has their creation and their numbers;
//! `tensors.rs`, `device.rs`, `units.rs`, `step.rs`, `replan.rs` and `full_params.rs`
//! have the rest.

use std::cell::Cell;
use std::fmt;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use shard_sys as sys;

use crate::borrows::Borrows;
use crate::comm::{Comm, CommHandle};
use crate::device::Place;
use crate::error::{check, Code, Error, Result};
use crate::model::{GroupId, ParamId};
use crate::plan::{Memory, Plan};
use crate::save::SaveHandle;
use crate::text::{c_text, copied, seconds};

c_enum! {
    /// How a step treats parameters that got no gradient since the last step.
    MissingGrads {
        /// The step is an error that names their units: the default.
        ERROR = SHARD_MISSING_ERROR,
        /// Their gradients are zeros.
        ZERO = SHARD_MISSING_ZERO,
        /// Parameters that got no gradient on any rank are left as they are.
        SKIP = SHARD_MISSING_SKIP,
    }
}

options! {
    /// Options of [`Engine::create`].
    EngineOptions {
        /// For creation, and the default of this engine's waits; the communicator's
        /// unless given.
        timeout: Option<Duration>,
        /// The factor by which the host multiplies its loss: "static?scale=1024", or
        /// "dynamic", whose values `shard/engine.h` lists. None unless given. The same
        /// on every rank.
        loss_scaling: String,
        /// [`MissingGrads::ERROR`] unless given. The same on every rank.
        missing_grads: Option<MissingGrads>,
        /// Where ranks share no memory, a step returns while parameters are still on
        /// their way to this rank; they are read through acquired units only. The same
        /// on every rank.
        overlap: bool,
        /// Where tensors live and kernels run: "cpu" unless given, "cuda:0" for a GPU,
        /// or "cpu-async".
        device: String,
    }
}

/// One rank's training.
///
/// An engine may move between threads; one thread uses it at a time. `&mut self`
/// marks the calls that change tensors or end passes: none of the engine's views
/// outlives them. All others take `&self`, so that units nest and views of
/// several tensors are there at once:
///
/// ```compile_fail
/// # fn f(engine: &mut shard::Engine, weight: shard::ParamId) -> shard::Result<()> {
/// let weights = engine.param::<f32>(weight)?;
/// engine.step(&shard::StepOptions::default())?; // changes what `weights` shows
/// println!("{}", weights[0]);
/// # Ok(())
/// # }
/// ```
///
/// Two threads cannot share an engine:
///
/// ```compile_fail
/// fn is_sync<T: Sync>() {}
/// is_sync::<shard::Engine>();
/// ```
///
/// Dropping an engine waits for a save in the background.
pub struct Engine {
    engine: NonNull<sys::shard_engine>,
    pub(crate) comm: Arc<CommHandle>,
    pub(crate) borrows: Borrows,
    pub(crate) place: Place,
    /// Whether parameters have values: they were broadcast or loaded.
    pub(crate) has_values: bool,
    /// Whether parameters change or arrive in the background between steps.
    pub(crate) overlap: bool,
    /// Whether the next step has begun, so that units change as they are ready.
    pub(crate) begun: bool,
    pub(crate) accumulates: Cell<bool>,
    /// Whether a call of all ranks has failed on this rank while others may go on with it:
    /// they may write the parameters that ranks share, and read this rank's gradients.
    pub(crate) left_behind: Cell<bool>,
    /// Saves that may still run; their progress functions live here.
    pub(crate) saves: Vec<Arc<SaveHandle>>,
}

// SAFETY: handles may move between threads, and the gate keeps calls apart from
// those of the communicator and of other engines on it.
unsafe impl Send for Engine {}

impl Engine {
    /// Allocates buffers and checks that all ranks hold the same plan and options.
    /// COLLECTIVE, blocks. Errors: DESYNC when they do not; INVALID_ARGUMENT when the
    /// plan's world size is not the communicator's; RESOURCE_EXHAUSTED; UNIMPLEMENTED
    /// for a dtype that cannot be stepped.
    pub fn create(plan: &Plan, comm: &Comm, options: &EngineOptions) -> Result<Engine> {
        let borrows = Borrows::new(plan)?;
        let texts = c_text("loss_scaling", &options.loss_scaling)
            .and_then(|loss_scaling| Ok((loss_scaling, c_text("the device", &options.device)?)));
        let mut c = sys::SHARD_ENGINE_OPTIONS_INIT;
        c.timeout = seconds(options.timeout);
        c.missing_grads = options.missing_grads.map_or(0, |missing| missing.0);
        c.overlap = options.overlap.into();
        let mut plan = plan.as_ptr();
        match &texts {
            Ok((loss_scaling, device)) => {
                c.loss_scaling = loss_scaling.as_ptr();
                if !options.device.is_empty() {
                    c.device = device.as_ptr();
                }
            }
            // The other ranks are told by a call that fails.
            Err(_) => plan = ptr::null(),
        }
        let comm = Arc::clone(comm.shared());
        let mut engine = ptr::null_mut();
        let created = comm
            .gate()
            .call(|| unsafe { sys::shard_engine_create(plan, comm.as_ptr(), &c, &mut engine) });
        texts?;
        let mut engine = match NonNull::new(engine) {
            None => {
                created?;
                return Err(Error::new(
                    Code::INTERNAL,
                    "shard_engine_create gave no engine",
                ));
            }
            Some(engine) => Engine {
                engine,
                comm,
                borrows,
                place: Place::HOST,
                has_values: false,
                overlap: options.overlap,
                begun: false,
                accumulates: Cell::new(false),
                left_behind: Cell::new(false),
                saves: Vec::new(),
            },
        };
        // An engine that was made is dropped if the log function panicked.
        created?;
        engine.place = Place::new(engine.device()?);
        Ok(engine)
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::shard_engine {
        self.engine.as_ptr()
    }

    /// Makes a call on the engine.
    pub(crate) fn call(
        &self,
        call: impl FnOnce(*mut sys::shard_engine) -> *mut sys::shard_error,
    ) -> Result<()> {
        self.comm.gate().call(|| call(self.as_ptr()))
    }

    /// Makes a call whose success changes what is known of the engine; see Gate.
    pub(crate) fn call_logged(
        &self,
        call: impl FnOnce(*mut sys::shard_engine) -> *mut sys::shard_error,
    ) -> Result<Result<()>> {
        let result = self.comm.gate().call_logged(|| call(self.as_ptr()));
        if matches!(&result, Err(error) if error.ends_group()) {
            self.left_behind.set(true);
        }
        result
    }

    /// Returns the plan that is in force: the one that the engine was created with,
    /// until [`add_param_group`](Engine::add_param_group) or
    /// [`set_trainable`](Engine::set_trainable) puts another one in its place.
    pub fn plan(&self) -> Result<Plan> {
        let mut plan = ptr::null_mut();
        self.call(|engine| unsafe { sys::shard_engine_plan(engine, &mut plan) })?;
        Ok(Plan::own(plan))
    }

    // ---- Hyperparameters and states ----------------------------------------

    /// Sets a hyperparameter of a param group, by its key in the optimizer's text:
    /// "lr" is the learning rate. None: every group that has the key. Holds from the
    /// next step on; every rank sets the same before it. Local.
    pub fn set_hyper(&self, group: Option<GroupId>, key: &str, value: f64) -> Result<()> {
        let key = c_text("the key", key)?;
        let group = group.map_or(-1, |group| group.0);
        self.call(|engine| unsafe {
            sys::shard_engine_set_hyper(engine, group, key.as_ptr(), value)
        })
    }

    /// Returns a hyperparameter; a word is returned as its number, and
    /// [`group_text`](Engine::group_text) has the word itself. Local.
    pub fn hyper(&self, group: GroupId, key: &str) -> Result<f64> {
        let key = c_text("the key", key)?;
        let mut value = 0.0;
        self.call(|engine| unsafe {
            sys::shard_engine_hyper(engine, group.0, key.as_ptr(), &mut value)
        })?;
        Ok(value)
    }

    /// Returns the group's optimizer with the present value of every key:
    /// "sgd?lr=0.1&momentum=0&...". Local.
    pub fn group_text(&self, group: GroupId) -> Result<String> {
        let _held = self.comm.gate().enter()?;
        copied(|buffer, capacity, length| unsafe {
            sys::shard_engine_group_text(self.as_ptr(), group.0, buffer, capacity, length)
        })
    }

    /// Sets an optimizer state of `param`, after the broadcast, for a run that began
    /// in another program. `values` are those of the whole tensor; `state` is torch's
    /// name, such as "exp_avg", or "master_param". Every rank makes the same calls.
    /// Local.
    pub fn set_state(&mut self, param: ParamId, state: &str, values: &[f32]) -> Result<()> {
        let state = c_text("the state", state)?;
        self.call(|engine| unsafe {
            let (values, count) = (values.as_ptr(), values.len());
            sys::shard_engine_set_state(engine, param.0, state.as_ptr(), values, count)
        })
    }

    /// Returns the number of completed steps; skipped ones do not count. Local.
    pub fn completed_steps(&self) -> Result<i64> {
        let mut steps = 0;
        self.call(|engine| unsafe { sys::shard_engine_completed_steps(engine, &mut steps) })?;
        Ok(steps)
    }

    /// Sets the number of completed steps, after the broadcast. Every rank sets the
    /// same. Local.
    pub fn set_completed_steps(&mut self, steps: i64) -> Result<()> {
        self.call(|engine| unsafe { sys::shard_engine_set_completed_steps(engine, steps) })
    }

    /// Returns the factor of the loss for the next backward pass. Local.
    pub fn loss_scale(&self) -> Result<f64> {
        let mut scale = 0.0;
        self.call(|engine| unsafe { sys::shard_engine_loss_scale(engine, &mut scale) })?;
        Ok(scale)
    }

    /// Returns the number of good steps in a row since the loss scale changed or a
    /// step was skipped. Local.
    pub fn growth_tracker(&self) -> Result<i64> {
        let mut good_steps = 0;
        self.call(|engine| unsafe { sys::shard_engine_growth_tracker(engine, &mut good_steps) })?;
        Ok(good_steps)
    }

    /// Sets the loss scale and the growth tracker, after the broadcast, for a run that
    /// goes on with the dynamic loss scaling of another program. Local.
    pub fn set_loss_scale(&mut self, scale: f64, good_steps: i64) -> Result<()> {
        self.call(|engine| unsafe { sys::shard_engine_set_loss_scale(engine, scale, good_steps) })
    }

    /// Returns the bytes that this engine has allocated, which
    /// [`Plan::memory`](crate::Plan::memory) predicts. Local.
    pub fn memory(&self) -> Result<Memory> {
        let mut memory = sys::SHARD_MEMORY_INIT;
        self.call(|engine| unsafe { sys::shard_engine_memory(engine, &mut memory) })?;
        Ok(Memory::new(&memory))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        match self.comm.gate().enter() {
            Ok(_held) => unsafe { sys::shard_engine_free(self.as_ptr()) },
            // A callback of this engine drops it. Freeing it would pull the ground from
            // under the call that runs the callback, so it stays.
            Err(_) => {
                mem::forget(Arc::clone(&self.comm));
                mem::forget(mem::take(&mut self.saves));
            }
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Engine(step {:?})", self.completed_steps())
    }
}

/// Describes the accelerators of this machine, and why one cannot be used, for programs:
/// `shard/engine.h` has the keys. Opens each for a moment.
pub fn devices_json() -> Result<String> {
    copied(|buffer, capacity, length| unsafe { sys::shard_devices_json(buffer, capacity, length) })
}

/// Computes the learning rate of step `step`, which counts from 1, for
/// [`Engine::set_hyper`]: "cosine?lr=3e-4&warmup=2000&total=100000&min_lr=3e-5".
/// docs/training-loop.md has the schedules and their formulas.
pub fn schedule_lr(schedule: &str, step: i64) -> Result<f64> {
    let schedule = c_text("the schedule", schedule)?;
    let mut lr = 0.0;
    check(unsafe { sys::shard_schedule_lr(schedule.as_ptr(), step, &mut lr) })?;
    Ok(lr)
}
