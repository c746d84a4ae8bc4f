// SPDX-License-Identifier: Apache-2.0

//! Views of an engine on a GPU: the host cannot use the GPU's memory, so slices of it
//! are refused, and addresses given. Runs with the fake of NVIDIA's driver, which faults
//! where the program uses the GPU's memory.

use shard::{
    Code, DType, DeviceKind, Engine, EngineOptions, Model, ModelBufferId, ModuleId, ParamId, Pass,
    Plan, PlanOptions, Result, StateDict, StateDictOptions, StepOptions,
};

use crate::common::{code_of, has_gpu, local, message_of};

const WEIGHT: &str = "parameter 0 is in the memory of GPU 0, which the host cannot use; ";

/// An engine of two modules on one rank, without values.
struct Host {
    engine: Engine,
    block: ModuleId,
    weight: ParamId,
    bias: ParamId,
    mean: ModelBufferId,
}

impl Host {
    fn new(device: &str) -> Host {
        let mut model = Model::create("Net").unwrap();
        let block = model.add_module(ModuleId::ROOT, "block", "Block").unwrap();
        let weight = model
            .add_param(ModuleId::ROOT, "weight", DType::F32, &[4, 2])
            .unwrap();
        let bias = model.add_param(block, "bias", DType::F32, &[100]).unwrap();
        let mean = model
            .add_buffer(ModuleId::ROOT, "mean", DType::F32, &[3], true)
            .unwrap();
        let options = PlanOptions::default()
            .world_size(1)
            .optimizer("sgd?momentum=0.9");
        let plan = Plan::create(&model, &options).unwrap();
        let options = EngineOptions::default().device(device);
        let mut engine = Engine::create(&plan, &local(), &options).unwrap();
        engine.set_param(weight, &[2f32; 8]).unwrap();
        Host {
            engine,
            block,
            weight,
            bias,
            mean,
        }
    }

    fn ready(device: &str) -> Host {
        let mut host = Host::new(device);
        host.engine.broadcast_params(None).unwrap();
        host
    }
}

fn expect_refused<T>(result: Result<T>, words: &[&str]) {
    let error = match result {
        Ok(_) => panic!("not refused: {words:?}"),
        Err(error) => error,
    };
    assert_eq!(error.code(), Code::FAILED_PRECONDITION, "{error}");
    for word in words {
        assert!(error.message().contains(word), "{error} has no '{word}'");
    }
}

/// Checks the addresses of tensors: a state dict has them from another function of the
/// library.
fn expect_addresses(host: &mut Host) {
    let (weight, numel) = host.engine.param_ptr::<f32>(host.weight).unwrap();
    let bytes = host.engine.param_ptr::<u8>(host.weight).unwrap();
    assert_eq!((weight.cast(), numel * 4), bytes);
    assert!(!weight.is_null());
    let wrong = host.engine.param_ptr::<f64>(host.weight);
    assert_eq!(code_of(wrong), Code::INVALID_ARGUMENT);
    let (grad, numel) = host.engine.grad_ptr::<f32>(host.weight).unwrap();
    assert!(!grad.is_null() && numel == 8);
    let unit_id = host.engine.plan().unwrap().unit_of(host.weight).unwrap();
    let unit = host
        .engine
        .unit_acquire(unit_id, Pass::BACKWARD, None)
        .unwrap();
    assert_eq!(unit.param_ptr::<f32>(host.weight).unwrap(), (weight, 8));
    assert_eq!(unit.grad_ptr::<f32>(host.weight).unwrap(), (grad, 8));
    unit.release().unwrap();
    let state = StateDict::get(&mut host.engine, &StateDictOptions::default()).unwrap();
    let tensor = state.find("weight").unwrap();
    assert_eq!(state.local_ptr::<f32>(tensor).unwrap(), (0, weight, 8));
}

#[test]
fn slices_are_refused_on_a_gpu() {
    if !has_gpu("device_views::slices_are_refused_on_a_gpu") {
        return;
    }
    let mut host = Host::new("cuda:0");
    assert_eq!(host.engine.device().unwrap(), (DeviceKind::CUDA, 0));
    expect_refused(
        host.engine.writable_param::<f32>(host.weight),
        &[WEIGHT, "set its values by set_param", "writable_param_ptr"],
    );
    let (writable, numel) = host.engine.writable_param_ptr::<f32>(host.weight).unwrap();
    assert!(!writable.is_null() && numel == 8);
    host.engine.broadcast_params(None).unwrap();

    let engine = &host.engine;
    assert_eq!(
        engine.param_ptr::<f32>(host.weight).unwrap(),
        (writable as *const f32, 8)
    );
    expect_refused(
        engine.param::<f32>(host.weight),
        &[WEIGHT, "take its address by param_ptr", "get_copy"],
    );
    // The bytes of a tensor are its memory too.
    expect_refused(engine.param::<u8>(host.weight), &[WEIGHT]);
    let grad = "the gradient of parameter 1 is in the memory of GPU 0";
    expect_refused(engine.grad::<f32>(host.bias), &[grad, "grad_ptr"]);
    let missing = engine.param_ptr::<f32>(ParamId(7));
    assert_eq!(code_of(missing), Code::INVALID_ARGUMENT);

    let unit_id = engine.plan().unwrap().unit_of(host.weight).unwrap();
    let unit = engine.unit_acquire(unit_id, Pass::BACKWARD, None).unwrap();
    expect_refused(unit.param::<f32>(host.weight), &[WEIGHT, "param_ptr"]);
    expect_refused(unit.grad::<f32>(host.bias), &[grad, "grad_ptr"]);
    expect_refused(
        unit.params::<f32>(),
        &["unit 0 is in the memory of GPU 0", "param_ptr and grad_ptr"],
    );
    unit.release().unwrap();
    expect_addresses(&mut host);

    // Buffers of the model are in the host's memory on every device.
    host.engine.buffer::<f32>(host.mean).unwrap().fill(5.0);
    assert_eq!(host.engine.buffer::<f32>(host.mean).unwrap()[..], [5.0; 3]);
}

#[test]
fn a_cpu_gives_slices_and_their_addresses() {
    for device in ["cpu", "cpu-async"] {
        let mut host = Host::new(device);
        let writable = host.engine.writable_param::<f32>(host.weight).unwrap();
        let address = writable.as_mut_ptr();
        assert_eq!(
            host.engine.writable_param_ptr::<f32>(host.weight).unwrap(),
            (address, 8)
        );
        host.engine.broadcast_params(None).unwrap();
        let weight = host.engine.param::<f32>(host.weight).unwrap();
        assert_eq!(weight, [2.0; 8]);
        let (address, numel) = host.engine.param_ptr::<f32>(host.weight).unwrap();
        assert_eq!((address, numel), (weight.as_ptr(), weight.len()));
        let (address, _) = host.engine.grad_ptr::<f32>(host.weight).unwrap();
        let grad = host.engine.grad::<f32>(host.weight).unwrap();
        assert_eq!(address as *const f32, grad.as_ptr());
        drop(grad);
        expect_addresses(&mut host);
    }
}

#[test]
fn full_parameters_are_in_the_hosts_memory() {
    if !has_gpu("device_views::full_parameters_are_in_the_hosts_memory") {
        return;
    }
    let mut host = Host::ready("cuda:0");
    let mut full = host.engine.summon(host.block, None, None).unwrap();
    full.writable_param::<f32>(host.bias).unwrap().fill(7.0);
    assert_eq!(full.param::<f32>(host.bias).unwrap(), [7.0; 100]);
    // The module has no copy of this one.
    expect_refused(full.param::<f32>(host.weight), &[WEIGHT]);
    full.end(true, None).unwrap();

    let full = host.engine.summon(ModuleId::ROOT, None, None).unwrap();
    assert_eq!(full.param::<f32>(host.weight).unwrap(), [2.0; 8]);
    assert_eq!(full.param::<f32>(host.bias).unwrap(), [7.0; 100]);
    std::mem::forget(full);
    expect_refused(
        host.engine.param::<f32>(host.bias),
        &["parameter 1 is in the memory of GPU 0"],
    );
}

#[test]
fn state_dicts_say_which_tensors_the_host_can_use() {
    if !has_gpu("device_views::state_dicts_say_which_tensors_the_host_can_use") {
        return;
    }
    let options = StateDictOptions::default();
    let find = |state: &StateDict<'_>, key: &str| state.find(key).unwrap();
    let momentum = "state.weight.momentum_buffer";
    for offloads in [false, true] {
        let device = if offloads {
            "cuda:0?offload=states"
        } else {
            "cuda:0"
        };
        let mut host = Host::ready(device);
        host.engine.zero_grad().unwrap();
        host.engine.step(&StepOptions::default()).unwrap();
        host.engine.buffer::<f32>(host.mean).unwrap().fill(5.0);

        let copy = StateDict::get_copy(&mut host.engine, &options).unwrap();
        let weight = copy.local::<f32>(find(&copy, "weight")).unwrap();
        assert_eq!(weight.data, [2.0; 8]);
        let state = copy.local::<f32>(find(&copy, momentum)).unwrap();
        assert_eq!(state.data, [0.0; 8]);

        let state = StateDict::get(&mut host.engine, &options).unwrap();
        let weight = find(&state, "weight");
        expect_refused(
            state.local::<f32>(weight),
            &["is in the memory of GPU 0", "get_copy", "local_ptr"],
        );
        assert_eq!(state.device(weight).unwrap(), (DeviceKind::CUDA, 0));
        let expected = [DeviceKind::CUDA, DeviceKind::CPU][usize::from(offloads)];
        let found = state.device(find(&state, momentum)).unwrap();
        assert_eq!(found, (expected, 0));
        let found = state.local::<f32>(find(&state, momentum));
        if offloads {
            assert_eq!(found.unwrap().data, [0.0; 8]);
        } else {
            assert!(message_of(found).contains("memory of GPU 0"));
        }
        let mean = state.local::<f32>(find(&state, "mean")).unwrap();
        assert_eq!(mean.data, [5.0; 3]);
        assert_eq!(state.local_ptr::<f32>(weight).unwrap().2, 8);
    }
}
