// SPDX-License-Identifier: Apache-2.0
//
// Finds libshard: in SHARD_LIB_DIR, else through pkg-config. Crates that name
// this one as a dependency of theirs get the folder as DEP_SHARD_LIB_DIR.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{exit, Command};

const REMEDY: &str = "Install libshard (tools/package --prefix DIR), then set \
    SHARD_LIB_DIR=DIR/lib, or PKG_CONFIG_PATH=DIR/lib/pkgconfig";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for name in ["SHARD_LIB_DIR", "PKG_CONFIG", "PKG_CONFIG_PATH"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let found = match env::var_os("SHARD_LIB_DIR") {
        Some(folder) => check_folder(PathBuf::from(folder), "SHARD_LIB_DIR"),
        None => ask_pkg_config(),
    };
    let folder = found.unwrap_or_else(|problem| {
        eprintln!("error: {problem}. {REMEDY}.");
        exit(1)
    });
    println!("cargo:rerun-if-changed={folder}/libshard.so");
    println!("cargo:rustc-link-search=native={folder}");
    println!("cargo:rustc-link-lib=dylib=shard");
    println!("cargo:lib_dir={folder}");
}

/// Returns the folder as an absolute path: cargo's other commands run elsewhere.
fn check_folder(folder: PathBuf, origin: &str) -> Result<String, String> {
    let library = folder.join("libshard.so");
    if !library.exists() {
        return Err(format!(
            "{origin} gives the folder '{}', which has no libshard.so",
            folder.display()
        ));
    }
    let absolute = folder
        .canonicalize()
        .map_err(|error| format!("'{}': {error}", folder.display()))?;
    match absolute.to_str() {
        Some(text) if !text.contains('\n') => Ok(text.to_owned()),
        _ => Err(format!(
            "cargo cannot be told the folder {absolute:?}, which has bytes that are not text"
        )),
    }
}

fn ask_pkg_config() -> Result<String, String> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let shown = Path::new(&program).display().to_string();
    let ask = |question: &str| {
        let output = Command::new(&program)
            .args([question, "shard"])
            .output()
            .map_err(|error| {
                format!("SHARD_LIB_DIR is not set, and {shown} does not run: {error}")
            })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().next().unwrap_or("").trim_end_matches('.');
        Err(format!(
            "SHARD_LIB_DIR is not set, and {shown} does not find shard: {said}"
        ))
    };
    let folder = ask("--variable=libdir")?;
    check_version(&ask("--modversion")?)?;
    check_folder(PathBuf::from(folder), &shown)
}

/// A library that is older than the declarations lacks functions of theirs.
fn check_version(found: &str) -> Result<(), String> {
    let needed = env!("CARGO_PKG_VERSION");
    let numbers = |version: &str| -> Vec<u32> {
        version.split('.').map(|n| n.parse().unwrap_or(0)).collect()
    };
    if numbers(found) >= numbers(needed) {
        return Ok(());
    }
    Err(format!(
        "pkg-config finds libshard {found}, and these crates need {needed} or newer"
    ))
}
