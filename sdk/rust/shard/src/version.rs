// SPDX-License-Identifier: Apache-2.0

//! The version of the library that is loaded.

use std::sync::atomic::{AtomicBool, Ordering};

use shard_sys as sys;

use crate::error::{failed_precondition, Result};
use crate::text;

/// The number in the SONAME that shard-sys declares.
const ABI_VERSION: i32 = 0;

/// Returns the version of the library that is loaded: "0.2.0". It may be newer
/// than this crate.
pub fn version() -> &'static str {
    text::static_text(unsafe { sys::shard_version() })
}

/// Returns the number in the SONAME of the library, libshard.so.N.
pub fn abi_version() -> i32 {
    unsafe { sys::shard_abi_version() }
}

/// Checks that the library is one that this crate can use: of the same ABI, and
/// not older than the headers. Each call that makes a first handle asks.
pub(crate) fn check_version() -> Result<()> {
    static FITS: AtomicBool = AtomicBool::new(false);
    if FITS.load(Ordering::Relaxed) {
        return Ok(());
    }
    let built = [
        sys::SHARD_VERSION_MAJOR,
        sys::SHARD_VERSION_MINOR,
        sys::SHARD_VERSION_PATCH,
    ];
    let loaded: Vec<i32> = version()
        .split('.')
        .map(|n| n.parse().unwrap_or(-1))
        .collect();
    if abi_version() != ABI_VERSION || loaded.as_slice() < built.as_slice() {
        return failed_precondition(format!(
            "the libshard that is loaded is {} with ABI {}, and this program was built for \
             {}.{}.{} with ABI {ABI_VERSION}: load that version or a newer one of the same ABI \
             (LD_LIBRARY_PATH), or build the program again",
            version(),
            abi_version(),
            built[0],
            built[1],
            built[2],
        ));
    }
    FITS.store(true, Ordering::Relaxed);
    Ok(())
}
