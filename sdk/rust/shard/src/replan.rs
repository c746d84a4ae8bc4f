// SPDX-License-Identifier: Apache-2.0

//! Changes at run time, by another plan between steps. Parameters keep their
//! values, gradients are zero, and the memory moves: views end before.

use std::ptr;
use std::time::Duration;

use shard_sys as sys;

use crate::borrows::Borrows;
use crate::engine::Engine;
use crate::error::Result;
use crate::model::{GroupId, ParamId};
use crate::text::{c_text, seconds};

impl Engine {
    /// Gives `params`, which are frozen or in the default group, a group of their own, as
    /// [`Model::add_param_group`](crate::Model::add_param_group) does; they become
    /// trainable. "?key=value" inherits from the default group as it is now. A parameter
    /// that was trainable keeps the states that its optimizer has. Needs the memory of
    /// both plans. The same arguments on every rank. COLLECTIVE, blocks.
    pub fn add_param_group(
        &mut self,
        optimizer: &str,
        params: &[ParamId],
        timeout: Option<Duration>,
    ) -> Result<GroupId> {
        let optimizer = c_text("the optimizer", optimizer);
        let mut group = GroupId(0);
        let added = self.call_logged(|engine| unsafe {
            sys::shard_engine_add_param_group(
                engine,
                // NULL tells the other ranks that this text cannot be passed.
                optimizer.as_ref().map_or(ptr::null(), |text| text.as_ptr()),
                params.as_ptr() as *const i32,
                params.len(),
                seconds(timeout),
                &mut group.0,
            )
        });
        optimizer?;
        self.read_plan(added?)?;
        Ok(group)
    }

    /// Freezes or trains parameters from here on. Frozen ones lose their optimizer
    /// states. The same arguments on every rank. COLLECTIVE, blocks.
    pub fn set_trainable(
        &mut self,
        params: &[ParamId],
        trainable: bool,
        timeout: Option<Duration>,
    ) -> Result<()> {
        let changed = self.call_logged(|engine| unsafe {
            sys::shard_engine_set_trainable(
                engine,
                params.as_ptr() as *const i32,
                params.len(),
                trainable.into(),
                seconds(timeout),
            )
        })?;
        self.read_plan(changed)
    }

    /// Learns the types and units of the plan that is in force now.
    fn read_plan(&mut self, logged: Result<()>) -> Result<()> {
        match self.plan().and_then(|plan| Borrows::new(&plan)) {
            Ok(borrows) => self.borrows = borrows,
            // Types and units are unknown, so nothing is seen.
            Err(error) => {
                self.left_behind.set(true);
                return Err(error);
            }
        }
        logged
    }
}
