// SPDX-License-Identifier: Apache-2.0

//! The C interface of libshard, as it is: every function, struct and constant of
//! `shard/shard.h`, under its own name. The crate `shard` is the safe one.
//!
//! An option struct has a constant `_INIT`, which sets `struct_size`:
//!
//! ```text
//! let mut options = SHARD_PLAN_OPTIONS_INIT;
//! options.world_size = 2;
//! ```
//!
//! The build script looks for `libshard.so` in the folder that `SHARD_LIB_DIR`
//! names, else where pkg-config finds the package `shard`.

#![allow(non_camel_case_types)]
// The comments are those of the headers.
#![allow(
    rustdoc::broken_intra_doc_links,
    rustdoc::invalid_html_tags,
    rustdoc::bare_urls
)]

#[rustfmt::skip]
mod bindings;

pub use bindings::*;
