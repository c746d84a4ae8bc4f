// SPDX-License-Identifier: Apache-2.0

//! The quickstart of libshard in Rust: trains a small language model on any number
//! of ranks, and saves a checkpoint from which the next run goes on.
//!
//!     cargo build --release                               # see docs/rust.md
//!     shardctl run -n 2 -- ./quickstart checkpoints 400   # trains 400 steps
//!     shardctl run -n 3 -- ./quickstart checkpoints 600   # and 200 more
//!
//! Read train() first. The model predicts each byte of a text from the bytes before
//! it. README.md beside this file defines it to the bit, so that the quickstarts in
//! all languages save the same checkpoints.

use std::{env, fs, process};

use shard::{Checkpoint, Code, Comm, CommOptions, DType, Engine, EngineOptions, LoadOptions};
use shard::{Model, ModuleId, ParamId, Plan, PlanOptions, SaveOptions, StepOptions};

const VOCAB: usize = 256; // A token is a byte.
const CONTEXT: usize = 4; // The bytes that a prediction reads.
const DIM: usize = 16; // The numbers that describe a byte.
const BATCH: usize = 64; // Predictions per step, over all ranks.
const REPORT: i64 = 50; // Steps from one line of output to the next.

// The parameters: their numbers, and their names, which are the keys in checkpoints,
// with their shapes.
const EMBED: usize = 0;
const POSITION: usize = 1;
const OUT: usize = 2;
const BIAS: usize = 3;
const TENSORS: [(&str, &[i64]); 4] = [
    ("embed", &[VOCAB as i64, DIM as i64]),
    ("position", &[CONTEXT as i64, DIM as i64]),
    ("out", &[VOCAB as i64, DIM as i64]),
    ("bias", &[VOCAB as i64]),
];

/// Sets the first values: small numbers that look random, and a bias of 0.
fn initialize(engine: &mut Engine, ids: &[ParamId]) -> shard::Result<()> {
    let mut n = 0u32;
    for (&id, (name, shape)) in ids.iter().zip(TENSORS) {
        let mut values = vec![0.0; shape.iter().product::<i64>() as usize];
        for value in values.iter_mut().filter(|_| name != "bias") {
            let random = n.wrapping_mul(2654435761).wrapping_add(12345);
            *value = (random >> 8) as f32 / 16777216.0 - 0.5; // 2^24
            n += 1;
        }
        engine.set_param(id, &values)?;
    }
    engine.broadcast_params(None)
}

/// Returns 1 / (1 - x / 1024)^1024, which is nearly exp(x) for x <= 0. Every language
/// computes the same bits, and exp in a way of its own.
fn power(x: f64) -> f64 {
    let mut result = 1.0 - x / 1024.0;
    for _ in 0..10 {
        result *= result;
    }
    1.0 / result
}

/// Predicts the byte at `next`, adds the gradients of the loss to the sums, and returns
/// the loss.
fn learn(params: &[&[f32]], sums: &mut [Vec<f64>], text: &[u8], next: usize) -> f64 {
    let weight = |param: usize, i: usize| f64::from(params[param][i]);
    let (mut hidden, mut hidden_grad) = ([0.0; DIM], [0.0; DIM]);
    for i in 0..CONTEXT {
        for d in 0..DIM {
            let (from, to) = (usize::from(text[next - 1 - i]) * DIM + d, i * DIM + d);
            hidden[d] += weight(POSITION, to) * weight(EMBED, from);
        }
    }
    let mut p = [0.0; VOCAB];
    for v in 0..VOCAB {
        p[v] = weight(BIAS, v);
        for d in 0..DIM {
            p[v] += hidden[d] * weight(OUT, v * DIM + d);
        }
    }
    let largest = p.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut total = 0.0;
    for each in &mut p {
        *each = power(*each - largest);
        total += *each;
    }
    let target = usize::from(text[next]);
    for v in 0..VOCAB {
        let grad = (p[v] / total - if v == target { 1.0 } else { 0.0 }) / BATCH as f64;
        sums[BIAS][v] += grad;
        for d in 0..DIM {
            hidden_grad[d] += grad * weight(OUT, v * DIM + d);
            sums[OUT][v * DIM + d] += grad * hidden[d];
        }
    }
    for i in 0..CONTEXT {
        for d in 0..DIM {
            let (from, to) = (usize::from(text[next - 1 - i]) * DIM + d, i * DIM + d);
            sums[EMBED][from] += hidden_grad[d] * weight(POSITION, to);
            sums[POSITION][to] += hidden_grad[d] * weight(EMBED, from);
        }
    }
    -(p[target] / total).ln()
}

fn train(folder: &str, steps: i64, text: &[u8]) -> shard::Result<()> {
    // Meet the other ranks, which `shardctl run` has started.
    let comm = Comm::open("env:", &CommOptions::default())?;
    let (rank, ranks) = (comm.rank() as usize, comm.world_size() as usize);

    // Declare the model, and decide how it is sharded. In stage 1 each rank keeps the
    // optimizer states of its part of the parameters, and steps that part.
    let mut model = Model::create("ByteModel")?;
    let mut ids = Vec::new();
    for (name, shape) in TENSORS {
        ids.push(model.add_param(ModuleId::ROOT, name, DType::F32, shape)?);
    }
    let options = PlanOptions::default()
        .stage(1)
        .world_size(comm.world_size())
        .optimizer("adamw?lr=0.02&weight_decay=0");
    let plan = Plan::create(&model, &options)?;
    let mut engine = Engine::create(&plan, &comm, &EngineOptions::default())?;

    // Go on from the last checkpoint, or begin.
    let done = match Checkpoint::load(&mut engine, folder, &LoadOptions::default()) {
        Ok(loaded) => loaded.step.unwrap_or(0),
        Err(error) if error.code() == Code::NOT_FOUND => {
            initialize(&mut engine, &ids)?;
            0
        }
        Err(error) => return Err(error),
    };

    let mut loss = [0.0];
    for step in done..steps {
        let mut sums = vec![vec![0.0; VOCAB * DIM]; TENSORS.len()];
        {
            // The parameters in memory of libshard; the borrow ends before the step.
            let params: shard::Result<Vec<_>> = ids.iter().map(|&id| engine.param(id)).collect();
            let params = params?;
            for i in (rank..BATCH).step_by(ranks) {
                let random = (step as usize * BATCH + i) as u32;
                let at = random.wrapping_mul(2654435761) as usize % (text.len() - CONTEXT);
                loss[0] += learn(&params, &mut sums, text, CONTEXT + at);
            }
        }
        for (&id, sums) in ids.iter().zip(&sums) {
            for (grad, &sum) in engine.grad::<f32>(id)?.iter_mut().zip(sums) {
                *grad = sum as f32;
            }
        }
        engine.step(&StepOptions::default().grad_divisor(1.0))?; // learn() has divided.
        if (step + 1) % REPORT == 0 {
            comm.sum(&mut loss, None)?; // Over all ranks.
            if rank == 0 {
                let mean = loss[0] / (BATCH as f64 * REPORT as f64);
                println!("step {}: loss {mean:.4}", step + 1);
            }
            loss[0] = 0.0;
        }
    }
    if done < steps {
        Checkpoint::save(&mut engine, folder, &SaveOptions::default())?;
    }
    comm.shutdown(None)
}

/// An error that ends this rank gives the others RANK_LOST.
fn main() {
    let args: Vec<String> = env::args().collect();
    let argument = |i: usize| args.get(i).map_or("", |argument| argument);
    let steps = argument(2).parse().unwrap_or(0);
    let path = match argument(3) {
        "" => "/usr/share/common-licenses/GPL-3",
        path => path,
    };
    let mut text = fs::read(path).unwrap_or_default();
    text.truncate(1 << 20);
    if !(3..=4).contains(&args.len()) || steps < 1 || text.len() <= CONTEXT {
        eprintln!(
            "usage: quickstart FOLDER STEPS [TEXT], where STEPS is at least 1 and TEXT ('{path}') \
             a file of more than {CONTEXT} bytes"
        );
        process::exit(2);
    }
    if let Err(error) = train(&args[1], steps, &text) {
        eprintln!("quickstart: {error}");
        process::exit(1);
    }
}
