// SPDX-License-Identifier: Apache-2.0

//! The gate of a communicator and the engines on it.
//!
//! They count as one handle, and calls on one handle must not overlap. Rust's
//! types cannot say that about several objects, so each call passes this gate:
//! calls from other threads wait, and a call from within a callback is an error.

use std::sync::{Mutex, MutexGuard, PoisonError};

use shard_sys as sys;

use crate::callback::{self, Caught};
use crate::error::{check, failed_precondition, Result};

#[derive(Default)]
pub(crate) struct Gate {
    one_call: Mutex<()>,
    /// The panic of a log function.
    pub(crate) log_caught: Caught,
}

impl Gate {
    /// Returns what callbacks know this gate by.
    pub(crate) fn id(&self) -> usize {
        self as *const Gate as usize
    }

    /// Waits until no other call is in progress.
    pub(crate) fn enter(&self) -> Result<MutexGuard<'_, ()>> {
        self.check_outside()?;
        // No call panics while it holds the lock.
        Ok(self.one_call.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Checks that the call does not come from a callback of these handles.
    pub(crate) fn check_outside(&self) -> Result<()> {
        if callback::runs_for(self.id()) {
            return failed_precondition(
                "a callback of a communicator or engine cannot call back into it; let the \
                 callback take a note, and make the call after the one that runs the callback",
            );
        }
        Ok(())
    }

    /// Makes a call. A panic of the log function is the error of a call that was done.
    pub(crate) fn call(&self, call: impl FnOnce() -> *mut sys::shard_error) -> Result<()> {
        self.call_logged(call)?
    }

    /// Makes a call, and returns the error of the log function apart from that of the
    /// call: the caller first notes that the call was done.
    pub(crate) fn call_logged(
        &self,
        call: impl FnOnce() -> *mut sys::shard_error,
    ) -> Result<Result<()>> {
        let held = self.enter()?;
        let result = check(call());
        drop(held);
        let logged = self
            .log_caught
            .report("the call was done, and the log function", Ok(()));
        result.map(|()| logged)
    }
}
