// SPDX-License-Identifier: Apache-2.0

//! Errors of all calls.

use std::fmt;

use shard_sys as sys;

use crate::text;

c_enum! {
    /// The code of an error. 0 to 16 are the canonical codes of absl and gRPC.
    Code {
        /// No error.
        OK = SHARD_OK,
        /// Ended by the host.
        CANCELLED = SHARD_CANCELLED,
        /// An error of no other kind.
        UNKNOWN = SHARD_UNKNOWN,
        /// A wrong argument.
        INVALID_ARGUMENT = SHARD_INVALID_ARGUMENT,
        /// Others did not come in time.
        DEADLINE_EXCEEDED = SHARD_DEADLINE_EXCEEDED,
        /// There is no such thing.
        NOT_FOUND = SHARD_NOT_FOUND,
        /// There is such a thing already.
        ALREADY_EXISTS = SHARD_ALREADY_EXISTS,
        /// Another user's.
        PERMISSION_DENIED = SHARD_PERMISSION_DENIED,
        /// Out of memory or disk.
        RESOURCE_EXHAUSTED = SHARD_RESOURCE_EXHAUSTED,
        /// Not in this state.
        FAILED_PRECONDITION = SHARD_FAILED_PRECONDITION,
        /// Ended by the system.
        ABORTED = SHARD_ABORTED,
        /// Beyond the end.
        OUT_OF_RANGE = SHARD_OUT_OF_RANGE,
        /// Not in this version.
        UNIMPLEMENTED = SHARD_UNIMPLEMENTED,
        /// A defect of libshard.
        INTERNAL = SHARD_INTERNAL,
        /// Not now.
        UNAVAILABLE = SHARD_UNAVAILABLE,
        /// Data were lost.
        DATA_LOSS = SHARD_DATA_LOSS,
        /// Unknown who asks.
        UNAUTHENTICATED = SHARD_UNAUTHENTICATED,
        /// Ranks differ, or called different things.
        DESYNC = SHARD_DESYNC,
        /// A rank died: [`Error::rank`].
        RANK_LOST = SHARD_RANK_LOST,
        /// Stored bytes are not what was written.
        CORRUPT = SHARD_CORRUPT,
        /// Unusable after an earlier error.
        POISONED = SHARD_POISONED,
        /// Not on this machine or in this build.
        BACKEND_UNAVAILABLE = SHARD_BACKEND_UNAVAILABLE,
    }
}

impl Code {
    /// Returns the name of the code, such as "RANK_LOST"; "UNKNOWN_CODE" for a
    /// number that is no code.
    pub fn name(self) -> &'static str {
        text::static_text(unsafe { sys::shard_code_name(self.0) })
    }
}

impl fmt::Display for Code {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// An error of libshard. It is printed as the code and the message: the problem,
/// the value that has it, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: Code,
    rank: Option<i32>,
    message: String,
    detail: String,
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Makes an error of this crate's own.
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Error {
        Error {
            code,
            rank: None,
            message: message.into(),
            detail: String::new(),
        }
    }

    /// Returns the code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns the message, one line.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the rank that the error is about.
    pub fn rank(&self) -> Option<i32> {
        self.rank
    }

    /// Returns whether this error of a collective call may be of this rank alone, while
    /// others go on with the call. Wrong arguments and states are errors of all ranks,
    /// before anything is done.
    pub(crate) fn ends_group(&self) -> bool {
        matches!(
            self.code,
            Code::DEADLINE_EXCEEDED
                | Code::RANK_LOST
                | Code::POISONED
                | Code::RESOURCE_EXHAUSTED
                | Code::ABORTED
                | Code::INTERNAL
        )
    }

    /// Returns a JSON document with lists such as missing keys, or "".
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Error {}

/// Turns the result of a C function into one of Rust, and frees it.
pub(crate) fn check(error: *mut sys::shard_error) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the call gave this error to its caller, and the texts live as long
    // as the error does.
    unsafe {
        let rank = sys::shard_error_rank(error);
        let made = Error {
            code: Code(sys::shard_error_code(error)),
            rank: if rank < 0 { None } else { Some(rank) },
            message: text::lossy(sys::shard_error_message(error)),
            detail: text::lossy(sys::shard_error_detail(error)),
        };
        sys::shard_error_free(error);
        Err(made)
    }
}

/// The error of an argument.
pub(crate) fn invalid<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::new(Code::INVALID_ARGUMENT, message))
}

/// The error of a state.
pub(crate) fn failed_precondition<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::new(Code::FAILED_PRECONDITION, message))
}
