// SPDX-License-Identifier: Apache-2.0

//! Callbacks that panic, or call back into the handle that runs them.

use std::ops::ControlFlow;
use std::sync::{mpsc, Arc, Mutex};
use std::time::Duration;

use shard::{
    Checkpoint, Code, Comm, CommOptions, ConvertOptions, LoadOptions, LogLevel, Plan, SaveOptions,
    StateDict, StateDictOptions, VerifyOptions,
};

use crate::common::{code_of, folder, local, message_of, Stack};

#[test]
fn a_panic_in_a_callback_is_the_error_of_its_call() {
    let stack = Stack::new();
    let comm = local();
    let mut engine = stack.engine(&comm, 1);
    let root = folder();

    let options = stack
        .options(1, 1)
        .wrap("")
        .wrap_predicate(|_, _| panic!("no wrap"));
    let error = message_of(Plan::create(&stack.model, &options));
    assert_eq!(error, "CANCELLED: the wrap predicate panicked: no wrap");

    let options = SaveOptions::default().progress(|_, _| panic!("no {}", "save"));
    let error = message_of(Checkpoint::save(&mut engine, &root, &options));
    assert_eq!(error, "CANCELLED: the progress function panicked: no save");
    let save = Checkpoint::save_async(&mut engine, &root, &options).unwrap();
    assert_eq!(code_of(save.wait(None)), Code::CANCELLED);
    Checkpoint::save(&mut engine, &root, &SaveOptions::default()).unwrap();

    let checkpoint = Checkpoint::open(&root).unwrap();
    let options = VerifyOptions::default().progress(|_, _| std::panic::panic_any(7));
    let error = message_of(checkpoint.verify(&options));
    assert_eq!(
        error,
        "CANCELLED: the progress function panicked: a value that is no text"
    );
    let options = VerifyOptions::default().progress(|_, _| ControlFlow::Break(()));
    assert_eq!(code_of(checkpoint.verify(&options)), Code::CANCELLED);
    let options = ConvertOptions::default().progress(|_, _| panic!("no copy"));
    let error = "CANCELLED: the progress function panicked: no copy";
    assert_eq!(message_of(checkpoint.convert(folder(), &options)), error);
    let file = folder().join("model.safetensors");
    assert_eq!(message_of(checkpoint.export(&file, &options)), error);
    assert!(!file.exists());

    let options = StateDictOptions::default();
    let error = message_of(StateDict::gather(&mut engine, &options, None, |_| {
        panic!("no take")
    }));
    assert_eq!(
        error,
        "CANCELLED: the function that takes tensors panicked: no take"
    );
    let options = LoadOptions::default().progress(|_, _| panic!("no load"));
    assert_eq!(
        code_of(Checkpoint::load(&mut engine, &root, &options)),
        Code::CANCELLED
    );
    Checkpoint::load(&mut engine, &root, &LoadOptions::default()).unwrap();
}

#[test]
fn a_panic_in_the_log_function_is_the_error_of_the_call_that_logged() {
    let options = CommOptions::default()
        .log_level(LogLevel::DEBUG)
        .log(|_, _| panic!("no log"));
    let opened = Comm::open("local:", &options);
    let comm = match opened {
        // Opening may log nothing.
        Ok(comm) => comm,
        Err(error) => return assert!(error.message().contains("no log"), "{error}"),
    };
    let stack = Stack::new();
    let error = message_of(shard::Engine::create(
        &stack.plan(1, 1),
        &comm,
        &Default::default(),
    ));
    assert!(
        error.contains("the call was done, and the log function panicked: no log"),
        "{error}"
    );
}

#[test]
fn a_callback_cannot_call_back() {
    let stack = Stack::new();
    let comm = Arc::new(local());
    let mut engine = stack.engine(&comm, 1);
    let codes = Arc::new(Mutex::new(Vec::new()));
    let (seen, inner) = (Arc::clone(&codes), Arc::clone(&comm));
    let options = SaveOptions::default().progress(move |_, _| {
        seen.lock().unwrap().push(code_of(inner.barrier(None)));
        ControlFlow::Continue(())
    });
    let root = folder();
    Checkpoint::save(&mut engine, &root, &options).unwrap();
    let save = Checkpoint::save_async(&mut engine, &root, &options.overwrite(true)).unwrap();
    save.wait(None).unwrap();
    StateDict::gather(&mut engine, &StateDictOptions::default(), None, |_| {
        codes
            .lock()
            .unwrap()
            .push(code_of(comm.sum(&mut [1.0], None)));
        // Other handles are free.
        local().barrier(None).unwrap();
        ControlFlow::Continue(())
    })
    .unwrap();
    let codes = codes.lock().unwrap();
    assert!(codes.len() > 12);
    assert!(
        codes.iter().all(|&code| code == Code::FAILED_PRECONDITION),
        "{codes:?}"
    );
    comm.barrier(None).unwrap();
}

#[test]
fn an_engine_that_its_own_callback_drops_is_left_alone() {
    let stack = Stack::new();
    let comm = local();
    let victim = stack.engine(&comm, 1);
    let mut engine = stack.engine(&comm, 1);
    let mut victim = Some(victim);
    StateDict::gather(&mut engine, &StateDictOptions::default(), None, |_| {
        victim = None;
        ControlFlow::Continue(())
    })
    .unwrap();
    comm.barrier(None).unwrap();
}

/// A stale folder that is too deep to be deleted is a warning of the save's
/// thread, which outlives the engine here.
#[test]
fn a_communicator_and_a_save_that_their_own_callback_drops_are_left_alone() {
    let root = folder();
    let stale = root.join("step-000009.tmp-0123456789abcdef");
    std::fs::create_dir_all(stale.join(["d"; 20].join("/"))).unwrap();
    let patience = Duration::from_secs(30);
    let (entered, has_entered) = mpsc::channel();
    let (engine_gone, engine_is_gone) = mpsc::channel::<()>();
    let (dropped, are_dropped) = mpsc::channel();
    let of_thread = Mutex::new((entered, engine_is_gone, dropped));
    let held = Arc::new(Mutex::new((None, None)));
    let last = Arc::clone(&held);
    let options = CommOptions::default().log(move |_, message| {
        if message.contains("folders deep") {
            let (entered, engine_is_gone, dropped) = &*of_thread.lock().unwrap();
            entered.send(()).unwrap();
            engine_is_gone.recv_timeout(patience).unwrap();
            *last.lock().unwrap() = (None, None);
            dropped.send(()).unwrap();
        }
    });
    let comm = Comm::open("local:", &options).unwrap();
    let mut engine = Stack::new().engine(&comm, 1);
    let options = SaveOptions::default().timeout(Duration::from_secs(1));
    let save = Checkpoint::save_async(&mut engine, &root, &options).unwrap();
    has_entered.recv_timeout(patience).expect("no warning");
    *held.lock().unwrap() = (Some(comm), Some(save));
    drop(engine); // Waits until the save's timeout.
    engine_gone.send(()).unwrap();
    are_dropped
        .recv_timeout(patience)
        .expect("the callback waits for itself");
}
