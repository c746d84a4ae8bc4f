// SPDX-License-Identifier: Apache-2.0

use std::process::Command;

use shard::{Code, Model};

/// Runs one test of this program, which sees another library.
fn run_with(variable: &str, value: &str) -> bool {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program)
        .args([
            "--exact",
            "versions::in_a_process_of_its_own",
            "--nocapture",
        ])
        .env(variable, value)
        .env("SHARD_TEST_VERSION", value)
        .output()
        .unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    output.status.success()
}

#[test]
fn libraries_of_other_versions_are_refused() {
    // The library of tests/sdk/uses can tell another version.
    if std::env::var_os("SHARD_USES_LIBRARY").is_none() {
        println!("skipped: not run by tests/sdk/uses");
        return;
    }
    assert!(run_with("SHARD_USES_VERSION", "0.1.9"));
    assert!(run_with("SHARD_USES_ABI_VERSION", "1"));
}

#[test]
fn in_a_process_of_its_own() {
    let other = match std::env::var("SHARD_TEST_VERSION") {
        Ok(other) => other,
        Err(_) => return,
    };
    let error = Model::create("Net").unwrap_err();
    assert_eq!(error.code(), Code::FAILED_PRECONDITION);
    // The error names both versions.
    assert!(error.message().contains(&other), "{error}");
    assert!(error.message().contains("0.2.0"), "{error}");
    assert!(error.message().contains("LD_LIBRARY_PATH"), "{error}");
}
