// SPDX-License-Identifier: Apache-2.0

//! The declarations of shard-sys are those of the C compiler, whose layout is on
//! record in tests/abi/layout.txt.

use std::collections::BTreeSet;
use std::fmt::Write;

use shard_sys::*;

fn made_here() -> String {
    let mut made = String::new();
    macro_rules! layout {
        ($name:ident { $($field:ident),* }) => {
            writeln!(made, "struct {} {}", stringify!($name), std::mem::size_of::<$name>())
                .unwrap();
            let value = std::mem::MaybeUninit::<$name>::zeroed();
            let start = value.as_ptr();
            // SAFETY: zeros are a value of every struct of the interface.
            let fields = unsafe { &*start };
            $(writeln!(
                made,
                "field {}.{} {} +{}",
                stringify!($name),
                stringify!($field),
                &fields.$field as *const _ as usize - start as usize,
                std::mem::size_of_val(&fields.$field),
            ).unwrap();)*
        };
    }
    macro_rules! init {
        ($init:ident, $name:ident) => {
            let value: $name = $init;
            // SAFETY: as above; the structs have no padding that is not zero in a constant.
            let bytes = unsafe {
                std::slice::from_raw_parts(
                    &value as *const $name as *const u8,
                    std::mem::size_of::<$name>(),
                )
            };
            let zero = bytes[std::mem::size_of::<usize>()..]
                .iter()
                .all(|&byte| byte == 0);
            writeln!(
                made,
                "init {} {}{}",
                stringify!($init),
                value.struct_size,
                if zero { " zero" } else { "" }
            )
            .unwrap();
        };
    }
    macro_rules! constant {
        ($name:ident) => {
            writeln!(made, "constant {} {}", stringify!($name), $name).unwrap();
        };
    }
    include!("layout_names.rs");
    made
}

#[test]
fn structs_and_constants_are_as_in_c() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../abi/layout.txt");
    let recorded = std::fs::read_to_string(path).expect("tests/abi/layout.txt");
    let made = made_here();
    let recorded: BTreeSet<&str> = recorded.lines().collect();
    let made: BTreeSet<&str> = made.lines().collect();
    assert!(made.len() > 300, "only {} lines", made.len());
    let differences: Vec<_> = recorded.symmetric_difference(&made).collect();
    assert!(
        differences.is_empty(),
        "in C or here alone: {differences:#?}"
    );
}

#[test]
fn crates_have_the_version_of_the_header() {
    let header = format!("{SHARD_VERSION_MAJOR}.{SHARD_VERSION_MINOR}.{SHARD_VERSION_PATCH}");
    assert_eq!(header, env!("CARGO_PKG_VERSION"));
    assert_eq!(shard::version(), header);
    assert_eq!(shard::abi_version(), 0);
}
