// SPDX-License-Identifier: Apache-2.0

//! What the tests share: ranks as threads, a model, and folders.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use shard::{
    Code, Comm, CommOptions, DType, Engine, EngineOptions, Model, ModuleId, ParamId, Plan,
    PlanOptions, Result, UnitId,
};

static COUNTER: AtomicUsize = AtomicUsize::new(0);

/// Runs a function on each of `world_size` ranks, which are threads, and returns
/// their results. `query` goes on from "threads:N?name=...".
pub fn on_ranks<R: Send>(world_size: i32, query: &str, run: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    let group = COUNTER.fetch_add(1, Ordering::Relaxed);
    let url = format!("threads:{world_size}?name=rust-{group}{query}");
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..world_size)
            .map(|rank| {
                let (url, run) = (&url, &run);
                scope.spawn(move || {
                    let options = CommOptions::default()
                        .rank(rank)
                        .world_size(world_size)
                        .timeout(Duration::from_secs(20));
                    run(Comm::open(url, &options).expect("open"))
                })
            })
            .collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().expect("a rank panicked"))
            .collect()
    })
}

/// Runs a test of this program in a process of its own, which has more variables
/// in its environment, and expects that it passes.
pub fn run_alone(test: &str, variables: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    // A program without a test of this name succeeds.
    assert!(
        output.status.success() && printed.contains("running 1 test\n"),
        "{test} with {variables:?}: {output:?}"
    );
}

/// Returns whether this process has the fake of NVIDIA's driver, which complains at the
/// process's end where work had no order or something is not freed, and faults where the
/// program uses the GPU's memory. Runs a test of this program in a process that has it
/// where this one has not.
pub fn has_gpu(test: &str) -> bool {
    const STRICT: &str = "SHARD_FAKE_CUDA_STRICT";
    if std::env::var_os(STRICT).is_some() {
        return true;
    }
    match std::env::var("SHARD_TEST_FAKE_CUDA") {
        Ok(fake) => {
            let libraries = format!("{fake}:{}", std::env::var("LD_LIBRARY_PATH").unwrap());
            let variables = [
                ("LD_LIBRARY_PATH", libraries.as_str()),
                (STRICT, "1"),
                ("SHARD_FAKE_CUDA_GUARD", "1"),
            ];
            run_alone(test, &variables);
        }
        Err(_) => println!("skipped: not run by tests/sdk/rust/sdk_tests.sh"),
    }
    false
}

pub fn local() -> Comm {
    Comm::open("local:", &CommOptions::default()).expect("open")
}

/// Returns a new folder.
pub fn folder() -> PathBuf {
    let base = std::env::var_os("TEST_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let folder = base.join(format!("shard-rust-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("create a folder");
    folder
}

pub const LAYERS: usize = 4;

/// A stack of layers with one parameter each, and a unit for each layer.
pub struct Stack {
    pub model: Model,
    pub layers: Vec<ModuleId>,
    pub weights: Vec<ParamId>,
    numel: usize,
}

impl Stack {
    pub fn new() -> Stack {
        Stack::of(8)
    }

    /// Layers of several pages each, so that sharding them saves memory.
    pub fn wide() -> Stack {
        Stack::of(64)
    }

    fn of(side: i64) -> Stack {
        let mut model = Model::create("Stack").unwrap();
        let (mut layers, mut weights) = (Vec::new(), Vec::new());
        for i in 0..LAYERS {
            let name = format!("layer{i}");
            let layer = model.add_module(ModuleId::ROOT, &name, "Layer").unwrap();
            layers.push(layer);
            weights.push(
                model
                    .add_param(layer, "weight", DType::F32, &[side, side])
                    .unwrap(),
            );
        }
        Stack {
            model,
            layers,
            weights,
            numel: (side * side) as usize,
        }
    }

    pub fn options(&self, world_size: i32, stage: i32) -> PlanOptions {
        PlanOptions::default()
            .world_size(world_size)
            .stage(stage)
            .optimizer("adamw?lr=0.01")
            .wrap("class?names=Layer")
            .prefetch(-1)
            .deterministic(true)
    }

    pub fn plan(&self, world_size: i32, stage: i32) -> Plan {
        Plan::create(&self.model, &self.options(world_size, stage)).unwrap()
    }

    /// Returns the unit of a layer.
    pub fn unit(&self, plan: &Plan, layer: usize) -> UnitId {
        plan.unit_of_module(self.layers[layer])
            .unwrap()
            .expect("a layer is a unit")
    }

    /// Makes an engine whose parameters have values.
    pub fn engine(&self, comm: &Comm, stage: i32) -> Engine {
        let plan = self.plan(comm.world_size(), stage);
        let mut engine = Engine::create(&plan, comm, &EngineOptions::default()).unwrap();
        self.fill(&mut engine);
        engine
    }

    pub fn fill(&self, engine: &mut Engine) {
        for &weight in &self.weights {
            engine
                .set_param(weight, &values(weight, self.numel))
                .unwrap();
        }
        engine.broadcast_params(None).unwrap();
    }
}

/// The values that a parameter of `Stack::new` has at first.
pub fn first_values(weight: ParamId) -> Vec<f32> {
    values(weight, 64)
}

fn values(weight: ParamId, numel: usize) -> Vec<f32> {
    (0..numel)
        .map(|i| (weight.0 as f32 + 1.0) * (i as f32 - 31.5) / 64.0)
        .collect()
}

/// The code of the error that a call must return.
pub fn code_of<T>(result: Result<T>) -> Code {
    result
        .map(|_| ())
        .expect_err("an error was expected")
        .code()
}

/// The message of the error that a call must return.
pub fn message_of<T>(result: Result<T>) -> String {
    result
        .map(|_| ())
        .expect_err("an error was expected")
        .to_string()
}
