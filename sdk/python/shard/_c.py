# SPDX-License-Identifier: Apache-2.0
# Written by sdk/python/bindings/generate.py from api/include/shard/*.h.
"""The C interface as ctypes has it."""

import enum
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_int32,
                    c_int64, c_size_t, c_uint64, c_void_p)

from ._arguments import double, int32, int64, size, text


class error_p(c_void_p):
    """The shard_error* that a function returns; NULL is success."""

VERSION = (0, 2, 0)

class Code(enum.IntEnum):
    """The codes of errors. 0 to 16 are the canonical codes of absl and gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16
    DESYNC = 64
    RANK_LOST = 65
    CORRUPT = 66
    POISONED = 67
    BACKEND_UNAVAILABLE = 68


class DType(enum.IntEnum):
    """The types of elements. Parameters are F32, BF16 or F16, and frozen ones
    F64 too: a plan may have others in F64, but no engine is made for it. The
    other types are in files only. Q8 is an optimizer state in 8 bits, whose
    scales are the tensor KEY.q8_scale. OPAQUE is a type of safetensors that
    libshard does not read, such as complex numbers, or one that came later;
    shard_checkpoint_tensor_type has its name. Such tensors are listed,
    shard_checkpoint_read gives their bytes, and shard_checkpoint_convert and
    _export copy them as they are; loading them is UNIMPLEMENTED."""

    F32 = 1
    BF16 = 2
    F16 = 3
    F64 = 4
    Q8 = 5
    F8_E4M3 = 6
    F8_E5M2 = 7
    I8 = 16
    I16 = 17
    I32 = 18
    I64 = 19
    U8 = 20
    U16 = 21
    U32 = 22
    U64 = 23
    BOOL = 24
    OPAQUE = 32

MAX_DIMS = 8

class LogLevel(enum.IntEnum):
    """Levels of log messages."""

    ERROR = 1
    WARNING = 2
    INFO = 3
    DEBUG = 4

shard_log_fn = CFUNCTYPE(None, c_int32, c_char_p, c_void_p)

class shard_comm_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_int32),
        ("world_size", c_int32),
        ("timeout", c_double),
        ("log", shard_log_fn),
        ("log_user_data", c_void_p),
        ("log_level", c_int32),
        ("reserved", c_int32),
        ("trace", c_char_p),
        ("metrics", c_char_p),
        ("dump", c_char_p),
    ]
    _enums_ = {"log_level": LogLevel}


class shard_counter(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("calls", c_uint64),
        ("errors", c_uint64),
        ("bytes", c_uint64),
        ("seconds", c_double),
    ]
    _enums_ = {}


class Partition(enum.IntEnum):
    """How parameters are divided among ranks."""

    EVEN = 1
    GREEDY = 2
    BUCKET = 3
    MANUAL = 4


class Masters(enum.IntEnum):
    """The precision in which a bf16 or f16 parameter is stepped."""

    F32 = 1
    NONE_NEAREST = 2
    NONE_STOCHASTIC = 3

shard_wrap_fn = CFUNCTYPE(c_int32, c_int32, c_int64, c_void_p)

class shard_plan_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("stage", c_int32),
        ("world_size", c_int32),
        ("partition", c_int32),
        ("shard_buckets", c_int32),
        ("bucket_bytes", c_int64),
        ("owners", POINTER(c_int32)),
        ("num_owners", c_size_t),
        ("optimizer", c_char_p),
        ("f32_grads", c_int32),
        ("masters", c_int32),
        ("seed", c_uint64),
        ("wrap", c_char_p),
        ("wrap_predicate", shard_wrap_fn),
        ("wrap_user_data", c_void_p),
        ("param_dtype", c_int32),
        ("shard_group_size", c_int32),
        ("f32_classes", c_char_p),
        ("buffer_bytes", c_int64),
        ("prefetch", c_int32),
        ("whole_grads", c_int32),
        ("deterministic", c_int32),
        ("keep_after_forward", c_int32),
        ("require_sharding", c_int32),
        ("reserved", c_int32),
    ]
    _enums_ = {"partition": Partition, "masters": Masters, "param_dtype": DType}


class shard_placement(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("ranks_per_host", c_int32),
        ("separate_memory", c_int32),
        ("device", c_char_p),
    ]
    _enums_ = {}


class shard_memory(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("param_bytes", c_uint64),
        ("grad_bytes", c_uint64),
        ("state_bytes", c_uint64),
        ("workspace_bytes", c_uint64),
        ("transient_bytes", c_uint64),
        ("device_bytes", c_uint64),
        ("host_bytes", c_uint64),
        ("pinned_bytes", c_uint64),
        ("control_bytes", c_uint64),
        ("model_buffer_bytes", c_uint64),
    ]
    _enums_ = {}


class shard_plan_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("fingerprint", c_uint64),
        ("stage", c_int32),
        ("shards_grads", c_int32),
        ("shards_params", c_int32),
        ("world_size", c_int32),
        ("num_params", c_int32),
        ("num_modules", c_int32),
        ("num_names", c_int32),
        ("num_groups", c_int32),
        ("num_units", c_int32),
        ("num_buffers", c_int32),
        ("shard_group_size", c_int32),
        ("keep_after_forward", c_int32),
        ("num_model_buffers", c_int32),
        ("reserved", c_int32),
    ]
    _enums_ = {}


class MissingGrads(enum.IntEnum):
    """How a step treats parameters that got no gradient since the last step
    (units.h says which parameters these are)."""

    ERROR = 0
    ZERO = 1
    SKIP = 2


class shard_engine_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("timeout", c_double),
        ("loss_scaling", c_char_p),
        ("missing_grads", c_int32),
        ("overlap", c_int32),
        ("device", c_char_p),
    ]
    _enums_ = {"missing_grads": MissingGrads}


class shard_step_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("max_grad_norm", c_double),
        ("grad_divisor", c_double),
        ("loss_scale", c_double),
        ("timeout", c_double),
        ("skip_nonfinite", c_int32),
        ("average_active", c_int32),
        ("grad_norm_type", c_double),
        ("clip_value", c_double),
    ]
    _enums_ = {}


class shard_step_report(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("step", c_int64),
        ("grad_norm", c_double),
        ("skipped", c_int32),
        ("active_ranks", c_int32),
        ("bytes_moved", c_uint64),
        ("seconds_wait", c_double),
        ("seconds_reduce", c_double),
        ("seconds_update", c_double),
        ("seconds_total", c_double),
        ("loss_scale", c_double),
        ("bytes_communicated", c_uint64),
        ("bytes_overlapped", c_uint64),
        ("seconds_communication", c_double),
        ("seconds_exposed", c_double),
    ]
    _enums_ = {}


class DeviceKind(enum.IntEnum):
    """Where tensors lie, in the codes of DLPack (DLDeviceType)."""

    CPU = 1
    CUDA = 2


class Pass(enum.IntEnum):
    """The pass that a unit is acquired for."""

    FORWARD = 1
    BACKWARD = 2
    BACKWARD_OVERWRITE = 3


class Content(enum.IntEnum):
    """The part of a training state that a call is about. MODEL is parameters
    and buffers."""

    ALL = 0
    MODEL = 1
    OPTIMIZER = 2


class shard_state_filter(Structure):
    _fields_ = [
        ("content", c_int32),
        ("ignore_frozen", c_int32),
        ("submodules", POINTER(c_int32)),
        ("num_submodules", c_size_t),
        ("strip_prefix", c_int32),
        ("reserved", c_int32),
    ]
    _enums_ = {"content": Content}

shard_progress_fn = CFUNCTYPE(c_int32, c_uint64, c_uint64, c_void_p)

class shard_save_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("timeout", c_double),
        ("filter", shard_state_filter),
        ("overwrite", c_int32),
        ("threads", c_int32),
        ("keep_last", c_int64),
        ("keep_every", c_int64),
        ("progress", shard_progress_fn),
        ("progress_user_data", c_void_p),
    ]
    _enums_ = {}


class shard_load_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("timeout", c_double),
        ("filter", shard_state_filter),
        ("allow_mismatch", c_int32),
        ("convert", c_int32),
        ("strip_leading_module", c_int32),
        ("skip_verify", c_int32),
        ("threads", c_int32),
        ("reserved", c_int32),
        ("progress", shard_progress_fn),
        ("progress_user_data", c_void_p),
    ]
    _enums_ = {}


class shard_load_report(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("step", c_int64),
        ("saved_world_size", c_int32),
        ("reserved", c_int32),
        ("loaded", c_int64),
        ("converted", c_int64),
        ("missing", c_int64),
        ("unexpected", c_int64),
    ]
    _enums_ = {}


class BlobRule(enum.IntEnum):
    """How a blob is mapped to another world size."""

    PER_RANK = 1
    REPLICATED = 2
    SUMMED = 3


class Format(enum.IntEnum):
    """Formats that checkpoints are read from."""

    CHECKPOINT = 1
    SAFETENSORS = 2


class shard_checkpoint_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("format", c_int32),
        ("version", c_int32),
        ("step", c_int64),
        ("world_size", c_int32),
        ("num_files", c_int32),
        ("num_tensors", c_int64),
        ("num_groups", c_int32),
        ("num_scalars", c_int32),
        ("num_blobs", c_int32),
        ("reserved", c_int32),
        ("tensor_bytes", c_uint64),
        ("file_bytes", c_uint64),
        ("id_low", c_uint64),
        ("id_high", c_uint64),
    ]
    _enums_ = {"format": Format}


class Role(enum.IntEnum):
    """The purpose of a tensor. A BUFFER is the host's (shard_model_add_buffer):
    it is neither a parameter nor updated by steps."""

    PARAM = 1
    BUFFER = 2
    STATE = 3


class shard_tensor_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dtype", c_int32),
        ("role", c_int32),
        ("alias_of", c_int64),
        ("numel", c_int64),
        ("bytes", c_uint64),
        ("ndim", c_int32),
        ("trainable", c_int32),
        ("group", c_int32),
        ("num_slices", c_int32),
        ("step", c_int64),
        ("shape", c_int64 * 8),
    ]
    _enums_ = {"dtype": DType, "role": Role}


class shard_tensor_slice(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("begin", c_int64),
        ("numel", c_int64),
        ("offset", c_uint64),
        ("bytes", c_uint64),
        ("file", c_int32),
        ("has_checksum", c_int32),
        ("checksum_low", c_uint64),
        ("checksum_high", c_uint64),
    ]
    _enums_ = {}


class shard_verify_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("threads", c_int32),
        ("reserved", c_int32),
        ("progress", shard_progress_fn),
        ("progress_user_data", c_void_p),
    ]
    _enums_ = {}


class shard_convert_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("content", c_int32),
        ("overwrite", c_int32),
        ("threads", c_int32),
        ("dtype", c_int32),
        ("world_size", c_int32),
        ("expand_aliases", c_int32),
        ("max_shard_bytes", c_uint64),
        ("progress", shard_progress_fn),
        ("progress_user_data", c_void_p),
    ]
    _enums_ = {"content": Content, "dtype": DType}


class shard_param_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("begin", c_int64),
        ("numel", c_int64),
        ("shape", c_int64 * 8),
        ("ndim", c_int32),
        ("dtype", c_int32),
        ("trainable", c_int32),
        ("group", c_int32),
        ("unit", c_int32),
        ("buffer", c_int32),
        ("num_names", c_int32),
        ("first_rank", c_int32),
        ("last_rank", c_int32),
        ("reserved", c_int32),
    ]
    _enums_ = {"dtype": DType}


class shard_buffer_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("full_numel", c_int64),
        ("num_padded", c_int64),
        ("shard_numel", c_int64),
        ("num_params", c_int32),
        ("unit", c_int32),
        ("dtype", c_int32),
        ("trainable", c_int32),
        ("group", c_int32),
        ("grad_dtype", c_int32),
    ]
    _enums_ = {"dtype": DType, "grad_dtype": DType}


class shard_range(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("begin", c_int64),
        ("numel", c_int64),
        ("num_padded", c_int64),
    ]
    _enums_ = {}


class shard_slice(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("begin", c_int64),
        ("numel", c_int64),
        ("param_begin", c_int64),
        ("param", c_int32),
        ("reserved", c_int32),
    ]
    _enums_ = {}


class shard_name_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("param", c_int32),
        ("module", c_int32),
        ("index", c_int32),
        ("reserved", c_int32),
    ]
    _enums_ = {}


class shard_module_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("module", c_int32),
        ("parent", c_int32),
        ("depth", c_int32),
        ("ignored", c_int32),
        ("first_name", c_int32),
        ("num_names", c_int32),
    ]
    _enums_ = {}


class shard_model_buffer_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("numel", c_int64),
        ("shape", c_int64 * 8),
        ("ndim", c_int32),
        ("dtype", c_int32),
        ("module", c_int32),
        ("persistent", c_int32),
    ]
    _enums_ = {"dtype": DType}


class shard_state_dict_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("timeout", c_double),
        ("filter", shard_state_filter),
        ("copy", c_int32),
        ("reserved", c_int32),
    ]
    _enums_ = {}

shard_tensor_fn = CFUNCTYPE(c_int32, c_char_p, POINTER(shard_tensor_info),
        c_void_p, c_void_p)

# Each function's result and parameters.
FUNCTIONS = {
    "shard_version": (c_char_p, []),
    "shard_abi_version": (c_int32, []),
    "shard_error_code": (c_int32, [c_void_p]),
    "shard_error_message": (c_char_p, [c_void_p]),
    "shard_error_rank": (c_int32, [c_void_p]),
    "shard_error_detail": (c_char_p, [c_void_p]),
    "shard_error_free": (None, [error_p]),
    "shard_code_name": (c_char_p, [int32]),
    "shard_dtype_name": (c_char_p, [int32]),
    "shard_dtype_size": (c_size_t, [int32]),
    "shard_comm_open": (error_p, [text, POINTER(shard_comm_options),
        POINTER(c_void_p)]),
    "shard_comm_rank": (c_int32, [c_void_p]),
    "shard_comm_world_size": (c_int32, [c_void_p]),
    "shard_comm_local_rank": (c_int32, [c_void_p]),
    "shard_comm_local_world_size": (c_int32, [c_void_p]),
    "shard_comm_describe": (error_p, [c_void_p, POINTER(c_char_p)]),
    "shard_comm_barrier": (error_p, [c_void_p, double]),
    "shard_comm_sum": (error_p, [c_void_p, POINTER(c_double), size, double]),
    "shard_comm_check_device": (error_p, [c_void_p, text, double]),
    "shard_comm_broadcast": (error_p, [c_void_p, c_void_p, size, int32,
        double]),
    "shard_comm_counter": (error_p, [c_void_p, text, POINTER(shard_counter)]),
    "shard_comm_metrics": (error_p, [c_void_p, c_void_p, size,
        POINTER(c_size_t)]),
    "shard_comm_dump": (error_p, [c_void_p, c_void_p, size, POINTER(c_size_t)]),
    "shard_comm_abort": (error_p, [c_void_p, text]),
    "shard_comm_shutdown": (error_p, [c_void_p, double]),
    "shard_comm_free": (None, [c_void_p]),
    "shard_model_create": (error_p, [text, POINTER(c_void_p)]),
    "shard_model_add_module": (error_p, [c_void_p, int32, text, text,
        POINTER(c_int32)]),
    "shard_model_add_param": (error_p, [c_void_p, int32, text, int32, c_void_p,
        size, POINTER(c_int32)]),
    "shard_model_add_buffer": (error_p, [c_void_p, int32, text, int32, c_void_p,
        size, int32, POINTER(c_int32)]),
    "shard_model_tie": (error_p, [c_void_p, int32, text, int32]),
    "shard_model_freeze": (error_p, [c_void_p, int32]),
    "shard_model_ignore_param": (error_p, [c_void_p, int32]),
    "shard_model_ignore_module": (error_p, [c_void_p, int32]),
    "shard_model_add_param_group": (error_p, [c_void_p, text, c_void_p, size,
        POINTER(c_int32)]),
    "shard_model_free": (None, [c_void_p]),
    "shard_plan_create": (error_p, [c_void_p, POINTER(shard_plan_options),
        POINTER(c_void_p)]),
    "shard_plan_get_info": (error_p, [c_void_p, POINTER(shard_plan_info)]),
    "shard_plan_unit_of": (error_p, [c_void_p, int32, POINTER(c_int32)]),
    "shard_plan_unit_of_module": (error_p, [c_void_p, int32, POINTER(c_int32)]),
    "shard_plan_unit_module": (error_p, [c_void_p, int32, POINTER(c_int32)]),
    "shard_plan_memory": (error_p, [c_void_p, POINTER(shard_placement),
        POINTER(shard_memory)]),
    "shard_plan_text": (error_p, [c_void_p, c_void_p, size, POINTER(c_size_t)]),
    "shard_plan_json": (error_p, [c_void_p, c_void_p, size, POINTER(c_size_t)]),
    "shard_plan_warnings": (error_p, [c_void_p, POINTER(c_char_p)]),
    "shard_plan_encode": (error_p, [c_void_p, c_void_p, size,
        POINTER(c_size_t)]),
    "shard_plan_decode": (error_p, [c_void_p, size, POINTER(c_void_p)]),
    "shard_plan_free": (None, [c_void_p]),
    "shard_engine_create": (error_p, [c_void_p, c_void_p,
        POINTER(shard_engine_options), POINTER(c_void_p)]),
    "shard_engine_plan": (error_p, [c_void_p, POINTER(c_void_p)]),
    "shard_engine_set_hyper": (error_p, [c_void_p, int32, text, double]),
    "shard_engine_hyper": (error_p, [c_void_p, int32, text, POINTER(c_double)]),
    "shard_engine_group_text": (error_p, [c_void_p, int32, c_void_p, size,
        POINTER(c_size_t)]),
    "shard_engine_set_state": (error_p, [c_void_p, int32, text, c_void_p,
        size]),
    "shard_engine_completed_steps": (error_p, [c_void_p, POINTER(c_int64)]),
    "shard_engine_set_completed_steps": (error_p, [c_void_p, int64]),
    "shard_engine_loss_scale": (error_p, [c_void_p, POINTER(c_double)]),
    "shard_engine_growth_tracker": (error_p, [c_void_p, POINTER(c_int64)]),
    "shard_engine_set_loss_scale": (error_p, [c_void_p, double, int64]),
    "shard_engine_step": (error_p, [c_void_p, POINTER(shard_step_options),
        POINTER(shard_step_report)]),
    "shard_engine_device": (error_p, [c_void_p, POINTER(c_int32),
        POINTER(c_int32)]),
    "shard_engine_json": (error_p, [c_void_p, c_void_p, size,
        POINTER(c_size_t)]),
    "shard_devices_json": (error_p, [c_void_p, size, POINTER(c_size_t)]),
    "shard_engine_set_stream": (error_p, [c_void_p, c_void_p]),
    "shard_engine_capture_begin": (error_p, [c_void_p]),
    "shard_engine_capture_end": (error_p, [c_void_p]),
    "shard_engine_before_replay": (error_p, [c_void_p,
        POINTER(shard_step_options)]),
    "shard_engine_last_report": (error_p, [c_void_p,
        POINTER(shard_step_report)]),
    "shard_engine_synchronize": (error_p, [c_void_p, double]),
    "shard_engine_begin_step": (error_p, [c_void_p,
        POINTER(shard_step_options)]),
    "shard_engine_join": (error_p, [c_void_p, double, POINTER(c_int64)]),
    "shard_engine_summon": (error_p, [c_void_p, int32, int32, double]),
    "shard_engine_summon_end": (error_p, [c_void_p, int32, double]),
    "shard_engine_add_param_group": (error_p, [c_void_p, text, c_void_p, size,
        double, POINTER(c_int32)]),
    "shard_engine_set_trainable": (error_p, [c_void_p, c_void_p, size, int32,
        double]),
    "shard_engine_memory": (error_p, [c_void_p, POINTER(shard_memory)]),
    "shard_engine_free": (None, [c_void_p]),
    "shard_schedule_lr": (error_p, [text, int64, POINTER(c_double)]),
    "shard_engine_param": (error_p, [c_void_p, int32, POINTER(c_void_p),
        POINTER(c_int64)]),
    "shard_engine_writable_param": (error_p, [c_void_p, int32,
        POINTER(c_void_p), POINTER(c_int64)]),
    "shard_engine_set_param": (error_p, [c_void_p, int32, c_void_p, size]),
    "shard_engine_broadcast_params": (error_p, [c_void_p, double]),
    "shard_engine_grad": (error_p, [c_void_p, int32, POINTER(c_void_p),
        POINTER(c_int64)]),
    "shard_engine_zero_grad": (error_p, [c_void_p]),
    "shard_engine_bind_param": (error_p, [c_void_p, int32, c_void_p, size,
        c_void_p, size]),
    "shard_engine_buffer": (error_p, [c_void_p, int32, POINTER(c_void_p),
        POINTER(c_int64)]),
    "shard_engine_broadcast_buffers": (error_p, [c_void_p, int32, double]),
    "shard_engine_unit_acquire": (error_p, [c_void_p, int32, int32, double]),
    "shard_engine_unit_release": (error_p, [c_void_p, int32]),
    "shard_engine_unit_params": (error_p, [c_void_p, int32, POINTER(c_int32),
        POINTER(c_void_p), POINTER(c_void_p), size, POINTER(c_size_t)]),
    "shard_engine_mark_unit_grads_ready": (error_p, [c_void_p, int32]),
    "shard_engine_mark_param_grad_ready": (error_p, [c_void_p, int32]),
    "shard_engine_set_accumulate": (error_p, [c_void_p, int32]),
    "shard_checkpoint_save": (error_p, [c_void_p, text,
        POINTER(shard_save_options), POINTER(c_void_p)]),
    "shard_save_done": (c_int32, [c_void_p]),
    "shard_save_wait": (error_p, [c_void_p, double]),
    "shard_save_free": (None, [c_void_p]),
    "shard_checkpoint_load": (error_p, [c_void_p, text,
        POINTER(shard_load_options), POINTER(shard_load_report)]),
    "shard_engine_last_load_report_json": (error_p, [c_void_p, c_void_p, size,
        POINTER(c_size_t)]),
    "shard_engine_set_blob": (error_p, [c_void_p, text, int32, c_void_p, size]),
    "shard_engine_blob": (error_p, [c_void_p, text, POINTER(c_void_p),
        POINTER(c_size_t)]),
    "shard_checkpoint_open": (error_p, [text, POINTER(c_void_p)]),
    "shard_checkpoint_get_info": (error_p, [c_void_p,
        POINTER(shard_checkpoint_info)]),
    "shard_checkpoint_path": (error_p, [c_void_p, POINTER(c_char_p)]),
    "shard_checkpoint_tensor": (error_p, [c_void_p, int64,
        POINTER(shard_tensor_info)]),
    "shard_checkpoint_tensor_key": (error_p, [c_void_p, int64,
        POINTER(c_char_p)]),
    "shard_checkpoint_tensor_type": (error_p, [c_void_p, int64,
        POINTER(c_char_p)]),
    "shard_checkpoint_find": (error_p, [c_void_p, text, POINTER(c_int64)]),
    "shard_checkpoint_slice": (error_p, [c_void_p, int64, int32,
        POINTER(shard_tensor_slice)]),
    "shard_checkpoint_file": (error_p, [c_void_p, int32, POINTER(c_char_p),
        POINTER(c_uint64)]),
    "shard_checkpoint_group": (error_p, [c_void_p, int32, POINTER(c_char_p)]),
    "shard_checkpoint_scalar": (error_p, [c_void_p, int32, POINTER(c_char_p),
        POINTER(c_double)]),
    "shard_checkpoint_blob_info": (error_p, [c_void_p, int32, POINTER(c_char_p),
        POINTER(c_int32), POINTER(c_int32)]),
    "shard_checkpoint_blob": (error_p, [c_void_p, int32, c_void_p, size,
        POINTER(c_size_t)]),
    "shard_checkpoint_read": (error_p, [c_void_p, int64, int64, int64, c_void_p,
        size]),
    "shard_checkpoint_verify": (error_p, [c_void_p,
        POINTER(shard_verify_options)]),
    "shard_checkpoint_convert": (error_p, [c_void_p, text,
        POINTER(shard_convert_options)]),
    "shard_checkpoint_export": (error_p, [c_void_p, text,
        POINTER(shard_convert_options)]),
    "shard_checkpoint_free": (None, [c_void_p]),
    "shard_plan_param_info": (error_p, [c_void_p, int32,
        POINTER(shard_param_info)]),
    "shard_plan_buffer_info": (error_p, [c_void_p, int32,
        POINTER(shard_buffer_info)]),
    "shard_plan_buffer_param": (error_p, [c_void_p, int32, int32,
        POINTER(c_int32)]),
    "shard_plan_rank_range": (error_p, [c_void_p, int32, int32,
        POINTER(shard_range)]),
    "shard_plan_slices": (error_p, [c_void_p, int32, int64, int64,
        POINTER(shard_slice), size, POINTER(c_size_t)]),
    "shard_plan_param_view": (error_p, [c_void_p, int32, c_void_p, int64,
        POINTER(c_void_p)]),
    "shard_plan_name_info": (error_p, [c_void_p, int32,
        POINTER(shard_name_info)]),
    "shard_plan_param_name": (error_p, [c_void_p, int32, int32,
        POINTER(c_char_p)]),
    "shard_plan_find_param": (error_p, [c_void_p, text, POINTER(c_int32)]),
    "shard_plan_module_info": (error_p, [c_void_p, int32,
        POINTER(shard_module_info)]),
    "shard_plan_module_name": (error_p, [c_void_p, int32, POINTER(c_char_p)]),
    "shard_plan_module_class": (error_p, [c_void_p, int32, POINTER(c_char_p)]),
    "shard_plan_model_buffer_info": (error_p, [c_void_p, int32,
        POINTER(shard_model_buffer_info)]),
    "shard_plan_model_buffer_name": (error_p, [c_void_p, int32,
        POINTER(c_char_p)]),
    "shard_clean_tensor_name": (error_p, [text, int32, c_void_p, size,
        POINTER(c_size_t)]),
    "shard_state_dict_get": (error_p, [c_void_p,
        POINTER(shard_state_dict_options), POINTER(c_void_p)]),
    "shard_state_dict_num_tensors": (c_int64, [c_void_p]),
    "shard_state_dict_tensor": (error_p, [c_void_p, int64,
        POINTER(shard_tensor_info)]),
    "shard_state_dict_tensor_key": (error_p, [c_void_p, int64, c_void_p, size,
        POINTER(c_size_t)]),
    "shard_state_dict_local": (error_p, [c_void_p, int64, POINTER(c_int64),
        POINTER(c_int64), POINTER(c_void_p)]),
    "shard_state_dict_device": (error_p, [c_void_p, int64, POINTER(c_int32),
        POINTER(c_int32)]),
    "shard_state_dict_find": (error_p, [c_void_p, text, POINTER(c_int64)]),
    "shard_state_dict_num_numbers": (c_int64, [c_void_p]),
    "shard_state_dict_number": (error_p, [c_void_p, int64, POINTER(c_double),
        c_void_p, size, POINTER(c_size_t)]),
    "shard_state_dict_gather": (error_p, [c_void_p,
        POINTER(shard_state_dict_options), int32, shard_tensor_fn, c_void_p]),
    "shard_state_dict_create": (error_p, [POINTER(c_void_p)]),
    "shard_state_dict_add": (error_p, [c_void_p, text, int32, c_void_p, size,
        c_void_p, size]),
    "shard_state_dict_add_number": (error_p, [c_void_p, text, double]),
    "shard_state_dict_load": (error_p, [c_void_p, c_void_p,
        POINTER(shard_load_options), int32, POINTER(shard_load_report)]),
    "shard_state_dict_free": (None, [c_void_p]),
}
