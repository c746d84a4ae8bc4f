// SPDX-License-Identifier: Apache-2.0

//! Random programs in safe Rust: what a view shows never changes while the view is
//! there, whatever else is called. Most of the calls are errors, for they come in no
//! sensible order; sensible passes between them let steps succeed.

use std::cell::Cell;
use std::mem::forget;

use shard::{
    Code, Comm, DType, Engine, EngineOptions, MissingGrads, Model, ModuleId, ParamId, Pass, Plan,
    PlanOptions, Result, StateDict, StateDictOptions, StepOptions, Unit, UnitId,
};

use crate::common::on_ranks;

/// A generator of Marsaglia's xorshift family.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        for (left, shift) in [(true, 13), (false, 7), (true, 17)] {
            self.0 ^= if left {
                self.0 << shift
            } else {
                self.0 >> shift
            };
        }
        (self.0 >> 11) % end
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

/// The state of a program beside its engine.
struct Program {
    random: Random,
    params: Vec<ParamId>,
    units: Vec<UnitId>,
    /// A call has failed for good.
    ended: Cell<bool>,
    views: u64,
    steps: u64,
}

const DEPTH: u32 = 3;
/// Each byte of the gradients that programs write. Bytes are compared fast.
const GRAD: u8 = 0x3e;
const PASSES: [Pass; 3] = [Pass::FORWARD, Pass::BACKWARD, Pass::BACKWARD_OVERWRITE];

fn is_filled(grad: &[u8]) -> bool {
    grad == vec![GRAD; grad.len()]
}

impl Program {
    fn ok<T>(&self, result: Result<T>) -> Option<T> {
        let end = [Code::DESYNC, Code::POISONED, Code::RANK_LOST];
        let error = result.as_ref().err().map(|error| error.code());
        assert_ne!(error, Some(Code::INTERNAL));
        if error.map_or(false, |code| end.contains(&code)) {
            self.ended.set(true);
        }
        result.ok()
    }

    fn try_call<T>(&self, result: Result<T>) {
        self.ok(result);
    }

    /// Makes calls, while the callers hold views.
    fn call(&mut self, engine: &Engine, depth: u32) {
        if depth > DEPTH {
            return;
        }
        for _ in 0..=self.random.below(5) {
            let param = self.random.one_of(&self.params);
            let unit = self.random.one_of(&self.units);
            let yes = self.random.chance(20);
            match self.random.below(10) {
                _ if self.ended.get() => return,
                0 => {
                    if let Some(view) = self.ok(engine.param::<u8>(param)) {
                        let before = view.to_vec();
                        self.call(engine, depth + 1);
                        assert_eq!(view, before, "a parameter has changed");
                        self.views += 1;
                    }
                }
                1 => {
                    if let Some(mut view) = self.ok(engine.grad::<u8>(param)) {
                        view.fill(GRAD);
                        self.call(engine, depth + 1);
                        assert!(is_filled(&view), "a gradient has changed");
                        self.views += 1;
                    }
                }
                2 => self.try_call(engine.mark_unit_grads_ready(unit)),
                3 => self.try_call(engine.mark_param_grad_ready(param)),
                4 => self.try_call(engine.set_accumulate(yes)),
                _ => {
                    let pass = self.random.one_of(&PASSES);
                    if let Some(unit) = self.ok(engine.unit_acquire(unit, pass, None)) {
                        self.use_unit(engine, depth, unit);
                    }
                }
            }
        }
    }

    fn use_unit(&mut self, engine: &Engine, depth: u32, mut unit: Unit<'_>) {
        self.view_unit(engine, depth, &unit);
        let param = self.random.one_of(&self.params);
        match self.random.below(5) {
            0 | 1 => self.try_call(unit.mark_grads_ready()),
            2 => self.try_call(unit.mark_param_grad_ready(param)),
            _ => {}
        }
        self.view_unit(engine, depth, &unit);
        // A view of the engine's outlives the unit.
        let view = self.ok(engine.param::<u8>(param));
        let before = view.map(|view| view.to_vec());
        match self.random.below(200) {
            0 => forget(unit),
            _ => drop(unit),
        }
        self.call(engine, depth + 1);
        assert_eq!(view, before.as_deref(), "a parameter has changed");
    }

    /// Holds views of a unit while other calls are made.
    fn view_unit(&mut self, engine: &Engine, depth: u32, unit: &Unit<'_>) {
        let mut params = match self.ok(unit.params::<u8>()) {
            Some(params) => params,
            None => return,
        };
        let before: Vec<Vec<u8>> = params.iter().map(|param| param.data.to_vec()).collect();
        for grad in params.iter_mut().filter_map(|param| param.grad.as_mut()) {
            grad.fill(GRAD);
        }
        self.call(engine, depth + 1);
        for (param, before) in params.iter().zip(before) {
            assert_eq!(param.data, before, "a parameter of {unit:?} has changed");
            if let Some(grad) = &param.grad {
                assert!(is_filled(grad), "a gradient of {unit:?} has changed");
            }
            self.views += 1;
        }
    }

    /// Passes as they should be, with random calls in some of them, and a step.
    fn train(&mut self, engine: &mut Engine) {
        if self.random.chance(30) {
            self.ok(engine.begin_step(&StepOptions::default()));
        }
        for number in (0..self.units.len()).rev() {
            if self.random.chance(30) {
                self.call(engine, DEPTH - 2);
            }
            let unit = engine.unit_acquire(self.units[number], Pass::BACKWARD, None);
            if let Some(mut unit) = self.ok(unit) {
                let depth = if self.random.chance(20) { 2 } else { DEPTH };
                self.view_unit(engine, depth, &unit);
                self.ok(unit.mark_grads_ready());
            }
        }
        if self.ok(engine.step(&StepOptions::default())).is_some() {
            self.steps += 1;
        }
    }

    /// Makes a call that changes tensors.
    fn change(&mut self, engine: &mut Engine) {
        let some = [self.random.one_of(&self.params)];
        let yes = self.random.chance(60);
        match self.random.below(10) {
            0 => self.try_call(engine.step(&StepOptions::default())),
            1 => self.try_call(engine.step(&StepOptions::default().max_grad_norm(1.0))),
            2 => self.try_call(engine.begin_step(&StepOptions::default())),
            3 => self.try_call(engine.zero_grad()),
            4 => self.try_call(engine.set_trainable(&some, yes, None)),
            5 => self.try_call(engine.add_param_group("?lr=0.5", &some, None)),
            6 => {
                let state = StateDict::get_copy(engine, &StateDictOptions::default());
                if let Some(state) = self.ok(state) {
                    let load = StateDict::load(engine, Some(&state), &Default::default(), false);
                    self.ok(load);
                }
            }
            _ => {
                if let Some(mut full) = self.ok(engine.summon(ModuleId::ROOT, None, None)) {
                    if let Some(copy) = self.ok(full.writable_param::<u8>(some[0])) {
                        copy.fill(GRAD);
                    }
                    match self.random.below(20) {
                        0 => forget(full),
                        _ => self.try_call(full.end(yes, None)),
                    }
                }
            }
        }
    }

    /// Makes a model, and an engine with random options.
    fn begin(comm: &Comm, seed: u64) -> Result<(Program, Engine)> {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let mut model = Model::create("Net")?;
        let mut params = vec![model.add_param(ModuleId::ROOT, "top", DType::F32, &[64, 64])?];
        for i in 0..4 {
            let block = model.add_module(ModuleId::ROOT, &format!("block{i}"), "Block")?;
            params.push(model.add_param(block, "weight", DType::F32, &[64, 64])?);
        }
        let options = PlanOptions::default()
            .world_size(comm.world_size())
            .stage(random.below(4) as i32)
            .wrap("class?names=Block")
            .optimizer("adamw?lr=0.01")
            .prefetch(random.one_of(&[-1, -1, 1]))
            .whole_grads(random.chance(20))
            .keep_after_forward(random.chance(20));
        let plan = Plan::create(&model, &options)?;
        let missing = [MissingGrads::ERROR, MissingGrads::ZERO, MissingGrads::SKIP];
        let options = EngineOptions::default()
            .overlap(random.chance(40))
            .missing_grads(random.one_of(&missing));
        let mut engine = Engine::create(&plan, comm, &options)?;
        for &param in &params {
            engine.set_param(param, &[1.0 + param.0 as f32; 64 * 64])?;
        }
        engine.broadcast_params(None)?;
        let program = Program {
            random,
            params,
            units: (0..plan.info()?.num_units).map(UnitId).collect(),
            ended: Cell::new(false),
            views: 0,
            steps: 0,
        };
        Ok((program, engine))
    }
}

#[test]
fn what_a_view_shows_never_changes() {
    let programs = match std::env::var_os("SHARD_TEST_LONG") {
        Some(_) => 1000,
        None => 30,
    };
    let (mut views, mut steps) = (0, 0);
    for seed in 0..programs {
        println!("program {seed}"); // The last one is the one that failed.
        let query = if seed % 2 == 0 { "" } else { "&direct=0" };
        let seen = on_ranks(2, query, |comm| {
            let (mut program, mut engine) = Program::begin(&comm, seed).unwrap();
            for _ in 0..20 {
                if program.random.chance(50) {
                    program.train(&mut engine);
                } else {
                    program.call(&engine, 0);
                    program.change(&mut engine);
                }
            }
            (program.views, program.steps)
        });
        views += seen[0].0;
        steps += seen[0].1;
    }
    println!("{views} views, {steps} steps");
    assert!(
        views > 100 * programs && steps > programs,
        "{views} views, {steps} steps"
    );
}
