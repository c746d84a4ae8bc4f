// SPDX-License-Identifier: Apache-2.0

//! Wrong arguments that no other file has.

use shard::{
    BlobRule, Code, DType, Engine, EngineOptions, Model, ModelBufferId, ModuleId, ParamId,
    Partition, Pass, Plan, PlanOptions, StepOptions, UnitId,
};

use crate::common::{code_of, local, message_of, on_ranks, Stack};

#[test]
fn models_refuse_what_they_cannot_have() {
    let mut model = Model::create("Net").unwrap();
    let root = ModuleId::ROOT;
    let mut add =
        |module, name: &str, dtype, shape: &[i64]| model.add_param(module, name, dtype, shape);
    add(root, "weight", DType::F32, &[2, 2]).unwrap();
    for (module, name, dtype, shape) in [
        (root, "a.b", DType::F32, &[2][..]),
        (root, "", DType::F32, &[2]),
        (root, "nul\0", DType::F32, &[2]),
        (ModuleId(7), "a", DType::F32, &[2]),
        (ModuleId(-1), "a", DType::F32, &[2]),
        (root, "a", DType(99), &[2]),
        (root, "a", DType::F32, &[-2]),
        (root, "a", DType::F32, &[i64::MAX, 3]),
        (root, "a", DType::F32, &[1; 9]),
    ] {
        let error = add(module, name, dtype, shape).unwrap_err();
        assert_eq!(error.code(), Code::INVALID_ARGUMENT, "{name} {error}");
    }
    let taken = model.add_param(root, "weight", DType::F32, &[2]);
    assert_eq!(code_of(taken), Code::ALREADY_EXISTS);
    assert_eq!(
        code_of(model.tie(root, "b", ParamId(3))),
        Code::INVALID_ARGUMENT
    );
    assert_eq!(code_of(model.freeze(ParamId(-1))), Code::INVALID_ARGUMENT);
    assert_eq!(
        code_of(model.add_param_group("", &[])),
        Code::INVALID_ARGUMENT
    );
    assert_eq!(
        code_of(model.ignore_module(ModuleId(2))),
        Code::INVALID_ARGUMENT
    );
    let buffer = model.add_buffer(root, "q", DType::Q8, &[2], true);
    assert_eq!(code_of(buffer), Code::INVALID_ARGUMENT);
}

#[test]
fn plans_refuse_numbers_out_of_range() {
    let stack = Stack::new();
    for options in [
        PlanOptions::default(),
        PlanOptions::default().world_size(2).stage(4),
        PlanOptions::default()
            .world_size(2)
            .wrap("class?names=Nothing"),
        PlanOptions::default()
            .world_size(2)
            .partition(Partition::MANUAL)
            .owners([0, 1]),
    ] {
        let error = Plan::create(&stack.model, &options).unwrap_err();
        assert_eq!(error.code(), Code::INVALID_ARGUMENT, "{error}");
    }
    let plan = stack.plan(2, 1);
    assert_eq!(code_of(plan.param_info(ParamId(4))), Code::INVALID_ARGUMENT);
    assert_eq!(
        code_of(plan.param_name(ParamId(0), 1)),
        Code::INVALID_ARGUMENT
    );
    assert_eq!(
        code_of(plan.unit_module(UnitId(99))),
        Code::INVALID_ARGUMENT
    );
    assert_eq!(
        code_of(plan.model_buffer_name(ModelBufferId(0))),
        Code::INVALID_ARGUMENT
    );
}

#[test]
fn engines_refuse_wrong_tensors() {
    let stack = Stack::new();
    let comm = local();
    let plan = stack.plan(1, 1);
    let mut engine = Engine::create(&plan, &comm, &EngineOptions::default()).unwrap();
    let weight = stack.weights[0];
    assert_eq!(
        code_of(engine.set_param(weight, &[0f32; 63])),
        Code::INVALID_ARGUMENT
    );
    assert_eq!(
        code_of(engine.set_param(weight, &[0f64; 32])),
        Code::INVALID_ARGUMENT
    );
    assert_eq!(
        code_of(engine.step(&StepOptions::default())),
        Code::FAILED_PRECONDITION
    );
    engine.set_param(weight, &[0u8; 256]).unwrap();
    engine.broadcast_params(None).unwrap();
    assert_eq!(
        code_of(engine.set_param(weight, &[0f32; 64])),
        Code::FAILED_PRECONDITION
    );
    for id in [-1, 4, i32::MAX, i32::MIN] {
        assert_eq!(
            code_of(engine.param::<f32>(ParamId(id))),
            Code::INVALID_ARGUMENT
        );
        assert_eq!(
            code_of(engine.grad::<f32>(ParamId(id))),
            Code::INVALID_ARGUMENT
        );
        assert_eq!(
            code_of(engine.writable_param::<f32>(ParamId(id))),
            Code::INVALID_ARGUMENT
        );
        let unit = engine.unit_acquire(UnitId(if id == 4 { 5 } else { id }), Pass::FORWARD, None);
        assert_eq!(code_of(unit), Code::INVALID_ARGUMENT);
    }
    let pass = engine.unit_acquire(UnitId(0), Pass(9), None);
    assert_eq!(code_of(pass), Code::INVALID_ARGUMENT);
    assert_eq!(code_of(engine.grad::<f64>(weight)), Code::INVALID_ARGUMENT);
    // The error gave the view back.
    assert!(engine.grad::<f32>(weight).is_ok());
    assert_eq!(
        code_of(engine.hyper(shard::GroupId(3), "lr")),
        Code::INVALID_ARGUMENT
    );
    let blob = engine.set_blob("a", BlobRule(9), b"");
    assert_eq!(code_of(blob), Code::INVALID_ARGUMENT);
    let clip = StepOptions::default().max_grad_norm(-1.0);
    assert_eq!(code_of(engine.step(&clip)), Code::INVALID_ARGUMENT);
}

#[test]
fn a_wrong_argument_of_one_rank_is_the_error_of_all() {
    on_ranks(2, "", |comm| {
        let stack = Stack::new();
        let device = if comm.rank() == 1 { "c\0pu" } else { "cpu" };
        let options = EngineOptions::default().device(device);
        let error = Engine::create(&stack.plan(2, 1), &comm, &options).unwrap_err();
        assert_eq!(error.code(), Code::INVALID_ARGUMENT, "{error}");
        // The group goes on.
        let mut engine = stack.engine(&comm, 1);
        let path = if comm.rank() == 0 { "a\0" } else { "a" };
        let error = shard::Checkpoint::load(&mut engine, path, &Default::default());
        assert_eq!(code_of(error), Code::INVALID_ARGUMENT);
        engine.step(&StepOptions::default()).unwrap();
    });
}

#[test]
fn ranks_that_differ_are_told_the_difference() {
    let messages = on_ranks(2, "", |comm| {
        let mut engine = Stack::new().engine(&comm, 1);
        let clip = StepOptions::default().max_grad_norm(1.0 + f64::from(comm.rank()));
        message_of(engine.step(&clip))
    });
    assert_eq!(messages[0], messages[1]);
    assert!(messages[0].starts_with("DESYNC: ") && messages[0].contains("max_grad_norm"));
}
