// SPDX-License-Identifier: Apache-2.0

//! Saves of an engine's state, and its loads.

use std::ops::ControlFlow;
use std::os::raw::c_char;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use shard_sys as sys;

use crate::callback::{Progress, ProgressCall};
use crate::checkpoint::Checkpoint;
use crate::engine::Engine;
use crate::error::{check, Code, Error, Result};
use crate::state_filter::{Content, StateFilter};
use crate::text::{c_path, c_text, copied, seconds};

options! {
    /// Options of [`Checkpoint::save`]. The same on every rank, but for threads,
    /// timeout and progress.
    SaveOptions {
        /// For the whole save, while ranks write; 1800 seconds unless given.
        timeout: Option<Duration>,
        /// The part that is saved.
        filter: StateFilter,
        /// Replaces a checkpoint of this step.
        overwrite: bool,
        /// Writing threads per rank: 1 to 256. 4 unless given.
        threads: i32,
        /// After the save, only the last so many checkpoints stay, and those whose step
        /// is a multiple of `keep_every`. All stay unless given.
        keep_last: i64,
        /// See `keep_last`.
        keep_every: i64,
    } with {
        progress: Progress,
    }
}

options! {
    /// Options of [`Checkpoint::load`] and [`StateDict::load`](crate::StateDict::load).
    /// The same on every rank, but for threads, timeout and progress.
    LoadOptions {
        /// For the whole load, while ranks read; 1800 seconds unless given.
        timeout: Option<Duration>,
        /// The part to load, and the checkpoint's keys.
        filter: StateFilter,
        /// Keys that are missing or unexpected are no error, but reported.
        allow_mismatch: bool,
        /// Elements of other types are converted.
        convert: bool,
        /// One leading "module." of the checkpoint's keys is left out.
        strip_leading_module: bool,
        /// Bytes are not compared with their checksums.
        skip_verify: bool,
        /// Reading threads per rank: 1 to 256. 4 unless given.
        threads: i32,
    } with {
        progress: Progress,
    }
}

macro_rules! progress {
    ($($name:ident)*) => { $(impl $name {
        /// Sets the function that is told this rank's bytes done and in all, on threads
        /// of libshard, one call at a time. Break cancels the operation, which is then
        /// CANCELLED; so does a panic, whose text is in the error. The function cannot
        /// call back into the engine.
        #[must_use]
        pub fn progress(
            mut self,
            function: impl Fn(u64, u64) -> ControlFlow<()> + Send + Sync + 'static,
        ) -> Self {
            self.progress = Progress::new(function);
            self
        }
    })* };
}
progress! { SaveOptions LoadOptions }
pub(crate) use progress;

info! {
    /// The result of a load.
    LoadReport from shard_load_report as raw {
        /// The step of the checkpoint; None: it has none.
        step: Option<i64> = Some(raw.step).filter(|&step| step >= 0),
        /// The ranks that saved it; None: unknown.
        saved_world_size: Option<i32> = Some(raw.saved_world_size).filter(|&size| size > 0),
        /// Tensors that were read.
        loaded: i64 = raw.loaded,
        /// Those among them that were converted.
        converted: i64 = raw.converted,
        /// The number of keys that are missing; [`Engine::last_load_report_json`] names
        /// them.
        missing: i64 = raw.missing,
        /// The number of keys that are unexpected.
        unexpected: i64 = raw.unexpected,
    }
}

c_enum! {
    /// How a blob is mapped to another world size.
    BlobRule {
        /// At the same world size each rank gets its own; at another no rank gets any.
        PER_RANK = SHARD_BLOB_PER_RANK,
        /// Every rank gets the blob, which was the same on all ranks.
        REPLICATED = SHARD_BLOB_REPLICATED,
        /// i64 numbers that add up over the ranks.
        SUMMED = SHARD_BLOB_SUMMED,
    }
}

/// A save in the background. It goes on when this is dropped or forgotten, and
/// the engine waits for it when it is dropped itself. Any thread may ask.
#[derive(Clone)]
pub struct Save {
    handle: Arc<SaveHandle>,
}

/// The handle, which the engine keeps until the save has ended.
pub(crate) struct SaveHandle {
    save: NonNull<sys::shard_save>,
    /// The library uses it until the save has ended, or the engine is freed.
    progress: Arc<ProgressCall>,
}

// SAFETY: any thread may ask, and the progress function may run on any.
unsafe impl Send for SaveHandle {}
unsafe impl Sync for SaveHandle {}

impl SaveHandle {
    pub(crate) fn is_done(&self) -> bool {
        unsafe { sys::shard_save_done(self.save.as_ptr()) != 0 }
    }
}

impl Drop for SaveHandle {
    fn drop(&mut self) {
        // Where the engine has gone, freeing the handle waits for the save, and so for
        // a callback of the save that drops the handle: it stays.
        if self.progress.check_outside().is_ok() {
            unsafe { sys::shard_save_free(self.save.as_ptr()) }
        }
    }
}

impl Save {
    /// Returns whether the save has ended, well or not.
    pub fn done(&self) -> bool {
        self.handle.is_done()
    }

    /// Waits for the save and returns its result, in every call; DEADLINE_EXCEEDED when
    /// the save still goes on after `timeout`. None: the save's timeout.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        let progress = &self.handle.progress;
        progress.check_outside()?;
        let result =
            check(unsafe { sys::shard_save_wait(self.handle.save.as_ptr(), seconds(timeout)) });
        progress.report(result)
    }
}

impl std::fmt::Debug for Save {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "Save({})",
            if self.done() { "done" } else { "in progress" }
        )
    }
}

impl Checkpoint {
    /// Saves parameters, persistent buffers, optimizer states, hyperparameters, step
    /// counts, the loss scale and the host's blobs as checkpoint `root`/step-NNNNNN, and
    /// blocks until it is durable. COLLECTIVE. Errors: ALREADY_EXISTS for a checkpoint of
    /// this step without `overwrite`; RESOURCE_EXHAUSTED when the disk is full;
    /// FAILED_PRECONDITION unless between steps. After an error, checkpoints that were
    /// there before are whole.
    pub fn save(engine: &mut Engine, root: impl AsRef<Path>, options: &SaveOptions) -> Result<()> {
        let progress = options.progress.prepare(engine.comm.gate().id());
        let result = call_save(engine, root.as_ref(), options, &progress, ptr::null_mut());
        progress.report(result)
    }

    /// Saves as [`save`](Checkpoint::save) does, in the background: the state is copied,
    /// and training may go on. The next save or load waits for this one, and returns its
    /// error unless [`Save::wait`] has. COLLECTIVE.
    pub fn save_async(
        engine: &mut Engine,
        root: impl AsRef<Path>,
        options: &SaveOptions,
    ) -> Result<Save> {
        let progress = options.progress.prepare(engine.comm.gate().id());
        let mut save = ptr::null_mut();
        let result = call_save(engine, root.as_ref(), options, &progress, &mut save);
        let save = match NonNull::new(save) {
            Some(save) => save,
            None => {
                progress.report(result)?;
                return Err(Error::new(
                    Code::INTERNAL,
                    "shard_checkpoint_save gave no save",
                ));
            }
        };
        let handle = Arc::new(SaveHandle { save, progress });
        engine.saves.retain(|save| !save.is_done());
        engine.saves.push(Arc::clone(&handle));
        result?;
        Ok(Save { handle })
    }

    /// Loads a checkpoint, at whatever world size. `path` is a checkpoint, or a root: then
    /// the checkpoint that LATEST names, or the last complete one; or a safetensors file
    /// or index. Loading a whole model may take the place of
    /// [`Engine::broadcast_params`]. COLLECTIVE, blocks.
    ///
    /// Errors: NOT_FOUND; CORRUPT naming tensor and file; FAILED_PRECONDITION for keys,
    /// shapes or types that do not fit, with lists as [`detail`](crate::Error::detail). A
    /// load that fails while it reads leaves parameters without values until another load
    /// or broadcast.
    pub fn load(
        engine: &mut Engine,
        path: impl AsRef<Path>,
        options: &LoadOptions,
    ) -> Result<LoadReport> {
        let path = c_path(path.as_ref());
        let report = engine.call_load(options, |engine, options, report| unsafe {
            sys::shard_checkpoint_load(engine, text_or_null(&path), options, report)
        });
        path?;
        report
    }
}

/// Returns NULL for text that C cannot have: a collective call then fails on all
/// ranks, and the caller returns the reason.
fn text_or_null(text: &Result<std::ffi::CString>) -> *const c_char {
    text.as_ref().map_or(ptr::null(), |text| text.as_ptr())
}

fn call_save(
    engine: &Engine,
    root: &Path,
    options: &SaveOptions,
    progress: &ProgressCall,
    save: *mut *mut sys::shard_save,
) -> Result<()> {
    let root = c_path(root);
    let mut c = sys::SHARD_SAVE_OPTIONS_INIT;
    c.timeout = seconds(options.timeout);
    c.filter = options.filter.to_c();
    c.overwrite = options.overwrite.into();
    c.threads = options.threads;
    c.keep_last = options.keep_last;
    c.keep_every = options.keep_every;
    c.progress = progress.function();
    c.progress_user_data = progress.user_data();
    let result = engine.call(|engine| unsafe {
        sys::shard_checkpoint_save(engine, text_or_null(&root), &c, save)
    });
    root?;
    result
}

impl Engine {
    /// Makes a call that loads: a checkpoint or a state dict.
    pub(crate) fn call_load(
        &mut self,
        options: &LoadOptions,
        load: impl FnOnce(
            *mut sys::shard_engine,
            *const sys::shard_load_options,
            *mut sys::shard_load_report,
        ) -> *mut sys::shard_error,
    ) -> Result<LoadReport> {
        let progress = options.progress.prepare(self.comm.gate().id());
        let mut c = sys::SHARD_LOAD_OPTIONS_INIT;
        c.timeout = seconds(options.timeout);
        c.filter = options.filter.to_c();
        c.allow_mismatch = options.allow_mismatch.into();
        c.convert = options.convert.into();
        c.strip_leading_module = options.strip_leading_module.into();
        c.skip_verify = options.skip_verify.into();
        c.threads = options.threads;
        c.progress = progress.function();
        c.progress_user_data = progress.user_data();
        let mut report = sys::SHARD_LOAD_REPORT_INIT;
        let called = self.call_logged(|engine| load(engine, &c, &mut report));
        match &called {
            Ok(_) => self.has_values |= options.filter.content != Content::OPTIMIZER,
            // A load that failed while it read has left parameters without values.
            Err(_) => self.has_values = self.has_values && self.has_state(),
        }
        progress.report(called.and_then(|logged| logged))?;
        Ok(LoadReport::new(&report))
    }

    /// Returns whether parameters have values: state dicts can be had only then.
    fn has_state(&self) -> bool {
        let mut state = ptr::null_mut();
        let got = self
            .call(|engine| unsafe { sys::shard_state_dict_get(engine, ptr::null(), &mut state) });
        unsafe { sys::shard_state_dict_free(state) };
        got.is_ok()
    }

    /// Returns the missing and unexpected keys of the last load that succeeded, as JSON:
    /// {"missing": [...], "unexpected": [...], "mismatched": []}. Local.
    pub fn last_load_report_json(&self) -> Result<String> {
        let _held = self.comm.gate().enter()?;
        copied(|buffer, capacity, length| unsafe {
            sys::shard_engine_last_load_report_json(self.as_ptr(), buffer, capacity, length)
        })
    }

    /// Sets a blob: bytes of the host's that are saved under a name with every checkpoint
    /// from here on, such as its data loader's position. Names and rules must be the same
    /// on every rank when a checkpoint is saved. A load replaces all blobs. At most 1
    /// GiB. Local.
    pub fn set_blob(&mut self, name: &str, rule: BlobRule, data: &[u8]) -> Result<()> {
        let name = c_text("the name", name)?;
        self.call(|engine| unsafe {
            let (bytes, count) = (data.as_ptr() as *const _, data.len());
            sys::shard_engine_set_blob(engine, name.as_ptr(), rule.0, bytes, count)
        })
    }

    /// Returns a blob that was set or loaded. NOT_FOUND when there is none. Local.
    pub fn blob(&self, name: &str) -> Result<&[u8]> {
        let name = c_text("the name", name)?;
        let (mut data, mut bytes) = (ptr::null(), 0);
        self.call(|engine| unsafe {
            sys::shard_engine_blob(engine, name.as_ptr(), &mut data, &mut bytes)
        })?;
        // SAFETY: the blob stays until it is set again or something is loaded, which
        // takes `&mut self`.
        unsafe { crate::dtype::view(data, bytes) }
    }
}
