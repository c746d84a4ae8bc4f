// SPDX-License-Identifier: Apache-2.0

//! Text, paths and durations on their way to C and back.

use std::ffi::{CStr, CString};
use std::os::raw::c_char;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use shard_sys as sys;

use crate::error::{check, invalid, Code, Error, Result};

/// Returns the text for C. `what` names the argument in the error.
pub(crate) fn c_text(what: &str, text: &str) -> Result<CString> {
    c_bytes(what, text.as_bytes())
}

/// Returns the path for C: any bytes, as the file system has them.
pub(crate) fn c_path(path: &Path) -> Result<CString> {
    c_bytes("the path", path.as_os_str().as_bytes())
}

fn c_bytes(what: &str, bytes: &[u8]) -> Result<CString> {
    match CString::new(bytes) {
        Ok(text) => Ok(text),
        Err(error) => invalid(format!(
            "{what} '{}' has a NUL byte at {}; remove it",
            String::from_utf8_lossy(bytes).escape_debug(),
            error.nul_position()
        )),
    }
}

/// Returns text that is there for as long as the process runs.
pub(crate) fn static_text(text: *const c_char) -> &'static str {
    // SAFETY: the library returns a NUL-terminated string of static storage.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("?")
}

/// Copies text of the library's own.
///
/// # Safety
///
/// `text` is NULL or ends with a NUL.
pub(crate) unsafe fn lossy(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// Returns the text that a handle owns. Text that is not UTF-8 is an error.
///
/// # Safety
///
/// `text` ends with a NUL and lives as long as `'a`.
pub(crate) unsafe fn borrowed<'a>(text: *const c_char) -> Result<&'a str> {
    utf8(unsafe { CStr::from_ptr(text) }.to_bytes())
}

fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|error| {
        Error::new(
            Code::CORRUPT,
            format!(
                "the text '{}' is not UTF-8: byte {:#04x} at {}",
                String::from_utf8_lossy(bytes),
                bytes[error.valid_up_to()],
                error.valid_up_to()
            ),
        )
    })
}

/// Copies text that a function writes into a buffer of the caller's.
pub(crate) fn copied(
    mut write: impl FnMut(*mut c_char, usize, *mut usize) -> *mut sys::shard_error,
) -> Result<String> {
    // The closing NUL is among the bytes that the function writes, and not among
    // those that it counts.
    let bytes = copied_bytes(1, |buffer, capacity, length| {
        check(write(buffer as *mut c_char, capacity, length))
    })?;
    utf8(&bytes).map(str::to_owned)
}

/// Copies bytes that a function writes into a buffer of the caller's. `extra` is
/// the number of bytes that the function writes beyond those that it counts.
pub(crate) fn copied_bytes(
    extra: usize,
    mut write: impl FnMut(*mut u8, usize, *mut usize) -> Result<()>,
) -> Result<Vec<u8>> {
    let mut length = 0;
    write(std::ptr::null_mut(), 0, &mut length)?;
    loop {
        let mut buffer = Vec::new();
        let capacity = length + extra;
        if buffer.try_reserve_exact(capacity).is_err() {
            return Err(Error::new(
                Code::RESOURCE_EXHAUSTED,
                format!("there is no memory for a text of {capacity} bytes"),
            ));
        }
        buffer.resize(capacity, 0);
        write(buffer.as_mut_ptr(), capacity, &mut length)?;
        // The text may have grown between the two calls.
        if length + extra <= capacity {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

/// Returns the seconds of a timeout; None is the default, which is 0 in C.
pub(crate) fn seconds(timeout: Option<Duration>) -> f64 {
    match timeout {
        None => 0.0,
        // 0 would be the default.
        Some(duration) => duration.as_secs_f64().max(1e-9),
    }
}
