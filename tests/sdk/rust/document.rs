// SPDX-License-Identifier: Apache-2.0

#![doc = include_str!("../../../docs/rust.md")]
