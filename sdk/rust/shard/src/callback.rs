// SPDX-License-Identifier: Apache-2.0

//! Callbacks: functions of the host that the library calls.
//!
//! No panic crosses the border to C: each is caught, and becomes the error of
//! the call that ran the callback. While a callback runs, its thread remembers
//! for which handles, so that a call back into one of them is an error and no
//! deadlock.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::ops::ControlFlow;
use std::os::raw::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};

use shard_sys as sys;

use crate::error::{failed_precondition, Code, Error, Result};

/// A callback that runs on this thread, and the callback that it runs in.
struct Frame {
    gate: usize,
    outer: *const Frame,
}

thread_local! {
    static INNERMOST: Cell<*const Frame> = const { Cell::new(std::ptr::null()) };
}

/// Returns whether this thread runs a callback of the handles of that gate.
pub(crate) fn runs_for(gate: usize) -> bool {
    let mut frame = INNERMOST.with(Cell::get);
    // SAFETY: frames live on the stack of this thread, below this call.
    while let Some(inner) = unsafe { frame.as_ref() } {
        if inner.gate == gate {
            return true;
        }
        frame = inner.outer;
    }
    false
}

/// Runs a callback for the handles of a gate, and returns the text of its panic.
pub(crate) fn run<R>(gate: usize, function: impl FnOnce() -> R) -> std::result::Result<R, String> {
    let frame = Frame {
        gate,
        outer: INNERMOST.with(Cell::get),
    };
    INNERMOST.with(|innermost| innermost.set(&frame));
    let result = catch_unwind(AssertUnwindSafe(function));
    INNERMOST.with(|innermost| innermost.set(frame.outer));
    result.map_err(panic_text)
}

fn panic_text(panic: Box<dyn Any + Send>) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        return (*text).to_owned();
    }
    if let Some(text) = panic.downcast_ref::<String>() {
        return text.clone();
    }
    // Dropping it could panic once more.
    std::mem::forget(panic);
    "a value that is no text".to_owned()
}

/// The panic of a callback, until the call that ran it returns.
#[derive(Default)]
pub(crate) struct Caught(Mutex<Option<String>>);

impl Caught {
    pub(crate) fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }

    /// Returns the error of a panic, once; else `result`.
    pub(crate) fn report<T>(&self, what: &str, result: Result<T>) -> Result<T> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            None => result,
            Some(text) => Err(Error::new(
                Code::CANCELLED,
                format!("{what} panicked: {text}"),
            )),
        }
    }
}

type ProgressFn = dyn Fn(u64, u64) -> ControlFlow<()> + Send + Sync;

/// A function that is told the progress of a long operation.
#[derive(Clone, Default)]
pub(crate) struct Progress(Option<Arc<ProgressFn>>);

impl Progress {
    pub(crate) fn new(
        function: impl Fn(u64, u64) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Progress {
        Progress(Some(Arc::new(function)))
    }

    /// Prepares a call of the library. `gate` is that of the handles in the call,
    /// or 0.
    pub(crate) fn prepare(&self, gate: usize) -> Arc<ProgressCall> {
        Arc::new(ProgressCall {
            function: self.0.clone(),
            gate,
            caught: Caught::default(),
        })
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(if self.0.is_some() { "Fn" } else { "None" })
    }
}

/// The progress function of one operation, until whose end the library uses it.
pub(crate) struct ProgressCall {
    function: Option<Arc<ProgressFn>>,
    gate: usize,
    caught: Caught,
}

impl ProgressCall {
    pub(crate) fn function(&self) -> sys::shard_progress_fn {
        self.function.as_ref().map(|_| tell_progress as _)
    }

    pub(crate) fn user_data(&self) -> *mut c_void {
        self as *const ProgressCall as *mut c_void
    }

    /// Checks that the call does not come from a callback of the same handles.
    pub(crate) fn check_outside(&self) -> Result<()> {
        if runs_for(self.gate) {
            return failed_precondition(
                "a callback cannot wait for a save of its own engine; wait for it elsewhere",
            );
        }
        Ok(())
    }

    pub(crate) fn report<T>(&self, result: Result<T>) -> Result<T> {
        self.caught.report("the progress function", result)
    }
}

/// # Safety
///
/// `user_data` is that of a ProgressCall.
unsafe extern "C" fn tell_progress(done: u64, total: u64, user_data: *mut c_void) -> i32 {
    let call = unsafe { &*(user_data as *const ProgressCall) };
    let function = match &call.function {
        Some(function) => function,
        None => return 0,
    };
    match run(call.gate, || function(done, total)) {
        Ok(ControlFlow::Continue(())) => 0,
        Ok(ControlFlow::Break(())) => 1,
        Err(text) => {
            call.caught.set(text);
            1
        }
    }
}
