// SPDX-License-Identifier: Apache-2.0

//! Checkpoints without an engine: named tensors in files.

use std::ffi::{CStr, OsStr};
use std::fmt;
use std::ops::ControlFlow;
use std::os::raw::{c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};

use shard_sys as sys;

use crate::callback::Progress;
use crate::dtype::{numel_of, DType, Element};
use crate::error::{check, Result};
use crate::layout::{at_least_0, shape_of};
use crate::model::GroupId;
use crate::save::{progress, BlobRule};
use crate::text::{borrowed, c_path, c_text, copied_bytes};
use crate::version::check_version;

id! {
    /// A tensor of a checkpoint or state dict, from 0.
    TensorId(i64)
}

c_enum! {
    /// A format that checkpoints are read from.
    Format {
        /// libshard's own.
        CHECKPOINT = SHARD_FORMAT_CHECKPOINT,
        /// safetensors, one file or several with an index.
        SAFETENSORS = SHARD_FORMAT_SAFETENSORS,
    }
}

c_enum! {
    /// The purpose of a tensor.
    Role {
        /// A parameter.
        PARAM = SHARD_ROLE_PARAM,
        /// A buffer of the model.
        BUFFER = SHARD_ROLE_BUFFER,
        /// An optimizer state.
        STATE = SHARD_ROLE_STATE,
    }
}

options! {
    /// Options of [`Checkpoint::verify`].
    VerifyOptions {
        /// Reading threads: 1 to 256. 4 unless given.
        threads: i32,
    } with {
        progress: Progress,
    }
}

progress! { VerifyOptions }

info! {
    /// The format, the step and the counts of a checkpoint.
    CheckpointInfo from shard_checkpoint_info as raw {
        /// The format.
        format: Format = Format(raw.format),
        /// The format's version; None: it has none.
        version: Option<i32> = Some(raw.version).filter(|&version| version > 0),
        /// The step; None: it has none.
        step: Option<i64> = Some(raw.step).filter(|&step| step >= 0),
        /// The ranks that saved it; None: unknown.
        world_size: Option<i32> = Some(raw.world_size).filter(|&size| size > 0),
        /// Data files.
        num_files: i32 = raw.num_files,
        /// Tensors.
        num_tensors: i64 = raw.num_tensors,
        /// Param groups.
        num_groups: i32 = raw.num_groups,
        /// Numbers.
        num_scalars: i32 = raw.num_scalars,
        /// Blobs of the host.
        num_blobs: i32 = raw.num_blobs,
        /// Bytes of all tensors, aliases not counted.
        tensor_bytes: u64 = raw.tensor_bytes,
        /// Bytes of all files, the manifest too.
        file_bytes: u64 = raw.file_bytes,
        /// The identity of the contents, XXH3-128 of the manifest; 0: it has none.
        id: u128 = u128::from(raw.id_high) << 64 | u128::from(raw.id_low),
    }
}

info! {
    /// A tensor's type and shape.
    TensorInfo from shard_tensor_info as raw {
        /// The type of its elements.
        dtype: DType = DType(raw.dtype),
        /// Its purpose.
        role: Role = Role(raw.role),
        /// The tensor that this one names again.
        alias_of: Option<TensorId> = Some(TensorId(raw.alias_of)).filter(|tensor| tensor.0 >= 0),
        /// Its elements.
        numel: i64 = raw.numel,
        /// Its bytes.
        bytes: u64 = raw.bytes,
        /// Parameters only: whether it is trained.
        trainable: bool = raw.trainable != 0,
        /// Its param group.
        group: Option<GroupId> = at_least_0(raw.group).map(GroupId),
        /// Its slices.
        num_slices: i32 = raw.num_slices,
        /// Steps that the parameter has done; None: unknown.
        step: Option<i64> = Some(raw.step).filter(|&step| step >= 0),
        /// Its dimensions.
        shape: Vec<i64> = shape_of(&raw.shape, raw.ndim),
    }
}

info! {
    /// A part of a tensor's elements, at their place in a file.
    TensorSlice from shard_tensor_slice as raw {
        /// Its first element.
        begin: i64 = raw.begin,
        /// Its elements.
        numel: i64 = raw.numel,
        /// Its place in the file.
        offset: u64 = raw.offset,
        /// Its bytes.
        bytes: u64 = raw.bytes,
        /// The data file.
        file: i32 = raw.file,
        /// XXH3-128 of the bytes; None: it has none.
        checksum: Option<u128> =
            Some(u128::from(raw.checksum_high) << 64 | u128::from(raw.checksum_low))
                .filter(|_| raw.has_checksum != 0),
    }
}

/// A data file of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileInfo<'c> {
    /// Its name.
    pub name: &'c str,
    /// Its size.
    pub bytes: u64,
}

/// A number of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Scalar<'c> {
    /// Its name, such as "loss_scale.scale".
    pub name: &'c str,
    /// Its value.
    pub value: f64,
}

/// A blob of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlobInfo<'c> {
    /// Its name.
    pub name: &'c str,
    /// How it is mapped to another world size.
    pub rule: BlobRule,
    /// The rank that saved it.
    pub rank: i32,
}

/// Named tensors in files: a checkpoint, a safetensors file, or the several of an
/// index. It does not change, any thread may use it, and it is read as it was when
/// another one takes its place. A number that does not exist is INVALID_ARGUMENT.
pub struct Checkpoint {
    checkpoint: NonNull<sys::shard_checkpoint>,
}

// SAFETY: checkpoint handles are immutable: any thread.
unsafe impl Send for Checkpoint {}
unsafe impl Sync for Checkpoint {}

impl Checkpoint {
    /// Opens a checkpoint or safetensors; `path` is as in [`load`](Checkpoint::load).
    /// Errors: NOT_FOUND, CORRUPT, UNIMPLEMENTED for a newer format.
    pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint> {
        check_version()?;
        let path = c_path(path.as_ref())?;
        let mut checkpoint = ptr::null_mut();
        check(unsafe { sys::shard_checkpoint_open(path.as_ptr(), &mut checkpoint) })?;
        // SAFETY: success gives a handle.
        Ok(Checkpoint {
            checkpoint: unsafe { NonNull::new_unchecked(checkpoint) },
        })
    }

    pub(crate) fn as_ptr(&self) -> *const sys::shard_checkpoint {
        self.checkpoint.as_ptr()
    }

    /// Returns the format, the step and the counts.
    pub fn info(&self) -> Result<CheckpointInfo> {
        let mut info = sys::SHARD_CHECKPOINT_INFO_INIT;
        check(unsafe { sys::shard_checkpoint_get_info(self.as_ptr(), &mut info) })?;
        Ok(CheckpointInfo::new(&info))
    }

    /// Returns the folder or file that was opened.
    pub fn path(&self) -> Result<&Path> {
        let mut path = ptr::null();
        check(unsafe { sys::shard_checkpoint_path(self.as_ptr(), &mut path) })?;
        // SAFETY: the text lives as long as the handle.
        let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
        Ok(Path::new(OsStr::from_bytes(bytes)))
    }

    // ---- Tensors -----------------------------------------------------------

    /// Returns the ids of all tensors.
    pub fn tensors(&self) -> Result<impl Iterator<Item = TensorId>> {
        Ok((0..self.info()?.num_tensors).map(TensorId))
    }

    /// Returns a tensor's type and shape. UNIMPLEMENTED for one of more than 8
    /// dimensions.
    pub fn tensor(&self, tensor: TensorId) -> Result<TensorInfo> {
        let mut info = sys::SHARD_TENSOR_INFO_INIT;
        check(unsafe { sys::shard_checkpoint_tensor(self.as_ptr(), tensor.0, &mut info) })?;
        Ok(TensorInfo::new(&info))
    }

    /// Returns a tensor's key. CORRUPT for one that is not UTF-8.
    pub fn tensor_key(&self, tensor: TensorId) -> Result<&str> {
        self.text(|text| unsafe { sys::shard_checkpoint_tensor_key(self.as_ptr(), tensor.0, text) })
    }

    /// Returns the name of a tensor's element type: "f32"; for
    /// [`DType::OPAQUE`](crate::DType::OPAQUE) the name in the file: "C64".
    pub fn tensor_type(&self, tensor: TensorId) -> Result<&str> {
        self.text(|text| unsafe {
            sys::shard_checkpoint_tensor_type(self.as_ptr(), tensor.0, text)
        })
    }

    /// Finds the tensor of a key. NOT_FOUND when there is none.
    pub fn find(&self, key: &str) -> Result<TensorId> {
        let key = c_text("the key", key)?;
        let mut tensor = TensorId(0);
        check(unsafe { sys::shard_checkpoint_find(self.as_ptr(), key.as_ptr(), &mut tensor.0) })?;
        Ok(tensor)
    }

    /// Returns a slice of a tensor; slices are ordered by their first element.
    pub fn slice(&self, tensor: TensorId, index: i32) -> Result<TensorSlice> {
        let mut slice = sys::SHARD_TENSOR_SLICE_INIT;
        check(unsafe { sys::shard_checkpoint_slice(self.as_ptr(), tensor.0, index, &mut slice) })?;
        Ok(TensorSlice::new(&slice))
    }

    /// Reads as many elements of a tensor as `buffer` has, from element `begin` on, and
    /// compares checksums where there are some. Of
    /// [`DType::OPAQUE`](crate::DType::OPAQUE), `begin` counts bytes, and `T` is u8.
    /// Blocks. Errors: OUT_OF_RANGE; CORRUPT naming tensor and file.
    ///
    /// ```no_run
    /// # fn f() -> shard::Result<()> {
    /// let checkpoint = shard::Checkpoint::open("ckpt")?;
    /// let weight = checkpoint.find("layer.weight")?;
    /// let mut row = [0f32; 768];
    /// checkpoint.read(weight, 0, &mut row)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn read<T: Element>(&self, tensor: TensorId, begin: i64, buffer: &mut [T]) -> Result<()> {
        let info = self.tensor(tensor)?;
        let numel = numel_of::<T>(format_args!("tensor {tensor}"), info.dtype, buffer.len())?;
        check(unsafe {
            let (data, bytes) = (
                buffer.as_mut_ptr() as *mut c_void,
                std::mem::size_of_val(buffer),
            );
            sys::shard_checkpoint_read(self.as_ptr(), tensor.0, begin, numel, data, bytes)
        })
    }

    // ---- Files, groups, numbers and blobs ----------------------------------

    /// Returns a data file's name and size.
    pub fn file(&self, file: i32) -> Result<FileInfo<'_>> {
        let mut bytes = 0;
        let name = self.text(|name| unsafe {
            sys::shard_checkpoint_file(self.as_ptr(), file, name, &mut bytes)
        })?;
        Ok(FileInfo { name, bytes })
    }

    /// Returns the optimizer of a param group with all values: "adamw?lr=0.001&...".
    pub fn group(&self, group: GroupId) -> Result<&str> {
        self.text(|text| unsafe { sys::shard_checkpoint_group(self.as_ptr(), group.0, text) })
    }

    /// Returns a number and its name.
    pub fn scalar(&self, scalar: i32) -> Result<Scalar<'_>> {
        let mut value = 0.0;
        let name = self.text(|name| unsafe {
            sys::shard_checkpoint_scalar(self.as_ptr(), scalar, name, &mut value)
        })?;
        Ok(Scalar { name, value })
    }

    /// Returns a blob's name, its rule and the rank that saved it.
    pub fn blob_info(&self, blob: i32) -> Result<BlobInfo<'_>> {
        let (mut rule, mut rank) = (0, 0);
        let name = self.text(|name| unsafe {
            sys::shard_checkpoint_blob_info(self.as_ptr(), blob, name, &mut rule, &mut rank)
        })?;
        Ok(BlobInfo {
            name,
            rule: BlobRule(rule),
            rank,
        })
    }

    /// Returns a blob's bytes.
    pub fn blob(&self, blob: i32) -> Result<Vec<u8>> {
        copied_bytes(0, |buffer, capacity, length| {
            check(unsafe {
                let buffer = buffer as *mut c_void;
                sys::shard_checkpoint_blob(self.as_ptr(), blob, buffer, capacity, length)
            })
        })
    }

    // ---- The whole checkpoint ----------------------------------------------

    /// Reads everything and compares it with its checksums. Blocks. The detail of CORRUPT
    /// lists all problems.
    pub fn verify(&self, options: &VerifyOptions) -> Result<()> {
        let progress = options.progress.prepare(0);
        let mut c = sys::SHARD_VERIFY_OPTIONS_INIT;
        c.threads = options.threads;
        c.progress = progress.function();
        c.progress_user_data = progress.user_data();
        progress.report(check(unsafe {
            sys::shard_checkpoint_verify(self.as_ptr(), &c)
        }))
    }

    fn text(&self, get: impl FnOnce(*mut *const c_char) -> *mut sys::shard_error) -> Result<&str> {
        let mut text = ptr::null();
        check(get(&mut text))?;
        // SAFETY: the text lives as long as the handle.
        unsafe { borrowed(text) }
    }
}

impl Drop for Checkpoint {
    fn drop(&mut self) {
        unsafe { sys::shard_checkpoint_free(self.checkpoint.as_ptr()) }
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Checkpoint({:?})", self.path())
    }
}
