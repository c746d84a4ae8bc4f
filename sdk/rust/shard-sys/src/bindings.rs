// SPDX-License-Identifier: Apache-2.0
//
// Written by sdk/rust/shard-sys/generate.py from the headers in
// api/include/shard. Change these, and run it again.

use std::marker::{PhantomData, PhantomPinned};
use std::mem;
use std::os::raw::{c_char, c_void};
use std::ptr;

/// The version of this header, for the preprocessor.
pub const SHARD_VERSION_MAJOR: i32 = 0;

pub const SHARD_VERSION_MINOR: i32 = 2;

pub const SHARD_VERSION_PATCH: i32 = 0;

extern "C" {
    /// Returns the version of the library that is loaded, which may be newer than
    /// the header: "0.2.0". Static storage. Any thread.
    pub fn shard_version() -> *const c_char;
}

extern "C" {
    /// Returns the number in the SONAME, libshard.so.N. Any thread.
    pub fn shard_abi_version() -> i32;
}

/// The codes of errors. 0 to 16 are the canonical codes of absl and gRPC.
/// Frozen.
pub type shard_code = i32;

pub const SHARD_OK: shard_code = 0;
pub const SHARD_CANCELLED: shard_code = 1;
pub const SHARD_UNKNOWN: shard_code = 2;
pub const SHARD_INVALID_ARGUMENT: shard_code = 3;
pub const SHARD_DEADLINE_EXCEEDED: shard_code = 4;
pub const SHARD_NOT_FOUND: shard_code = 5;
pub const SHARD_ALREADY_EXISTS: shard_code = 6;
pub const SHARD_PERMISSION_DENIED: shard_code = 7;
pub const SHARD_RESOURCE_EXHAUSTED: shard_code = 8;
pub const SHARD_FAILED_PRECONDITION: shard_code = 9;
pub const SHARD_ABORTED: shard_code = 10;
pub const SHARD_OUT_OF_RANGE: shard_code = 11;
pub const SHARD_UNIMPLEMENTED: shard_code = 12;
pub const SHARD_INTERNAL: shard_code = 13;
pub const SHARD_UNAVAILABLE: shard_code = 14;
pub const SHARD_DATA_LOSS: shard_code = 15;
pub const SHARD_UNAUTHENTICATED: shard_code = 16;
/// Ranks differ, or called different things.
pub const SHARD_DESYNC: shard_code = 64;
/// A rank died: shard_error_rank.
pub const SHARD_RANK_LOST: shard_code = 65;
/// Stored bytes are not what was written.
pub const SHARD_CORRUPT: shard_code = 66;
/// Unusable after an earlier error.
pub const SHARD_POISONED: shard_code = 67;
/// Not on this machine or in this build.
pub const SHARD_BACKEND_UNAVAILABLE: shard_code = 68;

#[repr(C)]
pub struct shard_error {
    _private: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

extern "C" {
    /// Returns the code of an error. These functions accept NULL, which stands for
    /// success: they then return SHARD_OK, "", -1 and "". Returned strings live as
    /// long as the error. Any thread.
    pub fn shard_error_code(error: *const shard_error) -> shard_code;
}

extern "C" {
    /// Returns the message: the problem, the value that has it, and the remedy. One
    /// line, UTF-8.
    pub fn shard_error_message(error: *const shard_error) -> *const c_char;
}

extern "C" {
    /// Returns the rank that the error is about, or -1.
    pub fn shard_error_rank(error: *const shard_error) -> i32;
}

extern "C" {
    /// Returns a JSON document with lists such as missing keys, or "".
    pub fn shard_error_detail(error: *const shard_error) -> *const c_char;
}

extern "C" {
    pub fn shard_error_free(error: *mut shard_error);
}

extern "C" {
    /// Returns the name of a code, such as "RANK_LOST"; "UNKNOWN_CODE" for other
    /// values. Static storage. Any thread.
    pub fn shard_code_name(code: shard_code) -> *const c_char;
}

/// The types of elements. Parameters are F32, BF16 or F16, and frozen ones F64
/// too: a plan may have others in F64, but no engine is made for it. The other
/// types are in files only. Q8 is an optimizer state in 8 bits, whose scales are
/// the tensor KEY.q8_scale. OPAQUE is a type of safetensors that libshard does
/// not read, such as complex numbers, or one that came later;
/// shard_checkpoint_tensor_type has its name. Such tensors are listed,
/// shard_checkpoint_read gives their bytes, and shard_checkpoint_convert and
/// _export copy them as they are; loading them is UNIMPLEMENTED. Frozen.
pub type shard_dtype = i32;

pub const SHARD_F32: shard_dtype = 1;
pub const SHARD_BF16: shard_dtype = 2;
pub const SHARD_F16: shard_dtype = 3;
pub const SHARD_F64: shard_dtype = 4;
pub const SHARD_Q8: shard_dtype = 5;
pub const SHARD_F8_E4M3: shard_dtype = 6;
pub const SHARD_F8_E5M2: shard_dtype = 7;
pub const SHARD_I8: shard_dtype = 16;
pub const SHARD_I16: shard_dtype = 17;
pub const SHARD_I32: shard_dtype = 18;
pub const SHARD_I64: shard_dtype = 19;
pub const SHARD_U8: shard_dtype = 20;
pub const SHARD_U16: shard_dtype = 21;
pub const SHARD_U32: shard_dtype = 22;
pub const SHARD_U64: shard_dtype = 23;
pub const SHARD_BOOL: shard_dtype = 24;
pub const SHARD_OPAQUE: shard_dtype = 32;

extern "C" {
    /// Returns the name of an element type: "f32", "bf16", "opaque"; "unknown" for
    /// another value. Static storage. Any thread.
    pub fn shard_dtype_name(dtype: shard_dtype) -> *const c_char;
}

extern "C" {
    /// Returns the bytes of an element; 0 for SHARD_OPAQUE, whose elements may have
    /// any size, and for a value that is no type. Any thread.
    pub fn shard_dtype_size(dtype: shard_dtype) -> usize;
}

pub const SHARD_MAX_DIMS: i32 = 8;

/// Levels of log messages. Frozen.
pub type shard_log_level = i32;

pub const SHARD_LOG_ERROR: shard_log_level = 1;
pub const SHARD_LOG_WARNING: shard_log_level = 2;
pub const SHARD_LOG_INFO: shard_log_level = 3;
pub const SHARD_LOG_DEBUG: shard_log_level = 4;

/// Receives a log message: a sentence, or for the calls of a host (level INFO,
/// steps DEBUG) a line such as "rank=0 event=save step=10 seconds=0.512000000
/// what=\"ckpt\" result=OK". Called from any thread that uses the library;
/// `message` lives for the call. The function must not call back into the same
/// handle. `user_data` is used until the communicator and all engines on it are
/// freed: the last of these free functions waits for calls in progress on other
/// threads, such as that of a save. That wait has no deadline, because the host
/// may free `user_data` after it. So the function must return, and must not wait
/// for a thread that frees a handle.
pub type shard_log_fn = Option<unsafe extern "C" fn(level: shard_log_level, message: *const c_char, user_data: *mut c_void)>;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_comm_options {
    pub struct_size: usize,
    /// This rank and the number of ranks, where the URL does not give them.
    /// Ignored as long as world_size is 0. REQUIRES: 0 <= rank < world_size.
    pub rank: i32,
    pub world_size: i32,
    /// Seconds to wait for the other ranks to come, and the default of every
    /// later wait. Default 60. Every rank should give the same.
    pub timeout: f64,
    /// Default: no logging.
    pub log: shard_log_fn,
    pub log_user_data: *mut c_void,
    /// The most verbose level that is logged. Default SHARD_LOG_WARNING.
    pub log_level: shard_log_level,
    pub reserved: i32,
    /// The path of a file in which the ranks of a host write, together, when each
    /// of their calls, phases, collectives and transfers began and ended. Perfetto
    /// and chrome://tracing open it. A run that finds the file in use writes
    /// another one: "trace.json" → "trace.2.json". Default: no trace. The
    /// environment's SHARD_TRACE overrides it, so that a user can trace any host.
    pub trace: *const c_char,
    /// The path of a file of counters in the text format of Prometheus, replaced
    /// at most every 5 seconds, by a rank's calls. Each rank has its own: the rank
    /// is put before the extension, "shard.prom" → "shard.rank0.prom". A
    /// communicator that finds the file in use writes another one, whose samples
    /// have a label that says so: "shard.rank0.2.prom", file="2". Default: none.
    /// The environment's SHARD_METRICS overrides it.
    pub metrics: *const c_char,
    /// The path of a file of the last collectives, as shard_comm_dump writes them.
    /// Each rank has its own, as those of metrics: "dump.rank0.json". A rank
    /// replaces it when it opens the communicator, when a collective fails, and
    /// when the last handle is freed. Default: none. The environment's SHARD_DUMP
    /// overrides it.
    pub dump: *const c_char,
}
/// All fields zero, but for struct_size.
pub const SHARD_COMM_OPTIONS_INIT: shard_comm_options = shard_comm_options { struct_size: mem::size_of::<shard_comm_options>(), rank: 0, world_size: 0, timeout: 0.0, log: None, log_user_data: ptr::null_mut(), log_level: 0, reserved: 0, trace: ptr::null(), metrics: ptr::null(), dump: ptr::null() };

#[repr(C)]
pub struct shard_comm {
    _private: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

extern "C" {
    /// Meets the other ranks. COLLECTIVE, blocks. URLs:
    ///
    /// ```text
    ///   "env:"         rank, world size and rendezvous point from the environment:
    ///                  SHARD_RANK and SHARD_WORLD_SIZE (set by `shardctl run`),
    ///                  else torchrun's, Open MPI's or Slurm's variables; without
    ///                  any of them, one rank. Half of a group set is an error.
    ///                  Ranks on several hosts meet as by "tcp:", whose interface,
    ///                  address, secret_file, trust and sums it takes.
    ///   "local:"       one rank.
    ///   "threads:N"    N threads of this process; each opens with its own rank and
    ///                  world_size N. "?name=x" keeps groups apart; those without a
    ///                  name are told apart by N.
    ///   "shm:NAME"     processes of this host and user that give the same NAME.
    ///                  They meet at an abstract Unix socket with their user id in
    ///                  its name, and believe no other user's process there.
    ///   "tcp://HOST:PORT"
    ///                  processes of several hosts. HOST is a name or an address of
    ///                  one of them ("[fd00::2]:29500" for IPv6), and the URL the
    ///                  same on all ranks of a host. The ranks of a host have
    ///                  neighboring numbers. The first of them starts the program
    ///                  shard-network, which connects to the other hosts and ends
    ///                  with its ranks; it is a process, but no child of this one.
    ///     job=TEXT       ranks of another job do not meet these. Default: empty
    ///     restart=N      the number of the job's start: a later one ends the
    ///                    meeting of an earlier one. Default 0
    ///     meet=SECONDS   to wait for the other ranks to come, in place of
    ///                    timeout. Default 300
    ///     rank=R, world_size=N      where the options do not give them. Default:
    ///                    those of a launcher's variables, as for "env:"
    ///     interface=NAME, address=ADDRESS      the one by which other hosts reach
    ///                    this one. Default: the one from which HOST is reached
    ///     secret_file=PATH   an absolute path: a text that is the same on all
    ///                    hosts, in a file of this user or root that nobody else may
    ///                    use. Default: the environment's SHARD_TOKEN
    ///     trust=network  no secret is needed. Without it and without a secret the
    ///                    host listens on loopback alone
    ///     sums=direct    each rank sends its gradients to the host of the rank that
    ///                    sums them; sums=chain: the sums so far pass from host to
    ///                    host. The bits are the same. The same on all ranks.
    ///                    Default: the form in which the host that sends most sends
    ///                    fewer bytes
    ///     host=NAME      names this host: several on one machine, for tests
    /// ```
    ///
    /// ```text
    ///   Connections are authenticated by the secret and not encrypted, and nothing
    ///   that follows on them is authenticated. docs/operations.md has ports, trust,
    ///   deadlines and each error, docs/scaling.md what passes between hosts.
    /// ```
    ///
    /// "?timeout=SECONDS" may follow any URL. So may "?direct=0", except "tcp:": the
    /// ranks then act as if they shared no memory, and exchange tensors as ranks on
    /// several hosts do. With it one machine can try what several hosts would do.
    /// "&delay=SECONDS" and "&bandwidth=BYTES_PER_SECOND" simulate a link: an
    /// exchange of tensors takes at least the delay, and a rank sends its bytes at
    /// that rate. Every rank should give the same.
    ///
    /// The call also reads what a user wants to see of the run, whatever the URL:
    /// SHARD_LOG (off, error, warning, info, debug) and SHARD_LOG_FILE, which write
    /// a log in addition to options->log, SHARD_TRACE, SHARD_METRICS and SHARD_DUMP.
    /// docs/observability.md describes what they write. Without them and the options
    /// the library writes nothing.
    ///
    /// Errors: INVALID_ARGUMENT for a bad URL, a rank outside the world, or world
    /// sizes that differ (on all ranks); INVALID_ARGUMENT for a SHARD_LOG that is no
    /// level, and the error of a trace, metrics, dump or log file that cannot be
    /// opened (on all ranks, once they have come); DEADLINE_EXCEEDED naming the
    /// ranks that did not come; ALREADY_EXISTS when rank or NAME is taken, by this
    /// user or another: where another user listens at NAME, ranks above 0 get
    /// PERMISSION_DENIED; DESYNC, on all ranks, when only some give direct=0 or when
    /// they give different sums. With "tcp:" also BACKEND_UNAVAILABLE where
    /// shard-network cannot be started; NOT_FOUND for a HOST, an interface or an
    /// address that is none; UNAVAILABLE for a host that cannot be reached;
    /// UNAUTHENTICATED where secrets differ; PERMISSION_DENIED without a secret;
    /// FAILED_PRECONDITION where versions or starts of the job differ; RANK_LOST,
    /// with the lowest rank of a host that has left.
    #[must_use]
    pub fn shard_comm_open(url: *const c_char, options: *const shard_comm_options, comm: *mut *mut shard_comm) -> *mut shard_error;
}

extern "C" {
    /// Return this rank and the number of ranks; -1 and 0 for NULL. Any thread.
    pub fn shard_comm_rank(comm: *const shard_comm) -> i32;
}

extern "C" {
    pub fn shard_comm_world_size(comm: *const shard_comm) -> i32;
}

extern "C" {
    /// Return this rank's number among the ranks of its host, from 0, and the number
    /// of ranks there, for a program that chooses one of the host's devices. -1 and
    /// 0 for NULL. Any thread.
    pub fn shard_comm_local_rank(comm: *const shard_comm) -> i32;
}

extern "C" {
    pub fn shard_comm_local_world_size(comm: *const shard_comm) -> i32;
}

extern "C" {
    /// Gets one line for people: transport, rank, world size, and where they came
    /// from. Any thread.
    #[must_use]
    pub fn shard_comm_describe(comm: *const shard_comm, text: *mut *const c_char) -> *mut shard_error;
}

extern "C" {
    /// Waits until every rank has called it. COLLECTIVE, blocks.
    #[must_use]
    pub fn shard_comm_barrier(comm: *mut shard_comm, timeout: f64) -> *mut shard_error;
}

extern "C" {
    /// Replaces values[i] by its sum over the ranks, added in rank order, so that
    /// every rank gets the same bits. For losses and counts in the host's memory:
    /// `count` is at most 2^20. COLLECTIVE, blocks.
    #[must_use]
    pub fn shard_comm_sum(comm: *mut shard_comm, values: *mut f64, count: usize, timeout: f64) -> *mut shard_error;
}

extern "C" {
    /// Checks that GPUs move tensors between the ranks by NCCL: makes each of the
    /// calls that engines on "cuda:N?collectives=nccl" make, with a MiB of every
    /// rank, and compares what arrives. One rank checks its GPU alone. `device`:
    /// this rank's own GPU, such as "cuda:0", as in shard_engine_options.
    /// BACKEND_UNAVAILABLE where there is no NCCL that all ranks can use. An error
    /// of NCCL names the call; it ends the communicator, as does a library that does
    /// not return: open another one. COLLECTIVE, blocks.
    #[must_use]
    pub fn shard_comm_check_device(comm: *mut shard_comm, device: *const c_char, timeout: f64) -> *mut shard_error;
}

extern "C" {
    /// Copies rank `root`'s `bytes` bytes at `data` to all other ranks' `data`: a
    /// seed, a configuration, a tokenizer. `data` is the host's memory, and may be
    /// NULL where `bytes` is 0. The same `bytes` and `root` on every rank.
    /// COLLECTIVE, blocks.
    #[must_use]
    pub fn shard_comm_broadcast(comm: *mut shard_comm, data: *mut c_void, bytes: usize, root: i32, timeout: f64) -> *mut shard_error;
}

/// The totals of an event on this rank since the communicator was opened,
/// its engines included.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_counter {
    pub struct_size: usize,
    pub calls: u64,
    /// How many of the calls failed.
    pub errors: u64,
    /// Sent, read or written; 0 for events without bytes.
    pub bytes: u64,
    pub seconds: f64,
}
/// All fields zero, but for struct_size.
pub const SHARD_COUNTER_INIT: shard_counter = shard_counter { struct_size: mem::size_of::<shard_counter>(), calls: 0, errors: 0, bytes: 0, seconds: 0.0 };

extern "C" {
    /// Gets the counter of the event called `event`: "step", "acquire", "save",
    /// "barrier", "reduce_scatter"; docs/observability.md lists all. NOT_FOUND for
    /// another name, with all that there are. Set counter->struct_size first. Counts
    /// whether or not anything is logged or traced. Local. Any thread.
    #[must_use]
    pub fn shard_comm_counter(comm: *const shard_comm, event: *const c_char, counter: *mut shard_counter) -> *mut shard_error;
}

extern "C" {
    /// Writes all counters of this rank in the text format of Prometheus, for a host
    /// that serves them itself. Local. Any thread.
    #[must_use]
    pub fn shard_comm_metrics(comm: *const shard_comm, buffer: *mut c_char, capacity: usize, length: *mut usize) -> *mut shard_error;
}

extern "C" {
    /// Writes the last 1,024 collectives of this rank as JSON, those that run too:
    /// docs/observability.md has the keys. `shardctl triage` compares the dumps of
    /// the ranks of a run that hangs. Local. Any thread, also while another one
    /// waits in a collective.
    #[must_use]
    pub fn shard_comm_dump(comm: *const shard_comm, buffer: *mut c_char, capacity: usize, length: *mut usize) -> *mut shard_error;
}

extern "C" {
    /// Ends the group from one side: every other rank's current or next collective
    /// returns SHARD_POISONED with `reason`. For a host that failed between two
    /// collectives and will not come to the next. Any thread, never blocks.
    #[must_use]
    pub fn shard_comm_abort(comm: *mut shard_comm, reason: *const c_char) -> *mut shard_error;
}

extern "C" {
    /// Ends the group with a last barrier, so that no rank takes another's leaving
    /// for a death. Free the communicator afterwards; its engines still give out
    /// their parameters. A rank that frees the communicator and all its engines
    /// without this call leaves safely, and is a lost rank to those that still wait.
    /// COLLECTIVE, blocks.
    #[must_use]
    pub fn shard_comm_shutdown(comm: *mut shard_comm, timeout: f64) -> *mut shard_error;
}

extern "C" {
    pub fn shard_comm_free(comm: *mut shard_comm);
}

/// A tree of modules with named parameters and buffers. Modules, parameters and
/// buffers have dense ids from 0 up, each in the order of adding; module 0 is
/// the root. The outputs for ids may be NULL. The fully qualified name (FQN) of
/// a parameter or buffer joins the names on its path with dots. A name has no
/// dots and no control characters, and with its path at most 65000 bytes. A
/// module uses each name once.
#[repr(C)]
pub struct shard_model {
    _private: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

extern "C" {
    /// Creates a model whose root module has the class `class_name`, which may be
    /// NULL. Errors: a class that is not UTF-8. Local.
    #[must_use]
    pub fn shard_model_create(class_name: *const c_char, model: *mut *mut shard_model) -> *mut shard_error;
}

extern "C" {
    /// Adds a module within `parent`. `name` is one path component; `class_name` may
    /// be NULL; `module` receives the id. Errors: a parent that does not exist, a
    /// bad name, a name that `parent` has already, a class that is not UTF-8.
    /// Local.
    #[must_use]
    pub fn shard_model_add_module(model: *mut shard_model, parent: i32, name: *const c_char, class_name: *const c_char, module: *mut i32) -> *mut shard_error;
}

extern "C" {
    /// Adds a trainable parameter of shape[0..ndim), row-major; ndim 0 is a scalar,
    /// and `shape` may then be NULL. A dimension may be 0. Errors: a bad or taken
    /// name, an unknown dtype, ndim above SHARD_MAX_DIMS, a negative dimension, a
    /// size beyond int64. Local.
    #[must_use]
    pub fn shard_model_add_param(model: *mut shard_model, module: i32, name: *const c_char, dtype: shard_dtype, shape: *const i64, ndim: usize, param: *mut i32) -> *mut shard_error;
}

extern "C" {
    /// Adds a buffer of shape[0..ndim), as torch's register_buffer does: a tensor of
    /// the host that is neither stepped nor sharded, such as the running_mean (f32)
    /// and num_batches_tracked (i64) of a batch norm. Every rank has it whole, zero
    /// at first, and the host reads and writes it (shard_engine_buffer);
    /// shard_engine_broadcast_buffers makes it the same on all ranks. `persistent`
    /// 1: it is saved in checkpoints and state dicts under its FQN, with the role
    /// SHARD_ROLE_BUFFER, and loaded from them; 0: it is in neither. A plan keeps
    /// the dtype, whatever its param_dtype. The flat buffers of a plan, which
    /// shard_plan_buffer_info describes, are something else: they hold parameters.
    ///
    /// Any dtype but SHARD_Q8 and SHARD_OPAQUE. `shape` may be NULL for ndim 0, a
    /// scalar; a dimension may be 0. Errors: a bad or taken name, an unknown dtype,
    /// ndim above SHARD_MAX_DIMS, a negative dimension, a size beyond int64, a
    /// `persistent` other than 0 and 1. Local.
    #[must_use]
    pub fn shard_model_add_buffer(model: *mut shard_model, module: i32, name: *const c_char, dtype: shard_dtype, shape: *const i64, ndim: usize, persistent: i32, buffer: *mut i32) -> *mut shard_error;
}

extern "C" {
    /// Gives `param` another name, for tied weights. The parameter is stored,
    /// reduced and updated once, under the name that comes first in module-walk
    /// order. Local.
    #[must_use]
    pub fn shard_model_tie(model: *mut shard_model, module: i32, name: *const c_char, param: i32) -> *mut shard_error;
}

extern "C" {
    /// Freezes a parameter: it keeps its values and has no gradient and no optimizer
    /// state. Local.
    #[must_use]
    pub fn shard_model_freeze(model: *mut shard_model, param: i32) -> *mut shard_error;
}

extern "C" {
    /// Ignore a parameter, or a module with everything below it: libshard neither
    /// stores nor touches ignored parameters and buffers. Local.
    #[must_use]
    pub fn shard_model_ignore_param(model: *mut shard_model, param: i32) -> *mut shard_error;
}

extern "C" {
    #[must_use]
    pub fn shard_model_ignore_module(model: *mut shard_model, module: i32) -> *mut shard_error;
}

extern "C" {
    /// Gives params[0..count) an optimizer, or hyperparameters, of their own: a
    /// param group. `optimizer` is a text as in shard_plan_options, or "?key=value"
    /// for the plan's optimizer with other values, such as "?weight_decay=0", or ""
    /// for the plan's optimizer as it is; the text is read when a plan is made.
    /// Groups have ids from 1 up; group 0 holds every parameter that is in no other
    /// group, with the plan's optimizer. Errors: no parameters, more than the model
    /// has, a parameter that does not exist, has a group already or is listed twice.
    /// Local.
    #[must_use]
    pub fn shard_model_add_param_group(model: *mut shard_model, optimizer: *const c_char, params: *const i32, count: usize, group: *mut i32) -> *mut shard_error;
}

extern "C" {
    pub fn shard_model_free(model: *mut shard_model);
}

/// How parameters are divided among ranks. Frozen.
pub type shard_partition = i32;

/// Flat buffers cut into equal pieces, as FSDP does. The default.
pub const SHARD_PARTITION_EVEN: shard_partition = 1;
/// Whole parameters, each to the least loaded rank, largest first, as
/// ZeroRedundancyOptimizer does.
pub const SHARD_PARTITION_GREEDY: shard_partition = 2;
/// Whole parameters by gradient bucket; see bucket_bytes.
pub const SHARD_PARTITION_BUCKET: shard_partition = 3;
/// Whole parameters by `owners`.
pub const SHARD_PARTITION_MANUAL: shard_partition = 4;

/// The precision in which a bf16 or f16 parameter is stepped. Frozen.
pub type shard_masters = i32;

/// An fp32 copy, the master weights: 4 bytes of state per element. The
/// parameter is its value rounded to nearest even. The default.
pub const SHARD_MASTERS_F32: shard_masters = 1;
/// No copy is kept: the parameter is widened, updated in fp32 and rounded to
/// nearest even. Updates below half its last digit are lost.
pub const SHARD_MASTERS_NONE_NEAREST: shard_masters = 2;
/// No copy is kept: the updated parameter is rounded up or down at random such
/// that the mean is right; bf16 only. The bits come from a counter-based
/// generator keyed by (seed, step, parameter, element): they do not depend on
/// the world size.
pub const SHARD_MASTERS_NONE_STOCHASTIC: shard_masters = 3;

/// Returns non-zero when `module` is to be a unit. `nonwrapped_numel` is the
/// number of its elements, without those of ignored parameters and of units
/// within it. Called by shard_plan_create only, on its thread, with inner
/// modules before those around them; `user_data` is not used after
/// shard_plan_create returns.
pub type shard_wrap_fn = Option<unsafe extern "C" fn(module: i32, nonwrapped_numel: i64, user_data: *mut c_void) -> i32>;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_plan_options {
    pub struct_size: usize,
    /// ZeRO stage: 0 and 1 shard optimizer states, 2 also gradients, 3 also
    /// parameters; each where that saves memory (docs/units.md). Tensors that are
    /// not sharded exist once per host where ranks share memory; over several
    /// hosts, on "cpu", such parameters do. Stage 0, too, shards states over all
    /// ranks: copies of the states would not save communication.
    pub stage: i32,
    /// The number of ranks: REQUIRED, at least 1, and equal to the communicator's.
    pub world_size: i32,
    pub partition: shard_partition,
    /// BUCKET only: 1 cuts buckets at total/world_size and spreads the pieces;
    /// 0 gives bucket i to rank i mod world_size.
    pub shard_buckets: i32,
    /// BUCKET only: a bucket is closed when it holds this many gradient bytes,
    /// parameters taken last to first. Default 25 MiB.
    pub bucket_bytes: i64,
    /// MANUAL only: owners[i] is the rank that owns parameter i, and num_owners
    /// must be the number of parameters. Entries of frozen and ignored parameters
    /// are not read.
    pub owners: *const i32,
    pub num_owners: usize,
    /// ```text
    /// The optimizer of parameters in no param group, and its hyperparameters by
    /// torch's names; those not given have torch's defaults. Default "adamw".
    ///   adamw, adam  lr beta1 beta2 eps weight_decay amsgrad profile states
    ///   sgd          lr momentum dampening weight_decay nesterov
    ///   adagrad      lr lr_decay weight_decay initial_accumulator_value eps
    ///   rmsprop      lr alpha eps weight_decay momentum centered
    ///   adadelta     lr rho eps weight_decay
    ///   adamax       lr beta1 beta2 eps weight_decay
    ///   rprop        lr etaminus etaplus step_size_min step_size_max
    ///   lion         lr beta1 beta2 weight_decay
    ///   lamb         lr beta1 beta2 eps weight_decay
    ///   adafactor    lr beta2_decay eps1 eps2 d weight_decay
    ///   muon         lr weight_decay momentum nesterov ns_steps eps adjust_lr_fn
    ///                matmul_precision
    /// for example
    ///   "adamw?lr=3e-4&beta1=0.9&beta2=0.95&eps=1e-8&weight_decay=0.1"
    ///   "sgd?lr=0.1&momentum=0.9&nesterov=1"
    /// All but lion and muon take maximize=1. Flags are 0 or 1. amsgrad, centered,
    /// and whether momentum is 0 decide which states there are: they cannot change
    /// later, nor can words. rprop reads lr on the first step only, as torch does.
    /// profile=torch|apex|deepspeed_cpu|llmc|llmc_cpu|ggml names the program whose
    /// arithmetic is followed, to the order of operations (docs/numerics.md); only
    /// adamw has llmc, llmc_cpu and ggml, and only torch has amsgrad.
    /// states=f32|bf16|q8 is the type in which exp_avg and its like are stored; q8
    /// is 8 bits and a scale per 256 elements. lamb, adafactor and muon step whole
    /// parameters: each is owned by one rank, in every partition, and all ranks'
    /// shares are as large as the largest. muon steps matrices only: give vectors,
    /// embeddings and heads a param group of adamw. It needs a CBLAS
    /// (SHARD_BLAS_LIBRARY, else the usual names), and on a GPU cuBLAS of CUDA 12
    /// or 13 instead. adjust_lr_fn=original|match_rms_adamw.
    /// matmul_precision=highest|high|medium is the least precision of its products
    /// on a GPU: fp32, TF32 or bf16, as torch's set_float32_matmul_precision names
    /// them. A processor multiplies in fp32 whatever it is.
    /// ```
    pub optimizer: *const c_char,
    /// 1: gradients of bf16 and f16 parameters are kept in fp32. Default: as the
    /// parameter. They are summed in fp32 either way.
    pub f32_grads: i32,
    /// Default SHARD_MASTERS_F32.
    pub masters: shard_masters,
    /// The seed of stochastic rounding: of parameters with
    /// SHARD_MASTERS_NONE_STOCHASTIC, and of states narrower than fp32, which are
    /// always rounded so.
    pub seed: u64,
    /// ```text
    /// The policies that make modules units, whose parameters are gathered and
    /// whose gradients are reduced together (docs/units.md). The root is always a
    /// unit. Policies are separated by '|', a module is a unit when any of them
    /// selects it, and their results are those of torch.distributed.fsdp.wrap:
    ///   always                     every module
    ///   class?names=Block,MLP      by class name
    ///   size?min_numel=100000000&force_leaf=MultiheadAttention
    ///       &exclude=ModuleList,ModuleDict      (without the line break)
    ///                              modules by size
    /// ```
    ///
    /// The last one takes modules with at least min_numel elements beyond those of
    /// units within; neither force_leaf nor what is below it, and never exclude
    /// itself. A tied parameter counts once, in the module of its first name,
    /// where torch counts it in every child that has it. Values not given are
    /// those shown. A class in names that no module has is an error; so is a size
    /// policy when the model has min_numel elements but no module inside it can be
    /// taken. A model with fewer elements is one unit. Default: the root only.
    pub wrap: *const c_char,
    /// One more policy, asked where the others do not wrap. May be NULL.
    pub wrap_predicate: shard_wrap_fn,
    pub wrap_user_data: *mut c_void,
    /// The type in which parameters declared as SHARD_F32 are stored and computed:
    /// SHARD_F32, SHARD_BF16 or SHARD_F16; gradients follow. Default: as declared.
    pub param_dtype: shard_dtype,
    /// Stage 3 without shared memory: the number of consecutive ranks that shard
    /// the parameters among them; every such group holds all parameters. It must
    /// divide world_size. Default: world_size.
    pub shard_group_size: i32,
    /// With a narrower param_dtype: modules of these classes, separated by commas,
    /// become units of their own that stay f32 with all below them. A class that
    /// no module has is an error.
    pub f32_classes: *const c_char,
    /// A flat buffer that is cut evenly is closed before its gradients (or frozen
    /// parameters) would take more bytes. Default 25 MiB.
    pub buffer_bytes: i64,
    /// The number of units whose gathers or reductions are in flight beside the
    /// unit in use, up to 64; each takes a slot. -1: none. Default 1.
    pub prefetch: i32,
    /// Stages 2 and 3: 1 keeps every rank's gradients whole, so that they
    /// accumulate without communication.
    pub whole_grads: i32,
    /// 1: gradients are summed in rank order and the sums are kept in fp32, so
    /// that no result depends on stage, units, buffer_bytes, prefetch, overlap,
    /// shard_group_size or NCCL (docs/numerics.md).
    pub deterministic: i32,
    /// Stage 3: 1 keeps parameters whole, as in stage 2, instead of gathering them
    /// again for each pass (reshard_after_forward=False).
    pub keep_after_forward: i32,
    /// 1: it is an error instead of a warning when the plan keeps tensors whole
    /// that its stage shards, because a rank's part and the slots would take no
    /// less memory. For one rank there is nothing to shard, and no error; nor for
    /// parameters with shard_group_size 1, where each rank is to hold them all.
    pub require_sharding: i32,
    pub reserved: i32,
}
/// All fields zero, but for struct_size.
pub const SHARD_PLAN_OPTIONS_INIT: shard_plan_options = shard_plan_options { struct_size: mem::size_of::<shard_plan_options>(), stage: 0, world_size: 0, partition: 0, shard_buckets: 0, bucket_bytes: 0, owners: ptr::null(), num_owners: 0, optimizer: ptr::null(), f32_grads: 0, masters: 0, seed: 0, wrap: ptr::null(), wrap_predicate: None, wrap_user_data: ptr::null_mut(), param_dtype: 0, shard_group_size: 0, f32_classes: ptr::null(), buffer_bytes: 0, prefetch: 0, whole_grads: 0, deterministic: 0, keep_after_forward: 0, require_sharding: 0, reserved: 0 };

/// Where the ranks of a plan run.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_placement {
    pub struct_size: usize,
    /// 1 to world_size. Default: world_size, all on one host, whose memory they
    /// share. Where there are several hosts, the ranks of each share parameters
    /// that are not sharded, on "cpu", and no other tensors.
    pub ranks_per_host: i32,
    /// 1: ranks of one host share no memory either, as with direct=0 in a
    /// communicator's URL. Ranks that met by tcp:// and are all on one host share
    /// their parameters alone: memory is as with 1, but with parameters that are
    /// not sharded once.
    pub separate_memory: i32,
    /// As in shard_engine_options. Default "cpu".
    pub device: *const c_char,
}
/// All fields zero, but for struct_size.
pub const SHARD_PLACEMENT_INIT: shard_placement = shard_placement { struct_size: mem::size_of::<shard_placement>(), ranks_per_host: 0, separate_memory: 0, device: ptr::null() };

/// The memory of engines in bytes, rounded up to pages.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_memory {
    pub struct_size: usize,
    /// Per host where its ranks hold one copy: where they share memory and, over
    /// several hosts, where parameters are not sharded, on "cpu"; else per rank.
    pub param_bytes: u64,
    /// Per rank.
    pub grad_bytes: u64,
    /// Per rank: optimizer state, master weights too.
    pub state_bytes: u64,
    /// Per rank: for lamb, adafactor and muon; where a GPU steps, which with
    /// offload it does not, for muon alone.
    pub workspace_bytes: u64,
    /// Per rank: slots of units in use or in flight.
    pub transient_bytes: u64,
    /// All of the above and model_buffer_bytes once more, by the memory that holds
    /// them: the device's own per rank ("cpu" has none), and the host's per host,
    /// for all its ranks. With what collectives need of either: the host's is in
    /// pinned_bytes; the device's, with collectives=nccl, is for the gradients of
    /// other ranks (docs/gpu.md), without the memory that NCCL takes for itself.
    pub device_bytes: u64,
    /// At most UINT64_MAX.
    pub host_bytes: u64,
    /// The page-locked part of host_bytes, for a device with memory of its own:
    /// the model's buffers, and 4 MiB per rank through which collectives pass
    /// tensors, or more where the world has more than 65534 ranks; none of that
    /// for several ranks with collectives=nccl. With collectives=auto a prediction
    /// has the memory of both, and an engine that of one. With offload=states also
    /// optimizer states, masters and workspace, and the memory through which
    /// gradients and parameters pass.
    pub pinned_bytes: u64,
    /// Per host, beside host_bytes: the memory through which the host's
    /// communicator, the engine's and the engine's exchange of tensors pass
    /// control data and, where ranks share no memory, from the first bytes on also
    /// tensors, and the notices of the engine's ranks. Not counted: another
    /// communicator, which the first save opens, with 2 MiB and a page more per
    /// rank; and, where ranks share memory, 2 MiB and a page more per rank for
    /// each of the three once a call sends bytes through it all the same:
    /// shard_comm_broadcast; for the engine's, a load of a checkpoint, a load of a
    /// state dict from rank 0 or with buffers of the model, a broadcast of these
    /// buffers, a gather, and a summon to one rank that is written back; and for
    /// the exchange, a change of the plan.
    pub control_bytes: u64,
    /// Per rank, within host_bytes: those of shard_model_add_buffer.
    pub model_buffer_bytes: u64,
}
/// All fields zero, but for struct_size.
pub const SHARD_MEMORY_INIT: shard_memory = shard_memory { struct_size: mem::size_of::<shard_memory>(), param_bytes: 0, grad_bytes: 0, state_bytes: 0, workspace_bytes: 0, transient_bytes: 0, device_bytes: 0, host_bytes: 0, pinned_bytes: 0, control_bytes: 0, model_buffer_bytes: 0 };

#[repr(C)]
pub struct shard_plan {
    _private: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

extern "C" {
    /// Decides every unit, flat buffer, slot and owner. Pure and local: the same
    /// inputs give the same plan on any machine, for any world size, without
    /// allocating what it plans. Copies the model. Errors name the offending option,
    /// parameter and value; it is also an error when two names have one key in
    /// checkpoints.
    #[must_use]
    pub fn shard_plan_create(model: *const shard_model, options: *const shard_plan_options, plan: *mut *mut shard_plan) -> *mut shard_error;
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_plan_info {
    pub struct_size: usize,
    /// Equal on two ranks exactly when their plans are.
    pub fingerprint: u64,
    /// As asked for; the next two are what is sharded.
    pub stage: i32,
    /// 1: a rank keeps the sums of its own part.
    pub shards_grads: i32,
    /// 1: where ranks share no memory, a rank keeps its own part, and a unit's
    /// parameters are whole while it is acquired.
    pub shards_params: i32,
    pub world_size: i32,
    /// In the model, ignored ones among them.
    pub num_params: i32,
    /// Ignored ones among them.
    pub num_modules: i32,
    /// Names of parameters: shard_plan_name_info.
    pub num_names: i32,
    /// Param groups, group 0 among them.
    pub num_groups: i32,
    /// From 0, the root, in module-walk order.
    pub num_units: i32,
    /// Flat buffers: shard_plan_buffer_info.
    pub num_buffers: i32,
    /// As in shard_plan_options, or world_size where that has 0. Has no meaning
    /// unless shards_params is 1.
    pub shard_group_size: i32,
    /// As in shard_plan_options.
    pub keep_after_forward: i32,
    /// Buffers of shard_model_add_buffer, ignored ones among them:
    /// shard_plan_model_buffer_info.
    pub num_model_buffers: i32,
    pub reserved: i32,
}
/// All fields zero, but for struct_size.
pub const SHARD_PLAN_INFO_INIT: shard_plan_info = shard_plan_info { struct_size: mem::size_of::<shard_plan_info>(), fingerprint: 0, stage: 0, shards_grads: 0, shards_params: 0, world_size: 0, num_params: 0, num_modules: 0, num_names: 0, num_groups: 0, num_units: 0, num_buffers: 0, shard_group_size: 0, keep_after_forward: 0, num_model_buffers: 0, reserved: 0 };

extern "C" {
    /// Gets the plan's decisions, and the number of its parameters, units and so on.
    /// Set info->struct_size first. Any thread.
    #[must_use]
    pub fn shard_plan_get_info(plan: *const shard_plan, info: *mut shard_plan_info) -> *mut shard_error;
}

extern "C" {
    /// Gets the unit that a parameter is in; a tied parameter is in the unit of its
    /// first name in module-walk order. FAILED_PRECONDITION for an ignored
    /// parameter. Any thread.
    #[must_use]
    pub fn shard_plan_unit_of(plan: *const shard_plan, param: i32, unit: *mut i32) -> *mut shard_error;
}

extern "C" {
    /// Gets the unit whose outermost module is `module`; -1 when there is none. Any
    /// thread.
    #[must_use]
    pub fn shard_plan_unit_of_module(plan: *const shard_plan, module: i32, unit: *mut i32) -> *mut shard_error;
}

extern "C" {
    /// Gets a unit's outermost module. Any thread.
    #[must_use]
    pub fn shard_plan_unit_module(plan: *const shard_plan, unit: i32, module: *mut i32) -> *mut shard_error;
}

extern "C" {
    /// Predicts the memory of the plan's engines, which use exactly this:
    /// shard_engine_memory. `placement` may be NULL: all ranks on one host. Set
    /// memory->struct_size first. Errors: ranks_per_host outside 0 to world_size; a
    /// device that is not known. Any thread.
    #[must_use]
    pub fn shard_plan_memory(plan: *const shard_plan, placement: *const shard_placement, memory: *mut shard_memory) -> *mut shard_error;
}

extern "C" {
    /// Write the plan for people, and for programs. Any thread.
    #[must_use]
    pub fn shard_plan_text(plan: *const shard_plan, buffer: *mut c_char, capacity: usize, length: *mut usize) -> *mut shard_error;
}

extern "C" {
    #[must_use]
    pub fn shard_plan_json(plan: *const shard_plan, buffer: *mut c_char, capacity: usize, length: *mut usize) -> *mut shard_error;
}

extern "C" {
    /// Gets the warnings, a line each, or "". There is one for tensors that the plan
    /// keeps whole although its stage shards them, one for the modules that stay f32
    /// by f32_classes, and one for each unit with both frozen and trainable
    /// parameters, with the cost of that. Any thread.
    #[must_use]
    pub fn shard_plan_warnings(plan: *const shard_plan, warnings: *mut *const c_char) -> *mut shard_error;
}

extern "C" {
    /// Copies the plan's first `capacity` bytes to `buffer`, in the host's memory,
    /// and writes the number of all to `length`; with capacity 0 `buffer` may be
    /// NULL. Each call makes the bytes anew, and all calls give the same bytes.
    /// RESOURCE_EXHAUSTED when there would be more than 1 GiB, or when the names of
    /// modules and parameters, with their paths and with the class of each module,
    /// have more than 16 times as many bytes and 16 MiB: modules that are nested
    /// very deeply, or many of one very long class. Any thread.
    #[must_use]
    pub fn shard_plan_encode(plan: *const shard_plan, buffer: *mut c_void, capacity: usize, length: *mut usize) -> *mut shard_error;
}

extern "C" {
    /// Makes a plan from the bytes of shard_plan_encode, with the same fingerprint,
    /// the same ids, and the same results from every function. `bytes` are in the
    /// host's memory, may have any alignment, and are not kept. Local. Errors:
    /// CORRUPT for bytes that make no plan, or one with another fingerprint than
    /// they say; UNIMPLEMENTED for bytes of a libshard that writes plans, or lays
    /// them out, in another way, or has optimizers or options that this one does not
    /// know: make the plan again. Any bytes, wrong ones too, need memory of at most
    /// 64 times their number, 96 bytes for each rank of the world size in them (2^20
    /// at most) and 32 MiB, and time in proportion.
    #[must_use]
    pub fn shard_plan_decode(bytes: *const c_void, length: usize, plan: *mut *mut shard_plan) -> *mut shard_error;
}

extern "C" {
    pub fn shard_plan_free(plan: *mut shard_plan);
}

/// How a step treats parameters that got no gradient since the last step
/// (units.h says which parameters these are). Frozen.
pub type shard_missing_grads = i32;

/// The step is an error that names their units. The default.
pub const SHARD_MISSING_ERROR: shard_missing_grads = 0;
/// Their gradients are zeros.
pub const SHARD_MISSING_ZERO: shard_missing_grads = 1;
/// Parameters that got no gradient on any rank are left as they are:
/// parameter, states and step count. Where only other ranks have a gradient of
/// a parameter, this rank's counts as zeros.
pub const SHARD_MISSING_SKIP: shard_missing_grads = 2;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_engine_options {
    pub struct_size: usize,
    /// Seconds for creation and the default of this engine's waits. Default: the
    /// communicator's.
    pub timeout: f64,
    /// ```text
    /// The factor by which the host multiplies its loss, so that fp16 gradients do
    /// not vanish; steps divide by it. Default "": no factor. The same on every
    /// rank.
    ///   "static?scale=1024"
    ///   "dynamic?init_scale=65536&growth_factor=2&backoff_factor=0.5
    ///    &growth_interval=2000&min_scale=1&max_scale=16777216"
    ///                               (without the line break)
    /// static needs its scale. dynamic skips steps with gradients that are not
    /// finite, on all ranks, and lowers the scale by backoff_factor;
    /// growth_interval good steps in a row raise it. Values not given are those
    /// shown.
    /// ```
    pub loss_scaling: *const c_char,
    /// Default SHARD_MISSING_ERROR. The same on every rank.
    pub missing_grads: shard_missing_grads,
    /// 1: where ranks share no memory, shard_engine_step returns while parameters
    /// are still on their way to this rank: acquire each unit before you read its
    /// parameters. The same on every rank.
    pub overlap: i32,
    /// ```text
    /// Where the engine's tensors live and its kernels run:
    ///   "cpu"      The host's memory and processors. The default.
    ///   "cuda:0"   A GPU, by its number in CUDA's order, or by its UUID,
    ///              "cuda:GPU-..." or "cuda:MIG-..." (nvidia-smi -L). Loads
    ///              libshard_cuda.so, which lies beside libshard.so. Several ranks
    ///              may share a GPU.
    ///              Options, of which `&` joins several:
    ///     ?offload=states   Optimizer states and masters lie in pinned memory of
    ///              the host, whose `offload_threads` threads per rank (4 where it
    ///              is not given, at most 256) step them. Default: none. All ranks
    ///              offload, or none does.
    ///     ?collectives=nccl   Tensors move between ranks by NCCL, which one rank
    ///              has to have, too; auto: by NCCL where all ranks can use it.
    /// Default: staged, through memory of the host. The same on every rank.
    ///     ?step=one_kernel   With NCCL, a step is one launch where ranks reach
    ///              each other's memory. Default: parts. The same on every rank.
    ///   "cpu-async?max_delay=SECONDS&seed=N"
    ///              Runs every kernel on a thread after a pause, to find code that
    ///              does not wait as it must.
    /// ```
    pub device: *const c_char,
}
/// All fields zero, but for struct_size.
pub const SHARD_ENGINE_OPTIONS_INIT: shard_engine_options = shard_engine_options { struct_size: mem::size_of::<shard_engine_options>(), timeout: 0.0, loss_scaling: ptr::null(), missing_grads: 0, overlap: 0, device: ptr::null() };

#[repr(C)]
pub struct shard_engine {
    _private: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

extern "C" {
    /// Allocates buffers and checks that all ranks hold the same plan and options.
    /// COLLECTIVE, blocks. Keeps plan and comm alive. Errors beside those of every
    /// collective: DESYNC when the ranks' plans, loss_scaling, missing_grads or
    /// overlap differ; INVALID_ARGUMENT when the plan's world size is not the
    /// communicator's, or for a bad option; UNIMPLEMENTED for a dtype that cannot be
    /// stepped; RESOURCE_EXHAUSTED when there is not enough memory, or when no
    /// checkpoint could hold the training state; BACKEND_UNAVAILABLE, naming all
    /// libraries that were tried, when muon finds no CBLAS, or no cuBLAS on a GPU,
    /// or saying what is missing, when there is no GPU or no driver for it, or why
    /// collectives=nccl cannot be used.
    #[must_use]
    pub fn shard_engine_create(plan: *const shard_plan, comm: *mut shard_comm, options: *const shard_engine_options, engine: *mut *mut shard_engine) -> *mut shard_error;
}

extern "C" {
    /// Gets the plan that is in force; the caller frees it. The engine uses the plan
    /// that it was created with until shard_engine_add_param_group or _set_trainable
    /// puts another one in its place. Local.
    #[must_use]
    pub fn shard_engine_plan(engine: *const shard_engine, plan: *mut *mut shard_plan) -> *mut shard_error;
}

extern "C" {
    /// Sets or gets a hyperparameter of a param group, by the key it has in the
    /// optimizer's text: "lr" is the learning rate. `group` -1 means every group
    /// that has the key; a flag is 0 or 1. A new value holds from the next step on,
    /// and every rank must set the same before it: the step is DESYNC otherwise.
    /// Errors leave all values as they were: a group that does not exist; NOT_FOUND
    /// for a key that it does not have; a value out of range, with the range;
    /// FAILED_PRECONDITION for a change that would need other states, for a key
    /// whose value is a word, and between shard_engine_begin_step and its step.
    /// shard_engine_hyper takes one group, and returns a word as its number;
    /// shard_engine_group_text has the word itself. Local.
    #[must_use]
    pub fn shard_engine_set_hyper(engine: *mut shard_engine, group: i32, key: *const c_char, value: f64) -> *mut shard_error;
}

extern "C" {
    #[must_use]
    pub fn shard_engine_hyper(engine: *const shard_engine, group: i32, key: *const c_char, value: *mut f64) -> *mut shard_error;
}

extern "C" {
    /// Writes the group's optimizer with the present value of every key:
    /// "sgd?lr=0.1&momentum=0&...". Local.
    #[must_use]
    pub fn shard_engine_group_text(engine: *const shard_engine, group: i32, buffer: *mut c_char, capacity: usize, length: *mut usize) -> *mut shard_error;
}

extern "C" {
    /// Sets an optimizer state of `param`, after shard_engine_broadcast_params, for
    /// a run that began in another program. `values` has the `count` fp32 values of
    /// the whole tensor, in the host's memory; this rank keeps those that it owns.
    /// `state` is torch's name, such as "exp_avg", or "master_param", the fp32 value
    /// of a bf16 or f16 parameter. States stored in fewer bits are rounded to
    /// nearest. "master_param" leaves the parameter itself as it is until the next
    /// step. Every rank makes the same calls. docs/numerics.md lists the names that
    /// states have in other programs. Errors: NOT_FOUND for a state that the
    /// optimizer does not keep, listing those that it keeps; a count that is not the
    /// state's; a value that is not finite, or a negative second moment of adam;
    /// FAILED_PRECONDITION for a frozen parameter, before the broadcast, or between
    /// shard_engine_begin_step and its step. Local.
    #[must_use]
    pub fn shard_engine_set_state(engine: *mut shard_engine, param: i32, state: *const c_char, values: *const f32, count: usize) -> *mut shard_error;
}

extern "C" {
    /// Gets the number of completed steps; skipped steps do not count. The same on
    /// every rank between steps. This call, shard_engine_loss_scale and
    /// shard_engine_growth_tracker are exact also after a step that has returned
    /// early (shard_engine_step): they wait until it is known whether that step is
    /// skipped. Local.
    #[must_use]
    pub fn shard_engine_completed_steps(engine: *const shard_engine, step: *mut i64) -> *mut shard_error;
}

extern "C" {
    /// Sets the number of completed steps, 0 to 2^32 - 2. Bias corrections go on
    /// from there, and an optimizer does not repeat the work of its first step.
    /// Every rank sets the same, or the next step is DESYNC. shard_engine_step
    /// beyond 2^32 - 2, and the load of a checkpoint of such a step, are
    /// OUT_OF_RANGE. FAILED_PRECONDITION before the broadcast, or between
    /// shard_engine_begin_step and its step. Local.
    #[must_use]
    pub fn shard_engine_set_completed_steps(engine: *mut shard_engine, step: i64) -> *mut shard_error;
}

extern "C" {
    /// Gets the factor of the loss for the next backward pass; the same on every
    /// rank. 1 without loss_scaling. Local.
    #[must_use]
    pub fn shard_engine_loss_scale(engine: *const shard_engine, scale: *mut f64) -> *mut shard_error;
}

extern "C" {
    /// Gets the number of good steps in a row since the loss scale changed or a step
    /// was skipped; growth_interval of them raise the scale. torch's
    /// GradScaler.state_dict calls this number _growth_tracker. The same on every
    /// rank; 0 unless loss_scaling is dynamic. Local.
    #[must_use]
    pub fn shard_engine_growth_tracker(engine: *const shard_engine, good_steps: *mut i64) -> *mut shard_error;
}

extern "C" {
    /// Sets the loss scale and the growth tracker, for a run that goes on with the
    /// dynamic loss scaling of another program. Checkpoints keep both numbers; so do
    /// state dicts, as "loss_scale.scale" and "loss_scale.good_steps". Every rank
    /// sets the same, or a later step is DESYNC. Errors leave both as they were:
    /// INVALID_ARGUMENT for a scale that is no number of fp32 within the bounds of
    /// loss_scaling, for another scale than the static one, and for good_steps
    /// outside 0 to growth_interval - 1; FAILED_PRECONDITION before the broadcast
    /// and within a step. Local.
    #[must_use]
    pub fn shard_engine_set_loss_scale(engine: *mut shard_engine, scale: f64, good_steps: i64) -> *mut shard_error;
}

/// How a step treats the gradients. The same on every rank.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_step_options {
    pub struct_size: usize,
    /// Scales gradients down so that their global norm is at most this:
    /// coefficient min(1, max_grad_norm / (norm + 1e-6)). Default: no clipping,
    /// and the norm is not computed.
    pub max_grad_norm: f64,
    /// The divisor of the sum of the ranks' gradients. Default: world_size.
    pub grad_divisor: f64,
    /// The factor that the loss was multiplied by. Default:
    /// shard_engine_loss_scale. Not together with loss_scaling.
    pub loss_scale: f64,
    /// Seconds.
    pub timeout: f64,
    /// 1: skip the step, on all ranks, when a gradient is not finite. Implied by
    /// max_grad_norm and by dynamic loss_scaling. Costs the same extra pass.
    pub skip_nonfinite: i32,
    /// 1: the sum of the ranks' gradients is divided by the number of ranks that
    /// have not joined (shard_engine_join), not by world_size.
    pub average_active: i32,
    /// The norm that max_grad_norm bounds and that is reported: 1, 2, any p above
    /// 0 for which it cannot overflow, or infinity for the largest magnitude.
    /// Default 2. Norms other than 1, 2 and infinity cost another pass over the
    /// gradients.
    pub grad_norm_type: f64,
    /// Bounds every element of the averaged gradient to [-clip_value, clip_value].
    /// Default: no bound. Not together with max_grad_norm.
    pub clip_value: f64,
}
/// All fields zero, but for struct_size.
pub const SHARD_STEP_OPTIONS_INIT: shard_step_options = shard_step_options { struct_size: mem::size_of::<shard_step_options>(), max_grad_norm: 0.0, grad_divisor: 0.0, loss_scale: 0.0, timeout: 0.0, skip_nonfinite: 0, average_active: 0, grad_norm_type: 0.0, clip_value: 0.0 };

/// The results and the times of a step.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_step_report {
    pub struct_size: usize,
    /// Steps done so far, skipped ones not counted.
    pub step: i64,
    /// Before clipping, after division; -1: not computed.
    pub grad_norm: f64,
    /// 1: gradients were not finite, parameters are as before.
    pub skipped: i32,
    /// Ranks that have not joined.
    pub active_ranks: i32,
    /// Read and written by this rank's kernels.
    pub bytes_moved: u64,
    /// For other ranks.
    pub seconds_wait: f64,
    /// Sum and norm; 0 in the one-pass form.
    pub seconds_reduce: f64,
    /// Update and publish; with the sum in one pass.
    pub seconds_update: f64,
    pub seconds_total: f64,
    /// This step divided the gradients by it.
    pub loss_scale: f64,
    /// Bytes of tensors that this rank has sent since the step before, or has read
    /// from other ranks' memory to reduce them ahead of the step; how many of
    /// these bytes were through before the host waited for them; the seconds that
    /// the transfers took; and the seconds that the host waited.
    pub bytes_communicated: u64,
    pub bytes_overlapped: u64,
    pub seconds_communication: f64,
    pub seconds_exposed: f64,
}
/// All fields zero, but for struct_size.
pub const SHARD_STEP_REPORT_INIT: shard_step_report = shard_step_report { struct_size: mem::size_of::<shard_step_report>(), step: 0, grad_norm: 0.0, skipped: 0, active_ranks: 0, bytes_moved: 0, seconds_wait: 0.0, seconds_reduce: 0.0, seconds_update: 0.0, seconds_total: 0.0, loss_scale: 0.0, bytes_communicated: 0, bytes_overlapped: 0, seconds_communication: 0.0, seconds_exposed: 0.0 };

extern "C" {
    /// ```text
    /// Reduces the gradients of all ranks, updates the parameters, and publishes
    /// them. COLLECTIVE, blocks. `options` and `report` may be NULL.
    ///   with a report, or without shard_engine_set_stream
    ///       When the call returns, every rank sees all new values and may write
    ///       gradients again.
    ///   without a report, after shard_engine_set_stream
    ///       The call may return once the step is enqueued. What the host enqueues
    ///       on its stream from then on comes after the step: it sees all new
    ///       values, and may write gradients; with `overlap`, those of a unit once
    ///       it acquires the unit. An error after the return is that of the next
    ///       call that waits for the step, at the latest of the next step or of
    ///       shard_engine_synchronize, and final. shard_engine_last_report has the
    ///       report, whose seconds_total is the time of the call alone.
    /// The same options, gradients and world size give the same bits on one kind of
    /// processor or GPU (muon: with one BLAS and number of its threads, or one
    /// version of cuBLAS). DESYNC when options differ between ranks;
    /// FAILED_PRECONDITION before broadcast_params.
    /// ```
    #[must_use]
    pub fn shard_engine_step(engine: *mut shard_engine, options: *const shard_step_options, report: *mut shard_step_report) -> *mut shard_error;
}

/// Where tensors lie, in the codes of DLPack (DLDeviceType). Frozen.
pub type shard_device_kind = i32;

/// The host's memory, which "cpu-async" has as well.
pub const SHARD_DEVICE_CPU: shard_device_kind = 1;
/// A GPU's; its addresses are of no use to the host.
pub const SHARD_DEVICE_CUDA: shard_device_kind = 2;

extern "C" {
    /// Gets where the engine's tensors lie: the kind, and the number of the device
    /// among those of its kind, 0 for the host's memory. `ordinal` may be NULL. Any
    /// thread.
    #[must_use]
    pub fn shard_engine_device(engine: *const shard_engine, kind: *mut shard_device_kind, ordinal: *mut i32) -> *mut shard_error;
}

extern "C" {
    /// ```text
    /// Describes how the engine works, for programs, as a JSON document:
    ///   {"device": "cuda:0", "transport": "nccl 2.28.9", "sum_order": "ranks"}
    /// `device` is the spec of the engine's device. `transport` is how tensors move
    /// between ranks:
    ///   "none"    they do not: there is one rank
    ///   "direct"  ranks read each other's tensors where they lie
    ///   "host"    through memory that ranks on a host share
    ///   "staged"  as "host", by copies from and to GPUs
    ///   "nccl N"  by NCCL of that version
    /// `sum_order` is the order in which gradients are added over ranks: "ranks",
    /// that of the ranks, first within each shard group unless the plan is
    /// deterministic; or "library", for some one that the transport chooses. A step
    /// that is one launch (step=one_kernel) adds in the order of the ranks in either
    /// case. With NCCL `sums` has the sets of ranks over which gradients are added,
    /// one after the other, with the order for each dtype of gradients:
    ///   "sums": [{"ranks": 8, "f32": "library", "bf16": "ranks"}]
    /// and, where the ranks of such a set are on several hosts, the number of these,
    /// `"hosts": 2`.
    /// `registered_bytes` is how much of the tensors' memory is registered with it,
    /// and where nothing is, `not_registered` says why; `window_bytes` is how much
    /// of that all ranks have in windows, and where an engine of several ranks is
    /// created without any, `no_windows` says why. With step=one_kernel and several
    /// ranks `one_kernel` is whether a step may be one launch, and where none is,
    /// `not_one_kernel` says why. More keys may come. Local.
    /// ```
    #[must_use]
    pub fn shard_engine_json(engine: *const shard_engine, buffer: *mut c_char, capacity: usize, length: *mut usize) -> *mut shard_error;
}

extern "C" {
    /// ```text
    /// Describes the accelerators of this machine, for programs, as a JSON document:
    ///   {"cuda": {"driver": "13.0",
    ///             "devices": [{"spec": "cuda:0", "name": ...,
    ///                          "uuid": "GPU-...", "compute_capability": "9.0",
    ///                          "memory_bytes": ..., "free_bytes": ...,
    ///                          "error": ""}],
    ///             "nccl": {"library": ..., "version": ..., "error": "",
    ///                      "oldest": "2.18.0", "path": ..., "of_process": false,
    ///                      "functions": {"ncclMemAlloc": true, ...}},
    ///             "cublas": {"library": ..., "version": ..., "error": ""},
    ///             "error": ""}}
    /// An `error` that is not "" says why something is not there, or cannot be used,
    /// and what to do. Where NCCL can be used, `oldest` is the oldest version that
    /// libshard uses, `of_process` says whether the process had the library before,
    /// and `functions` which functions of later versions it has. `driver` is ""
    /// where there is none, and nccl and cublas are not looked for then; they are
    /// null where libshard_cuda.so does not load. Each GPU is opened for a moment,
    /// which may take a second. Any thread.
    /// ```
    #[must_use]
    pub fn shard_devices_json(buffer: *mut c_char, capacity: usize, length: *mut usize) -> *mut shard_error;
}

extern "C" {
    /// Sets the stream on which the host enqueues its own work. The engine's calls
    /// take place in the order of this stream: work that the host enqueued before a
    /// call comes before the engine's, and work that the host enqueues after the
    /// call comes after. `stream` is the device's own form of a stream, a CUstream
    /// on a GPU, and must live until the engine is freed or another stream is set.
    /// While the host captures it as a CUDA graph, the engine's calls are
    /// FAILED_PRECONDITION, do nothing and can be made again, but for those after
    /// shard_engine_capture_begin.
    /// NULL is the device's usual stream, which a new engine uses; with it every
    /// step waits for its end. Work on the old stream comes before later work on the
    /// new one. Each rank sets its own stream, between steps or before
    /// shard_engine_broadcast_params. Where NCCL moves tensors, engines that use one
    /// stream, NULL included, are called in the same order on all ranks, or they
    /// wait for each other until the deadline: engines that different threads call
    /// need streams of their own there (docs/gpu.md). Errors leave the stream as it
    /// was: INVALID_ARGUMENT for a stream that is not of the engine's device, which
    /// on "cpu" and "cpu-async" is every stream but NULL, for there the host works
    /// in its threads; FAILED_PRECONDITION while a step is begun, units are
    /// acquired, gradients are ready or parameters are summoned, naming the state.
    /// Local; a stream that is the host's thread waits for the work of the old one.
    #[must_use]
    pub fn shard_engine_set_stream(engine: *mut shard_engine, stream: *mut c_void) -> *mut shard_error;
}

extern "C" {
    /// Begins a capture of this engine's work, in a CUDA graph of the host's: call
    /// it after cudaStreamBeginCapture of the stream of shard_engine_set_stream.
    /// Until shard_engine_capture_end all that the engine enqueues is part of that
    /// graph and does not run; only shard_engine_zero_grad and one shard_engine_step
    /// without a report are allowed. The step's options say what kind of step is
    /// captured; it is not counted. A capture of a step ends the use of graphs of
    /// the captures before, unless a rank refuses the step. With several ranks each
    /// captures a graph, and the step is COLLECTIVE. UNIMPLEMENTED for several
    /// ranks without collectives=nccl, for one with direct=0, with offload, and on
    /// devices without graphs. FAILED_PRECONDITION while the stream is not
    /// captured, in state FILLING, while a step is begun, units are acquired,
    /// gradients are ready or parameters are summoned; with missing_grads; on an
    /// engine whose units or gradients were ever marked; for several ranks with
    /// overlap or a plan that shards gradients or parameters; and after a replay
    /// that nothing has waited for. An error of the step before is final, others
    /// leave the engine as it was. Local, blocks until the step before has ended.
    #[must_use]
    pub fn shard_engine_capture_begin(engine: *mut shard_engine) -> *mut shard_error;
}

extern "C" {
    /// Ends a capture of this engine's work; call it before cudaStreamEndCapture.
    /// Errors: the first of the work that was captured; FAILED_PRECONDITION without
    /// shard_engine_capture_begin, and where the host's capture has ended before or
    /// is invalid. What was captured is then of no use. After a captured step that
    /// several ranks have entered, COLLECTIVE, blocks: an error of one is that of
    /// all. Else, and after a step that a rank refused, local.
    #[must_use]
    pub fn shard_engine_capture_end(engine: *mut shard_engine) -> *mut shard_error;
}

extern "C" {
    /// Gives the captured step the values of the next one: options,
    /// hyperparameters, and the number of the step. Call it before each launch of a
    /// graph with a captured step, and launch the graph on the stream of
    /// shard_engine_set_stream before another step. The step counts as one of
    /// shard_engine_step without a report, whose bits it has, once it has run; one
    /// that was not launched is not counted. Its report has no times. The call first
    /// waits for the step before, and so for all that its stream was given; the loss
    /// scale of this step is then that of shard_engine_loss_scale. `options` may be
    /// NULL. FAILED_PRECONDITION where nothing was captured, where the captured step
    /// uses memory that is not used any more (another plan,
    /// shard_engine_bind_param), while a step is begun, and for a step of another
    /// kind: with a norm where none was captured or without one, with another
    /// ns_steps of muon, or where parameters have done more or fewer different
    /// numbers of steps than then, as after a checkpoint was loaded.
    /// Capture again then, or step without the graph. FAILED_PRECONDITION also where
    /// a graph was launched without this call, or twice after one, and has run: it
    /// has stepped with old values. The next of this call, shard_engine_step and
    /// what saves or gathers states says so, once for each rank that launched it.
    /// With several ranks it waits for theirs, and ends the communicator where they
    /// do not come within the engine's timeout. DESYNC where a rank does another
    /// thing, such as a step without the graph. COLLECTIVE, blocks, but not for the
    /// launches of other ranks.
    #[must_use]
    pub fn shard_engine_before_replay(engine: *mut shard_engine, options: *const shard_step_options) -> *mut shard_error;
}

extern "C" {
    /// Gets the report of the last finished step, and first waits for one that is in
    /// progress, at most for the engine's timeout. Steps within shard_engine_join
    /// count. Set report->struct_size first. FAILED_PRECONDITION before the first
    /// step. Local, blocks.
    #[must_use]
    pub fn shard_engine_last_report(engine: *const shard_engine, report: *mut shard_step_report) -> *mut shard_error;
}

extern "C" {
    /// Waits until everything that the engine was given has run: a step that has
    /// returned early, and reductions and gathers of units. Work of the host's that
    /// the engine does not wait for is left out. `timeout` is in seconds; 0: the
    /// engine's. Errors: that of the work, which is final, as from every later
    /// collective call; DEADLINE_EXCEEDED names work that is late, which goes on.
    /// Local, blocks.
    #[must_use]
    pub fn shard_engine_synchronize(engine: *mut shard_engine, timeout: f64) -> *mut shard_error;
}

extern "C" {
    /// Announces the options of the next step before the backward pass, so that each
    /// unit is updated, and its parameters sent, as soon as its gradients are ready
    /// on all ranks, while the host still computes others. Optional. Parameters of a
    /// unit change from then on; all else is as with shard_engine_step alone, to the
    /// bit. The step itself then takes no options, or the same ones.
    /// FAILED_PRECONDITION with options that need all gradients before anything is
    /// updated: max_grad_norm, skip_nonfinite, dynamic loss_scaling, missing_grads.
    /// COLLECTIVE, blocks.
    #[must_use]
    pub fn shard_engine_begin_step(engine: *mut shard_engine, options: *const shard_step_options) -> *mut shard_error;
}

extern "C" {
    /// Takes part in the exchanges and steps of the other ranks, with gradients of
    /// zero, until every rank has joined. For a rank that is out of input while
    /// others still have some. Then all ranks return, and may go on with a next
    /// epoch. `steps`, which may be NULL, receives the number of these steps.
    /// `timeout` is the seconds for each wait; 0: the engine's. In the meantime the
    /// other ranks only acquire, release, declare ready and step; hyperparameters
    /// that they set by shard_engine_set_hyper are set on this rank too. COLLECTIVE
    /// with their calls, blocks. FAILED_PRECONDITION while units are in use or
    /// gradients are ready.
    #[must_use]
    pub fn shard_engine_join(engine: *mut shard_engine, timeout: f64, steps: *mut i64) -> *mut shard_error;
}

extern "C" {
    /// Makes whole private copies of the parameters in `module` (0: all) and below,
    /// on rank `rank` or, with -1, on all ranks, in the host's memory on every
    /// device. shard_engine_param then returns the copies; on ranks without them it
    /// is FAILED_PRECONDITION for these parameters. The host may read the copies,
    /// and change them through shard_engine_writable_param. The engine's own
    /// parameters stay as they are until shard_engine_summon_end, so a host that
    /// fails in between has changed nothing. Meanwhile only these two functions and
    /// shard_engine_summon_end are allowed. Needs memory for the copies. The same
    /// arguments on every rank. COLLECTIVE, blocks. Errors: FAILED_PRECONDITION
    /// while units are in use, INVALID_ARGUMENT for a module or rank that does not
    /// exist, DESYNC.
    #[must_use]
    pub fn shard_engine_summon(engine: *mut shard_engine, module: i32, rank: i32, timeout: f64) -> *mut shard_error;
}

extern "C" {
    /// Frees the copies of shard_engine_summon. With `write_back` 1 they are first
    /// written to the parameters: every rank writes the elements that it owns, from
    /// its own copies or from those of the one rank that has them. Master weights
    /// follow where a parameter's bits have changed, and keep their precision
    /// elsewhere. COLLECTIVE, blocks.
    #[must_use]
    pub fn shard_engine_summon_end(engine: *mut shard_engine, write_back: i32, timeout: f64) -> *mut shard_error;
}

extern "C" {
    /// Gives `params`, which are frozen or in the default group, a group of their
    /// own, as shard_model_add_param_group does; they become trainable. "?key=value"
    /// inherits from the default group as it is now. This call and
    /// shard_engine_set_trainable replace the plan, between steps: all pointers from
    /// shard_engine_param and _grad are no longer valid, gradients are zero,
    /// parameters keep their values. A parameter that was and is trainable keeps
    /// each state of which its optimizer has one of that name and type; other states
    /// begin as zeros, and their parameters count their steps from 0. Frozen
    /// parameters lose their states. Owners of other parameters stay as they were.
    /// Needs the memory of both plans; buffers of the model stay where they are. The
    /// same arguments on every rank; the ranks agree on the new plan's fingerprint.
    /// After a wrong argument everything is as before. `group` may be NULL.
    /// COLLECTIVE, blocks.
    #[must_use]
    pub fn shard_engine_add_param_group(engine: *mut shard_engine, optimizer: *const c_char, params: *const i32, count: usize, timeout: f64, group: *mut i32) -> *mut shard_error;
}

extern "C" {
    /// Freezes (`trainable` 0) or trains (1) parameters from here on, by a new plan
    /// as shard_engine_add_param_group does. COLLECTIVE, blocks.
    #[must_use]
    pub fn shard_engine_set_trainable(engine: *mut shard_engine, params: *const i32, count: usize, trainable: i32, timeout: f64) -> *mut shard_error;
}

extern "C" {
    /// Gets the bytes that this engine has allocated, which shard_plan_memory
    /// predicts. host_bytes takes every rank of the host to have as much as this
    /// one. Set memory->struct_size first. Local.
    #[must_use]
    pub fn shard_engine_memory(engine: *const shard_engine, memory: *mut shard_memory) -> *mut shard_error;
}

extern "C" {
    pub fn shard_engine_free(engine: *mut shard_engine);
}

extern "C" {
    /// ```text
    /// Computes the learning rate of step `step`, which counts from 1, for a host to
    /// set with shard_engine_set_hyper. A pure function of its arguments:
    ///   constant      lr warmup
    ///   linear        lr warmup total min_lr
    ///   cosine        lr warmup total min_lr
    ///   inverse_sqrt  lr warmup min_lr
    ///   wsd           lr warmup total decay min_lr shape
    /// for example "cosine?lr=3e-4&warmup=2000&total=100000&min_lr=3e-5". Steps 1 to
    /// `warmup` rise linearly to lr; beyond `total` the last value, min_lr, stays,
    /// which is 0 by default. Formulas: docs/training-loop.md. Errors name key,
    /// value and range. Any thread.
    /// ```
    #[must_use]
    pub fn shard_schedule_lr(schedule: *const c_char, step: i64, lr: *mut f64) -> *mut shard_error;
}

extern "C" {
    /// Gets the parameter's elements, row-major, and their number; `numel` may be
    /// NULL. The elements are in the device's memory, copies of shard_engine_summon
    /// in the host's. Ranks that share a host's memory all read the same copy, which
    /// libshard alone writes. After shard_engine_begin_step a unit's parameters may
    /// change once its gradients are ready. The pointer is valid as long as the
    /// engine, or until shard_engine_add_param_group or _set_trainable; where
    /// parameters are sharded (stage 3 without shared memory), from
    /// shard_engine_unit_acquire to _release, and FAILED_PRECONDITION else. A
    /// zero-size parameter has numel 0. Not during a step. Local.
    #[must_use]
    pub fn shard_engine_param(engine: *mut shard_engine, param: i32, data: *mut *const c_void, numel: *mut i64) -> *mut shard_error;
}

extern "C" {
    /// Gets the parameter's elements for the host to write: on rank 0 before
    /// shard_engine_broadcast_params, where parameters are not sharded
    /// (shard_engine_set_param sets sharded ones), and in the copies of
    /// shard_engine_summon. The first are in the device's memory, the copies in the
    /// host's. FAILED_PRECONDITION else. Local.
    #[must_use]
    pub fn shard_engine_writable_param(engine: *mut shard_engine, param: i32, data: *mut *mut c_void, numel: *mut i64) -> *mut shard_error;
}

extern "C" {
    /// Copies a parameter's initial values from the host's memory into the engine.
    /// `bytes` must be the parameter's size; memory of a GPU is INVALID_ARGUMENT for
    /// an engine on a GPU. Only rank 0's values count: other ranks may make the
    /// call, which checks their arguments and drops their values, so that all ranks
    /// can run the same code. Local; FAILED_PRECONDITION after
    /// shard_engine_broadcast_params.
    #[must_use]
    pub fn shard_engine_set_param(engine: *mut shard_engine, param: i32, data: *const c_void, bytes: usize) -> *mut shard_error;
}

extern "C" {
    /// Sends rank 0's parameters to all ranks. COLLECTIVE, blocks; once, before the
    /// first step.
    #[must_use]
    pub fn shard_engine_broadcast_params(engine: *mut shard_engine, timeout: f64) -> *mut shard_error;
}

extern "C" {
    /// Gets this rank's gradient of the parameter, same shape, in the device's
    /// memory, to be written by the host between steps; `numel` may be NULL. The
    /// gradient starts as zero and keeps its values until the host changes them. Its
    /// values are unspecified after a step with max_grad_norm, skip_nonfinite or
    /// dynamic loss_scaling, even a skipped one, and after every step without shared
    /// memory. A step with missing_grads zeroes the gradients that do not count.
    /// Where gradients are sharded (stages 2 and 3) the gradient exists, zero at
    /// first, from the acquisition of its unit for the backward pass until it is
    /// declared ready, and is FAILED_PRECONDITION else. A frozen parameter is
    /// FAILED_PRECONDITION too. The pointer is valid as long as
    /// shard_engine_param's. Local.
    #[must_use]
    pub fn shard_engine_grad(engine: *mut shard_engine, param: i32, data: *mut *mut c_void, numel: *mut i64) -> *mut shard_error;
}

extern "C" {
    /// Sets this rank's gradients to zero; drops the sums that were accumulated in
    /// sharded gradients, and the declarations of gradients that are ready. Where
    /// gradients are sharded a sum is made of all ranks' gradients, so every rank
    /// calls this function equally often between two steps, in the same places
    /// between its passes; the ranks need not wait for each other there. When the
    /// numbers of calls differ, all ranks get DESYNC: with missing_grads at the
    /// step, and the ranks that lag may still make the call; without, at the first
    /// unit that is reduced, and then the error is final. Where gradients are whole
    /// each rank zeroes its own as it likes; on ranks that share no memory, without
    /// missing_grads, only until it declares them ready. Local; waits for reductions
    /// that are on their way.
    #[must_use]
    pub fn shard_engine_zero_grad(engine: *mut shard_engine) -> *mut shard_error;
}

extern "C" {
    /// Binds memory of the host's own to a parameter and its gradient, for hosts
    /// whose kernels cannot use the engine's memory. It is the device's memory, as
    /// the engine's tensors. A binding replaces the one before; NULL with 0 bytes
    /// binds nothing; NULL for both unbinds. Stages 0 to 2.
    ///
    /// `values` receives the parameter: in this call, or in the first broadcast or
    /// load; and in every call that changes parameters, shard_engine_step first of
    /// all. With the engine's overlap, a step leaves this to the next
    /// shard_engine_unit_acquire of the unit, after the last step too. The engine
    /// never reads `values`: before the broadcast, the host sets parameters as
    /// without a binding. A load that fails leaves `values` as they were.
    ///
    /// `grad` takes the place of the engine's gradient, and shard_engine_grad
    /// returns it. This call leaves its values as they are. From then on they are
    /// zeroed where the engine's would be: by shard_engine_zero_grad, a change of
    /// the plan, and shard_engine_join; where gradients are sharded, by the
    /// acquisition for the backward pass; where missing_grads is not ERROR, when
    /// they do not count. A step changes no others. The engine reads them between
    /// their declaration and the end of the step. While the parameter is frozen it
    /// does not use them. Once unbound, the engine's own gradient is unspecified
    /// until the host writes or zeroes it.
    ///
    /// The memory has the bytes of the parameter, in the types of shard_engine_param
    /// and _grad (shard_buffer_info). It stays the host's, and must be valid until
    /// it is bound no more or the engine is freed; freeing does not touch it. Each
    /// rank binds memory of its own, or none: results are the same to the bit.
    /// shard_engine_add_param_group and _set_trainable keep bindings.
    ///
    /// Cost: every step copies each bound tensor of a parameter that is trainable,
    /// one read and one write per byte, on the calling thread, and so does each pass
    /// that accumulates sharded gradients. In fp32 on 2 ranks, with both bound, a
    /// step of AdamW moves 32 bytes per parameter and rank instead of 16.
    ///
    /// Errors: INVALID_ARGUMENT for a parameter that does not exist, for other
    /// sizes, for memory that overlaps the engine's or other bound memory of this
    /// rank, for memory that does not lie where the engine's tensors do
    /// (shard_engine_device), where that is known, and in stage 3;
    /// FAILED_PRECONDITION for a parameter that is ignored,
    /// the gradient of a frozen one, while units are in use, gradients are ready or
    /// parameters are summoned, and after shard_engine_begin_step. After these
    /// errors everything is as before. A copy into `values` that fails or takes too
    /// long (RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED) is final, as in a step: `values`
    /// must then be valid until the engine is freed. Local.
    #[must_use]
    pub fn shard_engine_bind_param(engine: *mut shard_engine, param: i32, values: *mut c_void, values_bytes: usize, grad: *mut c_void, grad_bytes: usize) -> *mut shard_error;
}

extern "C" {
    /// Gets this rank's copy of a buffer of shard_model_add_buffer, row-major, for
    /// the host to read and write, and its number of elements; `numel` may be NULL.
    /// The memory is the host's (never a device's), aligned to 64 bytes, zero at
    /// first, and the engine's own: the pointer is valid, and stays the same, until
    /// shard_engine_free. The calls that change the values are
    /// shard_engine_broadcast_buffers and loads of checkpoints and state dicts. A
    /// load that fails while tensors are read leaves the buffers that it loads zero.
    /// A buffer without elements has numel 0, and `data` may be NULL. Any state of
    /// the engine. Errors: INVALID_ARGUMENT for an id that does not exist;
    /// FAILED_PRECONDITION for a buffer in an ignored module. Local.
    #[must_use]
    pub fn shard_engine_buffer(engine: *mut shard_engine, buffer: i32, data: *mut *mut c_void, numel: *mut i64) -> *mut shard_error;
}

extern "C" {
    /// Replaces the buffers of all ranks by those of rank `root`, those that are not
    /// persistent too, as DDP's broadcast_buffers does before a forward pass. A host
    /// calls this function after it has set first values, and, where ranks keep
    /// statistics of their own, whenever these should become the same. A save stores
    /// rank 0's, and needs no broadcast before it. A broadcast waits for all
    /// transfers of the engine: before each forward pass, it leaves overlap and
    /// prefetch nothing to hide.
    /// `timeout` in seconds; 0: the engine's. The same root on every rank. Allowed
    /// between steps, and before shard_engine_broadcast_params, which leaves buffers
    /// as they are. COLLECTIVE, blocks. Errors: INVALID_ARGUMENT for a root that is
    /// no rank; FAILED_PRECONDITION while units are in use, gradients are declared
    /// ready or parameters are summoned; DESYNC, also where another rank is in
    /// shard_engine_join.
    #[must_use]
    pub fn shard_engine_broadcast_buffers(engine: *mut shard_engine, root: i32, timeout: f64) -> *mut shard_error;
}

/// The pass that a unit is acquired for. Frozen.
pub type shard_pass = i32;

pub const SHARD_PASS_FORWARD: shard_pass = 1;
pub const SHARD_PASS_BACKWARD: shard_pass = 2;
/// As BACKWARD, but the unit's gradients do not start as zeros: the host
/// writes every element. Elements that the host leaves out are unspecified.
/// Not with missing_grads.
pub const SHARD_PASS_BACKWARD_OVERWRITE: shard_pass = 3;

extern "C" {
    /// Acquires a unit for a pass: IDLE to FORWARD or BACKWARD_PRE. When the call
    /// returns, the unit's parameters can be read; on a GPU, by work that the host's
    /// stream is given from then on, and the call may return before they are there.
    /// Where ranks share memory, and in stages 0 to 2, nothing is gathered, and it
    /// waits only for an update that is still on its way (overlap). In stage 3
    /// without shared memory it gathers the parameters, and fetches ahead those of
    /// the units that were acquired next in the step before. Where ranks of several
    /// hosts do so, those of a host share the memory, and all acquire and release
    /// units in the same order (DESYNC if not). For a backward pass where gradients
    /// are sharded it waits until there is room for the unit's gradients, which with
    /// BACKWARD are zeros. Whole gradients, also those that a plan of stage 2 or 3
    /// keeps whole, have the values that the host left (shard_engine_zero_grad).
    /// `timeout` in seconds; 0: the engine's. COLLECTIVE*, blocks.
    #[must_use]
    pub fn shard_engine_unit_acquire(engine: *mut shard_engine, unit: i32, pass: shard_pass, timeout: f64) -> *mut shard_error;
}

extern "C" {
    /// Releases an acquired unit: FORWARD, BACKWARD_PRE or BACKWARD_POST to IDLE. A
    /// unit that is released from BACKWARD_PRE has no gradients in this pass; with
    /// missing_grads it has those that shard_engine_mark_param_grad_ready declared.
    /// Where such gradients are sharded the release declares the unit as
    /// shard_engine_mark_unit_grads_ready does, is COLLECTIVE*, and waits for the
    /// other ranks, at most for the engine's timeout. Every other release is local
    /// and does not wait. Errors: INVALID_ARGUMENT for a unit that does not exist;
    /// FAILED_PRECONDITION for one that is IDLE, before
    /// shard_engine_broadcast_params, and while parameters are summoned.
    #[must_use]
    pub fn shard_engine_unit_release(engine: *mut shard_engine, unit: i32) -> *mut shard_error;
}

extern "C" {
    /// Gets all parameters of a unit in one call, by ascending id. `params`, `data`
    /// and `grads` have `capacity` entries and receive as many, each parameter's id,
    /// elements and gradient; each may be NULL. The entries behind those, of as
    /// many as the plan has parameters, are set to 0 or NULL; after an error all of
    /// these are. `count` receives the number of all, and may be NULL. A frozen
    /// parameter's gradient is NULL; other errors are those of shard_engine_param
    /// and, unless `grads` is NULL, shard_engine_grad. The three arrays are in the
    /// host's memory, and the elements where these functions say. Local.
    #[must_use]
    pub fn shard_engine_unit_params(engine: *mut shard_engine, unit: i32, params: *mut i32, data: *mut *const c_void, grads: *mut *mut c_void, capacity: usize, count: *mut usize) -> *mut shard_error;
}

extern "C" {
    /// Declares that this rank's gradients of the unit are written and that the host
    /// no longer touches them: BACKWARD_PRE to BACKWARD_POST. The gradients are
    /// reduced while the host goes on. In stages 0 and 1 also from IDLE. After
    /// shard_engine_mark_param_grad_ready for some parameters of the unit, the
    /// others have none in this pass (missing_grads). Once per step, but for passes
    /// that accumulate (shard_engine_set_accumulate). COLLECTIVE*.
    #[must_use]
    pub fn shard_engine_mark_unit_grads_ready(engine: *mut shard_engine, unit: i32) -> *mut shard_error;
}

extern "C" {
    /// Declares the gradient of one parameter; the last one of a unit makes the unit
    /// ready. A parameter that does not exist, or is frozen, is an error of all
    /// ranks where a wrong unit in shard_engine_mark_unit_grads_ready would be.
    /// COLLECTIVE*.
    #[must_use]
    pub fn shard_engine_mark_param_grad_ready(engine: *mut shard_engine, param: i32) -> *mut shard_error;
}

extern "C" {
    /// Sets whether backward passes accumulate. With 1, another pass follows before
    /// the step for the gradients that become ready from here on; with 0, the
    /// initial value, they are the last of the step. (PyTorch calls this no_sync.)
    /// In stages 0 and 1, and with the plan's whole_grads, the host adds to its
    /// gradients and nothing is exchanged; where gradients are sharded each pass is
    /// reduced and added to this rank's sum. The same on every rank. Local.
    #[must_use]
    pub fn shard_engine_set_accumulate(engine: *mut shard_engine, accumulate: i32) -> *mut shard_error;
}

/// The part of a training state that a call is about. MODEL is parameters and
/// buffers. Frozen.
pub type shard_content = i32;

pub const SHARD_CONTENT_ALL: shard_content = 0;
pub const SHARD_CONTENT_MODEL: shard_content = 1;
pub const SHARD_CONTENT_OPTIMIZER: shard_content = 2;

/// Selects the part of a training state that is saved, loaded or put into a
/// state dict; zeros select everything. The struct lies within the options of
/// these calls, so its size is frozen.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_state_filter {
    /// SHARD_CONTENT_ALL, _MODEL or _OPTIMIZER.
    pub content: shard_content,
    /// 1: without frozen parameters; a load leaves them as they are.
    pub ignore_frozen: i32,
    /// Only parameters with a name in these modules or below, and buffers in
    /// them. Default: all.
    pub submodules: *const i32,
    pub num_submodules: usize,
    /// 1: keys have no module path in front. One submodule only, for the keys of
    /// several could be the same.
    pub strip_prefix: i32,
    pub reserved: i32,
}

/// Called with the progress of a long operation: this rank's bytes done and in
/// all. A result other than 0 cancels the operation, which then returns
/// CANCELLED. Called from threads of libshard, one call at a time. The function
/// must not call back into the engine, nor wait for the save. `user_data` is
/// used until the operation has ended, or the engine of a save in the background
/// has been freed.
pub type shard_progress_fn = Option<unsafe extern "C" fn(done: u64, total: u64, user_data: *mut c_void) -> i32>;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_save_options {
    pub struct_size: usize,
    /// Seconds for the whole save, while ranks write. Default 1800. A rank that
    /// does not come to it is found after the engine's timeout, or after this one
    /// where it is shorter.
    pub timeout: f64,
    pub filter: shard_state_filter,
    /// 1: replace a checkpoint of this step.
    pub overwrite: i32,
    /// Writing threads per rank: 1 to 256. Default 4.
    pub threads: i32,
    /// After the save, only the last keep_last checkpoints stay, and those whose
    /// step is a multiple of keep_every. Default: all stay.
    pub keep_last: i64,
    pub keep_every: i64,
    /// May be NULL.
    pub progress: shard_progress_fn,
    pub progress_user_data: *mut c_void,
}
/// All fields zero, but for struct_size.
pub const SHARD_SAVE_OPTIONS_INIT: shard_save_options = shard_save_options { struct_size: mem::size_of::<shard_save_options>(), timeout: 0.0, filter: shard_state_filter { content: 0, ignore_frozen: 0, submodules: ptr::null(), num_submodules: 0, strip_prefix: 0, reserved: 0 }, overwrite: 0, threads: 0, keep_last: 0, keep_every: 0, progress: None, progress_user_data: ptr::null_mut() };

/// A save that runs in the background.
#[repr(C)]
pub struct shard_save {
    _private: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

extern "C" {
    /// Saves parameters, persistent buffers, optimizer states, hyperparameters, step
    /// counts, the loss scale and the host's blobs as checkpoint
    /// `root`/step-NNNNNN, where NNNNNN is the number of completed steps. Every rank
    /// writes the elements that it owns; rank 0 owns the buffers.
    /// `root` is created if it is missing; ranks may reach it by different paths.
    ///
    /// With `save` NULL the call blocks until the checkpoint is durable. Else the
    /// state is copied first (which takes as many bytes as this rank owns, and keeps
    /// that memory for the next save), `save` is set, and training may go on. The
    /// next save or load waits for this one; if this save failed and shard_save_wait
    /// has not returned its error, the next save or load returns it. Freeing the
    /// engine waits for the save too; while the host has `save`, at most for the
    /// save's timeout.
    ///
    /// Same options on every rank, but for threads, timeout and progress.
    /// COLLECTIVE, blocks. Errors: ALREADY_EXISTS for a checkpoint of this step
    /// without `overwrite`; RESOURCE_EXHAUSTED when the disk is full; other errors
    /// of the file system; FAILED_PRECONDITION unless between steps. After an error,
    /// checkpoints that were there before are whole.
    #[must_use]
    pub fn shard_checkpoint_save(engine: *mut shard_engine, root: *const c_char, options: *const shard_save_options, save: *mut *mut shard_save) -> *mut shard_error;
}

extern "C" {
    /// Returns 1 once the save has ended, well or not, for NULL, and in a child of
    /// fork, where the save does not run; else 0. Any thread.
    pub fn shard_save_done(save: *const shard_save) -> i32;
}

extern "C" {
    /// Waits for the save and returns its result, in every call; DEADLINE_EXCEEDED
    /// when the save still goes on after `timeout` seconds. `timeout` 0: the save's.
    /// Any thread, blocks.
    #[must_use]
    pub fn shard_save_wait(save: *mut shard_save, timeout: f64) -> *mut shard_error;
}

extern "C" {
    /// Releases the handle. The save goes on; where its engine has been freed, the
    /// call waits for the end of the save, so a function that the save calls must
    /// not make it then.
    pub fn shard_save_free(save: *mut shard_save);
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_load_options {
    pub struct_size: usize,
    /// Seconds for the whole load, while ranks read. Default 1800. A rank that
    /// does not come to it is found after the engine's timeout, or after this one
    /// where it is shorter.
    pub timeout: f64,
    /// The part to load, and the checkpoint's keys.
    pub filter: shard_state_filter,
    /// 1: keys that are missing or unexpected are no error, but reported. Shapes
    /// and types that differ stay one.
    pub allow_mismatch: i32,
    /// 1: elements of other types are converted, rounded to nearest: f32, bf16,
    /// f16, f64, and states in q8. Where only the checkpoint or only the engine
    /// has master weights, master weights and parameter stand for each other.
    pub convert: i32,
    /// 1: one leading "module." of the checkpoint's keys is left out.
    pub strip_leading_module: i32,
    /// 1: bytes are not compared with their checksums.
    pub skip_verify: i32,
    /// Reading threads per rank: 1 to 256. Default 4.
    pub threads: i32,
    pub reserved: i32,
    /// May be NULL.
    pub progress: shard_progress_fn,
    pub progress_user_data: *mut c_void,
}
/// All fields zero, but for struct_size.
pub const SHARD_LOAD_OPTIONS_INIT: shard_load_options = shard_load_options { struct_size: mem::size_of::<shard_load_options>(), timeout: 0.0, filter: shard_state_filter { content: 0, ignore_frozen: 0, submodules: ptr::null(), num_submodules: 0, strip_prefix: 0, reserved: 0 }, allow_mismatch: 0, convert: 0, strip_leading_module: 0, skip_verify: 0, threads: 0, reserved: 0, progress: None, progress_user_data: ptr::null_mut() };

/// The result of a load.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_load_report {
    pub struct_size: usize,
    /// The checkpoint's; -1: it has none.
    pub step: i64,
    /// 0: unknown.
    pub saved_world_size: i32,
    pub reserved: i32,
    /// Tensors that were read.
    pub loaded: i64,
    /// Those among them that were converted.
    pub converted: i64,
    /// The numbers of keys; shard_engine_last_load_report_json names them.
    pub missing: i64,
    pub unexpected: i64,
}
/// All fields zero, but for struct_size.
pub const SHARD_LOAD_REPORT_INIT: shard_load_report = shard_load_report { struct_size: mem::size_of::<shard_load_report>(), step: 0, saved_world_size: 0, reserved: 0, loaded: 0, converted: 0, missing: 0, unexpected: 0 };

extern "C" {
    /// Loads a checkpoint of shard_checkpoint_save, at whatever world size. `path`
    /// is a checkpoint, or a root: then the checkpoint that LATEST names is loaded,
    /// or the last complete one. `path` may also be a safetensors file or a
    /// model.safetensors.index.json, which have parameters and buffers only. All
    /// ranks load the same one. Loading a whole model may take the place of
    /// shard_engine_set_param and _broadcast_params.
    ///
    /// Every rank reads the elements that it owns. Names match without the
    /// components that wrappers leave in them (shard_clean_tensor_name), a tied
    /// parameter under any of its names. With optimizer states, hyperparameters,
    /// step counts, the loss scale and blobs are loaded too; at the same world size
    /// training goes on bit by bit.
    ///
    /// `report` may be NULL, else set report->struct_size first. Same options on
    /// every rank, but for threads, timeout and progress. COLLECTIVE, blocks.
    /// Errors: NOT_FOUND; CORRUPT naming tensor and file; FAILED_PRECONDITION for
    /// keys, shapes or types that do not fit, with lists {"missing", "unexpected",
    /// "mismatched"} as detail; UNIMPLEMENTED for a newer format. After an error the
    /// state is as it was, unless tensors were being read: then optimizer states and
    /// step counts are as in a new engine, and parameters have no values until
    /// another load or broadcast, unless filter.content is SHARD_CONTENT_OPTIMIZER.
    #[must_use]
    pub fn shard_checkpoint_load(engine: *mut shard_engine, path: *const c_char, options: *const shard_load_options, report: *mut shard_load_report) -> *mut shard_error;
}

extern "C" {
    /// Writes the missing and unexpected keys of the last load that succeeded, as
    /// JSON: {"missing": [...], "unexpected": [...], "mismatched": []}. Local.
    #[must_use]
    pub fn shard_engine_last_load_report_json(engine: *const shard_engine, buffer: *mut c_char, capacity: usize, length: *mut usize) -> *mut shard_error;
}

/// ```text
/// How a blob is mapped to another world size. Frozen.
///   PER_RANK    at the same world size each rank gets its own blob, at another
///               no rank gets any; shard_checkpoint_blob reads all of them
///   REPLICATED  every rank gets the blob, which was the same on all ranks
///   SUMMED      int64 numbers that add up over the ranks, such as samples seen:
///               at the same world size each rank gets its own, at another rank
///               r of M gets the sums of ranks r, r + M, r + 2M, ..., or zeros
/// ```
pub type shard_blob_rule = i32;

pub const SHARD_BLOB_PER_RANK: shard_blob_rule = 1;
pub const SHARD_BLOB_REPLICATED: shard_blob_rule = 2;
pub const SHARD_BLOB_SUMMED: shard_blob_rule = 3;

extern "C" {
    /// Sets a blob: bytes of the host's that are saved under a name with every
    /// checkpoint from here on, such as its data loader's position or its random
    /// numbers. The bytes are copied from the host's memory. Names and rules must be
    /// the same on every rank when a checkpoint is saved. A second call for a name
    /// replaces the first; a load replaces all blobs by those of the checkpoint, and
    /// is RESOURCE_EXHAUSTED where they do not fit into the host's memory.
    /// INVALID_ARGUMENT for more than 1 GiB, which belongs in a file of its own, and
    /// for a name with control characters or of more than 65535 bytes;
    /// RESOURCE_EXHAUSTED for more names than a checkpoint holds. Local.
    #[must_use]
    pub fn shard_engine_set_blob(engine: *mut shard_engine, name: *const c_char, rule: shard_blob_rule, data: *const c_void, bytes: usize) -> *mut shard_error;
}

extern "C" {
    /// Gets a blob that was set or loaded. The engine owns `data`, in the host's
    /// memory, which is valid until the name is set again or something is loaded.
    /// Both outputs may be NULL. NOT_FOUND when there is no such blob. Local.
    #[must_use]
    pub fn shard_engine_blob(engine: *const shard_engine, name: *const c_char, data: *mut *const c_void, bytes: *mut usize) -> *mut shard_error;
}

/// ---- Checkpoints without an engine -----------------------------------------
///
/// Named tensors in files: a checkpoint, a safetensors file, or the several of
/// a model.safetensors.index.json. All functions below are local. A handle is
/// immutable: any thread. It holds its files open, so that a checkpoint that is
/// replaced is read as it was. All handles together hold at most a quarter of
/// the descriptors that the process may have (ulimit -n), and each one more for
/// its folder; beyond that, files are opened again when they are read, which is
/// NOT_FOUND once they are deleted. In a child of fork reading a handle of its
/// parent is FAILED_PRECONDITION, and freeing it is allowed; the child opens its
/// own. Tensors, files, groups, scalars and blobs are numbered from 0, and a
/// number that does not exist is INVALID_ARGUMENT.
#[repr(C)]
pub struct shard_checkpoint {
    _private: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

extern "C" {
    /// Opens a checkpoint or safetensors; `path` is as in shard_checkpoint_load.
    /// Errors: NOT_FOUND, CORRUPT, UNIMPLEMENTED for a newer format.
    #[must_use]
    pub fn shard_checkpoint_open(path: *const c_char, checkpoint: *mut *mut shard_checkpoint) -> *mut shard_error;
}

/// Formats that checkpoints are read from. Frozen.
pub type shard_format = i32;

pub const SHARD_FORMAT_CHECKPOINT: shard_format = 1;
pub const SHARD_FORMAT_SAFETENSORS: shard_format = 2;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_checkpoint_info {
    pub struct_size: usize,
    pub format: shard_format,
    /// The format's; 0: it has none.
    pub version: i32,
    /// -1: it has none.
    pub step: i64,
    /// The ranks that saved it; 0: unknown.
    pub world_size: i32,
    /// Data files.
    pub num_files: i32,
    pub num_tensors: i64,
    pub num_groups: i32,
    pub num_scalars: i32,
    pub num_blobs: i32,
    pub reserved: i32,
    /// All tensors, aliases not counted.
    pub tensor_bytes: u64,
    /// All files, the manifest too.
    pub file_bytes: u64,
    /// The identity of its contents: XXH3-128 of the manifest; 0: it has none.
    pub id_low: u64,
    pub id_high: u64,
}
/// All fields zero, but for struct_size.
pub const SHARD_CHECKPOINT_INFO_INIT: shard_checkpoint_info = shard_checkpoint_info { struct_size: mem::size_of::<shard_checkpoint_info>(), format: 0, version: 0, step: 0, world_size: 0, num_files: 0, num_tensors: 0, num_groups: 0, num_scalars: 0, num_blobs: 0, reserved: 0, tensor_bytes: 0, file_bytes: 0, id_low: 0, id_high: 0 };

extern "C" {
    /// Gets the format, the step and the counts of a checkpoint.
    #[must_use]
    pub fn shard_checkpoint_get_info(checkpoint: *const shard_checkpoint, info: *mut shard_checkpoint_info) -> *mut shard_error;
}

extern "C" {
    /// Gets the folder or file that was opened.
    #[must_use]
    pub fn shard_checkpoint_path(checkpoint: *const shard_checkpoint, path: *mut *const c_char) -> *mut shard_error;
}

/// The purpose of a tensor. A BUFFER is the host's (shard_model_add_buffer): it
/// is neither a parameter nor updated by steps. Frozen.
pub type shard_role = i32;

pub const SHARD_ROLE_PARAM: shard_role = 1;
pub const SHARD_ROLE_BUFFER: shard_role = 2;
pub const SHARD_ROLE_STATE: shard_role = 3;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_tensor_info {
    pub struct_size: usize,
    pub dtype: shard_dtype,
    pub role: shard_role,
    /// The tensor that this one names again; -1: none.
    pub alias_of: i64,
    pub numel: i64,
    pub bytes: u64,
    pub ndim: i32,
    /// Parameters only.
    pub trainable: i32,
    /// Its param group; -1: none.
    pub group: i32,
    pub num_slices: i32,
    /// Steps that the parameter has done; -1: unknown.
    pub step: i64,
    pub shape: [i64; 8],
}
/// All fields zero, but for struct_size.
pub const SHARD_TENSOR_INFO_INIT: shard_tensor_info = shard_tensor_info { struct_size: mem::size_of::<shard_tensor_info>(), dtype: 0, role: 0, alias_of: 0, numel: 0, bytes: 0, ndim: 0, trainable: 0, group: 0, num_slices: 0, step: 0, shape: [0; 8] };

extern "C" {
    /// Get a tensor's type and shape, and its key. UNIMPLEMENTED for a tensor of
    /// more than SHARD_MAX_DIMS dimensions, which safetensors may have.
    #[must_use]
    pub fn shard_checkpoint_tensor(checkpoint: *const shard_checkpoint, tensor: i64, info: *mut shard_tensor_info) -> *mut shard_error;
}

extern "C" {
    #[must_use]
    pub fn shard_checkpoint_tensor_key(checkpoint: *const shard_checkpoint, tensor: i64, key: *mut *const c_char) -> *mut shard_error;
}

extern "C" {
    /// Gets the name of a tensor's element type: "f32", "q8"; for SHARD_OPAQUE the
    /// name in the file: "C64".
    #[must_use]
    pub fn shard_checkpoint_tensor_type(checkpoint: *const shard_checkpoint, tensor: i64, r#type: *mut *const c_char) -> *mut shard_error;
}

extern "C" {
    /// Finds the tensor of a key. NOT_FOUND when there is none.
    #[must_use]
    pub fn shard_checkpoint_find(checkpoint: *const shard_checkpoint, key: *const c_char, tensor: *mut i64) -> *mut shard_error;
}

/// A part of a tensor's elements, at their place in a file. Of SHARD_OPAQUE,
/// whose elements may have any size, begin and numel count bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_tensor_slice {
    pub struct_size: usize,
    /// First element.
    pub begin: i64,
    pub numel: i64,
    /// In the file.
    pub offset: u64,
    pub bytes: u64,
    pub file: i32,
    pub has_checksum: i32,
    /// XXH3-128.
    pub checksum_low: u64,
    pub checksum_high: u64,
}
/// All fields zero, but for struct_size.
pub const SHARD_TENSOR_SLICE_INIT: shard_tensor_slice = shard_tensor_slice { struct_size: mem::size_of::<shard_tensor_slice>(), begin: 0, numel: 0, offset: 0, bytes: 0, file: 0, has_checksum: 0, checksum_low: 0, checksum_high: 0 };

extern "C" {
    /// Gets a slice of a tensor; slices are ordered by their first element.
    #[must_use]
    pub fn shard_checkpoint_slice(checkpoint: *const shard_checkpoint, tensor: i64, index: i32, slice: *mut shard_tensor_slice) -> *mut shard_error;
}

extern "C" {
    /// Gets a data file's name and size. Both outputs may be NULL.
    #[must_use]
    pub fn shard_checkpoint_file(checkpoint: *const shard_checkpoint, file: i32, name: *mut *const c_char, bytes: *mut u64) -> *mut shard_error;
}

extern "C" {
    /// Gets the optimizer of a param group with all values: "adamw?lr=0.001&...".
    #[must_use]
    pub fn shard_checkpoint_group(checkpoint: *const shard_checkpoint, group: i32, optimizer: *mut *const c_char) -> *mut shard_error;
}

extern "C" {
    /// Gets a number and its name, such as "loss_scale.scale". Both outputs may be
    /// NULL.
    #[must_use]
    pub fn shard_checkpoint_scalar(checkpoint: *const shard_checkpoint, scalar: i32, name: *mut *const c_char, value: *mut f64) -> *mut shard_error;
}

extern "C" {
    /// Gets a blob's name, its rule and the rank that saved it. Each output may be
    /// NULL.
    #[must_use]
    pub fn shard_checkpoint_blob_info(checkpoint: *const shard_checkpoint, blob: i32, name: *mut *const c_char, rule: *mut shard_blob_rule, rank: *mut i32) -> *mut shard_error;
}

extern "C" {
    /// Copies a blob's first `capacity` bytes, without a closing NUL, to `buffer` in
    /// the host's memory, and writes the number of all to `length`; with capacity 0
    /// `buffer` may be NULL. The bytes are read in pieces. After CORRUPT, the
    /// contents of `buffer` are unspecified.
    #[must_use]
    pub fn shard_checkpoint_blob(checkpoint: *const shard_checkpoint, blob: i32, buffer: *mut c_void, capacity: usize, length: *mut usize) -> *mut shard_error;
}

extern "C" {
    /// Reads elements [begin, begin + numel) of a tensor, in the type that they are
    /// stored in, into `buffer` of `bytes` bytes in the host's memory, and compares
    /// checksums where there are some. Of SHARD_OPAQUE, `begin` and `numel` count
    /// bytes. Blocks. Errors: OUT_OF_RANGE; INVALID_ARGUMENT when `bytes` is not the
    /// size of these elements; CORRUPT naming tensor and file.
    #[must_use]
    pub fn shard_checkpoint_read(checkpoint: *const shard_checkpoint, tensor: i64, begin: i64, numel: i64, buffer: *mut c_void, bytes: usize) -> *mut shard_error;
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_verify_options {
    pub struct_size: usize,
    /// Reading threads: 1 to 256. Default 4.
    pub threads: i32,
    pub reserved: i32,
    /// May be NULL.
    pub progress: shard_progress_fn,
    pub progress_user_data: *mut c_void,
}
/// All fields zero, but for struct_size.
pub const SHARD_VERIFY_OPTIONS_INIT: shard_verify_options = shard_verify_options { struct_size: mem::size_of::<shard_verify_options>(), threads: 0, reserved: 0, progress: None, progress_user_data: ptr::null_mut() };

extern "C" {
    /// Reads everything and compares it with its checksums; bytes without a checksum
    /// are only read. `options` may be NULL. Blocks. The detail of CORRUPT lists all
    /// problems: {"problems": ["tensor '...' is damaged in FILE ...", ...]}.
    #[must_use]
    pub fn shard_checkpoint_verify(checkpoint: *const shard_checkpoint, options: *const shard_verify_options) -> *mut shard_error;
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_convert_options {
    pub struct_size: usize,
    /// As in shard_state_filter.
    pub content: shard_content,
    /// 1: replace an existing checkpoint or file.
    pub overwrite: i32,
    /// 1 to 256. Default 4.
    pub threads: i32,
    /// The type that float tensors are converted to: SHARD_F32, _BF16, _F16 or
    /// _F64. Default: each keeps its type, but in safetensors q8 becomes f32.
    pub dtype: shard_dtype,
    /// Checkpoints: the number of data files, as if so many ranks had saved.
    /// Default: as many as the source has, at least 1.
    pub world_size: i32,
    /// Safetensors: 1 writes tied tensors under each of their names; by default
    /// they are written under the first one only.
    pub expand_aliases: i32,
    /// Safetensors: tensors of more bytes than this together are written as
    /// several files and an index. Default: one file.
    pub max_shard_bytes: u64,
    /// May be NULL.
    pub progress: shard_progress_fn,
    pub progress_user_data: *mut c_void,
}
/// All fields zero, but for struct_size.
pub const SHARD_CONVERT_OPTIONS_INIT: shard_convert_options = shard_convert_options { struct_size: mem::size_of::<shard_convert_options>(), content: 0, overwrite: 0, threads: 0, dtype: 0, world_size: 0, expand_aliases: 0, max_shard_bytes: 0, progress: None, progress_user_data: ptr::null_mut() };

extern "C" {
    /// Writes a checkpoint into `root`, as shard_checkpoint_save does: with another
    /// number of files, with other types, or from safetensors (then of step 0).
    /// Where the source has blobs of the host, the checkpoint keeps the number of
    /// ranks that saved them, which the rules of blobs need. Tensors and blobs are
    /// streamed: memory stays below 64 MiB and 16 MiB per thread. Tensors of
    /// SHARD_OPAQUE are copied byte by byte, whatever the dtype; a checkpoint with
    /// some is of version 3 of the format, and UNIMPLEMENTED for a library that
    /// knows only versions 1 and 2. Blocks.
    #[must_use]
    pub fn shard_checkpoint_convert(checkpoint: *const shard_checkpoint, root: *const c_char, options: *const shard_convert_options) -> *mut shard_error;
}

extern "C" {
    /// Writes a safetensors file. `path` ends in ".safetensors"; several files are
    /// named after it, model-00001-of-00002.safetensors and so on, with
    /// model.safetensors.index.json. The files get their names when all of them are
    /// durable. Memory stays below 64 MiB and 16 MiB per thread. Blocks. Errors:
    /// ALREADY_EXISTS for an existing file without `overwrite`; FAILED_PRECONDITION
    /// for anything of that name that is not a regular file, such as a symbolic
    /// link, which `overwrite` does not replace either; errors of reading, such as
    /// CORRUPT, and of writing; CANCELLED. After an error the files that were there
    /// before have their names again, and the new ones are deleted. If the file
    /// system fails the undoing as well, or memory has run out, files may stay under
    /// temporary names; every file that has its final name is whole, and an index
    /// names files of one set: all new files stay with the new index, or old files
    /// with theirs, or old and new files without one; a new file that no index names
    /// may stay. A single file that was replaced stays so when the sync after it
    /// fails and the file system cannot exchange two files (RENAME_EXCHANGE).
    #[must_use]
    pub fn shard_checkpoint_export(checkpoint: *const shard_checkpoint, path: *const c_char, options: *const shard_convert_options) -> *mut shard_error;
}

extern "C" {
    pub fn shard_checkpoint_free(checkpoint: *mut shard_checkpoint);
}

/// Where a parameter is, and of what kind. Set info->struct_size first, here and
/// in the other results below.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_param_info {
    pub struct_size: usize,
    /// Its first element, in its flat buffer.
    pub begin: i64,
    pub numel: i64,
    /// 0 from ndim on.
    pub shape: [i64; 8],
    pub ndim: i32,
    /// The type it is stored in; see param_dtype.
    pub dtype: shard_dtype,
    pub trainable: i32,
    pub group: i32,
    pub unit: i32,
    pub buffer: i32,
    /// The FQN and the aliases.
    pub num_names: i32,
    /// The owners of its first and of its last element;
    pub first_rank: i32,
    /// -1 without elements.
    pub last_rank: i32,
    pub reserved: i32,
}
/// All fields zero, but for struct_size.
pub const SHARD_PARAM_INFO_INIT: shard_param_info = shard_param_info { struct_size: mem::size_of::<shard_param_info>(), begin: 0, numel: 0, shape: [0; 8], ndim: 0, dtype: 0, trainable: 0, group: 0, unit: 0, buffer: 0, num_names: 0, first_rank: 0, last_rank: 0, reserved: 0 };

extern "C" {
    /// Gets where a parameter is and how it is stored.
    #[must_use]
    pub fn shard_plan_param_info(plan: *const shard_plan, param: i32, info: *mut shard_param_info) -> *mut shard_error;
}

/// A flat buffer: parameters one after the other, of one unit, dtype and param
/// group, all trainable or all frozen. Each rank of world_size owns shard_numel
/// of the full_numel + num_padded elements.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_buffer_info {
    pub struct_size: usize,
    /// Elements of its parameters, without padding.
    pub full_numel: i64,
    /// At the end; beside parameters where these are whole.
    pub num_padded: i64,
    pub shard_numel: i64,
    pub num_params: i32,
    pub unit: i32,
    pub dtype: shard_dtype,
    pub trainable: i32,
    /// -1: frozen.
    pub group: i32,
    /// 0: frozen.
    pub grad_dtype: shard_dtype,
}
/// All fields zero, but for struct_size.
pub const SHARD_BUFFER_INFO_INIT: shard_buffer_info = shard_buffer_info { struct_size: mem::size_of::<shard_buffer_info>(), full_numel: 0, num_padded: 0, shard_numel: 0, num_params: 0, unit: 0, dtype: 0, trainable: 0, group: 0, grad_dtype: 0 };

extern "C" {
    /// Gets the size and the kind of a flat buffer.
    #[must_use]
    pub fn shard_plan_buffer_info(plan: *const shard_plan, buffer: i32, info: *mut shard_buffer_info) -> *mut shard_error;
}

extern "C" {
    /// Gets the parameter at place `index` of the buffer's num_params, by ascending
    /// offset.
    #[must_use]
    pub fn shard_plan_buffer_param(plan: *const shard_plan, buffer: i32, index: i32, param: *mut i32) -> *mut shard_error;
}

/// A range of a flat buffer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_range {
    pub struct_size: usize,
    pub begin: i64,
    pub numel: i64,
    /// Elements among these that are no parameter's.
    pub num_padded: i64,
}
/// All fields zero, but for struct_size.
pub const SHARD_RANGE_INIT: shard_range = shard_range { struct_size: mem::size_of::<shard_range>(), begin: 0, numel: 0, num_padded: 0 };

extern "C" {
    /// Gets the range of a flat buffer that a rank owns.
    #[must_use]
    pub fn shard_plan_rank_range(plan: *const shard_plan, buffer: i32, rank: i32, range: *mut shard_range) -> *mut shard_error;
}

/// The part of a parameter that is in some range of its buffer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_slice {
    pub struct_size: usize,
    /// In the flat buffer.
    pub begin: i64,
    pub numel: i64,
    /// The same, counted from the parameter's first.
    pub param_begin: i64,
    pub param: i32,
    pub reserved: i32,
}
/// All fields zero, but for struct_size.
pub const SHARD_SLICE_INIT: shard_slice = shard_slice { struct_size: mem::size_of::<shard_slice>(), begin: 0, numel: 0, param_begin: 0, param: 0, reserved: 0 };

extern "C" {
    /// Gets the parameter slices that intersect `numel` elements of a flat buffer
    /// from `begin` on, by ascending offset. All other elements of the range are
    /// padding, also those behind the buffer. Writes at most `capacity` slices, and
    /// the number of all slices to `count`; with capacity 0 `slices` may be NULL.
    /// Set the first slice's struct_size: it is the size of each. Error: a negative
    /// `begin` or `numel`.
    #[must_use]
    pub fn shard_plan_slices(plan: *const shard_plan, buffer: i32, begin: i64, numel: i64, slices: *mut shard_slice, capacity: usize, count: *mut usize) -> *mut shard_error;
}

extern "C" {
    /// Gets a pointer to the parameter in the host's own copy of its whole flat
    /// buffer: `data` has `numel` elements of the buffer's dtype, with or without
    /// the padding behind the last parameter; another number is an error. Reads
    /// nothing at `data`, which may be the host's memory or the device's: `view` is
    /// in the same. shard_engine_param gives the pointer into an engine's memory.
    #[must_use]
    pub fn shard_plan_param_view(plan: *const shard_plan, param: i32, data: *mut c_void, numel: i64, view: *mut *mut c_void) -> *mut shard_error;
}

/// A name of a parameter. Names are numbered in module-walk order; those of
/// ignored parameters, and those in ignored modules, are left out.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_name_info {
    pub struct_size: usize,
    pub param: i32,
    /// The module that it is in.
    pub module: i32,
    /// Among the parameter's names: 0 its FQN, else an alias.
    pub index: i32,
    pub reserved: i32,
}
/// All fields zero, but for struct_size.
pub const SHARD_NAME_INFO_INIT: shard_name_info = shard_name_info { struct_size: mem::size_of::<shard_name_info>(), param: 0, module: 0, index: 0, reserved: 0 };

extern "C" {
    /// Gets the parameter and the module of a name.
    #[must_use]
    pub fn shard_plan_name_info(plan: *const shard_plan, name: i32, info: *mut shard_name_info) -> *mut shard_error;
}

extern "C" {
    /// Gets the parameter's FQN, with `index` 0, or an alias.
    #[must_use]
    pub fn shard_plan_param_name(plan: *const shard_plan, param: i32, index: i32, name: *mut *const c_char) -> *mut shard_error;
}

extern "C" {
    /// Finds the parameter that has this FQN or alias, an ignored one too. NOT_FOUND
    /// says where its path ends.
    #[must_use]
    pub fn shard_plan_find_param(plan: *const shard_plan, fqn: *const c_char, param: *mut i32) -> *mut shard_error;
}

/// A module of the plan's model.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_module_info {
    pub struct_size: usize,
    /// Its id.
    pub module: i32,
    /// -1: the root.
    pub parent: i32,
    /// 0: the root.
    pub depth: i32,
    pub ignored: i32,
    /// The first of its num_names names, in a row.
    pub first_name: i32,
    pub num_names: i32,
}
/// All fields zero, but for struct_size.
pub const SHARD_MODULE_INFO_INIT: shard_module_info = shard_module_info { struct_size: mem::size_of::<shard_module_info>(), module: 0, parent: 0, depth: 0, ignored: 0, first_name: 0, num_names: 0 };

extern "C" {
    /// Gets the module at place `index` of the module walk: pre-order, the root
    /// first.
    #[must_use]
    pub fn shard_plan_module_info(plan: *const shard_plan, index: i32, info: *mut shard_module_info) -> *mut shard_error;
}

extern "C" {
    /// Get the FQN and the class name of a module, by its id; "" is the root's FQN.
    #[must_use]
    pub fn shard_plan_module_name(plan: *const shard_plan, module: i32, name: *mut *const c_char) -> *mut shard_error;
}

extern "C" {
    #[must_use]
    pub fn shard_plan_module_class(plan: *const shard_plan, module: i32, class_name: *mut *const c_char) -> *mut shard_error;
}

/// A buffer of the plan's model, as shard_model_add_buffer declared it. It is in
/// no flat buffer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_model_buffer_info {
    pub struct_size: usize,
    pub numel: i64,
    /// 0 from ndim on.
    pub shape: [i64; 8],
    pub ndim: i32,
    pub dtype: shard_dtype,
    /// The module that it is in.
    pub module: i32,
    /// 1: in checkpoints and state dicts.
    pub persistent: i32,
}
/// All fields zero, but for struct_size.
pub const SHARD_MODEL_BUFFER_INFO_INIT: shard_model_buffer_info = shard_model_buffer_info { struct_size: mem::size_of::<shard_model_buffer_info>(), numel: 0, shape: [0; 8], ndim: 0, dtype: 0, module: 0, persistent: 0 };

extern "C" {
    /// Gets the declaration of a buffer of the model, by its id, which
    /// shard_engine_buffer takes too.
    #[must_use]
    pub fn shard_plan_model_buffer_info(plan: *const shard_plan, buffer: i32, info: *mut shard_model_buffer_info) -> *mut shard_error;
}

extern "C" {
    /// Gets the FQN of a buffer of the model, by its id.
    #[must_use]
    pub fn shard_plan_model_buffer_name(plan: *const shard_plan, buffer: i32, name: *mut *const c_char) -> *mut shard_error;
}

extern "C" {
    /// Removes from `name` the components that wrappers leave in it, wherever they
    /// stand: _fsdp_wrapped_module, _checkpoint_wrapped_module, _fpw_module,
    /// _orig_mod. The last component always stays. With `strip_leading_module` 1 it
    /// also removes one leading "module.", which is DDP's. Any thread.
    #[must_use]
    pub fn shard_clean_tensor_name(name: *const c_char, strip_leading_module: i32, buffer: *mut c_char, capacity: usize, length: *mut usize) -> *mut shard_error;
}

#[repr(C)]
pub struct shard_state_dict {
    _private: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct shard_state_dict_options {
    pub struct_size: usize,
    /// Seconds. Default: the engine's timeout, after which a rank that does not
    /// come is found in any case.
    pub timeout: f64,
    pub filter: shard_state_filter,
    /// shard_state_dict_get only. 1: tensors are copied to the host's memory, and
    /// keep their values. Default: tensors are pointers into the engine, valid
    /// until the next call that changes or frees the engine. They are in the
    /// device's memory, but for buffers of the model and offloaded optimizer
    /// states, which are in the host's.
    pub copy: i32,
    pub reserved: i32,
}
/// All fields zero, but for struct_size.
pub const SHARD_STATE_DICT_OPTIONS_INIT: shard_state_dict_options = shard_state_dict_options { struct_size: mem::size_of::<shard_state_dict_options>(), timeout: 0.0, filter: shard_state_filter { content: 0, ignore_frozen: 0, submodules: ptr::null(), num_submodules: 0, strip_prefix: 0, reserved: 0 }, copy: 0, reserved: 0 };

extern "C" {
    /// Gets the part of an engine's state that this rank owns; rank 0 owns the
    /// buffers of shard_model_add_buffer. Other names of tied parameters are listed
    /// as aliases, without elements; trainable, group and step of shard_tensor_info
    /// are not filled. Local: no other rank takes part. Errors: FAILED_PRECONDITION
    /// unless between steps; a module that does not exist.
    #[must_use]
    pub fn shard_state_dict_get(engine: *mut shard_engine, options: *const shard_state_dict_options, state: *mut *mut shard_state_dict) -> *mut shard_error;
}

extern "C" {
    /// Returns the number of tensors, aliases among them; 0 for NULL. Any thread,
    /// here and below.
    pub fn shard_state_dict_num_tensors(state: *const shard_state_dict) -> i64;
}

extern "C" {
    /// Get a tensor's type and shape, and its key.
    #[must_use]
    pub fn shard_state_dict_tensor(state: *const shard_state_dict, tensor: i64, info: *mut shard_tensor_info) -> *mut shard_error;
}

extern "C" {
    #[must_use]
    pub fn shard_state_dict_tensor_key(state: *const shard_state_dict, tensor: i64, buffer: *mut c_char, capacity: usize, length: *mut usize) -> *mut shard_error;
}

extern "C" {
    /// Gets the elements that this rank holds: `numel` from `begin` on, at `data`,
    /// which is NULL when there are none. Each output may be NULL. `data` is in the
    /// device's memory after shard_state_dict_get without `copy`, but for buffers of
    /// the model and offloaded optimizer states, and in the host's else.
    #[must_use]
    pub fn shard_state_dict_local(state: *const shard_state_dict, tensor: i64, begin: *mut i64, numel: *mut i64, data: *mut *const c_void) -> *mut shard_error;
}

extern "C" {
    /// Gets where these elements lie, as shard_engine_device does: the kind of the
    /// device, and its number, which is 0 for the host's memory. That is also the
    /// place of a tensor without elements here. `ordinal` may be NULL.
    #[must_use]
    pub fn shard_state_dict_device(state: *const shard_state_dict, tensor: i64, kind: *mut shard_device_kind, ordinal: *mut i32) -> *mut shard_error;
}

extern "C" {
    /// Finds the tensor of a key. NOT_FOUND when there is none.
    #[must_use]
    pub fn shard_state_dict_find(state: *const shard_state_dict, key: *const c_char, tensor: *mut i64) -> *mut shard_error;
}

extern "C" {
    /// Return how many numbers there are, 0 for NULL, and get each with its key, by
    /// ascending key. `value` may be NULL.
    pub fn shard_state_dict_num_numbers(state: *const shard_state_dict) -> i64;
}

extern "C" {
    #[must_use]
    pub fn shard_state_dict_number(state: *const shard_state_dict, number: i64, value: *mut f64, buffer: *mut c_char, capacity: usize, length: *mut usize) -> *mut shard_error;
}

/// Receives a tensor. Its elements are at `data`, in the host's memory, during
/// the call only; `data` is NULL for an alias, and for a tensor without
/// elements. A result other than 0 ends the gathering: CANCELLED.
pub type shard_tensor_fn = Option<unsafe extern "C" fn(key: *const c_char, info: *const shard_tensor_info, data: *const c_void, user_data: *mut c_void) -> i32>;

extern "C" {
    /// Calls `take` with every tensor, whole, on rank `rank`, or on all ranks when
    /// `rank` is -1. Other ranks may pass NULL. Needs memory for the largest tensor
    /// and 16 MiB, on the other ranks 16 MiB. Same options and `rank` on every rank.
    /// COLLECTIVE, blocks; `user_data` is used during the call. Errors are those of
    /// shard_state_dict_get, and CANCELLED on all ranks.
    #[must_use]
    pub fn shard_state_dict_gather(engine: *mut shard_engine, options: *const shard_state_dict_options, rank: i32, take: shard_tensor_fn, user_data: *mut c_void) -> *mut shard_error;
}

extern "C" {
    /// Creates an empty state dict, for a host to fill.
    #[must_use]
    pub fn shard_state_dict_create(state: *mut *mut shard_state_dict) -> *mut shard_error;
}

extern "C" {
    /// Adds a whole tensor, whose bytes are in the host's memory, and must stay
    /// where they are until the state dict was loaded or freed. Keys that begin with
    /// "state." are optimizer states. Errors: a key that a tensor or a number has
    /// already; a shape, dtype and `bytes` that do not fit each other; a state dict
    /// of shard_state_dict_get.
    #[must_use]
    pub fn shard_state_dict_add(state: *mut shard_state_dict, key: *const c_char, dtype: shard_dtype, shape: *const i64, ndim: usize, data: *const c_void, bytes: usize) -> *mut shard_error;
}

extern "C" {
    /// Adds a number. A second one of the same key replaces the first. Errors: a key
    /// that a tensor has; a value that is not finite.
    #[must_use]
    pub fn shard_state_dict_add_number(state: *mut shard_state_dict, key: *const c_char, value: f64) -> *mut shard_error;
}

extern "C" {
    /// Loads a state dict as shard_checkpoint_load does a checkpoint, with the same
    /// options, report and errors. With `from_rank0` 1 rank 0's state dict is loaded
    /// and sent tensor by tensor; `state` may be NULL on other ranks. Else every
    /// rank gives a state dict with the same tensors, whole or with the elements
    /// that the rank owns. COLLECTIVE, blocks.
    #[must_use]
    pub fn shard_state_dict_load(engine: *mut shard_engine, state: *const shard_state_dict, options: *const shard_load_options, from_rank0: i32, report: *mut shard_load_report) -> *mut shard_error;
}

extern "C" {
    pub fn shard_state_dict_free(state: *mut shard_state_dict);
}
