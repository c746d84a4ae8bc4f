// SPDX-License-Identifier: Apache-2.0

use shard::{Code, Comm, Engine, EngineOptions, MissingGrads, ModuleId, Pass, StepOptions, UnitId};

use crate::common::{code_of, message_of, on_ranks, Stack};

/// Trains for two steps, unit by unit, and returns all parameters.
fn train(comm: &Comm, stage: i32, begins: bool) -> Vec<f32> {
    let stack = Stack::wide();
    let plan = stack.plan(2, stage);
    let options = EngineOptions::default().overlap(true);
    let mut engine = Engine::create(&plan, comm, &options).unwrap();
    stack.fill(&mut engine);
    for _ in 0..2 {
        if begins {
            engine.begin_step(&StepOptions::default()).unwrap();
        }
        // The root encloses the layers: units nest.
        let root = engine.unit_acquire(UnitId(0), Pass::FORWARD, None).unwrap();
        for (layer, &weight) in stack.weights.iter().enumerate() {
            let unit = engine
                .unit_acquire(stack.unit(&plan, layer), Pass::FORWARD, None)
                .unwrap();
            assert_eq!(unit.param::<f32>(weight).unwrap().len(), 64 * 64);
            unit.release().unwrap();
        }
        root.release().unwrap();
        for (layer, &weight) in stack.weights.iter().enumerate().rev() {
            let id = stack.unit(&plan, layer);
            let mut unit = engine.unit_acquire(id, Pass::BACKWARD, None).unwrap();
            assert_eq!((unit.id(), unit.pass()), (id, Pass::BACKWARD));
            {
                let params = unit.param::<f32>(weight).unwrap();
                let mut grad = unit.grad::<f32>(weight).unwrap();
                for (g, p) in grad.iter_mut().zip(params) {
                    *g = p * (1.0 + comm.rank() as f32);
                }
            }
            if layer % 2 == 0 {
                unit.mark_grads_ready().unwrap();
            } else {
                unit.mark_param_grad_ready(weight).unwrap();
            }
            // The drop releases the unit.
        }
        engine.step(&StepOptions::default()).unwrap();
    }
    let full = engine.summon(ModuleId::ROOT, None, None).unwrap();
    let all = stack
        .weights
        .iter()
        .flat_map(|&weight| full.param::<f32>(weight).unwrap().to_vec());
    let all = all.collect();
    full.end(false, None).unwrap();
    all
}

#[test]
fn every_stage_and_transport_trains_to_the_same_bits() {
    let mut expected = None;
    for query in ["", "&direct=0"] {
        for stage in 0..4 {
            for begins in [false, true] {
                let results = on_ranks(2, query, |comm| train(&comm, stage, begins));
                let expected = expected.get_or_insert_with(|| results[0].clone());
                assert_eq!(&results[0], expected, "stage {stage} {query} {begins}");
                assert_eq!(&results[1], expected, "stage {stage} {query} {begins}");
            }
        }
    }
}

#[test]
fn a_unit_gives_all_its_parameters() {
    on_ranks(2, "&direct=0", |comm| {
        let stack = Stack::wide();
        let mut engine = stack.engine(&comm, 3);
        let plan = engine.plan().unwrap();
        assert!(
            plan.info().unwrap().shards_params,
            "{}",
            plan.text().unwrap()
        );
        for layer in 0..stack.layers.len() {
            let id = stack.unit(&plan, layer);
            let forward = engine.unit_acquire(id, Pass::FORWARD, None).unwrap();
            assert!(forward.params::<f32>().unwrap()[0].grad.is_none());
            forward.release().unwrap();
            let mut unit = engine
                .unit_acquire(id, Pass::BACKWARD_OVERWRITE, None)
                .unwrap();
            {
                let mut params = unit.params::<f32>().unwrap();
                assert_eq!((params.len(), params[0].id), (1, stack.weights[layer]));
                assert_eq!(params[0].data.len(), 64 * 64);
                params[0].grad.as_mut().unwrap().fill(1.0);
            }
            unit.mark_grads_ready().unwrap();
        }
        engine.step(&StepOptions::default()).unwrap();
    });
}

#[test]
fn a_unit_has_no_parameters_of_others() {
    on_ranks(1, "", |comm| {
        let stack = Stack::new();
        let engine = stack.engine(&comm, 1);
        let id = stack.unit(&engine.plan().unwrap(), 0);
        let mut unit = engine.unit_acquire(id, Pass::BACKWARD, None).unwrap();
        let other = stack.weights[1];
        let error = message_of(unit.mark_param_grad_ready(other));
        assert_eq!(
            error,
            "INVALID_ARGUMENT: parameter 1 is in unit 2, not in unit 1; acquire the unit that it is in"
        );
        assert_eq!(code_of(unit.grad::<f32>(other)), Code::INVALID_ARGUMENT);
        assert_eq!(code_of(unit.param::<f32>(other)), Code::INVALID_ARGUMENT);
        // Nor does the engine declare what a unit holds.
        let held = engine.mark_param_grad_ready(stack.weights[0]);
        assert_eq!(code_of(held), Code::FAILED_PRECONDITION);
        assert_eq!(
            code_of(engine.mark_unit_grads_ready(id)),
            Code::FAILED_PRECONDITION
        );
        let again = engine.unit_acquire(id, Pass::FORWARD, None);
        assert_eq!(code_of(again), Code::FAILED_PRECONDITION);
    });
}

#[test]
fn the_engine_declares_units_that_nobody_acquired() {
    on_ranks(2, "", |comm| {
        let stack = Stack::new();
        let mut engine = stack.engine(&comm, 1);
        let plan = engine.plan().unwrap();
        engine.set_accumulate(true).unwrap();
        for pass in 0..2 {
            engine.set_accumulate(pass == 0).unwrap();
            for (layer, &weight) in stack.weights.iter().enumerate() {
                engine
                    .grad::<f32>(weight)
                    .unwrap()
                    .iter_mut()
                    .for_each(|g| *g += 1.0);
                if layer == 0 {
                    engine.mark_param_grad_ready(weight).unwrap();
                } else {
                    engine
                        .mark_unit_grads_ready(stack.unit(&plan, layer))
                        .unwrap();
                }
            }
        }
        // A gradient that is being reduced is not the host's.
        let busy = engine.grad::<f32>(stack.weights[0]);
        assert_eq!(code_of(busy), Code::FAILED_PRECONDITION);
        engine.step(&StepOptions::default()).unwrap();
        assert_eq!(engine.grad::<f32>(stack.weights[0]).unwrap()[0], 2.0);
    });
}

#[test]
fn missing_gradients_are_named_or_skipped() {
    on_ranks(1, "", |comm| {
        let stack = Stack::new();
        let mut engine = stack.engine(&comm, 1);
        let first = stack.unit(&engine.plan().unwrap(), 0);
        engine.mark_unit_grads_ready(first).unwrap();
        let error = message_of(engine.step(&StepOptions::default()));
        assert!(error.contains("layer1"), "{error}");
    });
    on_ranks(1, "", |comm| {
        let stack = Stack::new();
        let plan = stack.plan(1, 1);
        let options = EngineOptions::default().missing_grads(MissingGrads::SKIP);
        let mut engine = Engine::create(&plan, &comm, &options).unwrap();
        stack.fill(&mut engine);
        engine.grad::<f32>(stack.weights[0]).unwrap().fill(1.0);
        engine.mark_unit_grads_ready(stack.unit(&plan, 0)).unwrap();
        let before = engine.param::<f32>(stack.weights[1]).unwrap().to_vec();
        engine.step(&StepOptions::default()).unwrap();
        assert_eq!(engine.param::<f32>(stack.weights[1]).unwrap(), before);
    });
}
