// SPDX-License-Identifier: Apache-2.0

//! Full parameters: whole private copies, to be looked at or changed.

use std::time::Duration;

use shard_sys as sys;

use crate::dtype::Element;
use crate::engine::Engine;
use crate::error::Result;
use crate::model::{ModuleId, ParamId};
use crate::text::seconds;

/// Whole private copies of parameters, in the host's memory on every device:
/// [`Engine::summon`].
///
/// The engine's own parameters stay as they are until [`end`](FullParams::end)
/// writes the copies back, so a host that fails in between has changed nothing.
/// Dropping the copies is `end(false)` without its error. Both are COLLECTIVE:
/// when one rank drops its copies, for an error or a panic, and others write
/// theirs back, all get DESYNC and none waits. With copies that are forgotten the
/// engine stays as it is: it gives out parameters, and its steps are
/// FAILED_PRECONDITION.
pub struct FullParams<'e> {
    engine: &'e mut Engine,
}

impl Engine {
    /// Makes whole private copies of the parameters in `module` and below
    /// ([`ModuleId::ROOT`]: all), on rank `rank` or, with None, on all ranks. The same
    /// arguments on every rank. COLLECTIVE, blocks. Errors: FAILED_PRECONDITION while
    /// units are acquired; RESOURCE_EXHAUSTED; DESYNC.
    pub fn summon(
        &mut self,
        module: ModuleId,
        rank: Option<i32>,
        timeout: Option<Duration>,
    ) -> Result<FullParams<'_>> {
        let rank = rank.unwrap_or(-1);
        let logged = self.call_logged(|engine| unsafe {
            sys::shard_engine_summon(engine, module.0, rank, seconds(timeout))
        })?;
        let full = FullParams { engine: self };
        logged.map(|()| full)
    }
}

impl FullParams<'_> {
    /// Returns the copy of a parameter, or, where the module does not have it, the
    /// parameter, which is FAILED_PRECONDITION on a GPU, as a copy is on ranks without
    /// copies.
    pub fn param<T: Element>(&self, param: ParamId) -> Result<&[T]> {
        let known = match self.engine.borrows.param(param) {
            Some(known) => known,
            None => return self.engine.no_such_param(param),
        };
        if !self.engine.place.is_host() {
            let (data, _) = self.engine.param_address::<u8>(param, known)?;
            // Copies are the only parameters that can be written now.
            match self.engine.writable_address::<u8>(param, known) {
                Ok((copy, _)) if copy as *const u8 == data => {}
                _ => self.engine.check_param_on_host(param)?,
            }
        }
        // SAFETY: the memory is the host's, and stays as it is until `&mut self`.
        unsafe { self.engine.param_elements(param, known) }
    }

    /// Returns the copy of a parameter, to be changed.
    pub fn writable_param<T: Element>(&mut self, param: ParamId) -> Result<&mut [T]> {
        // SAFETY: the copy is private and in the host's memory, and `&mut self` is held
        // as long as the view.
        unsafe { self.engine.writable_elements(param) }
    }

    /// Frees the copies. With `write_back` they are first written to the parameters:
    /// every rank writes the elements that it owns, from its own copies or from those of
    /// the one rank that has them. The same `write_back` on every rank. COLLECTIVE,
    /// blocks.
    pub fn end(self, write_back: bool, timeout: Option<Duration>) -> Result<()> {
        let result = self.summon_end(write_back, timeout);
        std::mem::forget(self);
        result
    }

    fn summon_end(&self, write_back: bool, timeout: Option<Duration>) -> Result<()> {
        self.engine.call_logged(|engine| unsafe {
            sys::shard_engine_summon_end(engine, write_back.into(), seconds(timeout))
        })?
    }
}

impl Drop for FullParams<'_> {
    fn drop(&mut self) {
        let _ = self.summon_end(false, None);
    }
}
