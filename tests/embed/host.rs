// SPDX-License-Identifier: Apache-2.0
//
// The engine of host.c in Rust: the declarations of sys.rs, and the standard
// library. An error is a Rust error that frees itself, a handle is a value that
// frees itself, and `?` does the rest.

use std::ffi::{c_void, CStr, CString};
use std::fmt;
use std::ptr;

mod sys;

// ---- Errors and handles: freed when dropped --------------------------------

struct Error(*mut sys::Error);

impl Error {
    fn code(&self) -> i32 {
        unsafe { sys::shard_error_code(self.0) }
    }
}

impl Drop for Error {
    fn drop(&mut self) {
        unsafe { sys::shard_error_free(self.0) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        unsafe {
            let name = CStr::from_ptr(sys::shard_code_name(self.code()));
            let message = CStr::from_ptr(sys::shard_error_message(self.0));
            write!(out, "{}: {}", name.to_string_lossy(), message.to_string_lossy())
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl std::error::Error for Error {}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn check(error: *mut sys::Error) -> std::result::Result<(), Error> {
    if error.is_null() {
        Ok(())
    } else {
        Err(Error(error))
    }
}

macro_rules! handle {
    ($name:ident, $free:ident) => {
        struct $name(*mut sys::$name);
        impl Drop for $name {
            fn drop(&mut self) {
                unsafe { sys::$free(self.0) }
            }
        }
    };
}
handle!(Comm, shard_comm_free);
handle!(Model, shard_model_free);
handle!(Plan, shard_plan_free);
handle!(Engine, shard_engine_free);

// ---- Numbers ---------------------------------------------------------------

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

// ---- The engine ------------------------------------------------------------

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
    let (root, linear) = (CString::new("Net")?, CString::new("Linear")?);
    let mut model = Model(ptr::null_mut());
    let mut modules = [0i32; 2];
    unsafe {
        check(sys::shard_model_create(root.as_ptr(), &mut model.0))?;
        for (i, name) in ["encoder", "decoder"].iter().enumerate() {
            let name = CString::new(*name)?;
            check(sys::shard_model_add_module(
                model.0,
                0,
                name.as_ptr(),
                linear.as_ptr(),
                &mut modules[i],
            ))?;
        }
        for i in 0..PARAMS {
            let name = CString::new(names[i])?;
            let mut param = 0;
            check(sys::shard_model_add_param(
                model.0,
                modules[if i < 2 { 0 } else { 1 }],
                name.as_ptr(),
                sys::F32,
                SHAPES[i].as_ptr(),
                if i == 0 { 2 } else { 1 },
                &mut param,
            ))?;
        }
        let weight = CString::new("weight")?;
        check(sys::shard_model_tie(model.0, modules[1], weight.as_ptr(), 0))?;
        check(sys::shard_model_freeze(model.0, 2))?;
    }
    Ok(model)
}

fn plan_for(model: &Model, world_size: i32, optimizer: &str) -> Result<Plan> {
    let optimizer = CString::new(optimizer)?;
    let options = sys::PlanOptions {
        struct_size: std::mem::size_of::<sys::PlanOptions>(),
        stage: 1,
        world_size,
        partition: 0,
        shard_buckets: 0,
        bucket_bytes: 0,
        owners: ptr::null(),
        num_owners: 0,
        optimizer: optimizer.as_ptr(),
    };
    let mut plan = Plan(ptr::null_mut());
    check(unsafe { sys::shard_plan_create(model.0, &options, &mut plan.0) })?;
    Ok(plan)
}

impl Engine {
    fn create(plan: &Plan, comm: &Comm) -> Result<Engine> {
        let mut engine = Engine(ptr::null_mut());
        check(unsafe { sys::shard_engine_create(plan.0, comm.0, ptr::null(), &mut engine.0) })?;
        Ok(engine)
    }

    fn param(&self, param: i32) -> Result<&[f32]> {
        let (mut data, mut numel) = (ptr::null(), 0);
        unsafe {
            check(sys::shard_engine_param(self.0, param, &mut data, &mut numel))?;
            Ok(std::slice::from_raw_parts(data as *const f32, numel as usize))
        }
    }

    // The gradients of two parameters do not overlap.
    #[allow(clippy::mut_from_ref)]
    fn grad(&self, param: i32) -> Result<&mut [f32]> {
        let (mut data, mut numel) = (ptr::null_mut(), 0);
        unsafe {
            check(sys::shard_engine_grad(self.0, param, &mut data, &mut numel))?;
            Ok(std::slice::from_raw_parts_mut(data as *mut f32, numel as usize))
        }
    }

    fn fill(&self) -> Result<()> {
        for (p, shape) in SHAPES.iter().enumerate() {
            let data: Vec<f32> = (0..shape[0] * shape[1])
                .map(|i| value((100 * p) as u32 + i as u32) + if p == 2 { 1.0 } else { 0.0 })
                .collect();
            let bytes = data.len() * std::mem::size_of::<f32>();
            check(unsafe {
                sys::shard_engine_set_param(self.0, p as i32, data.as_ptr() as *const c_void, bytes)
            })?;
        }
        check(unsafe { sys::shard_engine_broadcast_params(self.0, 0.0) })?;
        Ok(())
    }

    // Returns false when the folder has no checkpoint.
    fn load(&self, folder: &CStr) -> Result<bool> {
        let loaded = check(unsafe {
            sys::shard_checkpoint_load(self.0, folder.as_ptr(), ptr::null(), ptr::null_mut())
        });
        match loaded {
            Ok(()) => Ok(true),
            Err(error) if error.code() == sys::NOT_FOUND => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn save(&self, folder: &CStr) -> Result<()> {
        check(unsafe {
            sys::shard_checkpoint_save(self.0, folder.as_ptr(), ptr::null(), ptr::null_mut())
        })?;
        Ok(())
    }

    // Returns the hash of all parameters.
    fn hash(&self) -> Result<u64> {
        let mut hash = 0xcbf29ce484222325;
        for param in 0..PARAMS {
            hash = fnv1a(hash, self.param(param as i32)?);
        }
        Ok(hash)
    }

    // Makes a forward and a backward pass and the step. Returns the sum of all
    // ranks' losses. The slices end before the step, which changes the memory
    // that they show.
    fn step(&self, comm: &Comm, step: usize) -> Result<f64> {
        check(unsafe { sys::shard_engine_zero_grad(self.0) })?;
        let mut loss = {
            let params = Params {
                weight: self.param(0)?,
                bias: self.param(1)?,
                scale: self.param(2)?,
                out_bias: self.param(3)?,
            };
            let mut grads = Grads {
                weight: self.grad(0)?,
                bias: self.grad(1)?,
                out_bias: self.grad(3)?,
            };
            let rank = unsafe { sys::shard_comm_rank(comm.0) } as usize;
            train_batch(&params, &mut grads, rank) as f64
        };
        check(unsafe { sys::shard_comm_sum(comm.0, &mut loss, 1, 0.0) })?;

        if step == 5 {
            let key = CString::new("lr")?;
            check(unsafe { sys::shard_engine_set_hyper(self.0, -1, key.as_ptr(), 0.02) })?;
        }
        let options = sys::StepOptions {
            struct_size: std::mem::size_of::<sys::StepOptions>(),
            max_grad_norm: if step % 2 == 1 { 0.5 } else { 0.0 },
            ..Default::default()
        };
        let mut report = sys::StepReport {
            struct_size: std::mem::size_of::<sys::StepReport>(),
            ..Default::default()
        };
        check(unsafe { sys::shard_engine_step(self.0, &options, &mut report) })?;
        if report.step != step as i64 + 1 || report.skipped != 0 {
            return Err(format!("step {} was not done", step).into());
        }
        Ok(loss)
    }
}

fn train(engine: &Engine, comm: &Comm) -> Result<()> {
    let (mut first, mut last) = (0.0, 0.0);
    for step in 0..STEPS {
        last = engine.step(comm, step)?;
        if step == 0 {
            first = last;
        }
    }
    if !(last < first) {
        return Err(format!("the loss went from {} to {}", first, last).into());
    }
    let hash = engine.hash()?;
    println!("first {:016x} last {:016x} params {:016x}", first.to_bits(), last.to_bits(), hash);
    Ok(())
}

fn run() -> Result<()> {
    let folder = CString::new(std::env::args().nth(1).ok_or("a folder is missing")?)?;
    let url = CString::new("env:")?;
    let mut comm = Comm(ptr::null_mut());
    check(unsafe { sys::shard_comm_open(url.as_ptr(), ptr::null(), &mut comm.0) })?;
    let model = declare()?;
    match plan_for(&model, 1, "adamx") {
        Ok(_) => return Err("'adamx' was accepted".into()),
        Err(error) => println!("{}", error),
    }
    let world_size = unsafe { sys::shard_comm_world_size(comm.0) };
    let plan = plan_for(&model, world_size, "adamw?lr=0.05&weight_decay=0.01")?;
    let engine = Engine::create(&plan, &comm)?;
    if engine.load(&folder)? {
        println!("loaded params {:016x}", engine.hash()?);
    } else {
        engine.fill()?;
        train(&engine, &comm)?;
        engine.save(&folder)?;
    }
    check(unsafe { sys::shard_comm_shutdown(comm.0, 0.0) })?;
    Ok(())
}

fn main() {
    if let Err(error) = run() {
        eprintln!("host.rs: {}", error);
        std::process::exit(1);
    }
}
