// SPDX-License-Identifier: Apache-2.0

use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use shard::{
    BlobRule, Checkpoint, Code, Content, ConvertOptions, DType, Engine, Format, GroupId,
    LoadOptions, ModuleId, Role, SaveOptions, StateFilter, StepOptions, VerifyOptions,
};

use crate::common::{code_of, first_values, folder, local, message_of, on_ranks, Stack};

fn step(engine: &mut Engine, stack: &Stack) {
    for &weight in &stack.weights {
        engine.grad::<f32>(weight).unwrap().fill(0.5);
    }
    engine.step(&StepOptions::default()).unwrap();
}

/// Saves what two ranks trained, and returns the folder.
fn saved() -> std::path::PathBuf {
    let root = folder();
    on_ranks(2, "", |comm| {
        let stack = Stack::new();
        let mut engine = stack.engine(&comm, 1);
        step(&mut engine, &stack);
        engine
            .set_blob("data", BlobRule::PER_RANK, &[comm.rank() as u8; 3])
            .unwrap();
        engine.set_blob("seed", BlobRule::REPLICATED, b"").unwrap();
        Checkpoint::save(&mut engine, &root, &SaveOptions::default().threads(1)).unwrap();
    });
    root
}

#[test]
fn what_two_ranks_save_one_rank_loads() {
    let root = saved();
    let stack = Stack::new();
    let comm = local();
    let mut trained = stack.engine(&comm, 1);
    step(&mut trained, &stack);
    let plan = stack.plan(1, 2);
    let mut engine = Engine::create(&plan, &comm, &Default::default()).unwrap();
    let report = Checkpoint::load(&mut engine, &root, &LoadOptions::default()).unwrap();
    assert_eq!((report.step, report.saved_world_size), (Some(1), Some(2)));
    assert_eq!(
        (report.loaded, report.missing, report.unexpected),
        (12, 0, 0)
    );
    assert!(engine
        .last_load_report_json()
        .unwrap()
        .contains("\"missing\""));
    assert_eq!(engine.completed_steps().unwrap(), 1);
    for &weight in &stack.weights {
        assert_eq!(
            engine.param::<f32>(weight).unwrap(),
            trained.param::<f32>(weight).unwrap()
        );
    }
    assert_eq!(engine.blob("seed").unwrap(), b"");
    assert_eq!(code_of(engine.blob("data")), Code::NOT_FOUND);
}

#[test]
fn saves_go_on_in_the_background() {
    let root = folder();
    let bytes = Arc::new(AtomicU64::new(0));
    on_ranks(2, "", |comm| {
        let stack = Stack::new();
        let mut engine = stack.engine(&comm, 1);
        let seen = Arc::clone(&bytes);
        let options = SaveOptions::default().progress(move |done, total| {
            assert!(done <= total);
            seen.fetch_max(done, Ordering::Relaxed);
            ControlFlow::Continue(())
        });
        let save = Checkpoint::save_async(&mut engine, &root, &options).unwrap();
        step(&mut engine, &stack);
        save.wait(Some(Duration::from_secs(20))).unwrap();
        assert!(save.done());
        // The result is the same in every call, and without the engine.
        let again = Checkpoint::save_async(&mut engine, &root, &options).unwrap();
        drop(engine);
        again.wait(None).unwrap();
        std::mem::forget(save);
    });
    assert!(bytes.load(Ordering::Relaxed) > 0);
    let names = ["step-000000", "step-000001"].map(|name| root.join(name).exists());
    assert_eq!(names, [true, true]);
}

#[test]
fn saves_that_nobody_keeps_end_all_the_same() {
    let root = folder();
    let stack = Stack::new();
    let comm = local();
    let mut engine = stack.engine(&comm, 1);
    let options = SaveOptions::default().progress(|_, _| ControlFlow::Continue(()));
    drop(Checkpoint::save_async(&mut engine, &root, &options).unwrap());
    step(&mut engine, &stack);
    std::mem::forget(Checkpoint::save_async(&mut engine, &root, &options).unwrap());
    step(&mut engine, &stack);
    let taken = Checkpoint::save_async(&mut engine, &root, &options.overwrite(true)).unwrap();
    drop(engine);
    assert!(taken.done());
    let last = Checkpoint::open(&root).unwrap().info().unwrap();
    assert_eq!(last.step, Some(2));
}

#[test]
fn a_checkpoint_is_read_without_an_engine() {
    let root = saved();
    let checkpoint = Checkpoint::open(&root).unwrap();
    assert_eq!(checkpoint.path().unwrap(), root.join("step-000001"));
    let info = checkpoint.info().unwrap();
    assert_eq!(
        (info.format, info.step, info.world_size),
        (Format::CHECKPOINT, Some(1), Some(2))
    );
    assert_eq!(
        (info.num_tensors, info.num_files, info.num_groups),
        (12, 2, 1)
    );
    assert!(info.id != 0 && info.version.is_some());

    let weight = checkpoint.find("layer2.weight").unwrap();
    assert_eq!(checkpoint.tensor_key(weight).unwrap(), "layer2.weight");
    assert_eq!(checkpoint.tensor_type(weight).unwrap(), "f32");
    let tensor = checkpoint.tensor(weight).unwrap();
    assert_eq!(
        (tensor.dtype, tensor.role, tensor.shape),
        (DType::F32, Role::PARAM, vec![8, 8])
    );
    assert_eq!(
        (tensor.alias_of, tensor.group, tensor.step),
        (None, Some(GroupId(0)), Some(1))
    );
    let mut bytes = 0;
    for index in 0..tensor.num_slices {
        let slice = checkpoint.slice(weight, index).unwrap();
        assert!(checkpoint.file(slice.file).unwrap().bytes >= slice.offset + slice.bytes);
        assert!(slice.checksum.is_some());
        bytes += slice.bytes;
    }
    assert_eq!(bytes, tensor.bytes);
    let (mut row, mut raw) = ([0f32; 8], [0u8; 32]);
    checkpoint.read(weight, 8, &mut row).unwrap();
    checkpoint.read(weight, 8, &mut raw).unwrap();
    assert_eq!(row[0].to_ne_bytes(), raw[..4]);
    // AdamW's first step goes against the gradient.
    assert!(row
        .iter()
        .zip(&first_values(shard::ParamId(2))[8..])
        .all(|(a, b)| a < b));
    let keys: Vec<_> = checkpoint
        .tensors()
        .unwrap()
        .map(|t| checkpoint.tensor_key(t).unwrap())
        .collect();
    assert!(keys.contains(&"state.layer0.weight.exp_avg"), "{keys:?}");

    assert!(checkpoint
        .group(GroupId(0))
        .unwrap()
        .starts_with("adamw?lr=0.01&"));
    for scalar in 0..info.num_scalars {
        assert!(!checkpoint.scalar(scalar).unwrap().name.is_empty());
    }
    assert_eq!(
        code_of(checkpoint.scalar(info.num_scalars)),
        Code::INVALID_ARGUMENT
    );
    let blobs: Vec<_> = (0..info.num_blobs)
        .map(|blob| {
            (
                checkpoint.blob_info(blob).unwrap(),
                checkpoint.blob(blob).unwrap(),
            )
        })
        .collect();
    let of_rank1 = blobs
        .iter()
        .find(|(blob, _)| (blob.name, blob.rank) == ("data", 1))
        .unwrap();
    assert_eq!(
        (of_rank1.0.rule, &of_rank1.1[..]),
        (BlobRule::PER_RANK, &[1u8; 3][..])
    );

    checkpoint
        .verify(&VerifyOptions::default().threads(2))
        .unwrap();
    let told = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&told);
    let options = VerifyOptions::default().progress(move |done, _| {
        seen.store(done, Ordering::Relaxed);
        ControlFlow::Continue(())
    });
    checkpoint.verify(&options).unwrap();
    assert!(told.load(Ordering::Relaxed) >= info.tensor_bytes);
}

#[test]
fn reads_of_wrong_elements_are_errors() {
    let checkpoint = Checkpoint::open(saved()).unwrap();
    let weight = checkpoint.find("layer0.weight").unwrap();
    let read = |begin, buffer: &mut [f32]| checkpoint.read(weight, begin, buffer);
    assert_eq!(code_of(read(60, &mut [0.0; 5])), Code::OUT_OF_RANGE);
    assert_eq!(code_of(read(-1, &mut [0.0; 2])), Code::OUT_OF_RANGE);
    assert_eq!(
        code_of(checkpoint.read(weight, 0, &mut [0i32; 2])),
        Code::INVALID_ARGUMENT
    );
    let error = message_of(checkpoint.read(weight, 0, &mut [0u8; 7]));
    assert!(
        error.contains("7 bytes are no whole number of elements"),
        "{error}"
    );
    assert_eq!(code_of(checkpoint.find("layer9.weight")), Code::NOT_FOUND);
    assert_eq!(code_of(checkpoint.find("layer\0")), Code::INVALID_ARGUMENT);
    assert_eq!(
        code_of(checkpoint.tensor(shard::TensorId(12))),
        Code::INVALID_ARGUMENT
    );
}

#[test]
fn checkpoints_become_others_and_safetensors() {
    let (root, other) = (saved(), folder());
    let checkpoint = Checkpoint::open(&root).unwrap();
    let narrow = ConvertOptions::default()
        .dtype(DType::BF16)
        .world_size(3)
        .threads(1);
    checkpoint.convert(&other, &narrow).unwrap();
    let converted = Checkpoint::open(&other).unwrap();
    assert_eq!(converted.info().unwrap().num_files, 3);
    let weight = converted.find("layer0.weight").unwrap();
    assert_eq!(converted.tensor(weight).unwrap().dtype, DType::BF16);

    let file = other.join("model.safetensors");
    let options = ConvertOptions::default().content(Content::MODEL);
    checkpoint.export(&file, &options).unwrap();
    assert_eq!(
        code_of(checkpoint.export(&file, &options)),
        Code::ALREADY_EXISTS
    );
    checkpoint.export(&file, &options.overwrite(true)).unwrap();
    let info = Checkpoint::open(&file).unwrap().info().unwrap();
    assert_eq!(
        (info.format, info.num_tensors, info.step),
        (Format::SAFETENSORS, 4, None)
    );

    // Its model is loaded into an engine of another type, which converts it.
    let stack = Stack::new();
    let plan = stack.options(1, 1).param_dtype(DType::BF16);
    let plan = shard::Plan::create(&stack.model, &plan).unwrap();
    let mut engine = Engine::create(&plan, &local(), &Default::default()).unwrap();
    let filter = StateFilter::default().content(Content::MODEL);
    let options = LoadOptions::default().filter(filter);
    assert_eq!(
        code_of(Checkpoint::load(&mut engine, &file, &options)),
        Code::FAILED_PRECONDITION
    );
    assert_eq!(
        code_of(engine.param::<u16>(stack.weights[0])),
        Code::FAILED_PRECONDITION
    );
    Checkpoint::load(&mut engine, &file, &options.convert(true)).unwrap();
    assert_eq!(engine.param::<u16>(stack.weights[0]).unwrap().len(), 64);
}

#[test]
fn parts_of_models_are_loaded() {
    let root = saved();
    let stack = Stack::new();
    let comm = local();
    let mut engine = stack.engine(&comm, 1);
    let filter = StateFilter::default().submodules([stack.layers[1]]);
    let report =
        Checkpoint::load(&mut engine, &root, &LoadOptions::default().filter(filter)).unwrap();
    assert_eq!(report.loaded, 3);
    assert_eq!(
        engine.param::<f32>(stack.weights[0]).unwrap(),
        first_values(stack.weights[0])
    );
    assert_ne!(
        engine.param::<f32>(stack.weights[1]).unwrap(),
        first_values(stack.weights[1])
    );
    let nowhere = StateFilter::default().submodules([ModuleId(99)]);
    let wrong = Checkpoint::load(&mut engine, &root, &LoadOptions::default().filter(nowhere));
    assert_eq!(code_of(wrong), Code::INVALID_ARGUMENT);
}

#[test]
fn loads_that_fail_say_why() {
    let root = saved();
    let stack = Stack::new();
    let comm = local();
    let mut engine = stack.engine(&comm, 1);
    let load = |engine: &mut Engine, path: &Path| {
        Checkpoint::load(engine, path, &LoadOptions::default()).unwrap_err()
    };
    assert_eq!(
        load(&mut engine, Path::new("/nowhere")).code(),
        Code::NOT_FOUND
    );
    // Parameters are there as before.
    assert!(engine.param::<f32>(stack.weights[0]).is_ok());
    assert_eq!(
        load(&mut engine, Path::new("a\0b")).code(),
        Code::INVALID_ARGUMENT
    );

    let mut model = shard::Model::create("Other").unwrap();
    model
        .add_param(ModuleId::ROOT, "weight", DType::F32, &[3])
        .unwrap();
    let plan = shard::PlanOptions::default().world_size(1);
    let plan = shard::Plan::create(&model, &plan).unwrap();
    let mut other = Engine::create(&plan, &comm, &Default::default()).unwrap();
    let error = load(&mut other, &root);
    assert_eq!(error.code(), Code::FAILED_PRECONDITION);
    assert!(error.detail().contains("\"missing\""), "{}", error.detail());
}

#[test]
fn a_damaged_file_is_found() {
    let root = saved();
    let data = root.join("step-000001/data-00000.bin");
    let mut bytes = std::fs::read(&data).unwrap();
    bytes[5] ^= 1;
    std::fs::write(&data, bytes).unwrap();
    let error = Checkpoint::open(&root)
        .unwrap()
        .verify(&VerifyOptions::default())
        .unwrap_err();
    assert_eq!(error.code(), Code::CORRUPT);
    assert!(
        error.detail().contains("data-00000.bin"),
        "{}",
        error.detail()
    );
    // A load that fails while it reads leaves no values to be seen.
    let stack = Stack::new();
    let comm = local();
    let mut engine = stack.engine(&comm, 1);
    let loaded = Checkpoint::load(&mut engine, &root, &LoadOptions::default());
    assert_eq!(code_of(loaded), Code::CORRUPT);
    let seen = engine.param::<f32>(stack.weights[0]);
    assert_eq!(code_of(seen), Code::FAILED_PRECONDITION);
}

#[test]
fn paths_are_any_bytes_and_keys_are_text() {
    let root = folder().join(std::ffi::OsStr::from_bytes(b"not-\xff-text"));
    let stack = Stack::new();
    let comm = local();
    let mut engine = stack.engine(&comm, 1);
    Checkpoint::save(&mut engine, &root, &SaveOptions::default()).unwrap();
    let checkpoint = Checkpoint::open(&root).unwrap();
    assert_eq!(checkpoint.path().unwrap(), root.join("step-000000"));

    // A safetensors file whose key is not UTF-8.
    let header = b"{\"a\xff\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(&[0; 4]);
    let file = folder().join("model.safetensors");
    std::fs::write(&file, bytes).unwrap();
    assert_eq!(code_of(Checkpoint::open(&file)), Code::CORRUPT);
}

#[test]
fn types_that_libshard_does_not_read_are_listed() {
    let header = b"{\"a\":{\"dtype\":\"C64\",\"shape\":[1],\"data_offsets\":[0,8]}}";
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(b"a number");
    let file = folder().join("model.safetensors");
    std::fs::write(&file, bytes).unwrap();
    let checkpoint = Checkpoint::open(&file).unwrap();
    let tensor = checkpoint.find("a").unwrap();
    assert_eq!(checkpoint.tensor_type(tensor).unwrap(), "C64");
    assert_eq!(checkpoint.tensor(tensor).unwrap().dtype, DType::OPAQUE);
    let mut read = [0u8; 6];
    checkpoint.read(tensor, 2, &mut read).unwrap();
    assert_eq!(&read, b"number");
    assert_eq!(
        code_of(checkpoint.read(tensor, 0, &mut [0f32; 2])),
        Code::INVALID_ARGUMENT
    );
}
