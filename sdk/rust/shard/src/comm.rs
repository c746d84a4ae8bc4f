// SPDX-License-Identifier: Apache-2.0

//! Communicators: the ranks of a run, and how they meet.

use std::fmt;
use std::mem;
use std::os::raw::{c_char, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use shard_sys as sys;

use crate::callback;
use crate::error::{check, Result};
use crate::gate::Gate;
use crate::text::{borrowed, c_text, copied, lossy, seconds};
use crate::version::check_version;

c_enum! {
    /// The level of a log message.
    LogLevel {
        /// Errors.
        ERROR = SHARD_LOG_ERROR,
        /// Warnings: the default.
        WARNING = SHARD_LOG_WARNING,
        /// News.
        INFO = SHARD_LOG_INFO,
        /// Details.
        DEBUG = SHARD_LOG_DEBUG,
    }
}

type LogFn = dyn Fn(LogLevel, &str) + Send + Sync;

#[derive(Clone, Default)]
pub(crate) struct Log(Option<Arc<LogFn>>);

impl fmt::Debug for Log {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(if self.0.is_some() { "Fn" } else { "None" })
    }
}

options! {
    /// Options of [`Comm::open`].
    CommOptions {
        /// This rank, where the URL does not give it: 0 to `world_size` - 1. Ignored
        /// as long as `world_size` is 0.
        rank: i32,
        /// The number of ranks, where the URL does not give it.
        world_size: i32,
        /// How long to wait for the other ranks to come, and the default of every
        /// later wait: 60 seconds unless given. Every rank should give the same.
        timeout: Option<Duration>,
        /// The most verbose level that is logged; [`LogLevel::WARNING`] unless given.
        log_level: Option<LogLevel>,
        /// The path of a trace that the ranks of a host write together; Perfetto opens
        /// it. A run that finds the file in use writes another one: "trace.json" is
        /// "trace.2.json" then. SHARD_TRACE of the environment overrides the path.
        /// None unless given.
        trace: String,
        /// The path of the counters in the text format of Prometheus. Each rank has its
        /// own: "shard.prom" is "shard.rank0.prom" on rank 0, and "shard.rank0.2.prom"
        /// where that file is in use. SHARD_METRICS of the environment overrides the
        /// path. None unless given.
        metrics: String,
        /// The path of the last collectives, which `shardctl triage` reads when a
        /// collective has failed. Each rank has its own, as that of the metrics.
        /// SHARD_DUMP of the environment overrides the path. None unless given.
        dump: String,
    } with {
        log: Log,
    }
}

info! {
    /// The totals of an event on a rank since the communicator was opened.
    Counter from shard_counter as raw {
        /// How often the event occurred.
        calls: u64 = raw.calls,
        /// How many of the calls failed.
        errors: u64 = raw.errors,
        /// Bytes that the calls sent, read or wrote.
        bytes: u64 = raw.bytes,
        /// The time that the calls took.
        seconds: f64 = raw.seconds,
    }
}

impl CommOptions {
    /// Sets the function that receives log messages, on any thread that uses the
    /// library. It lives as long as the communicator and the engines on it, and
    /// cannot call back into them. Its panic is caught, and is the error of the
    /// call that logged, which was done.
    #[must_use]
    pub fn log(mut self, function: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Self {
        self.log = Log(Some(Arc::new(function)));
        self
    }
}

/// The ranks of a run.
///
/// Any thread may call, and waits for a call in progress: a communicator and the
/// engines on it count as one handle. [`abort`](Comm::abort) and the numbers do
/// not wait. Dropping the communicator leaves the group once the engines on it
/// are dropped too.
pub struct Comm {
    shared: Arc<CommHandle>,
}

/// The handle, which engines share.
pub(crate) struct CommHandle {
    comm: NonNull<sys::shard_comm>,
    /// The library uses it until `comm` is freed.
    context: Arc<Context>,
}

struct Context {
    gate: Gate,
    log: Log,
}

// SAFETY: handles may move between threads, and the gate keeps calls apart.
unsafe impl Send for CommHandle {}
unsafe impl Sync for CommHandle {}

impl CommHandle {
    pub(crate) fn gate(&self) -> &Gate {
        &self.context.gate
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::shard_comm {
        self.comm.as_ptr()
    }
}

impl Drop for CommHandle {
    fn drop(&mut self) {
        if self.gate().check_outside().is_err() {
            // A callback drops it. Freeing it waits for the log function, so it stays.
            mem::forget(Arc::clone(&self.context));
            return;
        }
        unsafe { sys::shard_comm_free(self.as_ptr()) }
    }
}

/// # Safety
///
/// `user_data` is a Context.
unsafe extern "C" fn write_log(level: i32, message: *const c_char, user_data: *mut c_void) {
    let context = unsafe { &*(user_data as *const Context) };
    let message = unsafe { lossy(message) };
    if let Some(log) = &context.log.0 {
        if let Err(text) = callback::run(context.gate.id(), || log(LogLevel(level), &message)) {
            context.gate.log_caught.set(text);
        }
    }
}

impl Comm {
    /// Meets the other ranks. COLLECTIVE, blocks. URLs:
    ///
    /// - `env:` — rank, world size and rendezvous point from the environment, as
    ///   `shardctl run`, torchrun, Open MPI and Slurm set them; without any of
    ///   these, one rank
    /// - `local:` — one rank
    /// - `threads:N` — N threads of this process, each with its own
    ///   [`rank`](CommOptions::rank) and world size N; `?name=x` keeps groups apart
    /// - `shm:NAME` — processes of this host and user that give the same name
    /// - `tcp://HOST:PORT` — processes of several hosts, which meet at HOST; options
    ///   such as `?job=TEXT&secret_file=PATH` are in shard/comm.h
    ///
    /// `?timeout=SECONDS` may follow any URL, and any but `tcp:` `?direct=0`, which
    /// lets ranks act as if they shared no memory.
    ///
    /// Errors: INVALID_ARGUMENT; DEADLINE_EXCEEDED, which names the ranks that did
    /// not come; ALREADY_EXISTS where rank or name is taken; FAILED_PRECONDITION for
    /// a library of another version.
    pub fn open(url: &str, options: &CommOptions) -> Result<Comm> {
        check_version()?;
        let url = c_text("the URL", url)?;
        let trace = c_text("the trace", &options.trace)?;
        let metrics = c_text("the metrics", &options.metrics)?;
        let dump = c_text("the dump", &options.dump)?;
        let context = Arc::new(Context {
            gate: Gate::default(),
            log: options.log.clone(),
        });
        let mut c_options = sys::SHARD_COMM_OPTIONS_INIT;
        c_options.rank = options.rank;
        c_options.world_size = options.world_size;
        c_options.timeout = seconds(options.timeout);
        c_options.log_level = options.log_level.map_or(0, |level| level.0);
        c_options.trace = trace.as_ptr();
        c_options.metrics = metrics.as_ptr();
        c_options.dump = dump.as_ptr();
        if context.log.0.is_some() {
            c_options.log = Some(write_log);
            c_options.log_user_data = Arc::as_ptr(&context) as *mut c_void;
        }
        let mut comm = ptr::null_mut();
        check(unsafe { sys::shard_comm_open(url.as_ptr(), &c_options, &mut comm) })?;
        // SAFETY: success gives a handle.
        let comm = unsafe { NonNull::new_unchecked(comm) };
        let shared = Arc::new(CommHandle { comm, context });
        shared
            .gate()
            .log_caught
            .report("the call was done, and the log function", Ok(()))?;
        Ok(Comm { shared })
    }

    pub(crate) fn shared(&self) -> &Arc<CommHandle> {
        &self.shared
    }

    fn as_ptr(&self) -> *mut sys::shard_comm {
        self.shared.as_ptr()
    }

    /// Returns this rank.
    pub fn rank(&self) -> i32 {
        unsafe { sys::shard_comm_rank(self.as_ptr()) }
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> i32 {
        unsafe { sys::shard_comm_world_size(self.as_ptr()) }
    }

    /// Returns this rank's number among the ranks of its host.
    pub fn local_rank(&self) -> i32 {
        unsafe { sys::shard_comm_local_rank(self.as_ptr()) }
    }

    /// Returns the number of ranks of this host.
    pub fn local_world_size(&self) -> i32 {
        unsafe { sys::shard_comm_local_world_size(self.as_ptr()) }
    }

    /// Returns one line for people: transport, rank, world size, and where they came
    /// from.
    pub fn describe(&self) -> Result<&str> {
        let mut text = ptr::null();
        check(unsafe { sys::shard_comm_describe(self.as_ptr(), &mut text) })?;
        // SAFETY: the text lives as long as the handle.
        unsafe { borrowed(text) }
    }

    /// Returns the counter of an event, such as "step" or "reduce_scatter"; NOT_FOUND
    /// for another name, with all that there are. Never waits.
    pub fn counter(&self, event: &str) -> Result<Counter> {
        let event = c_text("the event", event)?;
        let mut counter = sys::SHARD_COUNTER_INIT;
        check(unsafe { sys::shard_comm_counter(self.as_ptr(), event.as_ptr(), &mut counter) })?;
        Ok(Counter::new(&counter))
    }

    /// Returns all counters in the text format of Prometheus. Never waits.
    pub fn metrics(&self) -> Result<String> {
        copied(|buffer, capacity, length| unsafe {
            sys::shard_comm_metrics(self.as_ptr(), buffer, capacity, length)
        })
    }

    /// Returns the last 1,024 collectives of this rank as JSON, which
    /// `shardctl triage` reads. Never waits.
    pub fn dump(&self) -> Result<String> {
        copied(|buffer, capacity, length| unsafe {
            sys::shard_comm_dump(self.as_ptr(), buffer, capacity, length)
        })
    }

    /// Waits until every rank has called it. COLLECTIVE, blocks. `timeout` is for
    /// this wait; None: the communicator's.
    pub fn barrier(&self, timeout: Option<Duration>) -> Result<()> {
        self.call(|comm| unsafe { sys::shard_comm_barrier(comm, seconds(timeout)) })
    }

    /// Replaces each value by its sum over the ranks, added in rank order, so that
    /// every rank gets the same bits. For losses and counts: at most 2^20 values.
    /// COLLECTIVE, blocks.
    pub fn sum(&self, values: &mut [f64], timeout: Option<Duration>) -> Result<()> {
        self.call(|comm| unsafe {
            sys::shard_comm_sum(comm, values.as_mut_ptr(), values.len(), seconds(timeout))
        })
    }

    /// Checks that GPUs move tensors between the ranks by NCCL. `device`: this
    /// rank's own GPU, such as "cuda:0". An error of NCCL ends the communicator.
    /// COLLECTIVE, blocks.
    pub fn check_device(&self, device: &str, timeout: Option<Duration>) -> Result<()> {
        let device = c_text("the device", device)?;
        self.call(|comm| unsafe {
            sys::shard_comm_check_device(comm, device.as_ptr(), seconds(timeout))
        })
    }

    /// Copies rank `root`'s bytes to all other ranks' `data`: a seed, a
    /// configuration. The same length and root on every rank. COLLECTIVE, blocks.
    pub fn broadcast(&self, data: &mut [u8], root: i32, timeout: Option<Duration>) -> Result<()> {
        self.call(|comm| unsafe {
            let bytes = data.as_mut_ptr() as *mut c_void;
            sys::shard_comm_broadcast(comm, bytes, data.len(), root, seconds(timeout))
        })
    }

    /// Ends the group from one side: every other rank's current or next collective
    /// is POISONED, with `reason`. For a host that failed between two collectives.
    /// Never blocks, not even for a call in progress.
    pub fn abort(&self, reason: &str) -> Result<()> {
        let reason = c_text("the reason", reason)?;
        check(unsafe { sys::shard_comm_abort(self.as_ptr(), reason.as_ptr()) })
    }

    /// Ends the group with a last barrier, so that no rank takes another's leaving
    /// for a death. The engines still give out their parameters. COLLECTIVE, blocks.
    pub fn shutdown(&self, timeout: Option<Duration>) -> Result<()> {
        self.call(|comm| unsafe { sys::shard_comm_shutdown(comm, seconds(timeout)) })
    }

    fn call(&self, call: impl FnOnce(*mut sys::shard_comm) -> *mut sys::shard_error) -> Result<()> {
        self.shared.gate().call(|| call(self.as_ptr()))
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Comm({})", self.describe().unwrap_or("?"))
    }
}
