// SPDX-License-Identifier: Apache-2.0

//! Checkpoints written from others: with other types or numbers of files, from
//! and to safetensors.

use std::ops::ControlFlow;
use std::os::raw::c_char;
use std::path::Path;

use shard_sys as sys;

use crate::callback::Progress;
use crate::checkpoint::Checkpoint;
use crate::dtype::DType;
use crate::error::{check, Result};
use crate::save::progress;
use crate::state_filter::Content;
use crate::text::c_path;

options! {
    /// Options of [`Checkpoint::convert`] and [`Checkpoint::export`].
    ConvertOptions {
        /// The kinds of tensors.
        content: Content,
        /// Replaces an existing checkpoint or file.
        overwrite: bool,
        /// 1 to 256. 4 unless given.
        threads: i32,
        /// The type that float tensors are converted to: F32, BF16, F16 or F64. Each
        /// keeps its type unless given.
        dtype: Option<DType>,
        /// Checkpoints: the number of data files, as if so many ranks had saved.
        world_size: i32,
        /// Safetensors: writes tied tensors under each of their names.
        expand_aliases: bool,
        /// Safetensors: tensors of more bytes than this together are written as several
        /// files and an index.
        max_shard_bytes: u64,
    } with {
        progress: Progress,
    }
}

progress! { ConvertOptions }

type Write = unsafe extern "C" fn(
    *const sys::shard_checkpoint,
    *const c_char,
    *const sys::shard_convert_options,
) -> *mut sys::shard_error;

impl Checkpoint {
    /// Writes a checkpoint into `root`, as [`save`](Checkpoint::save) does. Tensors are
    /// streamed; those of OPAQUE are copied byte by byte. Blocks.
    pub fn convert(&self, root: impl AsRef<Path>, options: &ConvertOptions) -> Result<()> {
        self.write(sys::shard_checkpoint_convert, root.as_ref(), options)
    }

    /// Writes a safetensors file. `path` ends in ".safetensors"; several files are named
    /// after it, with an index. Blocks. Errors: ALREADY_EXISTS without `overwrite`;
    /// FAILED_PRECONDITION for anything of that name that is not a regular file. After an
    /// error the files that were there before have their names again.
    pub fn export(&self, path: impl AsRef<Path>, options: &ConvertOptions) -> Result<()> {
        self.write(sys::shard_checkpoint_export, path.as_ref(), options)
    }

    fn write(&self, write: Write, path: &Path, options: &ConvertOptions) -> Result<()> {
        let path = c_path(path)?;
        let progress = options.progress.prepare(0);
        let mut c = sys::SHARD_CONVERT_OPTIONS_INIT;
        c.content = options.content.0;
        c.overwrite = options.overwrite.into();
        c.threads = options.threads;
        c.dtype = options.dtype.map_or(0, |dtype| dtype.0);
        c.world_size = options.world_size;
        c.expand_aliases = options.expand_aliases.into();
        c.max_shard_bytes = options.max_shard_bytes;
        c.progress = progress.function();
        c.progress_user_data = progress.user_data();
        progress.report(check(unsafe { write(self.as_ptr(), path.as_ptr(), &c) }))
    }
}
