// SPDX-License-Identifier: Apache-2.0

//! The training of tests/bench/ffi.cc in Rust.

use std::io::BufRead;
use std::time::Instant;

use shard::{
    Comm, CommOptions, Engine, EngineOptions, ParamId, Pass, Plan, StepOptions, UnitId,
};

const STEPS: usize = 4;

/// Trains for a step, and returns the loss.
fn train(engine: &mut Engine, units: &[Vec<ParamId>]) -> shard::Result<f64> {
    let mut loss = 0.0;
    for (u, params) in units.iter().enumerate() {
        let unit = engine.unit_acquire(UnitId(u as i32), Pass::FORWARD, None)?;
        for &param in params {
            let p = f64::from(unit.param::<f32>(param)?[0]);
            loss += 0.5 * p * p;
        }
        unit.release()?;
    }
    for (u, params) in units.iter().enumerate().rev() {
        let mut unit = engine.unit_acquire(UnitId(u as i32), Pass::BACKWARD, None)?;
        for &param in params {
            let values = unit.param::<f32>(param)?;
            unit.grad::<f32>(param)?[0] = values[0];
        }
        unit.mark_grads_ready()?;
        unit.release()?;
    }
    engine.step(&StepOptions::default())?;
    Ok(loss)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: step_rs PLAN")?;
    let plan = Plan::decode(&std::fs::read(path)?)?;
    let comm = Comm::open("local:", &CommOptions::default())?;
    let mut engine = Engine::create(&plan, &comm, &EngineOptions::default())?;
    let info = plan.info()?;
    let mut units = vec![Vec::new(); info.num_units as usize];
    for param in (0..info.num_params).map(ParamId) {
        let numel = plan.param_info(param)?.numel as usize;
        engine.set_param(param, &vec![1.0 + param.0 as f32 / 256.0; numel])?;
        units[plan.unit_of(param)?.0 as usize].push(param);
    }
    engine.broadcast_params(None)?;

    let mut loss = 0.0;
    println!("peer: ready");
    for line in std::io::stdin().lock().lines() {
        let mut answer = loss;
        if line? == "train" {
            let start = Instant::now();
            for _ in 0..STEPS {
                loss = train(&mut engine, &units)?;
            }
            answer = start.elapsed().as_secs_f64() * 1e3;
        }
        println!("peer: {answer}");
    }
    Ok(())
}
