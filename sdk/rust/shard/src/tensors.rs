// SPDX-License-Identifier: Apache-2.0

//! Tensors of an engine: parameters and gradients, their first values, buffers of
//! the model, and memory of the host's own.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::raw::c_void;
use std::ptr;
use std::time::Duration;

use shard_sys as sys;

use crate::borrows::{Param, Viewed};
use crate::dtype::{check_type, length_as, view, view_mut, Element};
use crate::engine::Engine;
use crate::error::{failed_precondition, Code, Error, Result};
use crate::model::{ModelBufferId, ParamId};
use crate::text::seconds;

/// A tensor that the host writes: a gradient or a buffer of the model, as a slice.
/// There is one view of a tensor at a time; a second one is FAILED_PRECONDITION.
pub struct TensorMut<'a, T: Element> {
    elements: &'a mut [T],
    _viewed: Viewed<'a>,
}

impl<'a, T: Element> TensorMut<'a, T> {
    pub(crate) fn new(elements: &'a mut [T], viewed: Viewed<'a>) -> TensorMut<'a, T> {
        TensorMut {
            elements,
            _viewed: viewed,
        }
    }
}

impl<T: Element> Deref for TensorMut<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.elements
    }
}

impl<T: Element> DerefMut for TensorMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.elements
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for TensorMut<'_, T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.elements.fmt(out)
    }
}

impl Engine {
    // ---- Parameters --------------------------------------------------------

    /// Returns a parameter's elements, row-major, until the next call that changes
    /// tensors. Local. Ranks that share a host's memory all read the same copy.
    ///
    /// FAILED_PRECONDITION before parameters have values; where they are sharded; with
    /// the option [`overlap`](crate::EngineOptions::overlap) and after
    /// [`begin_step`](Engine::begin_step), when they change in the background. Acquired
    /// units give them then: [`Unit::param`](crate::Unit::param). So it is, for gradients
    /// too, once a call of all ranks has failed on this rank, for others may go on with it,
    /// and on a GPU, whose memory the host cannot use: there is
    /// [`param_ptr`](Engine::param_ptr).
    pub fn param<T: Element>(&self, param: ParamId) -> Result<&[T]> {
        let known = match self.borrows.param(param) {
            Some(known) => known,
            None => return self.no_such_param(param),
        };
        self.check_param_on_host(param)?;
        self.check_values()?;
        self.check_not_left_behind()?;
        if self.overlap || self.begun {
            return failed_precondition(format!(
                "parameter {param} can change in the background, for {}; acquire unit {} and see \
                 it through the unit",
                if self.begun {
                    "the step has begun"
                } else {
                    "the engine has overlap"
                },
                known.unit
            ));
        }
        if self.borrows.shards_params && self.borrows.is_acquired(known.unit) {
            return failed_precondition(format!(
                "parameter {param} is in unit {}, which is acquired; see it through the unit",
                known.unit
            ));
        }
        // SAFETY: the memory stays as it is until `&mut self`.
        unsafe { self.param_elements(param, known) }
    }

    /// # Safety
    ///
    /// The parameter is in the host's memory, and neither moves nor changes while `'a`
    /// lasts.
    pub(crate) unsafe fn param_elements<'a, T: Element>(
        &self,
        param: ParamId,
        known: &Param,
    ) -> Result<&'a [T]> {
        let (data, length) = self.param_address::<T>(param, known)?;
        unsafe { view(data.cast(), length) }
    }

    /// Checks that parameters have values: until then rank 0 may write the memory that
    /// other ranks see.
    pub(crate) fn check_values(&self) -> Result<()> {
        if self.has_values {
            return Ok(());
        }
        failed_precondition(
            "parameters have no values yet: set them on rank 0 (set_param, writable_param) and \
             call broadcast_params, or load a checkpoint",
        )
    }

    /// Checks that no other rank uses this engine's tensors, in a call that has failed here.
    pub(crate) fn check_not_left_behind(&self) -> Result<()> {
        if !self.left_behind.get() {
            return Ok(());
        }
        failed_precondition(
            "a call of all ranks has failed here, and others may still use the tensors of this \
             engine; open another communicator and engine and load a checkpoint. \
             StateDict::get gives what this rank owns",
        )
    }

    /// Returns the library's error for a parameter that does not exist or is ignored.
    pub(crate) fn no_such_param<T>(&self, param: ParamId) -> Result<T> {
        let mut data = ptr::null();
        self.call(|engine| unsafe {
            sys::shard_engine_param(engine, param.0, &mut data, ptr::null_mut())
        })?;
        Err(Error::new(
            Code::INTERNAL,
            format!("parameter {param} is not in the plan"),
        ))
    }

    /// Returns a parameter's elements for the host to write: on rank 0 before
    /// [`broadcast_params`](Engine::broadcast_params), where parameters are not sharded
    /// ([`set_param`](Engine::set_param) sets sharded ones). FAILED_PRECONDITION else,
    /// and on a GPU. Local.
    pub fn writable_param<T: Element>(&mut self, param: ParamId) -> Result<&mut [T]> {
        if self.borrows.param(param).is_some() {
            self.place.check_host(
                format_args!("parameter {param}"),
                "set its values by set_param, or take its address by writable_param_ptr",
            )?;
        }
        // SAFETY: the parameter is in the host's memory, and `&mut self` is held as long
        // as the view.
        unsafe { self.writable_elements(param) }
    }

    /// # Safety
    ///
    /// The parameter is in the host's memory, and nobody else sees it while `'a` lasts.
    pub(crate) unsafe fn writable_elements<'a, T: Element>(
        &self,
        param: ParamId,
    ) -> Result<&'a mut [T]> {
        let known = match self.borrows.param(param) {
            Some(known) => known,
            None => return self.no_such_param(param),
        };
        let (data, length) = self.writable_address::<T>(param, known)?;
        unsafe { view_mut(data.cast(), length) }
    }

    /// Copies a parameter's first values into the engine: all its elements. Only rank
    /// 0's values count; other ranks may make the call. FAILED_PRECONDITION after the
    /// broadcast. Local.
    pub fn set_param<T: Element>(&mut self, param: ParamId, values: &[T]) -> Result<()> {
        if let Some(known) = self.borrows.param(param) {
            check_type::<T>(format_args!("parameter {param}"), known.dtype)?;
        }
        self.call(|engine| unsafe {
            let (data, bytes) = (
                values.as_ptr() as *const c_void,
                std::mem::size_of_val(values),
            );
            sys::shard_engine_set_param(engine, param.0, data, bytes)
        })
    }

    /// Sends rank 0's parameters to all ranks. COLLECTIVE, blocks; once, before the
    /// first step.
    pub fn broadcast_params(&mut self, timeout: Option<Duration>) -> Result<()> {
        let logged = self.call_logged(|engine| unsafe {
            sys::shard_engine_broadcast_params(engine, seconds(timeout))
        })?;
        self.has_values = true;
        logged
    }

    // ---- Gradients ---------------------------------------------------------

    /// Returns this rank's gradient of a parameter, to be written between steps. It
    /// starts as zero and keeps its values until the host changes them; after a step
    /// its values may be unspecified (`shard/tensors.h`). Local.
    ///
    /// FAILED_PRECONDITION for a frozen parameter, while there is another view of the
    /// gradient, once it was declared ready, and where gradients are sharded: acquired
    /// units give them ([`Unit::grad`](crate::Unit::grad)). So it is on a GPU: there is
    /// [`grad_ptr`](Engine::grad_ptr).
    pub fn grad<T: Element>(&self, param: ParamId) -> Result<TensorMut<'_, T>> {
        let known = match self.borrows.param(param) {
            Some(known) => known,
            None => return self.no_such_param(param),
        };
        if self.borrows.shards_grads && self.borrows.is_acquired(known.unit) {
            return failed_precondition(format!(
                "the gradient of parameter {param} is in unit {}, which is acquired; see it \
                 through the unit",
                known.unit
            ));
        }
        self.grad_elements(param, known)
    }

    /// Returns the gradient for as long as the caller's own borrow says.
    pub(crate) fn grad_elements<'a, T: Element>(
        &'a self,
        param: ParamId,
        known: &'a Param,
    ) -> Result<TensorMut<'a, T>> {
        self.check_not_left_behind()?;
        self.check_grad_on_host(param)?;
        let viewed = self.borrows.view_grad(param, known)?;
        let (data, length) = self.grad_address::<T>(param, known)?;
        // SAFETY: `viewed` excludes other views, and the gradient, which is in the host's
        // memory, stays where it is until `&mut self` or the end of its unit, which ends
        // this borrow.
        let elements = unsafe { view_mut(data.cast(), length)? };
        Ok(TensorMut::new(elements, viewed))
    }

    /// Sets this rank's gradients to zero; drops accumulated sums, and the declarations
    /// of gradients that are ready. Where gradients are sharded, every rank calls this
    /// equally often. Local; waits for reductions that are on their way.
    pub fn zero_grad(&mut self) -> Result<()> {
        let logged = self.call_logged(|engine| unsafe { sys::shard_engine_zero_grad(engine) })?;
        self.borrows.begin_epoch();
        logged
    }

    // ---- Memory of the host's own ------------------------------------------

    /// Binds memory of the host to a parameter (`values`) and its gradient (`grad`),
    /// each as an address and a number of `T`; None binds nothing, None for both
    /// unbinds. Stages 0 to 2. `values` receives the parameter whenever it changes;
    /// `grad` takes the place of the engine's gradient. `shard/tensors.h` says what
    /// this costs. Local.
    ///
    /// # Safety
    ///
    /// The memory must be valid until it is bound no more or the engine is dropped
    /// (not merely forgotten). Nobody else uses `values` during a call that changes
    /// parameters, nor `grad` while it has a view or is declared ready.
    pub unsafe fn bind_param<T: Element>(
        &mut self,
        param: ParamId,
        values: Option<(*mut T, usize)>,
        grad: Option<(*mut T, usize)>,
    ) -> Result<()> {
        if let Some(known) = self.borrows.param(param) {
            if values.is_some() {
                check_type::<T>(format_args!("parameter {param}"), known.dtype)?;
            }
            if let (Some(_), Some(dtype)) = (grad, known.grad_dtype) {
                check_type::<T>(format_args!("the gradient of parameter {param}"), dtype)?;
            }
        }
        let parts = |memory: Option<(*mut T, usize)>| match memory {
            None => (ptr::null_mut(), 0),
            Some((data, length)) => (data as *mut c_void, length * std::mem::size_of::<T>()),
        };
        let ((values, values_bytes), (grad, grad_bytes)) = (parts(values), parts(grad));
        self.call(|engine| unsafe {
            sys::shard_engine_bind_param(engine, param.0, values, values_bytes, grad, grad_bytes)
        })
    }

    // ---- Buffers -----------------------------------------------------------

    /// Returns this rank's copy of a buffer of the model, row-major, for the host to
    /// read and write. Zero at first. FAILED_PRECONDITION for a buffer in an ignored
    /// module, and while there is another view of it. Local.
    pub fn buffer<T: Element>(&self, buffer: ModelBufferId) -> Result<TensorMut<'_, T>> {
        let (mut data, mut numel) = (ptr::null_mut(), 0);
        let viewed = self.borrows.view_buffer(buffer)?;
        self.call(|engine| unsafe {
            sys::shard_engine_buffer(engine, buffer.0, &mut data, &mut numel)
        })?;
        let (known, viewed) = match (self.borrows.buffer(buffer), viewed) {
            (Some(known), Some(viewed)) => (known, viewed),
            _ => {
                let message = format!("buffer {buffer} is not in the plan");
                return Err(Error::new(Code::INTERNAL, message));
            }
        };
        let length = length_as::<T>(format_args!("buffer {buffer}"), known.dtype, numel)?;
        // SAFETY: `viewed` excludes other views; calls that change buffers take
        // `&mut self`.
        Ok(TensorMut::new(unsafe { view_mut(data, length)? }, viewed))
    }

    /// Replaces the buffers of all ranks by those of rank `root`, before a forward pass.
    /// Between steps, and before the broadcast of parameters. COLLECTIVE, blocks.
    pub fn broadcast_buffers(&mut self, root: i32, timeout: Option<Duration>) -> Result<()> {
        self.call(|engine| unsafe {
            sys::shard_engine_broadcast_buffers(engine, root, seconds(timeout))
        })
    }
}
