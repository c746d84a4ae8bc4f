// SPDX-License-Identifier: Apache-2.0

//! Tests of the crates shard and shard-sys: every function of the library is
//! called, which tests/sdk/uses checks.

mod bad_input;
mod callbacks;
mod captured_step;
mod checkpoints;
mod common;
mod comms;
mod cycles;
mod device_views;
mod engines;
mod layout;
mod plans;
mod random_programs;
mod processes;
mod state_dicts;
mod units;
mod versions;
mod views;
