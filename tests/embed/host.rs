// SPDX-License-Identifier: Apache-2.0
//
// The engine of host.c in Rust, on the crate shard: views are slices, handles
// free themselves, and `?` does the rest.

use std::path::Path;

use shard::{
    Checkpoint, Code, Comm, CommOptions, DType, Engine, EngineOptions, LoadOptions, Model,
    ModuleId, ParamId, Plan, PlanOptions, SaveOptions, StepOptions,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const DIM: usize = 6;
const BATCH: usize = 4;
const STEPS: usize = 10;
const PARAMS: usize = 4;
const SHAPES: [[i64; 2]; PARAMS] = [[6, 6], [6, 1], [6, 1], [6, 1]];

fn value(i: u32) -> f32 {
    let hash = i.wrapping_mul(2654435761).wrapping_add(12345);
    (hash >> 8) as f32 * (1.0 / 16777216.0) - 0.5
}

fn fnv1a(mut hash: u64, floats: &[f32]) -> u64 {
    for x in floats {
        for byte in x.to_ne_bytes() {
            hash = (hash ^ byte as u64).wrapping_mul(0x100000001b3);
        }
    }
    hash
}

struct Params<'a> {
    weight: &'a [f32],
    bias: &'a [f32],
    scale: &'a [f32],
    out_bias: &'a [f32],
}

struct Grads<'a> {
    weight: &'a mut [f32],
    bias: &'a mut [f32],
    out_bias: &'a mut [f32],
}

fn train_batch(p: &Params, g: &mut Grads, rank: usize) -> f32 {
    let mut loss = 0f32;
    for e in 0..BATCH {
        let mut x = [0f32; DIM];
        let mut t = [0f32; DIM];
        let mut r = [0f32; DIM];
        let mut s = [0f32; DIM];
        let mut dy = [0f32; DIM];
        for i in 0..DIM {
            x[i] = value((1000 + (rank * BATCH + e) * DIM + i) as u32);
        }
        for i in 0..DIM {
            t[i] = x[(i + 1) % DIM];
        }
        for i in 0..DIM {
            let mut h = p.bias[i];
            for j in 0..DIM {
                h = h + p.weight[i * DIM + j] * x[j];
            }
            r[i] = if h > 0.0 { h } else { 0.0 };
            s[i] = r[i] * p.scale[i];
        }
        for i in 0..DIM {
            let mut y = p.out_bias[i];
            for j in 0..DIM {
                y = y + p.weight[i * DIM + j] * s[j];
            }
            let d = y - t[i];
            loss = loss + d * d;
            dy[i] = d * (2.0 / BATCH as f32);
        }
        for i in 0..DIM {
            g.out_bias[i] = g.out_bias[i] + dy[i];
            for j in 0..DIM {
                let w = &mut g.weight[i * DIM + j];
                *w = *w + dy[i] * s[j];
            }
        }
        for i in 0..DIM {
            let mut ds = 0f32;
            for k in 0..DIM {
                ds = ds + p.weight[k * DIM + i] * dy[k];
            }
            let dh = if r[i] > 0.0 { ds * p.scale[i] } else { 0.0 };
            g.bias[i] = g.bias[i] + dh;
            for j in 0..DIM {
                let w = &mut g.weight[i * DIM + j];
                *w = *w + dh * x[j];
            }
        }
    }
    loss
}

fn declare() -> Result<Model> {
    let names = ["weight", "bias", "scale", "out_bias"];
    let mut model = Model::create("Net")?;
    let encoder = model.add_module(ModuleId::ROOT, "encoder", "Linear")?;
    let decoder = model.add_module(ModuleId::ROOT, "decoder", "Linear")?;
    for i in 0..PARAMS {
        let module = if i < 2 { encoder } else { decoder };
        let shape = if i == 0 {
            &SHAPES[i][..]
        } else {
            &SHAPES[i][..1]
        };
        model.add_param(module, names[i], DType::F32, shape)?;
    }
    model.tie(decoder, "weight", ParamId(0))?;
    model.freeze(ParamId(2))?;
    Ok(model)
}

fn plan_for(model: &Model, world_size: i32, optimizer: &str) -> Result<Plan> {
    let options = PlanOptions::default()
        .stage(1)
        .world_size(world_size)
        .optimizer(optimizer);
    Ok(Plan::create(model, &options)?)
}

fn fill(engine: &mut Engine) -> Result<()> {
    for (p, shape) in SHAPES.iter().enumerate() {
        let data: Vec<f32> = (0..shape[0] * shape[1])
            .map(|i| value((100 * p) as u32 + i as u32) + if p == 2 { 1.0 } else { 0.0 })
            .collect();
        engine.set_param(ParamId(p as i32), &data)?;
    }
    engine.broadcast_params(None)?;
    Ok(())
}

// Returns false when the folder has no checkpoint.
fn load(engine: &mut Engine, folder: &Path) -> Result<bool> {
    match Checkpoint::load(engine, folder, &LoadOptions::default()) {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Code::NOT_FOUND => Ok(false),
        Err(error) => Err(error.into()),
    }
}

// Returns the hash of all parameters.
fn hash(engine: &Engine) -> Result<u64> {
    let mut hash = 0xcbf29ce484222325;
    for param in 0..PARAMS {
        hash = fnv1a(hash, engine.param(ParamId(param as i32))?);
    }
    Ok(hash)
}

// Makes a forward and a backward pass and the step. Returns the sum of all ranks'
// losses. The views end before the step, which changes the memory that they show.
fn make_step(engine: &mut Engine, comm: &Comm, step: usize) -> Result<f64> {
    engine.zero_grad()?;
    let mut loss = {
        let params = Params {
            weight: engine.param(ParamId(0))?,
            bias: engine.param(ParamId(1))?,
            scale: engine.param(ParamId(2))?,
            out_bias: engine.param(ParamId(3))?,
        };
        let mut weight = engine.grad(ParamId(0))?;
        let mut bias = engine.grad(ParamId(1))?;
        let mut out_bias = engine.grad(ParamId(3))?;
        let mut grads = Grads {
            weight: &mut weight,
            bias: &mut bias,
            out_bias: &mut out_bias,
        };
        [f64::from(train_batch(
            &params,
            &mut grads,
            comm.rank() as usize,
        ))]
    };
    comm.sum(&mut loss, None)?;

    if step == 5 {
        engine.set_hyper(None, "lr", 0.02)?;
    }
    let clip = if step % 2 == 1 { 0.5 } else { 0.0 };
    let report = engine.step(&StepOptions::default().max_grad_norm(clip))?;
    if report.step != step as i64 + 1 || report.skipped {
        return Err(format!("step {} was not done", step).into());
    }
    Ok(loss[0])
}

fn train(engine: &mut Engine, comm: &Comm) -> Result<()> {
    let (mut first, mut last) = (0.0, 0.0);
    for step in 0..STEPS {
        last = make_step(engine, comm, step)?;
        if step == 0 {
            first = last;
        }
    }
    if !(last < first) {
        return Err(format!("the loss went from {} to {}", first, last).into());
    }
    println!(
        "first {:016x} last {:016x} params {:016x}",
        first.to_bits(),
        last.to_bits(),
        hash(engine)?
    );
    Ok(())
}

fn run() -> Result<()> {
    let folder = std::env::args_os().nth(1).ok_or("a folder is missing")?;
    let folder = Path::new(&folder);
    let comm = Comm::open("env:", &CommOptions::default())?;
    let model = declare()?;
    match plan_for(&model, 1, "adamx") {
        Ok(_) => return Err("'adamx' was accepted".into()),
        Err(error) => println!("{}", error),
    }
    let plan = plan_for(&model, comm.world_size(), "adamw?lr=0.05&weight_decay=0.01")?;
    let mut engine = Engine::create(&plan, &comm, &EngineOptions::default())?;
    if load(&mut engine, folder)? {
        println!("loaded params {:016x}", hash(&engine)?);
    } else {
        fill(&mut engine)?;
        train(&mut engine, &comm)?;
        Checkpoint::save(&mut engine, folder, &SaveOptions::default())?;
    }
    comm.shutdown(None)?;
    Ok(())
}

fn main() {
    if let Err(error) = run() {
        eprintln!("host.rs: {}", error);
        std::process::exit(1);
    }
}
