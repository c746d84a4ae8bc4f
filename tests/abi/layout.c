/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints the layout of shard.h as a compiler has it: the size of each struct,
 * the offset and size of each field, the value of each constant, the size that
 * each _INIT sets, and whether all else in it is zero. abi_test compares the
 * output with layout.txt, and this file with the header: it fails when a name
 * of the header is not here. */

#include <stdio.h>
#include <string.h>

#include "shard/shard.h"

#define STRUCT(type) printf("struct %s %zu\n", #type, sizeof(type))
#define FIELD(type, field)                                               \
  printf("field %s.%s %zu +%zu\n", #type, #field, offsetof(type, field), \
         sizeof(((type*)0)->field))
#define CONSTANT(name) printf("constant %s %d\n", #name, (int)(name))
/* The values are static, so that their padding is zero too. */
#define INIT(type, init)                                             \
  do {                                                               \
    static const type value = init;                                  \
    static type zero;                                                \
    zero.struct_size = sizeof(zero);                                 \
    printf("init %s %zu%s\n", #init, value.struct_size,              \
           memcmp(&value, &zero, sizeof(zero)) == 0 ? " zero" : ""); \
  } while (0)

int main(void) {
  STRUCT(shard_comm_options);
  FIELD(shard_comm_options, struct_size);
  FIELD(shard_comm_options, rank);
  FIELD(shard_comm_options, world_size);
  FIELD(shard_comm_options, timeout);
  FIELD(shard_comm_options, log);
  FIELD(shard_comm_options, log_user_data);
  FIELD(shard_comm_options, log_level);
  FIELD(shard_comm_options, reserved);
  FIELD(shard_comm_options, trace);
  FIELD(shard_comm_options, metrics);
  FIELD(shard_comm_options, dump);
  INIT(shard_comm_options, SHARD_COMM_OPTIONS_INIT);

  STRUCT(shard_counter);
  FIELD(shard_counter, struct_size);
  FIELD(shard_counter, calls);
  FIELD(shard_counter, errors);
  FIELD(shard_counter, bytes);
  FIELD(shard_counter, seconds);
  INIT(shard_counter, SHARD_COUNTER_INIT);

  STRUCT(shard_plan_options);
  FIELD(shard_plan_options, struct_size);
  FIELD(shard_plan_options, stage);
  FIELD(shard_plan_options, world_size);
  FIELD(shard_plan_options, partition);
  FIELD(shard_plan_options, shard_buckets);
  FIELD(shard_plan_options, bucket_bytes);
  FIELD(shard_plan_options, owners);
  FIELD(shard_plan_options, num_owners);
  FIELD(shard_plan_options, optimizer);
  FIELD(shard_plan_options, f32_grads);
  FIELD(shard_plan_options, masters);
  FIELD(shard_plan_options, seed);
  FIELD(shard_plan_options, wrap);
  FIELD(shard_plan_options, wrap_predicate);
  FIELD(shard_plan_options, wrap_user_data);
  FIELD(shard_plan_options, param_dtype);
  FIELD(shard_plan_options, shard_group_size);
  FIELD(shard_plan_options, f32_classes);
  FIELD(shard_plan_options, buffer_bytes);
  FIELD(shard_plan_options, prefetch);
  FIELD(shard_plan_options, whole_grads);
  FIELD(shard_plan_options, deterministic);
  FIELD(shard_plan_options, keep_after_forward);
  FIELD(shard_plan_options, require_sharding);
  FIELD(shard_plan_options, reserved);
  INIT(shard_plan_options, SHARD_PLAN_OPTIONS_INIT);

  STRUCT(shard_placement);
  FIELD(shard_placement, struct_size);
  FIELD(shard_placement, ranks_per_host);
  FIELD(shard_placement, separate_memory);
  FIELD(shard_placement, device);
  INIT(shard_placement, SHARD_PLACEMENT_INIT);

  STRUCT(shard_memory);
  FIELD(shard_memory, struct_size);
  FIELD(shard_memory, param_bytes);
  FIELD(shard_memory, grad_bytes);
  FIELD(shard_memory, state_bytes);
  FIELD(shard_memory, workspace_bytes);
  FIELD(shard_memory, transient_bytes);
  FIELD(shard_memory, device_bytes);
  FIELD(shard_memory, host_bytes);
  FIELD(shard_memory, pinned_bytes);
  FIELD(shard_memory, control_bytes);
  FIELD(shard_memory, model_buffer_bytes);
  INIT(shard_memory, SHARD_MEMORY_INIT);

  STRUCT(shard_plan_info);
  FIELD(shard_plan_info, struct_size);
  FIELD(shard_plan_info, fingerprint);
  FIELD(shard_plan_info, stage);
  FIELD(shard_plan_info, shards_grads);
  FIELD(shard_plan_info, shards_params);
  FIELD(shard_plan_info, world_size);
  FIELD(shard_plan_info, num_params);
  FIELD(shard_plan_info, num_modules);
  FIELD(shard_plan_info, num_names);
  FIELD(shard_plan_info, num_groups);
  FIELD(shard_plan_info, num_units);
  FIELD(shard_plan_info, num_buffers);
  FIELD(shard_plan_info, shard_group_size);
  FIELD(shard_plan_info, keep_after_forward);
  FIELD(shard_plan_info, num_model_buffers);
  FIELD(shard_plan_info, reserved);
  INIT(shard_plan_info, SHARD_PLAN_INFO_INIT);

  STRUCT(shard_param_info);
  FIELD(shard_param_info, struct_size);
  FIELD(shard_param_info, begin);
  FIELD(shard_param_info, numel);
  FIELD(shard_param_info, shape);
  FIELD(shard_param_info, ndim);
  FIELD(shard_param_info, dtype);
  FIELD(shard_param_info, trainable);
  FIELD(shard_param_info, group);
  FIELD(shard_param_info, unit);
  FIELD(shard_param_info, buffer);
  FIELD(shard_param_info, num_names);
  FIELD(shard_param_info, first_rank);
  FIELD(shard_param_info, last_rank);
  FIELD(shard_param_info, reserved);
  INIT(shard_param_info, SHARD_PARAM_INFO_INIT);

  STRUCT(shard_buffer_info);
  FIELD(shard_buffer_info, struct_size);
  FIELD(shard_buffer_info, full_numel);
  FIELD(shard_buffer_info, num_padded);
  FIELD(shard_buffer_info, shard_numel);
  FIELD(shard_buffer_info, num_params);
  FIELD(shard_buffer_info, unit);
  FIELD(shard_buffer_info, dtype);
  FIELD(shard_buffer_info, trainable);
  FIELD(shard_buffer_info, group);
  FIELD(shard_buffer_info, grad_dtype);
  INIT(shard_buffer_info, SHARD_BUFFER_INFO_INIT);

  STRUCT(shard_range);
  FIELD(shard_range, struct_size);
  FIELD(shard_range, begin);
  FIELD(shard_range, numel);
  FIELD(shard_range, num_padded);
  INIT(shard_range, SHARD_RANGE_INIT);

  STRUCT(shard_slice);
  FIELD(shard_slice, struct_size);
  FIELD(shard_slice, begin);
  FIELD(shard_slice, numel);
  FIELD(shard_slice, param_begin);
  FIELD(shard_slice, param);
  FIELD(shard_slice, reserved);
  INIT(shard_slice, SHARD_SLICE_INIT);

  STRUCT(shard_name_info);
  FIELD(shard_name_info, struct_size);
  FIELD(shard_name_info, param);
  FIELD(shard_name_info, module);
  FIELD(shard_name_info, index);
  FIELD(shard_name_info, reserved);
  INIT(shard_name_info, SHARD_NAME_INFO_INIT);

  STRUCT(shard_module_info);
  FIELD(shard_module_info, struct_size);
  FIELD(shard_module_info, module);
  FIELD(shard_module_info, parent);
  FIELD(shard_module_info, depth);
  FIELD(shard_module_info, ignored);
  FIELD(shard_module_info, first_name);
  FIELD(shard_module_info, num_names);
  INIT(shard_module_info, SHARD_MODULE_INFO_INIT);

  STRUCT(shard_model_buffer_info);
  FIELD(shard_model_buffer_info, struct_size);
  FIELD(shard_model_buffer_info, numel);
  FIELD(shard_model_buffer_info, shape);
  FIELD(shard_model_buffer_info, ndim);
  FIELD(shard_model_buffer_info, dtype);
  FIELD(shard_model_buffer_info, module);
  FIELD(shard_model_buffer_info, persistent);
  INIT(shard_model_buffer_info, SHARD_MODEL_BUFFER_INFO_INIT);

  STRUCT(shard_engine_options);
  FIELD(shard_engine_options, struct_size);
  FIELD(shard_engine_options, timeout);
  FIELD(shard_engine_options, loss_scaling);
  FIELD(shard_engine_options, missing_grads);
  FIELD(shard_engine_options, overlap);
  FIELD(shard_engine_options, device);
  INIT(shard_engine_options, SHARD_ENGINE_OPTIONS_INIT);

  STRUCT(shard_step_options);
  FIELD(shard_step_options, struct_size);
  FIELD(shard_step_options, max_grad_norm);
  FIELD(shard_step_options, grad_divisor);
  FIELD(shard_step_options, loss_scale);
  FIELD(shard_step_options, timeout);
  FIELD(shard_step_options, skip_nonfinite);
  FIELD(shard_step_options, average_active);
  FIELD(shard_step_options, grad_norm_type);
  FIELD(shard_step_options, clip_value);
  INIT(shard_step_options, SHARD_STEP_OPTIONS_INIT);

  STRUCT(shard_step_report);
  FIELD(shard_step_report, struct_size);
  FIELD(shard_step_report, step);
  FIELD(shard_step_report, grad_norm);
  FIELD(shard_step_report, skipped);
  FIELD(shard_step_report, active_ranks);
  FIELD(shard_step_report, bytes_moved);
  FIELD(shard_step_report, seconds_wait);
  FIELD(shard_step_report, seconds_reduce);
  FIELD(shard_step_report, seconds_update);
  FIELD(shard_step_report, seconds_total);
  FIELD(shard_step_report, loss_scale);
  FIELD(shard_step_report, bytes_communicated);
  FIELD(shard_step_report, bytes_overlapped);
  FIELD(shard_step_report, seconds_communication);
  FIELD(shard_step_report, seconds_exposed);
  INIT(shard_step_report, SHARD_STEP_REPORT_INIT);

  STRUCT(shard_state_filter);
  FIELD(shard_state_filter, content);
  FIELD(shard_state_filter, ignore_frozen);
  FIELD(shard_state_filter, submodules);
  FIELD(shard_state_filter, num_submodules);
  FIELD(shard_state_filter, strip_prefix);
  FIELD(shard_state_filter, reserved);

  STRUCT(shard_save_options);
  FIELD(shard_save_options, struct_size);
  FIELD(shard_save_options, timeout);
  FIELD(shard_save_options, filter);
  FIELD(shard_save_options, overwrite);
  FIELD(shard_save_options, threads);
  FIELD(shard_save_options, keep_last);
  FIELD(shard_save_options, keep_every);
  FIELD(shard_save_options, progress);
  FIELD(shard_save_options, progress_user_data);
  INIT(shard_save_options, SHARD_SAVE_OPTIONS_INIT);
  STRUCT(shard_load_options);
  FIELD(shard_load_options, struct_size);
  FIELD(shard_load_options, timeout);
  FIELD(shard_load_options, filter);
  FIELD(shard_load_options, allow_mismatch);
  FIELD(shard_load_options, convert);
  FIELD(shard_load_options, strip_leading_module);
  FIELD(shard_load_options, skip_verify);
  FIELD(shard_load_options, threads);
  FIELD(shard_load_options, reserved);
  FIELD(shard_load_options, progress);
  FIELD(shard_load_options, progress_user_data);
  INIT(shard_load_options, SHARD_LOAD_OPTIONS_INIT);
  STRUCT(shard_load_report);
  FIELD(shard_load_report, struct_size);
  FIELD(shard_load_report, step);
  FIELD(shard_load_report, saved_world_size);
  FIELD(shard_load_report, reserved);
  FIELD(shard_load_report, loaded);
  FIELD(shard_load_report, converted);
  FIELD(shard_load_report, missing);
  FIELD(shard_load_report, unexpected);
  INIT(shard_load_report, SHARD_LOAD_REPORT_INIT);
  STRUCT(shard_checkpoint_info);
  FIELD(shard_checkpoint_info, struct_size);
  FIELD(shard_checkpoint_info, format);
  FIELD(shard_checkpoint_info, version);
  FIELD(shard_checkpoint_info, step);
  FIELD(shard_checkpoint_info, world_size);
  FIELD(shard_checkpoint_info, num_files);
  FIELD(shard_checkpoint_info, num_tensors);
  FIELD(shard_checkpoint_info, num_groups);
  FIELD(shard_checkpoint_info, num_scalars);
  FIELD(shard_checkpoint_info, num_blobs);
  FIELD(shard_checkpoint_info, reserved);
  FIELD(shard_checkpoint_info, tensor_bytes);
  FIELD(shard_checkpoint_info, file_bytes);
  FIELD(shard_checkpoint_info, id_low);
  FIELD(shard_checkpoint_info, id_high);
  INIT(shard_checkpoint_info, SHARD_CHECKPOINT_INFO_INIT);
  STRUCT(shard_tensor_info);
  FIELD(shard_tensor_info, struct_size);
  FIELD(shard_tensor_info, dtype);
  FIELD(shard_tensor_info, role);
  FIELD(shard_tensor_info, alias_of);
  FIELD(shard_tensor_info, numel);
  FIELD(shard_tensor_info, bytes);
  FIELD(shard_tensor_info, ndim);
  FIELD(shard_tensor_info, trainable);
  FIELD(shard_tensor_info, group);
  FIELD(shard_tensor_info, num_slices);
  FIELD(shard_tensor_info, step);
  FIELD(shard_tensor_info, shape);
  INIT(shard_tensor_info, SHARD_TENSOR_INFO_INIT);
  STRUCT(shard_tensor_slice);
  FIELD(shard_tensor_slice, struct_size);
  FIELD(shard_tensor_slice, begin);
  FIELD(shard_tensor_slice, numel);
  FIELD(shard_tensor_slice, offset);
  FIELD(shard_tensor_slice, bytes);
  FIELD(shard_tensor_slice, file);
  FIELD(shard_tensor_slice, has_checksum);
  FIELD(shard_tensor_slice, checksum_low);
  FIELD(shard_tensor_slice, checksum_high);
  INIT(shard_tensor_slice, SHARD_TENSOR_SLICE_INIT);
  STRUCT(shard_verify_options);
  FIELD(shard_verify_options, struct_size);
  FIELD(shard_verify_options, threads);
  FIELD(shard_verify_options, reserved);
  FIELD(shard_verify_options, progress);
  FIELD(shard_verify_options, progress_user_data);
  INIT(shard_verify_options, SHARD_VERIFY_OPTIONS_INIT);
  STRUCT(shard_convert_options);
  FIELD(shard_convert_options, struct_size);
  FIELD(shard_convert_options, content);
  FIELD(shard_convert_options, overwrite);
  FIELD(shard_convert_options, threads);
  FIELD(shard_convert_options, dtype);
  FIELD(shard_convert_options, world_size);
  FIELD(shard_convert_options, expand_aliases);
  FIELD(shard_convert_options, max_shard_bytes);
  FIELD(shard_convert_options, progress);
  FIELD(shard_convert_options, progress_user_data);
  INIT(shard_convert_options, SHARD_CONVERT_OPTIONS_INIT);
  STRUCT(shard_state_dict_options);
  FIELD(shard_state_dict_options, struct_size);
  FIELD(shard_state_dict_options, timeout);
  FIELD(shard_state_dict_options, filter);
  FIELD(shard_state_dict_options, copy);
  FIELD(shard_state_dict_options, reserved);
  INIT(shard_state_dict_options, SHARD_STATE_DICT_OPTIONS_INIT);
  CONSTANT(SHARD_OK);
  CONSTANT(SHARD_CANCELLED);
  CONSTANT(SHARD_UNKNOWN);
  CONSTANT(SHARD_INVALID_ARGUMENT);
  CONSTANT(SHARD_DEADLINE_EXCEEDED);
  CONSTANT(SHARD_NOT_FOUND);
  CONSTANT(SHARD_ALREADY_EXISTS);
  CONSTANT(SHARD_PERMISSION_DENIED);
  CONSTANT(SHARD_RESOURCE_EXHAUSTED);
  CONSTANT(SHARD_FAILED_PRECONDITION);
  CONSTANT(SHARD_ABORTED);
  CONSTANT(SHARD_OUT_OF_RANGE);
  CONSTANT(SHARD_UNIMPLEMENTED);
  CONSTANT(SHARD_INTERNAL);
  CONSTANT(SHARD_UNAVAILABLE);
  CONSTANT(SHARD_DATA_LOSS);
  CONSTANT(SHARD_UNAUTHENTICATED);
  CONSTANT(SHARD_DESYNC);
  CONSTANT(SHARD_RANK_LOST);
  CONSTANT(SHARD_CORRUPT);
  CONSTANT(SHARD_POISONED);
  CONSTANT(SHARD_BACKEND_UNAVAILABLE);
  CONSTANT(SHARD_LOG_ERROR);
  CONSTANT(SHARD_LOG_WARNING);
  CONSTANT(SHARD_LOG_INFO);
  CONSTANT(SHARD_LOG_DEBUG);
  CONSTANT(SHARD_F32);
  CONSTANT(SHARD_BF16);
  CONSTANT(SHARD_F16);
  CONSTANT(SHARD_F64);
  CONSTANT(SHARD_MAX_DIMS);
  CONSTANT(SHARD_DEVICE_CPU);
  CONSTANT(SHARD_DEVICE_CUDA);
  CONSTANT(SHARD_MISSING_ERROR);
  CONSTANT(SHARD_MISSING_ZERO);
  CONSTANT(SHARD_MISSING_SKIP);
  CONSTANT(SHARD_PASS_FORWARD);
  CONSTANT(SHARD_PASS_BACKWARD);
  CONSTANT(SHARD_PASS_BACKWARD_OVERWRITE);
  CONSTANT(SHARD_MASTERS_F32);
  CONSTANT(SHARD_MASTERS_NONE_NEAREST);
  CONSTANT(SHARD_MASTERS_NONE_STOCHASTIC);
  CONSTANT(SHARD_PARTITION_EVEN);
  CONSTANT(SHARD_PARTITION_GREEDY);
  CONSTANT(SHARD_PARTITION_BUCKET);
  CONSTANT(SHARD_PARTITION_MANUAL);
  CONSTANT(SHARD_CONTENT_ALL);
  CONSTANT(SHARD_CONTENT_MODEL);
  CONSTANT(SHARD_CONTENT_OPTIMIZER);
  CONSTANT(SHARD_BLOB_PER_RANK);
  CONSTANT(SHARD_BLOB_REPLICATED);
  CONSTANT(SHARD_BLOB_SUMMED);
  CONSTANT(SHARD_FORMAT_CHECKPOINT);
  CONSTANT(SHARD_FORMAT_SAFETENSORS);
  CONSTANT(SHARD_Q8);
  CONSTANT(SHARD_F8_E4M3);
  CONSTANT(SHARD_F8_E5M2);
  CONSTANT(SHARD_I8);
  CONSTANT(SHARD_I16);
  CONSTANT(SHARD_I32);
  CONSTANT(SHARD_I64);
  CONSTANT(SHARD_U8);
  CONSTANT(SHARD_U16);
  CONSTANT(SHARD_U32);
  CONSTANT(SHARD_U64);
  CONSTANT(SHARD_BOOL);
  CONSTANT(SHARD_OPAQUE);
  CONSTANT(SHARD_ROLE_PARAM);
  CONSTANT(SHARD_ROLE_BUFFER);
  CONSTANT(SHARD_ROLE_STATE);
  return 0;
}
