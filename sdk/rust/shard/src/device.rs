// SPDX-License-Identifier: Apache-2.0

//! Where an engine's tensors lie, and their addresses there. The host cannot use the
//! memory of a GPU: there are no slices of it, but raw pointers for kernels and copies.

use std::fmt;
use std::ptr;

use shard_sys as sys;

use crate::borrows::Param;
use crate::dtype::{check_type, length_as, Element};
use crate::engine::Engine;
use crate::error::{failed_precondition, Result};
use crate::model::ParamId;

c_enum! {
    /// Where tensors lie, in the codes of DLPack.
    DeviceKind {
        /// The host's memory.
        CPU = SHARD_DEVICE_CPU,
        /// The memory of a GPU, whose addresses are of no use to the host.
        CUDA = SHARD_DEVICE_CUDA,
    }
}

/// Where an engine has its tensors.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    kind: DeviceKind,
    ordinal: i32,
}

impl Place {
    pub(crate) const HOST: Place = Place {
        kind: DeviceKind::CPU,
        ordinal: 0,
    };

    /// Returns the place of a device, as C has it.
    pub(crate) fn new((kind, ordinal): (DeviceKind, i32)) -> Place {
        Place { kind, ordinal }
    }

    pub(crate) fn is_host(self) -> bool {
        self.kind == DeviceKind::CPU
    }

    /// Checks that the host can use a tensor that is in this place.
    pub(crate) fn check_host(self, what: impl fmt::Display, remedy: &str) -> Result<()> {
        if self.is_host() {
            return Ok(());
        }
        failed_precondition(format!(
            "{what} is in the memory of GPU {}, which the host cannot use; {remedy}",
            self.ordinal
        ))
    }
}

impl Engine {
    /// Returns the address of a parameter's elements in the memory of the engine's
    /// [`device`](Engine::device), and their number, for kernels and copies of the host.
    /// The address is valid as long as a view would be, whose other rules are the
    /// host's to follow. Local.
    pub fn param_ptr<T: Element>(&self, param: ParamId) -> Result<(*const T, usize)> {
        match self.borrows.param(param) {
            Some(known) => self.param_address(param, known),
            None => self.no_such_param(param),
        }
    }

    /// Returns the same of a parameter that the host may write: on rank 0 before
    /// [`broadcast_params`](Engine::broadcast_params), where parameters are not sharded.
    /// Local.
    pub fn writable_param_ptr<T: Element>(&mut self, param: ParamId) -> Result<(*mut T, usize)> {
        match self.borrows.param(param) {
            Some(known) => self.writable_address(param, known),
            None => self.no_such_param(param),
        }
    }

    /// Returns the same of this rank's gradient of a parameter. Local.
    pub fn grad_ptr<T: Element>(&self, param: ParamId) -> Result<(*mut T, usize)> {
        match self.borrows.param(param) {
            Some(known) => self.grad_address(param, known),
            None => self.no_such_param(param),
        }
    }

    pub(crate) fn param_address<T: Element>(
        &self,
        param: ParamId,
        known: &Param,
    ) -> Result<(*const T, usize)> {
        check_type::<T>(format_args!("parameter {param}"), known.dtype)?;
        let (mut data, mut numel) = (ptr::null(), 0);
        self.call(|engine| unsafe {
            sys::shard_engine_param(engine, param.0, &mut data, &mut numel)
        })?;
        let length = length_as::<T>("the parameter", known.dtype, numel)?;
        Ok((data.cast(), length))
    }

    pub(crate) fn writable_address<T: Element>(
        &self,
        param: ParamId,
        known: &Param,
    ) -> Result<(*mut T, usize)> {
        check_type::<T>(format_args!("parameter {param}"), known.dtype)?;
        let (mut data, mut numel) = (ptr::null_mut(), 0);
        self.call(|engine| unsafe {
            sys::shard_engine_writable_param(engine, param.0, &mut data, &mut numel)
        })?;
        let length = length_as::<T>("the parameter", known.dtype, numel)?;
        Ok((data.cast(), length))
    }

    pub(crate) fn grad_address<T: Element>(
        &self,
        param: ParamId,
        known: &Param,
    ) -> Result<(*mut T, usize)> {
        let (mut data, mut numel) = (ptr::null_mut(), 0);
        self.call(|engine| unsafe {
            sys::shard_engine_grad(engine, param.0, &mut data, &mut numel)
        })?;
        let dtype = known.grad_dtype.unwrap_or(known.dtype);
        let length = length_as::<T>(
            format_args!("the gradient of parameter {param}"),
            dtype,
            numel,
        )?;
        Ok((data.cast(), length))
    }

    /// Checks that the host can use the parameter.
    pub(crate) fn check_param_on_host(&self, param: ParamId) -> Result<()> {
        self.place.check_host(
            format_args!("parameter {param}"),
            "take its address by param_ptr, or its values by summon or StateDict::get_copy",
        )
    }

    /// Checks that the host can use the gradient of the parameter.
    pub(crate) fn check_grad_on_host(&self, param: ParamId) -> Result<()> {
        self.place.check_host(
            format_args!("the gradient of parameter {param}"),
            "take its address by grad_ptr, for kernels and copies",
        )
    }
}
