/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators: the ranks of a run, and how they meet. */

#ifndef SHARD_COMM_H_
#define SHARD_COMM_H_

#include "shard/base.h"

SHARD_BEGIN_DECLS

/* Levels of log messages. Frozen. */
typedef int32_t shard_log_level;
enum shard_log_level_values {
  SHARD_LOG_ERROR = 1,
  SHARD_LOG_WARNING = 2,
  SHARD_LOG_INFO = 3,
  SHARD_LOG_DEBUG = 4
};

/* Receives a log message: a sentence, or for the calls of a host (level INFO,
 * steps DEBUG) a line such as "rank=0 event=save step=10 seconds=0.512000000
 * what=\"ckpt\" result=OK". Called from any thread that uses the library;
 * `message` lives for the call. The function must not call back into the same
 * handle. `user_data` is used until the communicator and all engines on it are
 * freed: the last of these free functions waits for calls in progress on other
 * threads, such as that of a save. That wait has no deadline, because the host
 * may free `user_data` after it. So the function must return, and must not wait
 * for a thread that frees a handle. */
typedef void (*shard_log_fn)(shard_log_level level, const char* message,
                             void* user_data);

typedef struct shard_comm_options {
  size_t struct_size;
  /* This rank and the number of ranks, where the URL does not give them.
   * Ignored as long as world_size is 0. REQUIRES: 0 <= rank < world_size. */
  int32_t rank;
  int32_t world_size;
  /* Seconds to wait for the other ranks to come, and the default of every
   * later wait. Default 60. Every rank should give the same. */
  double timeout;
  /* Default: no logging. */
  shard_log_fn log;
  void* log_user_data;
  /* The most verbose level that is logged. Default SHARD_LOG_WARNING. */
  shard_log_level log_level;
  int32_t reserved;
  /* The path of a file in which the ranks of a host write, together, when each
   * of their calls, phases, collectives and transfers began and ended. Perfetto
   * and chrome://tracing open it. A run that finds the file in use writes
   * another one: "trace.json" → "trace.2.json". Default: no trace. The
   * environment's SHARD_TRACE overrides it, so that a user can trace any host.
   */
  const char* trace;
  /* The path of a file of counters in the text format of Prometheus, replaced
   * at most every 5 seconds, by a rank's calls. Each rank has its own: the rank
   * is put before the extension, "shard.prom" → "shard.rank0.prom". A
   * communicator that finds the file in use writes another one, whose samples
   * have a label that says so: "shard.rank0.2.prom", file="2". Default: none.
   * The environment's SHARD_METRICS overrides it. */
  const char* metrics;
  /* The path of a file of the last collectives, as shard_comm_dump writes them.
   * Each rank has its own, as those of metrics: "dump.rank0.json". A rank
   * replaces it when it opens the communicator, when a collective fails, and
   * when the last handle is freed. Default: none. The environment's SHARD_DUMP
   * overrides it. */
  const char* dump;
} shard_comm_options;
#define SHARD_COMM_OPTIONS_INIT \
  { sizeof(shard_comm_options), 0, 0, 0, NULL, NULL, 0, 0, NULL, NULL, NULL }

typedef struct shard_comm shard_comm;

/* Meets the other ranks. COLLECTIVE, blocks. URLs:
 *
 *   "env:"         rank, world size and rendezvous point from the environment:
 *                  SHARD_RANK and SHARD_WORLD_SIZE (set by `shardctl run`),
 *                  else torchrun's, Open MPI's or Slurm's variables; without
 *                  any of them, one rank. Half of a group set is an error.
 *                  Ranks on several hosts meet as by "tcp:", whose interface,
 *                  address, secret_file, trust and sums it takes.
 *   "local:"       one rank.
 *   "threads:N"    N threads of this process; each opens with its own rank and
 *                  world_size N. "?name=x" keeps groups apart; those without a
 *                  name are told apart by N.
 *   "shm:NAME"     processes of this host and user that give the same NAME.
 *                  They meet at an abstract Unix socket with their user id in
 *                  its name, and believe no other user's process there.
 *   "tcp://HOST:PORT"
 *                  processes of several hosts. HOST is a name or an address of
 *                  one of them ("[fd00::2]:29500" for IPv6), and the URL the
 *                  same on all ranks of a host. The ranks of a host have
 *                  neighboring numbers. The first of them starts the program
 *                  shard-network, which connects to the other hosts and ends
 *                  with its ranks; it is a process, but no child of this one.
 *     job=TEXT       ranks of another job do not meet these. Default: empty
 *     restart=N      the number of the job's start: a later one ends the
 *                    meeting of an earlier one. Default 0
 *     meet=SECONDS   to wait for the other ranks to come, in place of
 *                    timeout. Default 300
 *     rank=R, world_size=N      where the options do not give them. Default:
 *                    those of a launcher's variables, as for "env:"
 *     interface=NAME, address=ADDRESS      the one by which other hosts reach
 *                    this one. Default: the one from which HOST is reached
 *     secret_file=PATH   an absolute path: a text that is the same on all
 *                    hosts, in a file of this user or root that nobody else may
 *                    use. Default: the environment's SHARD_TOKEN
 *     trust=network  no secret is needed. Without it and without a secret the
 *                    host listens on loopback alone
 *     sums=direct    each rank sends its gradients to the host of the rank that
 *                    sums them; sums=chain: the sums so far pass from host to
 *                    host. The bits are the same. The same on all ranks.
 *                    Default: the form in which the host that sends most sends
 *                    fewer bytes
 *     host=NAME      names this host: several on one machine, for tests
 *
 *   Connections are authenticated by the secret and not encrypted, and nothing
 *   that follows on them is authenticated. docs/operations.md has ports, trust,
 *   deadlines and each error, docs/scaling.md what passes between hosts.
 *
 * "?timeout=SECONDS" may follow any URL. So may "?direct=0", except "tcp:": the
 * ranks then act as if they shared no memory, and exchange tensors as ranks on
 * several hosts do. With it one machine can try what several hosts would do.
 * "&delay=SECONDS" and "&bandwidth=BYTES_PER_SECOND" simulate a link: an
 * exchange of tensors takes at least the delay, and a rank sends its bytes at
 * that rate. Every rank should give the same.
 *
 * The call also reads what a user wants to see of the run, whatever the URL:
 * SHARD_LOG (off, error, warning, info, debug) and SHARD_LOG_FILE, which write
 * a log in addition to options->log, SHARD_TRACE, SHARD_METRICS and SHARD_DUMP.
 * docs/observability.md describes what they write. Without them and the options
 * the library writes nothing.
 *
 * Errors: INVALID_ARGUMENT for a bad URL, a rank outside the world, or world
 * sizes that differ (on all ranks); INVALID_ARGUMENT for a SHARD_LOG that is no
 * level, and the error of a trace, metrics, dump or log file that cannot be
 * opened (on all ranks, once they have come); DEADLINE_EXCEEDED naming the
 * ranks that did not come; ALREADY_EXISTS when rank or NAME is taken, by this
 * user or another: where another user listens at NAME, ranks above 0 get
 * PERMISSION_DENIED; DESYNC, on all ranks, when only some give direct=0 or when
 * they give different sums. With "tcp:" also BACKEND_UNAVAILABLE where
 * shard-network cannot be started; NOT_FOUND for a HOST, an interface or an
 * address that is none; UNAVAILABLE for a host that cannot be reached;
 * UNAUTHENTICATED where secrets differ; PERMISSION_DENIED without a secret;
 * FAILED_PRECONDITION where versions or starts of the job differ; RANK_LOST,
 * with the lowest rank of a host that has left. */
SHARD_NODISCARD SHARD_API shard_error* shard_comm_open(
    const char* url, const shard_comm_options* options,
    shard_comm** comm) SHARD_NOEXCEPT;

/* Return this rank and the number of ranks; -1 and 0 for NULL. Any thread. */
SHARD_API int32_t shard_comm_rank(const shard_comm* comm) SHARD_NOEXCEPT;
SHARD_API int32_t shard_comm_world_size(const shard_comm* comm) SHARD_NOEXCEPT;

/* Return this rank's number among the ranks of its host, from 0, and the number
 * of ranks there, for a program that chooses one of the host's devices. -1 and
 * 0 for NULL. Any thread. */
SHARD_API int32_t shard_comm_local_rank(const shard_comm* comm) SHARD_NOEXCEPT;
SHARD_API int32_t shard_comm_local_world_size(const shard_comm* comm)
    SHARD_NOEXCEPT;

/* Gets one line for people: transport, rank, world size, and where they came
 * from. Any thread. */
SHARD_NODISCARD SHARD_API shard_error* shard_comm_describe(
    const shard_comm* comm, const char** text) SHARD_NOEXCEPT;

/* Waits until every rank has called it. COLLECTIVE, blocks. */
SHARD_NODISCARD SHARD_API shard_error* shard_comm_barrier(
    shard_comm* comm, double timeout) SHARD_NOEXCEPT;

/* Replaces values[i] by its sum over the ranks, added in rank order, so that
 * every rank gets the same bits. For losses and counts in the host's memory:
 * `count` is at most 2^20. COLLECTIVE, blocks. */
SHARD_NODISCARD SHARD_API shard_error* shard_comm_sum(
    shard_comm* comm, double* values, size_t count,
    double timeout) SHARD_NOEXCEPT;

/* Checks that GPUs move tensors between the ranks by NCCL: makes each of the
 * calls that engines on "cuda:N?collectives=nccl" make, with a MiB of every
 * rank, and compares what arrives. One rank checks its GPU alone. `device`:
 * this rank's own GPU, such as "cuda:0", as in shard_engine_options.
 * BACKEND_UNAVAILABLE where there is no NCCL that all ranks can use. An error
 * of NCCL names the call; it ends the communicator, as does a library that does
 * not return: open another one. COLLECTIVE, blocks. */
SHARD_NODISCARD SHARD_API shard_error* shard_comm_check_device(
    shard_comm* comm, const char* device, double timeout) SHARD_NOEXCEPT;

/* Copies rank `root`'s `bytes` bytes at `data` to all other ranks' `data`: a
 * seed, a configuration, a tokenizer. `data` is the host's memory, and may be
 * NULL where `bytes` is 0. The same `bytes` and `root` on every rank.
 * COLLECTIVE, blocks. */
SHARD_NODISCARD SHARD_API shard_error* shard_comm_broadcast(
    shard_comm* comm, void* data, size_t bytes, int32_t root,
    double timeout) SHARD_NOEXCEPT;

/* The totals of an event on this rank since the communicator was opened,
 * its engines included. */
typedef struct shard_counter {
  size_t struct_size;
  uint64_t calls;
  uint64_t errors; /* How many of the calls failed. */
  uint64_t bytes;  /* Sent, read or written; 0 for events without bytes. */
  double seconds;
} shard_counter;
#define SHARD_COUNTER_INIT \
  { sizeof(shard_counter), 0, 0, 0, 0 }

/* Gets the counter of the event called `event`: "step", "acquire", "save",
 * "barrier", "reduce_scatter"; docs/observability.md lists all. NOT_FOUND for
 * another name, with all that there are. Set counter->struct_size first. Counts
 * whether or not anything is logged or traced. Local. Any thread. */
SHARD_NODISCARD SHARD_API shard_error* shard_comm_counter(
    const shard_comm* comm, const char* event,
    shard_counter* counter) SHARD_NOEXCEPT;

/* Writes all counters of this rank in the text format of Prometheus, for a host
 * that serves them itself. Local. Any thread. */
SHARD_NODISCARD SHARD_API shard_error* shard_comm_metrics(
    const shard_comm* comm, char* buffer, size_t capacity,
    size_t* length) SHARD_NOEXCEPT;

/* Writes the last 1,024 collectives of this rank as JSON, those that run too:
 * docs/observability.md has the keys. `shardctl triage` compares the dumps of
 * the ranks of a run that hangs. Local. Any thread, also while another one
 * waits in a collective. */
SHARD_NODISCARD SHARD_API shard_error* shard_comm_dump(
    const shard_comm* comm, char* buffer, size_t capacity,
    size_t* length) SHARD_NOEXCEPT;

/* Ends the group from one side: every other rank's current or next collective
 * returns SHARD_POISONED with `reason`. For a host that failed between two
 * collectives and will not come to the next. Any thread, never blocks. */
SHARD_NODISCARD SHARD_API shard_error* shard_comm_abort(
    shard_comm* comm, const char* reason) SHARD_NOEXCEPT;

/* Ends the group with a last barrier, so that no rank takes another's leaving
 * for a death. Free the communicator afterwards; its engines still give out
 * their parameters. A rank that frees the communicator and all its engines
 * without this call leaves safely, and is a lost rank to those that still wait.
 * COLLECTIVE, blocks. */
SHARD_NODISCARD SHARD_API shard_error* shard_comm_shutdown(
    shard_comm* comm, double timeout) SHARD_NOEXCEPT;

SHARD_API void shard_comm_free(shard_comm* comm) SHARD_NOEXCEPT;

SHARD_END_DECLS

#endif /* SHARD_COMM_H_ */
