// SPDX-License-Identifier: Apache-2.0

//! Element types, and the Rust types through which elements are seen.

use std::fmt;
use std::os::raw::c_void;

use shard_sys as sys;

use crate::error::{invalid, Result};
use crate::text;

c_enum! {
    /// The type of the elements of a tensor. Parameters are F32, BF16 or F16, and
    /// frozen ones F64 too; all others are types of buffers and of tensors in
    /// files.
    DType {
        /// 32-bit floats.
        F32 = SHARD_F32,
        /// 16-bit floats with the exponent of f32.
        BF16 = SHARD_BF16,
        /// 16-bit floats of IEEE 754.
        F16 = SHARD_F16,
        /// 64-bit floats.
        F64 = SHARD_F64,
        /// An optimizer state in 8 bits; the tensor KEY.q8_scale has its scales.
        Q8 = SHARD_Q8,
        /// 8-bit floats with 4 bits of exponent.
        F8_E4M3 = SHARD_F8_E4M3,
        /// 8-bit floats with 5 bits of exponent.
        F8_E5M2 = SHARD_F8_E5M2,
        /// Signed bytes.
        I8 = SHARD_I8,
        /// Signed 16-bit integers.
        I16 = SHARD_I16,
        /// Signed 32-bit integers.
        I32 = SHARD_I32,
        /// Signed 64-bit integers.
        I64 = SHARD_I64,
        /// Bytes.
        U8 = SHARD_U8,
        /// 16-bit integers.
        U16 = SHARD_U16,
        /// 32-bit integers.
        U32 = SHARD_U32,
        /// 64-bit integers.
        U64 = SHARD_U64,
        /// Bytes that are 0 or 1.
        BOOL = SHARD_BOOL,
        /// A type of safetensors that libshard does not read:
        /// [`Checkpoint::tensor_type`](crate::Checkpoint::tensor_type) has its name.
        OPAQUE = SHARD_OPAQUE,
    }
}

impl DType {
    /// Returns the name: "f32", "bf16"; "unknown" for a number that is no type.
    pub fn name(self) -> &'static str {
        text::static_text(unsafe { sys::shard_dtype_name(self.0) })
    }

    /// Returns the bytes of an element; 0 for OPAQUE, and for a number that is no
    /// type.
    pub fn size(self) -> usize {
        unsafe { sys::shard_dtype_size(self.0) }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type through which the elements of tensors are read and written.
///
/// Each number sees the element type of its name. `u16` also sees the bits of
/// BF16 and F16, and `u8` the bytes of every type: a tensor of 3 elements of BF16
/// is 3 `u16`, or 6 `u8`. Another type is an error that names both.
///
/// # Safety
///
/// Every pattern of bits is a value of the type. Only this crate implements it.
pub unsafe trait Element: Copy + Send + Sync + 'static + sealed::Sealed {
    /// Returns whether elements of the type `dtype` can be seen through this one.
    fn sees(dtype: DType) -> bool;
}

macro_rules! element {
    ($($rust:ty: $($dtype:ident)|+;)*) => {
        $(impl sealed::Sealed for $rust {}
        unsafe impl Element for $rust {
            fn sees(dtype: DType) -> bool {
                matches!(dtype, $(DType::$dtype)|+)
            }
        })*
    };
}
element! {
    f32: F32;
    f64: F64;
    i8: I8;
    i16: I16;
    i32: I32;
    i64: I64;
    u16: U16 | BF16 | F16;
    u32: U32;
    u64: U64;
}

impl sealed::Sealed for u8 {}
unsafe impl Element for u8 {
    fn sees(_: DType) -> bool {
        true
    }
}

/// Checks that elements of `dtype` can be seen through `T`. `what` names the
/// tensor in the error.
pub(crate) fn check_type<T: Element>(what: impl fmt::Display, dtype: DType) -> Result<()> {
    if T::sees(dtype) {
        return Ok(());
    }
    let remedy = match dtype {
        DType::BF16 | DType::F16 => "u16 for its bits, or u8 for its bytes".to_owned(),
        DType::Q8 | DType::F8_E4M3 | DType::F8_E5M2 | DType::BOOL | DType::OPAQUE => {
            "u8 for its bytes".to_owned()
        }
        _ => format!("{dtype}, or u8 for its bytes"),
    };
    invalid(format!(
        "{what} is {dtype} and cannot be seen as {}; use {remedy}",
        std::any::type_name::<T>()
    ))
}

/// Checks the type, and returns the number of `T` that `numel` elements are.
pub(crate) fn length_as<T: Element>(
    what: impl fmt::Display,
    dtype: DType,
    numel: i64,
) -> Result<usize> {
    check_type::<T>(what, dtype)?;
    Ok(numel.max(0) as usize * dtype.size() / std::mem::size_of::<T>())
}

/// Checks the type, and returns the number of elements of `dtype` that are in
/// `length` of `T`.
pub(crate) fn numel_of<T: Element>(
    what: impl fmt::Display,
    dtype: DType,
    length: usize,
) -> Result<i64> {
    check_type::<T>(&what, dtype)?;
    let (bytes, size) = (length * std::mem::size_of::<T>(), dtype.size());
    if size == 0 {
        return Ok(length as i64);
    }
    if bytes % size != 0 {
        return invalid(format!(
            "{bytes} bytes are no whole number of elements of {what}, which is {dtype} and has \
             {size} bytes per element"
        ));
    }
    Ok((bytes / size) as i64)
}

/// Returns elements at an address.
///
/// # Safety
///
/// `data` has `length` elements, which do not change while `'a` lasts; it may be
/// NULL where there are none.
pub(crate) unsafe fn view<'a, T: Element>(data: *const c_void, length: usize) -> Result<&'a [T]> {
    if length == 0 {
        return Ok(&[]);
    }
    check_aligned::<T>(data)?;
    Ok(unsafe { std::slice::from_raw_parts(data as *const T, length) })
}

/// Returns elements at an address, to be written.
///
/// # Safety
///
/// `data` has `length` elements, which nobody else uses while `'a` lasts; it may
/// be NULL where there are none.
pub(crate) unsafe fn view_mut<'a, T: Element>(
    data: *mut c_void,
    length: usize,
) -> Result<&'a mut [T]> {
    if length == 0 {
        return Ok(&mut []);
    }
    check_aligned::<T>(data)?;
    Ok(unsafe { std::slice::from_raw_parts_mut(data as *mut T, length) })
}

/// The library aligns its elements; memory of the host's may be anywhere.
fn check_aligned<T: Element>(data: *const c_void) -> Result<()> {
    if data as usize % std::mem::align_of::<T>() == 0 {
        return Ok(());
    }
    invalid(format!(
        "the elements at {data:p} are not aligned as {} must be; see them as u8",
        std::any::type_name::<T>()
    ))
}
