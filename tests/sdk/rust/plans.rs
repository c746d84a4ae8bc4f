// SPDX-License-Identifier: Apache-2.0

use shard::{
    clean_tensor_name, BufferId, Code, DType, Engine, EngineOptions, GroupId, Masters, Model,
    ModelBufferId, ModuleId, NameId, ParamId, Partition, Placement, Plan, PlanOptions, UnitId,
};

use crate::common::{code_of, local, message_of, Stack};

/// A model with one of everything.
fn everything() -> Model {
    let mut model = Model::create("Net").unwrap();
    let encoder = model
        .add_module(ModuleId::ROOT, "encoder", "Linear")
        .unwrap();
    let decoder = model
        .add_module(ModuleId::ROOT, "decoder", "Linear")
        .unwrap();
    let head = model.add_module(ModuleId::ROOT, "head", "").unwrap();
    let weight = model
        .add_param(encoder, "weight", DType::F32, &[6, 4])
        .unwrap();
    let bias = model.add_param(encoder, "bias", DType::F32, &[6]).unwrap();
    let frozen = model.add_param(decoder, "scale", DType::F32, &[]).unwrap();
    let ignored = model.add_param(decoder, "extra", DType::F32, &[2]).unwrap();
    model.add_param(head, "weight", DType::F32, &[9]).unwrap();
    let mean = model
        .add_buffer(encoder, "mean", DType::F32, &[6], true)
        .unwrap();
    let count = model
        .add_buffer(encoder, "count", DType::I64, &[], false)
        .unwrap();
    assert_eq!((mean, count), (ModelBufferId(0), ModelBufferId(1)));
    model.tie(decoder, "weight", weight).unwrap();
    model.freeze(frozen).unwrap();
    model.ignore_param(ignored).unwrap();
    model.ignore_module(head).unwrap();
    let group = model.add_param_group("?weight_decay=0", &[bias]).unwrap();
    assert_eq!(group, GroupId(1));
    model
}

#[test]
fn a_plan_knows_its_model() {
    let plan = Plan::create(&everything(), &PlanOptions::default().world_size(2)).unwrap();
    let info = plan.info().unwrap();
    assert_eq!(
        (info.world_size, info.num_params, info.num_modules),
        (2, 5, 4)
    );
    assert_eq!(
        (info.num_groups, info.num_units, info.num_model_buffers),
        (2, 1, 2)
    );

    let weight = plan.find_param("decoder.weight").unwrap();
    assert_eq!(weight, ParamId(0));
    assert_eq!(plan.param_name(weight, 0).unwrap(), "encoder.weight");
    assert_eq!(plan.param_name(weight, 1).unwrap(), "decoder.weight");
    let param = plan.param_info(weight).unwrap();
    assert_eq!(
        (param.shape, param.num_names, param.trainable),
        (vec![6, 4], 2, true)
    );
    assert_eq!((param.first_rank, param.last_rank), (Some(0), Some(1)));
    let buffer = plan.buffer_info(param.buffer).unwrap();
    assert_eq!(
        (buffer.dtype, buffer.grad_dtype),
        (DType::F32, Some(DType::F32))
    );
    assert_eq!(buffer.group, Some(param.group));
    assert_eq!(plan.buffer_param(param.buffer, 0).unwrap(), weight);
    let scalar = plan.param_info(ParamId(2)).unwrap();
    assert_eq!((scalar.shape, scalar.trainable), (vec![], false));

    let name = plan.name_info(NameId(0)).unwrap();
    assert_eq!((name.param, name.index), (weight, 0));
    let module = plan.module_info(1).unwrap();
    assert_eq!(
        (module.parent, module.depth, module.ignored),
        (Some(ModuleId::ROOT), 1, false)
    );
    assert_eq!(plan.module_name(module.module).unwrap(), "encoder");
    assert_eq!(plan.module_class(module.module).unwrap(), "Linear");
    assert_eq!(plan.module_name(ModuleId::ROOT).unwrap(), "");
    let mean = plan.model_buffer_info(ModelBufferId(0)).unwrap();
    assert_eq!(
        (mean.shape, mean.persistent, mean.dtype),
        (vec![6], true, DType::F32)
    );
    assert_eq!(
        plan.model_buffer_name(ModelBufferId(1)).unwrap(),
        "encoder.count"
    );

    assert_eq!(plan.unit_of(weight).unwrap(), UnitId(0));
    assert_eq!(
        plan.unit_of_module(ModuleId::ROOT).unwrap(),
        Some(UnitId(0))
    );
    assert_eq!(plan.unit_of_module(module.module).unwrap(), None);
    assert_eq!(plan.unit_module(UnitId(0)).unwrap(), ModuleId::ROOT);
    assert_eq!(code_of(plan.unit_of(ParamId(3))), Code::FAILED_PRECONDITION);
    assert_eq!(code_of(plan.find_param("encoder.nothing")), Code::NOT_FOUND);

    assert!(plan.text().unwrap().contains("encoder"));
    assert!(plan.json().unwrap().starts_with('{'));
    assert_eq!(
        plan.warnings().unwrap().lines().count(),
        1,
        "{:?}",
        plan.warnings()
    );
}

#[test]
fn slices_cover_the_ranges_of_all_ranks() {
    let stack = Stack::new();
    let plan = stack.plan(2, 1);
    let mut elements = 0;
    for buffer in (0..plan.info().unwrap().num_buffers).map(BufferId) {
        for rank in 0..2 {
            let range = plan.rank_range(buffer, rank).unwrap();
            let slices = plan.slices(buffer, range.begin, range.numel).unwrap();
            let numel: i64 = slices.iter().map(|slice| slice.numel).sum();
            assert_eq!(numel, range.numel - range.num_padded);
            elements += numel;
        }
        assert!(plan.slices(buffer, 0, 0).unwrap().is_empty());
        assert_eq!(code_of(plan.slices(buffer, -1, 4)), Code::INVALID_ARGUMENT);
    }
    assert_eq!(elements, 4 * 64);
}

#[test]
fn a_view_lies_in_the_hosts_copy() {
    let plan = Stack::new().plan(2, 1);
    let param = plan.param_info(ParamId(0)).unwrap();
    let numel = plan.buffer_info(param.buffer).unwrap().full_numel as usize;
    let mut copy = vec![0f32; numel];
    plan.param_view(ParamId(0), &mut copy).unwrap().fill(2.0);
    let begin = param.begin as usize;
    assert!(copy[begin..begin + 64].iter().all(|&x| x == 2.0));
    assert_eq!(
        code_of(plan.param_view(ParamId(0), &mut copy[1..])),
        Code::INVALID_ARGUMENT
    );
    let error = message_of(plan.param_view(ParamId(0), &mut vec![0f64; numel]));
    assert!(
        error.contains("is f32 and cannot be seen as f64"),
        "{error}"
    );
}

#[test]
fn a_plan_travels_as_bytes() {
    let plan = Stack::new().plan(3, 2);
    let bytes = plan.encode().unwrap();
    let copy = Plan::decode(&bytes).unwrap();
    assert_eq!(plan.info(), copy.info());
    assert_eq!(plan.text(), copy.text());
    for end in [0, 1, bytes.len() / 2, bytes.len() - 1] {
        assert_eq!(
            code_of(Plan::decode(&bytes[..end])),
            Code::CORRUPT,
            "{end} bytes"
        );
    }
}

#[test]
fn options_reach_the_plan() {
    let stack = Stack::new();
    let options = PlanOptions::default()
        .world_size(2)
        .stage(3)
        .partition(Partition::MANUAL)
        .owners([1, 0, 1, 0])
        .optimizer("sgd?lr=0.5")
        .masters(Masters::NONE_STOCHASTIC)
        .seed(7)
        .param_dtype(DType::BF16)
        .f32_grads(true)
        .wrap_predicate(|module, numel| module.0 % 2 == 1 && numel == 64);
    let plan = Plan::create(&stack.model, &options).unwrap();
    assert_eq!(plan.info().unwrap().num_units, 3);
    for (param, owner) in [1, 0, 1, 0].into_iter().enumerate() {
        let param = plan.param_info(ParamId(param as i32)).unwrap();
        assert_eq!((param.dtype, param.first_rank), (DType::BF16, Some(owner)));
        let buffer = plan.buffer_info(param.buffer).unwrap();
        assert_eq!(buffer.grad_dtype, Some(DType::F32));
    }
    let error = Plan::create(&stack.model, &options.clone().optimizer("adamx")).unwrap_err();
    assert!(
        error.message().contains("unknown optimizer 'adamx'"),
        "{error}"
    );
    assert_eq!(
        code_of(Plan::create(&stack.model, &options.wrap("\0"))),
        Code::INVALID_ARGUMENT
    );
}

#[test]
fn memory_is_what_the_engine_uses() {
    let plan = Stack::new().plan(1, 1);
    let placement = Placement::default().ranks_per_host(1).device("cpu");
    let planned = plan.memory(&placement).unwrap();
    let engine = Engine::create(&plan, &local(), &EngineOptions::default()).unwrap();
    assert_eq!(planned, engine.memory().unwrap());
    assert!(planned.param_bytes >= 4 * 64 * 4);
    let wrong = Placement::default().ranks_per_host(5);
    assert_eq!(code_of(plan.memory(&wrong)), Code::INVALID_ARGUMENT);
}

#[test]
fn names_lose_what_wrappers_add() {
    let name = "module.block._fsdp_wrapped_module.weight";
    assert_eq!(clean_tensor_name(name, true).unwrap(), "block.weight");
    assert_eq!(
        clean_tensor_name(name, false).unwrap(),
        "module.block.weight"
    );
    assert_eq!(clean_tensor_name("", false).unwrap(), "");
}

#[test]
fn a_plan_is_used_by_many_threads() {
    let plan = Stack::new().plan(2, 3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(plan.param_name(ParamId(1), 0).unwrap(), "layer1.weight"));
        }
    });
}
