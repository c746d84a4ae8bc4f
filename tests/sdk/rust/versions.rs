// SPDX-License-Identifier: Apache-2.0

use shard::{Code, Model};

use crate::common::run_alone;

/// Runs the test below with a library that says it is of this version, or that
/// has this ABI.
fn run_with(variable: &str, value: &str) {
    let variables = [(variable, value), ("SHARD_TEST_VERSION", value)];
    run_alone("versions::in_a_process_of_its_own", &variables);
}

const NEWER: &str = "0.99.0";

#[test]
fn libraries_that_are_older_or_of_another_abi_are_refused() {
    // The library of tests/sdk/uses can tell another version.
    if std::env::var_os("SHARD_USES_LIBRARY").is_none() {
        println!("skipped: not run by tests/sdk/uses");
        return;
    }
    run_with("SHARD_USES_VERSION", NEWER);
    run_with("SHARD_USES_VERSION", "0.1.9");
    // The last number of the crate is 0: less is one that is not there.
    run_with("SHARD_USES_VERSION", "0.2");
    run_with("SHARD_USES_ABI_VERSION", "1");
}

#[test]
fn in_a_process_of_its_own() {
    let other = match std::env::var("SHARD_TEST_VERSION") {
        Ok(other) => other,
        Err(_) => return,
    };
    let made = Model::create("Net");
    if other == NEWER {
        assert!(made.is_ok(), "{made:?}");
        return;
    }
    let error = made.unwrap_err();
    assert_eq!(error.code(), Code::FAILED_PRECONDITION);
    // The error names both versions.
    assert!(error.message().contains(&other), "{error}");
    assert!(error.message().contains("0.2.0"), "{error}");
    assert!(error.message().contains("LD_LIBRARY_PATH"), "{error}");
}
