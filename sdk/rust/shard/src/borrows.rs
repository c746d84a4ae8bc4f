// SPDX-License-Identifier: Apache-2.0

//! The types of an engine's tensors, and which of them views and units have in
//! use.
//!
//! Units nest, and several gradients are written at once, so these calls take
//! `&Engine`. Two views of one gradient, and a view of one that is being reduced,
//! are excluded here, at run time, as by a RefCell. A view that is forgotten
//! stays borrowed until the next step or zero_grad.

use std::cell::Cell;

use crate::dtype::DType;
use crate::error::{failed_precondition, Result};
use crate::layout::{BufferId, BufferInfo, UnitId};
use crate::model::{ModelBufferId, ParamId};
use crate::plan::Plan;

pub(crate) struct Borrows {
    params: Vec<Option<Param>>,
    buffers: Vec<Option<Buffer>>,
    units: Vec<Unit>,
    pub(crate) shards_params: bool,
    pub(crate) shards_grads: bool,
    /// Rises with every step and zero_grad: marks of an earlier epoch have ended.
    epoch: u64,
}

pub(crate) struct Param {
    pub(crate) unit: UnitId,
    pub(crate) dtype: DType,
    pub(crate) numel: i64,
    /// None: frozen.
    pub(crate) grad_dtype: Option<DType>,
    /// The epoch in which a view of the gradient was made that is still there.
    viewed: Cell<u64>,
    /// The epoch in which the gradient was declared ready.
    ready: Cell<u64>,
}

pub(crate) struct Buffer {
    pub(crate) dtype: DType,
    viewed: Cell<u64>,
}

struct Unit {
    params: Vec<ParamId>,
    acquired: Cell<bool>,
}

/// The mark of a view; dropping it gives the tensor back.
pub(crate) struct Viewed<'a>(&'a Cell<u64>);

impl Drop for Viewed<'_> {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

impl Borrows {
    pub(crate) fn new(plan: &Plan) -> Result<Borrows> {
        let info = plan.info()?;
        let flat: Vec<BufferInfo> = (0..info.num_buffers)
            .map(|buffer| plan.buffer_info(BufferId(buffer)))
            .collect::<Result<_>>()?;
        let mut units: Vec<Unit> = (0..info.num_units)
            .map(|_| Unit {
                params: Vec::new(),
                acquired: Cell::new(false),
            })
            .collect();
        let mut params: Vec<Option<Param>> = (0..info.num_params).map(|_| None).collect();
        for (buffer, buffer_info) in flat.iter().enumerate() {
            for index in 0..buffer_info.num_params {
                let param = plan.buffer_param(BufferId(buffer as i32), index)?;
                units[buffer_info.unit.0 as usize].params.push(param);
                params[param.0 as usize] = Some(Param {
                    unit: buffer_info.unit,
                    dtype: buffer_info.dtype,
                    numel: plan.param_info(param)?.numel,
                    grad_dtype: buffer_info.grad_dtype,
                    viewed: Cell::new(0),
                    ready: Cell::new(0),
                });
            }
        }
        // A buffer in an ignored module is not stored.
        let buffers = (0..info.num_model_buffers)
            .map(|buffer| plan.model_buffer_info(ModelBufferId(buffer)).ok())
            .map(|info| {
                Some(Buffer {
                    dtype: info?.dtype,
                    viewed: Cell::new(0),
                })
            })
            .collect();
        Ok(Borrows {
            params,
            buffers,
            units,
            shards_params: info.shards_params,
            shards_grads: info.shards_grads,
            epoch: 1,
        })
    }

    /// Returns a parameter; None for one that does not exist or is ignored.
    pub(crate) fn param(&self, param: ParamId) -> Option<&Param> {
        self.params.get(usize::try_from(param.0).ok()?)?.as_ref()
    }

    /// Returns a buffer of the model; None for one that does not exist or is ignored.
    pub(crate) fn buffer(&self, buffer: ModelBufferId) -> Option<&Buffer> {
        self.buffers.get(usize::try_from(buffer.0).ok()?)?.as_ref()
    }

    /// Begins a new epoch. REQUIRES: there are no views but forgotten ones.
    pub(crate) fn begin_epoch(&mut self) {
        self.epoch += 1;
    }

    // ---- Views -------------------------------------------------------------

    /// Marks the gradient of a parameter as viewed.
    pub(crate) fn view_grad<'a>(&self, id: ParamId, param: &'a Param) -> Result<Viewed<'a>> {
        if param.ready.get() == self.epoch {
            return failed_precondition(format!(
                "the gradient of parameter {id} was declared ready; it can be seen again after \
                 the step or zero_grad"
            ));
        }
        self.check_not_viewed(id, param)?;
        Ok(self.mark(&param.viewed))
    }

    /// Marks a buffer of the model as viewed.
    pub(crate) fn view_buffer(&self, id: ModelBufferId) -> Result<Option<Viewed<'_>>> {
        let buffer = match self.buffer(id) {
            Some(buffer) => buffer,
            None => return Ok(None),
        };
        if buffer.viewed.get() == self.epoch {
            return failed_precondition(format!(
                "buffer {id} has a view already; drop that one first"
            ));
        }
        Ok(Some(self.mark(&buffer.viewed)))
    }

    fn mark<'a>(&self, viewed: &'a Cell<u64>) -> Viewed<'a> {
        viewed.set(self.epoch);
        Viewed(viewed)
    }

    pub(crate) fn check_not_viewed(&self, id: ParamId, param: &Param) -> Result<()> {
        if param.viewed.get() == self.epoch {
            return failed_precondition(format!(
                "the gradient of parameter {id} has a view; drop that one first"
            ));
        }
        Ok(())
    }

    /// Checks that no gradient of the unit has a view.
    pub(crate) fn check_unit_not_viewed(&self, unit: UnitId) -> Result<()> {
        for &id in self.params_of(unit) {
            if let Some(param) = self.param(id) {
                self.check_not_viewed(id, param)?;
            }
        }
        Ok(())
    }

    // ---- Declarations ------------------------------------------------------

    /// Notes that a gradient was declared. `accumulates`: a unit that is ready as a whole
    /// is the host's again in the next pass.
    pub(crate) fn set_ready(&self, param: &Param, accumulates: bool) {
        param.ready.set(self.epoch);
        let ready = |param: &Param| param.grad_dtype.is_none() || param.ready.get() == self.epoch;
        if accumulates && self.params_in(param.unit).all(ready) {
            self.set_unit_ready(param.unit, accumulates);
        }
    }

    /// Notes that all gradients of a unit were declared.
    pub(crate) fn set_unit_ready(&self, unit: UnitId, accumulates: bool) {
        let epoch = if accumulates { 0 } else { self.epoch };
        self.params_in(unit)
            .for_each(|param| param.ready.set(epoch));
    }

    /// Returns whether a gradient of the unit was declared.
    pub(crate) fn is_declared(&self, unit: UnitId) -> bool {
        self.params_in(unit)
            .any(|param| param.ready.get() == self.epoch)
    }

    fn params_in(&self, unit: UnitId) -> impl Iterator<Item = &Param> {
        self.params_of(unit)
            .iter()
            .filter_map(move |&id| self.param(id))
    }

    // ---- Units -------------------------------------------------------------

    pub(crate) fn params_of(&self, unit: UnitId) -> &[ParamId] {
        match usize::try_from(unit.0) {
            Ok(unit) if unit < self.units.len() => &self.units[unit].params,
            _ => &[],
        }
    }

    pub(crate) fn is_acquired(&self, unit: UnitId) -> bool {
        let unit = usize::try_from(unit.0)
            .ok()
            .and_then(|unit| self.units.get(unit));
        unit.map_or(false, |unit| unit.acquired.get())
    }

    pub(crate) fn set_acquired(&self, unit: UnitId, acquired: bool) {
        if let Some(unit) = usize::try_from(unit.0)
            .ok()
            .and_then(|unit| self.units.get(unit))
        {
            unit.acquired.set(acquired);
        }
    }
}
