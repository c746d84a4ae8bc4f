// SPDX-License-Identifier: Apache-2.0

use std::time::Instant;

use shard::{CommOptions, Engine, EngineOptions, PlanOptions};

use crate::common::{local, run_alone};

/// Returns the descriptors and the threads of this process.
fn held() -> (usize, usize) {
    let count = |folder| std::fs::read_dir(folder).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

/// Waits until the process holds as much as before: a thread that was joined may be
/// listed for a moment longer.
fn expect_held(before: (usize, usize)) {
    let start = Instant::now();
    while held() != before {
        let held = held();
        assert!(
            start.elapsed().as_secs() < 10,
            "{held:?}, and {before:?} before"
        );
        std::thread::yield_now();
    }
}

/// Runs in a process of its own, for other tests have descriptors too.
#[test]
fn a_thousand_engines_leave_nothing_behind() {
    let cycles = [("SHARD_TEST_CYCLES", "1000")];
    run_alone("cycles::in_a_process_of_its_own", &cycles);
}

#[test]
fn in_a_process_of_its_own() {
    let cycles = match std::env::var("SHARD_TEST_CYCLES") {
        Ok(cycles) => cycles.parse().unwrap(),
        Err(_) => return,
    };
    let cycle = || {
        let comm = local();
        let mut model = shard::Model::create("Net").unwrap();
        let root = shard::ModuleId::ROOT;
        let weight = model
            .add_param(root, "weight", shard::DType::F32, &[4])
            .unwrap();
        let plan = shard::Plan::create(&model, &PlanOptions::default().world_size(1)).unwrap();
        let mut engine = Engine::create(&plan, &comm, &EngineOptions::default()).unwrap();
        engine.broadcast_params(None).unwrap();
        assert_eq!(engine.param::<f32>(weight).unwrap(), [0.0; 4]);
    };
    cycle();
    let before = held();
    for _ in 0..cycles {
        cycle();
    }
    expect_held(before);
    // A group of threads leaves nothing behind either.
    for round in 0..cycles / 20 {
        std::thread::scope(|scope| {
            for rank in 0..2 {
                scope.spawn(move || {
                    let options = CommOptions::default().rank(rank).world_size(2);
                    let url = format!("threads:2?name=cycle-{round}");
                    let comm = shard::Comm::open(&url, &options).unwrap();
                    crate::common::Stack::new().engine(&comm, 2);
                    comm.shutdown(None).unwrap();
                });
            }
        });
    }
    expect_held(before);
}
