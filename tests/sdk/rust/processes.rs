// SPDX-License-Identifier: Apache-2.0

//! Processes that exit or fork with everything open, and threads with an engine
//! each.

use std::ops::ControlFlow;
use std::panic::catch_unwind;
use std::process::exit;

use shard::{Checkpoint, Code, Engine, EngineOptions, ParamId, SaveOptions};

use crate::common::{code_of, first_values, folder, local, on_ranks, run_alone, Stack};

extern "C" {
    fn fork() -> i32;
    fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(status: i32) -> !;
}

const AGAIN: &str = "SHARD_TEST_PROCESS";

/// Runs a test again, in a process of its own. Returns true in that process.
fn in_another_process(test: &str) -> bool {
    if std::env::var_os(AGAIN).is_some() {
        return true;
    }
    run_alone(&format!("processes::{test}"), &[(AGAIN, "1")]);
    false
}

#[test]
fn a_process_may_exit_with_everything_open() {
    if !in_another_process("a_process_may_exit_with_everything_open") {
        return;
    }
    let root = folder();
    on_ranks(2, "&direct=0", |comm| {
        let mut engine = Stack::new().engine(&comm, 1);
        let options = SaveOptions::default().progress(|_, _| ControlFlow::Continue(()));
        let save = Checkpoint::save_async(&mut engine, &root, &options).unwrap();
        if comm.rank() == 0 {
            exit(0);
        }
        save.wait(None).unwrap();
        comm.barrier(None).unwrap();
    });
}

#[test]
fn a_child_of_fork_drops_what_its_parent_has() {
    if !in_another_process("a_child_of_fork_drops_what_its_parent_has") {
        return;
    }
    let stack = Stack::new();
    let comm = local();
    let mut engine = stack.engine(&comm, 1);
    engine.zero_grad().unwrap();
    let child = unsafe { fork() };
    if child == 0 {
        let passed = catch_unwind(std::panic::AssertUnwindSafe(|| {
            assert_eq!(code_of(engine.zero_grad()), Code::FAILED_PRECONDITION);
            assert_eq!(code_of(comm.barrier(None)), Code::FAILED_PRECONDITION);
            drop(engine);
            drop(comm);
            stack.engine(&local(), 1).zero_grad().unwrap();
        }));
        unsafe { _exit(passed.is_err().into()) };
    }
    let mut status = -1;
    assert_eq!(unsafe { waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    engine.zero_grad().unwrap();
}

#[test]
fn threads_share_what_does_not_change() {
    let stack = Stack::new();
    let root = folder();
    Checkpoint::save(
        &mut stack.engine(&local(), 1),
        &root,
        &SaveOptions::default(),
    )
    .unwrap();
    let (plan, checkpoint) = (stack.plan(1, 1), Checkpoint::open(&root).unwrap());
    let expected = first_values(ParamId(1));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut engine =
                    Engine::create(&plan, &local(), &EngineOptions::default()).unwrap();
                Stack::new().fill(&mut engine);
                for _ in 0..10 {
                    let key = plan.param_name(ParamId(1), 0).unwrap();
                    let mut read = vec![0f32; expected.len()];
                    let tensor = checkpoint.find(&key).unwrap();
                    checkpoint.read(tensor, 0, &mut read).unwrap();
                    assert_eq!(read, expected);
                    assert_eq!(engine.param::<f32>(ParamId(1)).unwrap(), expected);
                }
            });
        }
    });
}
