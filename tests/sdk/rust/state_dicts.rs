// SPDX-License-Identifier: Apache-2.0

use std::ops::ControlFlow;

use shard::{
    Code, Content, DType, Engine, LoadOptions, Role, StateDict, StateDictOptions, StateFilter,
};

use crate::common::{code_of, first_values, local, on_ranks, Stack};

fn model_only() -> StateDictOptions {
    let filter = StateFilter::default().content(Content::MODEL);
    StateDictOptions::default().filter(filter)
}

#[test]
fn ranks_hold_their_parts() {
    let parts = on_ranks(2, "", |comm| {
        let stack = Stack::new();
        let mut engine = stack.engine(&comm, 1);
        let copy = StateDict::get_copy(&mut engine, &StateDictOptions::default()).unwrap();
        let state = StateDict::get(&mut engine, &StateDictOptions::default()).unwrap();
        assert_eq!((state.num_tensors(), copy.num_tensors()), (12, 12));
        let weight = state.find("layer1.weight").unwrap();
        assert_eq!(state.tensor_key(weight).unwrap(), "layer1.weight");
        let info = state.tensor(weight).unwrap();
        assert_eq!((info.role, info.shape), (Role::PARAM, vec![8, 8]));
        let local = state.local::<f32>(weight).unwrap();
        assert_eq!(local, copy.local::<f32>(weight).unwrap());
        let begin = local.begin as usize;
        let expected = &first_values(stack.weights[1])[begin..begin + local.data.len()];
        assert_eq!(local.data, expected);
        let numbers: Vec<_> = (0..state.num_numbers())
            .map(|number| state.number(number).unwrap())
            .collect();
        let lr = numbers
            .iter()
            .find(|(key, _)| key == "param_groups.layer1.weight.lr");
        assert_eq!(lr.unwrap().1, 0.01);
        assert_eq!(code_of(state.find("layer9.weight")), Code::NOT_FOUND);
        assert_eq!(
            code_of(state.number(state.num_numbers())),
            Code::INVALID_ARGUMENT
        );
        state
            .tensors()
            .map(|t| state.local::<u8>(t).unwrap().data.len())
            .sum::<usize>()
    });
    assert_eq!(parts.iter().sum::<usize>(), 12 * 64 * 4);
}

#[test]
fn tensors_are_gathered_and_loaded_whole() {
    on_ranks(2, "", |comm| {
        let stack = Stack::new();
        let mut engine = stack.engine(&comm, 2);
        let mut taken: Vec<(String, Vec<i64>, Vec<f32>)> = Vec::new();
        StateDict::gather(&mut engine, &model_only(), Some(0), |tensor| {
            let data = tensor.data::<f32>().unwrap().to_vec();
            taken.push((tensor.key.to_owned(), tensor.info.shape.clone(), data));
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(taken.len(), if comm.rank() == 0 { 4 } else { 0 });

        let mut state = StateDict::create().unwrap();
        for (key, shape, data) in &mut taken {
            data.iter_mut().for_each(|x| *x *= 2.0);
            state.add(key, DType::F32, shape, data).unwrap();
        }
        state.add_number("note", 1.0).unwrap();
        let plan = stack.plan(2, 1);
        let mut other = Engine::create(&plan, &comm, &Default::default()).unwrap();
        let filter = StateFilter::default().content(Content::MODEL);
        let options = LoadOptions::default().filter(filter).allow_mismatch(true);
        let given = Some(&state).filter(|_| comm.rank() == 0);
        let report = StateDict::load(&mut other, given, &options, true).unwrap();
        assert_eq!(report.loaded, 4);
        let doubled: Vec<f32> = first_values(stack.weights[0])
            .iter()
            .map(|x| x * 2.0)
            .collect();
        assert_eq!(other.param::<f32>(stack.weights[0]).unwrap(), doubled);
    });
}

#[test]
fn gatherings_end_when_one_rank_says_so() {
    let codes = on_ranks(2, "", |comm| {
        let mut engine = Stack::new().engine(&comm, 1);
        code_of(StateDict::gather(&mut engine, &model_only(), None, |_| {
            if comm.rank() == 1 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        }))
    });
    assert_eq!(codes, [Code::CANCELLED; 2]);
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    let (floats, bytes) = ([0f32; 4], [0u8; 17]);
    let mut state = StateDict::create().unwrap();
    state.add("a", DType::F32, &[2, 2], &floats).unwrap();
    let same = state.add("a", DType::F32, &[4], &floats);
    assert_eq!(code_of(same), Code::INVALID_ARGUMENT);
    let short = state.add("b", DType::F32, &[5], &floats);
    assert_eq!(code_of(short), Code::INVALID_ARGUMENT);
    let other = state.add("b", DType::I64, &[4], &floats);
    assert_eq!(code_of(other), Code::INVALID_ARGUMENT);
    assert_eq!(
        code_of(state.add_number("c", f64::NAN)),
        Code::INVALID_ARGUMENT
    );
    // Memory of the host's need not be aligned; then it is seen as bytes only.
    let odd = if bytes.as_ptr() as usize % 2 == 0 {
        &bytes[1..]
    } else {
        &bytes[..16]
    };
    state.add("odd", DType::F32, &[4], odd).unwrap();
    let tensor = state.find("odd").unwrap();
    assert_eq!(code_of(state.local::<f32>(tensor)), Code::INVALID_ARGUMENT);
    assert_eq!(state.local::<u8>(tensor).unwrap().data.len(), 16);
    let mut engine = Stack::new().engine(&local(), 1);
    let mut own = StateDict::get_copy(&mut engine, &model_only()).unwrap();
    assert_eq!(
        code_of(own.add("b", DType::F32, &[4], &floats)),
        Code::FAILED_PRECONDITION
    );
}
