// SPDX-License-Identifier: Apache-2.0

use std::ptr;
use std::time::Duration;

use shard::{
    devices_json, schedule_lr, Code, DType, DeviceKind, Engine, EngineOptions, GroupId, Model, ModelBufferId, ModuleId,
    ParamId, Plan, PlanOptions, StepOptions,
};

use crate::common::{code_of, first_values, local, on_ranks, Stack};

/// Writes a gradient that depends on rank and step.
fn write_grads(engine: &Engine, stack: &Stack, rank: i32) {
    for &weight in &stack.weights {
        let mut grad = engine.grad::<f32>(weight).unwrap();
        for (i, g) in grad.iter_mut().enumerate() {
            *g = (i as f32 - 20.0) / (2.0 + rank as f32);
        }
    }
}

#[test]
fn ranks_train_to_the_same_parameters() {
    let results = on_ranks(2, "", |comm| {
        let stack = Stack::new();
        let mut engine = stack.engine(&comm, 1);
        for step in 0..3 {
            engine.zero_grad().unwrap();
            write_grads(&engine, &stack, comm.rank());
            let options = StepOptions::default().max_grad_norm(if step == 1 { 0.5 } else { 0.0 });
            let report = engine.step(&options).unwrap();
            assert_eq!(
                (report.step, report.skipped, report.active_ranks),
                (step + 1, false, 2)
            );
            assert_eq!(report.grad_norm.is_some(), step == 1);
        }
        assert_eq!(engine.completed_steps().unwrap(), 3);
        let params: Vec<f32> = engine.param(stack.weights[2]).unwrap().to_vec();
        comm.shutdown(None).unwrap();
        params
    });
    assert_eq!(results[0], results[1]);
    assert_ne!(results[0], first_values(ParamId(2)));
}

#[test]
fn the_last_report_and_the_stream_are_the_engines() {
    on_ranks(2, "", |comm| {
        let stack = Stack::new();
        let mut engine = stack.engine(&comm, 1);
        assert_eq!(code_of(engine.last_report()), Code::FAILED_PRECONDITION);
        assert_eq!(engine.device().unwrap(), (DeviceKind::CPU, 0));
        assert_eq!(
            engine.json().unwrap(),
            r#"{"device":"cpu","transport":"direct","sum_order":"ranks"}"#
        );
        unsafe { engine.set_stream(ptr::null_mut()) }.unwrap();
        let mut stream = 0;
        let native = ptr::addr_of_mut!(stream).cast();
        assert_eq!(
            code_of(unsafe { engine.set_stream(native) }),
            Code::INVALID_ARGUMENT
        );
        assert_eq!(
            code_of(unsafe { engine.capture_begin() }),
            Code::UNIMPLEMENTED
        );
        assert_eq!(code_of(engine.capture_end()), Code::FAILED_PRECONDITION);
        assert_eq!(
            code_of(engine.before_replay(&StepOptions::default())),
            Code::FAILED_PRECONDITION
        );
        let report = engine.step(&StepOptions::default()).unwrap();
        engine.synchronize(Some(Duration::from_secs(30))).unwrap();
        engine.synchronize(None).unwrap();
        assert_eq!(engine.last_report().unwrap(), report);
        engine.step_without_report(&StepOptions::default()).unwrap();
        assert_eq!(engine.last_report().unwrap().step, report.step + 1);
        comm.shutdown(None).unwrap();
    });
}

#[test]
fn hyperparameters_and_states_are_set() {
    let stack = Stack::new();
    let comm = local();
    let mut engine = stack.engine(&comm, 1);
    engine.set_hyper(None, "lr", 0.25).unwrap();
    assert_eq!(engine.hyper(GroupId(0), "lr").unwrap(), 0.25);
    assert!(engine
        .group_text(GroupId(0))
        .unwrap()
        .starts_with("adamw?lr=0.25&"));
    assert_eq!(
        code_of(engine.set_hyper(None, "speed", 1.0)),
        Code::NOT_FOUND
    );
    engine.set_completed_steps(41).unwrap();
    assert_eq!(engine.completed_steps().unwrap(), 41);
    engine
        .set_state(stack.weights[0], "exp_avg", &[0.5; 64])
        .unwrap();
    let wrong = engine.set_state(stack.weights[0], "exp_avg", &[0.5; 63]);
    assert_eq!(code_of(wrong), Code::INVALID_ARGUMENT);
    assert_eq!(
        code_of(engine.set_state(stack.weights[0], "speed", &[])),
        Code::NOT_FOUND
    );
    assert_eq!(
        engine.plan().unwrap().info(),
        stack.plan(1, 1).info()
    );
    assert_eq!(
        schedule_lr("linear?lr=1&warmup=10&total=20", 5).unwrap(),
        0.5
    );
    assert_eq!(code_of(schedule_lr("linear", 1)), Code::INVALID_ARGUMENT);
    assert!(devices_json().unwrap().starts_with("{\"cuda\":{\"driver\":"));
}

#[test]
fn dynamic_loss_scaling_skips_steps() {
    let stack = Stack::new();
    let options = EngineOptions::default().loss_scaling("dynamic?init_scale=8&growth_interval=9");
    let mut engine = Engine::create(&stack.plan(1, 1), &local(), &options).unwrap();
    stack.fill(&mut engine);
    engine.set_loss_scale(16.0, 3).unwrap();
    assert_eq!(
        (
            engine.loss_scale().unwrap(),
            engine.growth_tracker().unwrap()
        ),
        (16.0, 3)
    );
    engine.grad::<f32>(stack.weights[1]).unwrap()[5] = f32::INFINITY;
    assert!(engine.step(&StepOptions::default()).unwrap().skipped);
    assert_eq!(
        (
            engine.loss_scale().unwrap(),
            engine.growth_tracker().unwrap()
        ),
        (8.0, 0)
    );
}

#[test]
fn a_rank_without_input_joins() {
    let steps = on_ranks(2, "", |comm| {
        let stack = Stack::new();
        let mut engine = stack.engine(&comm, 1);
        if comm.rank() == 0 {
            return engine.join(None).unwrap();
        }
        for _ in 0..2 {
            write_grads(&engine, &stack, 1);
            let report = engine
                .step(&StepOptions::default().average_active(true))
                .unwrap();
            assert_eq!(report.active_ranks, 1);
        }
        engine.join(Some(Duration::from_secs(20))).unwrap()
    });
    assert_eq!(steps, [2, 0]);
}

#[test]
fn groups_and_frozen_parameters_change_at_run_time() {
    on_ranks(2, "", |comm| {
        let stack = Stack::new();
        let mut engine = stack.engine(&comm, 1);
        let group = engine
            .add_param_group("?lr=0.5", &stack.weights[..1], None)
            .unwrap();
        assert_eq!(engine.hyper(group, "lr").unwrap(), 0.5);
        engine
            .set_trainable(&stack.weights[1..2], false, None)
            .unwrap();
        let frozen = engine.grad::<f32>(stack.weights[1]);
        assert_eq!(code_of(frozen), Code::FAILED_PRECONDITION);
        assert!(
            !engine
                .plan()
                .unwrap()
                .param_info(stack.weights[1])
                .unwrap()
                .trainable
        );
        assert_eq!(
            engine.param::<f32>(stack.weights[1]).unwrap(),
            first_values(stack.weights[1])
        );
        // A text that C cannot have is an error of all ranks, and training goes on.
        let text = if comm.rank() == 0 { "?lr=\0" } else { "?lr=1" };
        let wrong = engine.add_param_group(text, &stack.weights[2..], None);
        assert_eq!(code_of(wrong), Code::INVALID_ARGUMENT);
        engine.step(&StepOptions::default()).unwrap();
    });
}

#[test]
fn full_parameters_are_copies() {
    on_ranks(2, "&direct=0", |comm| {
        let stack = Stack::new();
        let mut engine = stack.engine(&comm, 3);
        let weight = stack.weights[3];
        {
            let mut full = engine.summon(ModuleId::ROOT, None, None).unwrap();
            assert_eq!(full.param::<f32>(weight).unwrap(), first_values(weight));
            full.writable_param::<f32>(weight).unwrap().fill(7.0);
            // Dropped on all ranks: nothing is changed.
        }
        let mut full = engine.summon(stack.layers[3], Some(1), None).unwrap();
        if comm.rank() == 1 {
            assert_eq!(full.param::<f32>(weight).unwrap(), first_values(weight));
            full.writable_param::<f32>(weight).unwrap()[0] = 9.0;
        } else {
            let missing = full.param::<f32>(weight);
            assert_eq!(code_of(missing), Code::FAILED_PRECONDITION);
        }
        full.end(true, None).unwrap();
        let full = engine.summon(ModuleId::ROOT, None, None).unwrap();
        assert_eq!(
            full.param::<f32>(weight).unwrap()[..2],
            [9.0, first_values(weight)[1]]
        );
        full.end(false, None).unwrap();
    });
}

#[test]
fn a_rank_that_drops_its_copies_does_not_hang_the_others() {
    let results = on_ranks(2, "", |comm| {
        let mut engine = Stack::new().engine(&comm, 1);
        let full = engine.summon(ModuleId::ROOT, None, None).unwrap();
        if comm.rank() == 0 {
            drop(full);
            return None;
        }
        Some(code_of(full.end(true, None)))
    });
    assert_eq!(results, [None, Some(Code::DESYNC)]);
}

#[test]
fn buffers_are_the_hosts() {
    on_ranks(2, "", |comm| {
        let mut model = Model::create("Norm").unwrap();
        model
            .add_param(ModuleId::ROOT, "weight", DType::F32, &[3])
            .unwrap();
        let mean = model
            .add_buffer(ModuleId::ROOT, "mean", DType::F32, &[3], true)
            .unwrap();
        let count = model
            .add_buffer(ModuleId::ROOT, "count", DType::I64, &[], true)
            .unwrap();
        let plan = Plan::create(&model, &PlanOptions::default().world_size(2)).unwrap();
        let mut engine = Engine::create(&plan, &comm, &EngineOptions::default()).unwrap();
        {
            let mut mean = engine.buffer::<f32>(mean).unwrap();
            let mut count = engine.buffer::<i64>(count).unwrap();
            mean.fill(comm.rank() as f32);
            count[0] = 5 + i64::from(comm.rank());
        }
        engine.broadcast_buffers(1, None).unwrap();
        assert_eq!(engine.buffer::<f32>(mean).unwrap()[..], [1.0; 3]);
        assert_eq!(engine.buffer::<i64>(count).unwrap()[..], [6]);
        assert_eq!(code_of(engine.buffer::<f32>(count)), Code::INVALID_ARGUMENT);
        assert_eq!(
            code_of(engine.buffer::<f32>(ModelBufferId(2))),
            Code::INVALID_ARGUMENT
        );
    });
}

#[test]
fn memory_of_the_host_is_bound() {
    let stack = Stack::new();
    let comm = local();
    let mut engine = stack.engine(&comm, 1);
    let weight = stack.weights[0];
    let (mut values, mut grad) = (vec![0f32; 64], vec![0f32; 64]);
    let (value_memory, grad_memory) = (values.as_mut_ptr(), grad.as_mut_ptr());
    // SAFETY: both live until they are unbound below.
    unsafe {
        engine
            .bind_param(weight, Some((value_memory, 64)), Some((grad_memory, 64)))
            .unwrap();
    }
    engine.grad::<f32>(weight).unwrap().fill(1.0);
    engine.step(&StepOptions::default()).unwrap();
    unsafe {
        let short = engine.bind_param(weight, Some((value_memory, 63)), None);
        assert_eq!(code_of(short), Code::INVALID_ARGUMENT);
        engine.bind_param::<f32>(weight, None, None).unwrap();
    }
    assert_eq!(values, engine.param::<f32>(weight).unwrap());
    assert_eq!(grad, [1.0; 64]);
}

#[test]
fn sixteen_bit_elements_are_seen_as_bits_or_bytes() {
    let stack = Stack::new();
    let options = stack.options(1, 1).param_dtype(DType::BF16);
    let plan = Plan::create(&stack.model, &options).unwrap();
    let mut engine = Engine::create(&plan, &local(), &EngineOptions::default()).unwrap();
    let weight = stack.weights[0];
    engine.writable_param::<u16>(weight).unwrap().fill(0x3f80); // 1.0
    engine.broadcast_params(None).unwrap();
    assert_eq!(engine.param::<u16>(weight).unwrap(), [0x3f80; 64]);
    assert_eq!(engine.param::<u8>(weight).unwrap().len(), 128);
    assert_eq!(engine.grad::<u16>(weight).unwrap().len(), 64);
    let error = engine.param::<f32>(weight).unwrap_err();
    assert!(
        error
            .message()
            .contains("bf16 and cannot be seen as f32; use u16"),
        "{error}"
    );
    assert_eq!(
        (DType::BF16.name(), DType::BF16.size(), DType(77).name()),
        ("bf16", 2, "unknown")
    );
}
