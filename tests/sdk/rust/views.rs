// SPDX-License-Identifier: Apache-2.0

//! Views of an engine's memory: what excludes them, and what forgetting does.

use std::mem::forget;

use shard::{
    Code, Comm, CommOptions, Engine, EngineOptions, ModuleId, Pass, Plan, Result, StateDict,
    StateDictOptions, StepOptions,
};

use crate::common::{code_of, local, message_of, on_ranks, Stack};

fn is_send<T: Send>() {}
fn is_sync<T: Sync>() {}

#[test]
fn handles_move_between_threads() {
    is_send::<Engine>();
    is_send::<shard::Model>();
    is_send::<shard::StateDict<'_>>();
    is_send::<shard::Error>();
    is_send::<Comm>();
    is_sync::<Comm>();
    is_sync::<Plan>();
    is_sync::<shard::Checkpoint>();
    is_sync::<shard::Save>();
}

#[test]
fn a_gradient_has_one_view_at_a_time() {
    let stack = Stack::new();
    let engine = stack.engine(&local(), 1);
    let weight = stack.weights[0];
    let view = engine.grad::<f32>(weight).unwrap();
    assert_eq!(
        code_of(engine.grad::<f32>(weight)),
        Code::FAILED_PRECONDITION
    );
    let other = engine.grad::<f32>(stack.weights[1]).unwrap();
    // Nor is it declared, or zeroed by a backward pass, under the view.
    assert_eq!(
        code_of(engine.mark_param_grad_ready(weight)),
        Code::FAILED_PRECONDITION
    );
    let unit = stack.unit(&engine.plan().unwrap(), 0);
    let acquired = engine.unit_acquire(unit, Pass::BACKWARD, None);
    assert_eq!(code_of(acquired), Code::FAILED_PRECONDITION);
    drop((view, other));
    engine.mark_param_grad_ready(weight).unwrap();
}

#[test]
fn a_view_that_is_forgotten_comes_back_with_the_step() {
    let stack = Stack::new();
    let mut engine = stack.engine(&local(), 1);
    forget(engine.grad::<f32>(stack.weights[0]).unwrap());
    let view = engine.grad::<f32>(stack.weights[0]);
    assert_eq!(code_of(view), Code::FAILED_PRECONDITION);
    engine.step(&StepOptions::default()).unwrap();
    assert!(engine.grad::<f32>(stack.weights[0]).is_ok());
}

#[test]
fn units_and_copies_that_are_forgotten_are_named_by_the_next_step() {
    let stack = Stack::new();
    let comm = local();
    let mut engine = stack.engine(&comm, 1);
    let unit = stack.unit(&engine.plan().unwrap(), 0);
    forget(engine.unit_acquire(unit, Pass::FORWARD, None).unwrap());
    assert_eq!(
        code_of(engine.step(&StepOptions::default())),
        Code::FAILED_PRECONDITION
    );

    let mut engine = stack.engine(&local(), 1);
    forget(engine.summon(ModuleId::ROOT, None, None).unwrap());
    assert_eq!(
        code_of(engine.step(&StepOptions::default())),
        Code::FAILED_PRECONDITION
    );
    assert_eq!(engine.param::<f32>(stack.weights[0]).unwrap().len(), 64);
}

#[test]
fn engines_and_communicators_may_be_forgotten() {
    let comm = local();
    forget(Stack::new().engine(&comm, 1));
    forget(comm);
}

#[test]
fn parameters_that_others_write_are_not_seen() {
    on_ranks(2, "", |comm| {
        let stack = Stack::new();
        let plan = stack.plan(2, 1);
        let mut engine = Engine::create(&plan, &comm, &EngineOptions::default()).unwrap();
        let weight = stack.weights[0];
        // Rank 0 may write them.
        let error = message_of(engine.param::<f32>(weight));
        assert!(error.contains("no values yet"), "{error}");
        assert_eq!(
            engine.writable_param::<f32>(weight).is_ok(),
            comm.rank() == 0
        );
        engine.broadcast_params(None).unwrap();
        assert!(engine.param::<f32>(weight).is_ok());
        let written = engine.writable_param::<f32>(weight);
        assert_eq!(code_of(written), Code::FAILED_PRECONDITION);
        // They change as units are ready.
        engine.begin_step(&StepOptions::default()).unwrap();
        let error = message_of(engine.param::<f32>(weight));
        assert!(
            error.contains("the step has begun; acquire unit 1"),
            "{error}"
        );
        for layer in 0..stack.layers.len() {
            let id = stack.unit(&plan, layer);
            let mut unit = engine.unit_acquire(id, Pass::BACKWARD, None).unwrap();
            assert!(unit.param::<f32>(stack.weights[layer]).is_ok());
            unit.mark_grads_ready().unwrap();
            let changing = unit.param::<f32>(stack.weights[layer]);
            assert_eq!(code_of(changing), Code::FAILED_PRECONDITION);
            assert_eq!(code_of(unit.params::<f32>()), Code::FAILED_PRECONDITION);
        }
        engine.step(&StepOptions::default()).unwrap();
        assert!(engine.param::<f32>(weight).is_ok());
    });
}

#[test]
fn sharded_tensors_are_seen_through_their_unit() {
    on_ranks(2, "&direct=0", |comm| {
        let stack = Stack::wide();
        let engine = stack.engine(&comm, 3);
        let weight = stack.weights[0];
        let (param, grad) = (engine.param::<f32>(weight), engine.grad::<f32>(weight));
        assert_eq!(code_of(param), Code::FAILED_PRECONDITION);
        assert_eq!(code_of(grad), Code::FAILED_PRECONDITION);
        let id = stack.unit(&engine.plan().unwrap(), 0);
        let unit = engine.unit_acquire(id, Pass::BACKWARD, None).unwrap();
        assert!(unit.grad::<f32>(weight).is_ok());
        // A view of the engine's would outlive the unit.
        let (param, grad) = (engine.param::<f32>(weight), engine.grad::<f32>(weight));
        assert_eq!(code_of(param), Code::FAILED_PRECONDITION);
        assert_eq!(code_of(grad), Code::FAILED_PRECONDITION);
    });
}

#[test]
fn a_rank_that_is_left_behind_sees_no_tensors() {
    let options = StepOptions::default();
    expect_no_tensors_after(|engine| engine.step_without_report(&options));
    expect_no_tensors_after(|engine| engine.before_replay(&options));
}

/// Makes a call that the other rank has left.
fn expect_no_tensors_after(call: impl Fn(&mut Engine) -> Result<()> + Sync) {
    on_ranks(2, "", |comm| {
        let stack = Stack::new();
        let mut engine = stack.engine(&comm, 1);
        if comm.rank() == 1 {
            return;
        }
        assert_eq!(code_of(call(&mut engine)), Code::RANK_LOST);
        // With more ranks, others could be writing these.
        let weight = stack.weights[0];
        let error = message_of(engine.param::<f32>(weight));
        assert!(
            error.contains("others may still use the tensors"),
            "{error}"
        );
        let grad = engine.grad::<f32>(weight);
        assert_eq!(code_of(grad), Code::FAILED_PRECONDITION);
        // Its own part is its own.
        let state = StateDict::get(&mut engine, &StateDictOptions::default()).unwrap();
        let tensor = state.find("layer0.weight").unwrap();
        assert_eq!(state.local::<f32>(tensor).unwrap().begin, 0);
    });
}

#[test]
fn handles_are_dropped_in_any_order() {
    let comm = Comm::open("local:", &CommOptions::default()).unwrap();
    let stack = Stack::new();
    let plan = stack.plan(1, 1);
    let mut engine = Engine::create(&plan, &comm, &EngineOptions::default()).unwrap();
    drop((comm, plan));
    stack.fill(&mut engine);
    let weight = stack.weights[0];
    drop(stack);
    engine.step(&StepOptions::default()).unwrap();
    assert_eq!(engine.param::<f32>(weight).unwrap().len(), 64);
}
