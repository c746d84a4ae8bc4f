// SPDX-License-Identifier: Apache-2.0

//! Units of an engine, in forward and backward passes (docs/units.md).

use std::fmt;
use std::ptr;
use std::time::Duration;

use shard_sys as sys;

use crate::borrows::Param;
use crate::dtype::{length_as, view, view_mut, Element};
use crate::engine::Engine;
use crate::error::{failed_precondition, invalid, Result};
use crate::layout::UnitId;
use crate::model::ParamId;
use crate::tensors::TensorMut;
use crate::text::seconds;

c_enum! {
    /// The pass that a unit is acquired for.
    Pass {
        /// The forward pass.
        FORWARD = SHARD_PASS_FORWARD,
        /// The backward pass.
        BACKWARD = SHARD_PASS_BACKWARD,
        /// As BACKWARD, but the unit's gradients do not start as zeros: the host writes
        /// every element.
        BACKWARD_OVERWRITE = SHARD_PASS_BACKWARD_OVERWRITE,
    }
}

/// A unit that is acquired: its parameters can be read and, in a backward pass,
/// its gradients written.
///
/// Units nest: several are acquired at once, and each keeps its views from
/// outliving it. Dropping a unit releases it, and drops the error of that;
/// [`release`](Unit::release) returns it. With
/// [`missing_grads`](crate::EngineOptions::missing_grads) a release may wait for
/// the other ranks, at most for the engine's timeout. A unit that is forgotten
/// stays acquired, and the next step says so.
///
/// A unit does not outlive its plan, nor a view its unit:
///
/// ```compile_fail
/// # fn f(engine: &mut shard::Engine, id: shard::UnitId) -> shard::Result<()> {
/// let unit = engine.unit_acquire(id, shard::Pass::FORWARD, None)?;
/// engine.set_trainable(&[], true, None)?; // another plan, in other memory
/// unit.release()
/// # }
/// ```
///
/// ```compile_fail
/// # fn f(unit: shard::Unit<'_>, weight: shard::ParamId) -> shard::Result<()> {
/// let weights = unit.param::<f32>(weight)?;
/// unit.release()?;
/// println!("{}", weights[0]);
/// # Ok(())
/// # }
/// ```
pub struct Unit<'e> {
    engine: &'e Engine,
    unit: UnitId,
    pass: Pass,
    ready: bool,
}

/// A parameter of a unit, and its gradient: [`Unit::params`].
#[derive(Debug)]
#[non_exhaustive]
pub struct UnitParam<'u, T: Element> {
    /// The parameter.
    pub id: ParamId,
    /// Its elements, row-major.
    pub data: &'u [T],
    /// Its gradient, in a backward pass; None where it is frozen.
    pub grad: Option<TensorMut<'u, T>>,
}

impl Engine {
    /// Acquires a unit for a pass. When the call returns, its parameters can be read; in
    /// stage 3 without shared memory they are gathered. COLLECTIVE where units are
    /// gathered or reduced, blocks. FAILED_PRECONDITION while the unit is acquired, and
    /// while a gradient of it has a view.
    pub fn unit_acquire(
        &self,
        unit: UnitId,
        pass: Pass,
        timeout: Option<Duration>,
    ) -> Result<Unit<'_>> {
        if pass != Pass::FORWARD {
            self.borrows.check_unit_not_viewed(unit)?;
        }
        let logged = self.call_logged(|engine| unsafe {
            sys::shard_engine_unit_acquire(engine, unit.0, pass.0, seconds(timeout))
        })?;
        self.borrows.set_acquired(unit, true);
        let acquired = Unit {
            engine: self,
            unit,
            pass,
            ready: self.borrows.is_declared(unit),
        };
        logged.map(|()| acquired)
    }

    /// Declares that this rank's gradients of a unit are written, in stages 0 and 1,
    /// where a unit need not be acquired: an acquired one is declared through
    /// [`Unit::mark_grads_ready`]. COLLECTIVE where gradients are reduced.
    pub fn mark_unit_grads_ready(&self, unit: UnitId) -> Result<()> {
        self.check_not_acquired(unit)?;
        self.declare_unit(unit)
    }

    /// Declares the gradient of one parameter, as
    /// [`mark_unit_grads_ready`](Engine::mark_unit_grads_ready); the last one of a unit
    /// makes the unit ready.
    pub fn mark_param_grad_ready(&self, param: ParamId) -> Result<()> {
        if let Some(known) = self.borrows.param(param) {
            self.check_not_acquired(known.unit)?;
        }
        self.declare_param(param)
    }

    /// Sets whether backward passes accumulate: whether another pass follows before the
    /// step for the gradients that become ready from here on. (PyTorch calls this
    /// no_sync.) The same on every rank. Local.
    pub fn set_accumulate(&self, accumulate: bool) -> Result<()> {
        let logged = self.call_logged(|engine| unsafe {
            sys::shard_engine_set_accumulate(engine, accumulate.into())
        })?;
        self.accumulates.set(accumulate);
        logged
    }

    fn check_not_acquired(&self, unit: UnitId) -> Result<()> {
        if self.borrows.is_acquired(unit) {
            return failed_precondition(format!(
                "unit {unit} is acquired; declare its gradients through the unit"
            ));
        }
        Ok(())
    }

    fn declare_unit(&self, unit: UnitId) -> Result<()> {
        self.borrows.check_unit_not_viewed(unit)?;
        let logged = self.call_logged(|engine| unsafe {
            sys::shard_engine_mark_unit_grads_ready(engine, unit.0)
        })?;
        self.borrows.set_unit_ready(unit, self.accumulates.get());
        logged
    }

    fn declare_param(&self, param: ParamId) -> Result<()> {
        let known = self.borrows.param(param);
        if let Some(known) = known {
            self.borrows.check_not_viewed(param, known)?;
        }
        let logged = self.call_logged(|engine| unsafe {
            sys::shard_engine_mark_param_grad_ready(engine, param.0)
        })?;
        if let Some(known) = known {
            self.borrows.set_ready(known, self.accumulates.get());
        }
        logged
    }
}

impl<'e> Unit<'e> {
    /// Returns the unit's number.
    pub fn id(&self) -> UnitId {
        self.unit
    }

    /// Returns the pass that the unit was acquired for.
    pub fn pass(&self) -> Pass {
        self.pass
    }

    /// Returns the elements of a parameter of this unit, row-major. FAILED_PRECONDITION
    /// on a GPU, as in all views: there is [`param_ptr`](Unit::param_ptr).
    pub fn param<T: Element>(&self, param: ParamId) -> Result<&[T]> {
        let known = self.own(param)?;
        self.engine.check_param_on_host(param)?;
        self.check_readable()?;
        // SAFETY: the memory is the host's, and stays as it is until the unit is
        // released, or `&mut self`.
        unsafe { self.engine.param_elements(param, known) }
    }

    /// Returns the address of a parameter of this unit, as
    /// [`Engine::param_ptr`](crate::Engine::param_ptr).
    pub fn param_ptr<T: Element>(&self, param: ParamId) -> Result<(*const T, usize)> {
        self.engine.param_address(param, self.own(param)?)
    }

    /// Returns the gradient of a parameter of this unit, in a backward pass, until it is
    /// declared ready.
    pub fn grad<T: Element>(&self, param: ParamId) -> Result<TensorMut<'_, T>> {
        let known = self.own(param)?;
        self.engine.grad_elements(param, known)
    }

    /// Returns the address of the gradient of a parameter of this unit, as
    /// [`Engine::grad_ptr`](crate::Engine::grad_ptr).
    pub fn grad_ptr<T: Element>(&self, param: ParamId) -> Result<(*mut T, usize)> {
        self.engine.grad_address(param, self.own(param)?)
    }

    /// Returns all parameters of the unit, by ascending id, in a backward pass with their
    /// gradients. `T` must see all of them: `u8` does.
    pub fn params<T: Element>(&self) -> Result<Vec<UnitParam<'_, T>>> {
        self.engine.place.check_host(
            format_args!("unit {}", self.unit),
            "take the addresses of its tensors by param_ptr and grad_ptr",
        )?;
        self.check_readable()?;
        let borrows = &self.engine.borrows;
        let backward = self.pass != Pass::FORWARD;
        let count = borrows.params_of(self.unit).len();
        let mut ids = vec![0; count];
        let mut data = vec![ptr::null(); count];
        let mut grads = vec![ptr::null_mut(); count];
        self.engine.call(|engine| unsafe {
            let grads = if backward {
                grads.as_mut_ptr()
            } else {
                ptr::null_mut()
            };
            let (ids, data, unit) = (ids.as_mut_ptr(), data.as_mut_ptr(), self.unit.0);
            sys::shard_engine_unit_params(engine, unit, ids, data, grads, count, ptr::null_mut())
        })?;
        let mut params = Vec::with_capacity(count);
        for index in 0..count {
            let id = ParamId(ids[index]);
            let known = self.own(id)?;
            let length = length_as::<T>(format_args!("parameter {id}"), known.dtype, known.numel)?;
            // SAFETY: as in `param` and in `grad`.
            let data = unsafe { view(data[index], length)? };
            let grad = match known.grad_dtype {
                Some(dtype) if backward => {
                    let viewed = borrows.view_grad(id, known)?;
                    let length = length_as::<T>(
                        format_args!("the gradient of parameter {id}"),
                        dtype,
                        known.numel,
                    )?;
                    Some(TensorMut::new(
                        unsafe { view_mut(grads[index], length)? },
                        viewed,
                    ))
                }
                _ => None,
            };
            params.push(UnitParam { id, data, grad });
        }
        Ok(params)
    }

    /// Declares that this rank's gradients of the unit are written. They are reduced
    /// while the host goes on. All views of the unit end here. COLLECTIVE where
    /// gradients are reduced.
    pub fn mark_grads_ready(&mut self) -> Result<()> {
        self.ready = true;
        self.engine.declare_unit(self.unit)
    }

    /// Declares the gradient of one parameter of this unit; the last one makes the unit
    /// ready. A parameter of another unit is INVALID_ARGUMENT.
    pub fn mark_param_grad_ready(&mut self, param: ParamId) -> Result<()> {
        self.own(param)?;
        self.ready = true;
        self.engine.declare_param(param)
    }

    /// Releases the unit.
    pub fn release(self) -> Result<()> {
        let result = self.end();
        std::mem::forget(self);
        result
    }

    fn end(&self) -> Result<()> {
        // Views of this unit have ended; those of the engine go on where gradients are
        // whole, and a release leaves these as they are.
        let logged = self
            .engine
            .call_logged(|engine| unsafe { sys::shard_engine_unit_release(engine, self.unit.0) })?;
        self.engine.borrows.set_acquired(self.unit, false);
        logged
    }

    /// Checks that the parameter is one of this unit's.
    fn own(&self, param: ParamId) -> Result<&'e Param> {
        match self.engine.borrows.param(param) {
            Some(known) if known.unit == self.unit => Ok(known),
            Some(known) => invalid(format!(
                "parameter {param} is in unit {}, not in unit {}; acquire the unit that it is in",
                known.unit, self.unit
            )),
            None => self.engine.no_such_param(param),
        }
    }

    /// Checks that the unit's parameters do not change in the background.
    fn check_readable(&self) -> Result<()> {
        self.engine.check_not_left_behind()?;
        if self.ready && self.engine.begun {
            return failed_precondition(format!(
                "the gradients of unit {} are ready and the step has begun, so its parameters \
                 change; read them before",
                self.unit
            ));
        }
        Ok(())
    }
}

impl Drop for Unit<'_> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl fmt::Debug for Unit<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Unit({}, {:?})", self.unit, self.pass)
    }
}
