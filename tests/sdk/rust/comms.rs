// SPDX-License-Identifier: Apache-2.0

use std::sync::Mutex;
use std::time::Duration;

use shard::{Code, Comm, CommOptions, LogLevel};

use crate::common::{code_of, folder, local, message_of, on_ranks};

#[test]
fn ranks_add_and_send() {
    on_ranks(2, "", |comm| {
        let rank = comm.rank();
        assert_eq!(comm.world_size(), 2);
        assert_eq!((comm.local_rank(), comm.local_world_size()), (rank, 2));
        assert!(comm.describe().unwrap().contains("threads"), "{comm:?}");
        let mut values = [1.5, f64::from(rank)];
        comm.sum(&mut values, None).unwrap();
        assert_eq!(values, [3.0, 1.0]);
        let mut word = if rank == 1 { *b"hello" } else { *b"-----" };
        comm.broadcast(&mut word, 1, None).unwrap();
        assert_eq!(&word, b"hello");
        comm.sum(&mut [], None).unwrap();
        let error = comm.check_device("cpu", None).unwrap_err();
        assert!(error.to_string().contains("is no GPU"), "{error}");
        comm.barrier(Some(Duration::from_secs(20))).unwrap();
        comm.shutdown(None).unwrap();
    });
}

#[test]
fn counters_say_what_a_rank_does() {
    let folder = folder();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let options = CommOptions::default()
        .trace(path("rust_trace.json"))
        .metrics(path("rust.prom"))
        .dump(path("rust.json"));
    let comm = Comm::open("local:", &options).unwrap();
    comm.barrier(None).unwrap();
    let counter = comm.counter("barrier").unwrap();
    assert_eq!((counter.calls, counter.errors), (1, 0));
    let metrics = comm.metrics().unwrap();
    assert!(metrics.contains("event=\"barrier\"} 1\n"), "{metrics}");
    assert!(folder.join("rust_trace.json").exists());
    assert!(folder.join("rust.rank0.prom").exists());
    let dump = comm.dump().unwrap();
    assert!(dump.contains("\"operation\":\"barrier\""), "{dump}");
    assert!(folder.join("rust.rank0.json").exists());
    let error = comm.counter("barriers").unwrap_err();
    assert_eq!(error.code(), Code::NOT_FOUND);
    assert!(error.message().contains("'barriers'"), "{error}");
}

#[test]
fn abort_ends_the_collectives_of_other_ranks() {
    on_ranks(2, "", |comm| {
        if comm.rank() == 0 {
            comm.abort("no more data").unwrap();
        } else {
            let error = comm.barrier(None).unwrap_err();
            assert_eq!(error.code(), Code::POISONED);
            assert!(error.message().contains("no more data"), "{error}");
        }
    });
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let errors = on_ranks(2, "", |comm| {
        if comm.rank() == 0 {
            return None;
        }
        Some(comm.barrier(Some(Duration::from_millis(300))).unwrap_err())
    });
    let error = errors[1].as_ref().unwrap();
    assert_eq!(
        (error.code(), error.rank()),
        (Code::RANK_LOST, Some(0)),
        "{error}"
    );
}

#[test]
fn threads_share_a_communicator() {
    let comm = local();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..100).for_each(|_| comm.barrier(None).unwrap()));
        }
    });
}

#[test]
fn wrong_urls_and_texts_are_refused() {
    let open = |url: &str| Comm::open(url, &CommOptions::default());
    assert_eq!(code_of(open("nowhere:")), Code::INVALID_ARGUMENT);
    assert_eq!(
        message_of(open("loc\0al:")),
        "INVALID_ARGUMENT: the URL 'loc\\0al:' has a NUL byte at 3; remove it"
    );
    assert_eq!(code_of(local().abort("\0")), Code::INVALID_ARGUMENT);
    let error = local().broadcast(&mut [0], 7, None).unwrap_err();
    assert_eq!(error.code(), Code::INVALID_ARGUMENT);
}

#[test]
fn log_messages_arrive() {
    static LINES: Mutex<Vec<(LogLevel, String)>> = Mutex::new(Vec::new());
    let options = CommOptions::default()
        .log_level(LogLevel::DEBUG)
        .log(|level, message| LINES.lock().unwrap().push((level, message.to_owned())));
    let comm = Comm::open("local:", &options).unwrap();
    crate::common::Stack::new().engine(&comm, 1);
    drop(comm);
    let lines = LINES.lock().unwrap();
    assert!(!lines.is_empty());
    assert!(lines
        .iter()
        .all(|(level, text)| *level <= LogLevel::DEBUG && !text.is_empty()));
}
