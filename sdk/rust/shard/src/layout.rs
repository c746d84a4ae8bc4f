// SPDX-License-Identifier: Apache-2.0

//! Layouts, for hosts that read or write tensors themselves: where a plan puts
//! each parameter, and its names (docs/flat-layout.md). All calls are pure and
//! local. A number that does not exist is INVALID_ARGUMENT; ignored parameters
//! and buffers are FAILED_PRECONDITION.

use std::os::raw::c_void;
use std::ptr;

use shard_sys as sys;

use crate::dtype::{length_as, numel_of, view_mut, DType, Element};
use crate::error::{check, Result};
use crate::model::{GroupId, ModelBufferId, ModuleId, ParamId};
use crate::plan::Plan;
use crate::text::{borrowed, c_text, copied};

id! {
    /// A unit of a plan, from 0, the root, in module-walk order.
    UnitId(i32)
}
id! {
    /// A flat buffer of a plan.
    BufferId(i32)
}
id! {
    /// A name of a parameter, in module-walk order.
    NameId(i32)
}

/// Returns the dimensions that are used.
pub(crate) fn shape_of(shape: &[i64], ndim: i32) -> Vec<i64> {
    shape[..(ndim.max(0) as usize).min(shape.len())].to_vec()
}

/// Returns the number, or None for -1.
pub(crate) fn at_least_0(number: i32) -> Option<i32> {
    Some(number).filter(|&number| number >= 0)
}

info! {
    /// Where a parameter is, and of what kind.
    ParamInfo from shard_param_info as raw {
        /// Its first element, in its flat buffer.
        begin: i64 = raw.begin,
        /// Its elements.
        numel: i64 = raw.numel,
        /// Its dimensions.
        shape: Vec<i64> = shape_of(&raw.shape, raw.ndim),
        /// The type that it is stored in.
        dtype: DType = DType(raw.dtype),
        /// Whether it has a gradient.
        trainable: bool = raw.trainable != 0,
        /// Its param group.
        group: GroupId = GroupId(raw.group),
        /// Its unit.
        unit: UnitId = UnitId(raw.unit),
        /// Its flat buffer.
        buffer: BufferId = BufferId(raw.buffer),
        /// The FQN and the aliases.
        num_names: i32 = raw.num_names,
        /// The owner of its first element; None without elements.
        first_rank: Option<i32> = at_least_0(raw.first_rank),
        /// The owner of its last element.
        last_rank: Option<i32> = at_least_0(raw.last_rank),
    }
}

info! {
    /// A flat buffer: parameters one after the other, of one unit, dtype and param
    /// group, all trainable or all frozen.
    BufferInfo from shard_buffer_info as raw {
        /// Elements of its parameters, without padding.
        full_numel: i64 = raw.full_numel,
        /// Elements of padding.
        num_padded: i64 = raw.num_padded,
        /// Elements that each rank owns.
        shard_numel: i64 = raw.shard_numel,
        /// Its parameters.
        num_params: i32 = raw.num_params,
        /// Its unit.
        unit: UnitId = UnitId(raw.unit),
        /// The type of its elements.
        dtype: DType = DType(raw.dtype),
        /// Whether its parameters have gradients.
        trainable: bool = raw.trainable != 0,
        /// Its param group; None: frozen.
        group: Option<GroupId> = at_least_0(raw.group).map(GroupId),
        /// The type of its gradients; None: frozen.
        grad_dtype: Option<DType> = Some(DType(raw.grad_dtype)).filter(|dtype| dtype.0 != 0),
    }
}

info! {
    /// A range of a flat buffer.
    Range from shard_range as raw {
        /// Its first element.
        begin: i64 = raw.begin,
        /// Its elements.
        numel: i64 = raw.numel,
        /// Elements among these that are no parameter's.
        num_padded: i64 = raw.num_padded,
    }
}

info! {
    /// The part of a parameter that is in some range of its buffer.
    Slice from shard_slice as raw {
        /// Its first element, in the flat buffer.
        begin: i64 = raw.begin,
        /// Its elements.
        numel: i64 = raw.numel,
        /// Its first element, in the parameter.
        param_begin: i64 = raw.param_begin,
        /// The parameter.
        param: ParamId = ParamId(raw.param),
    }
}

info! {
    /// A name of a parameter.
    NameInfo from shard_name_info as raw {
        /// The parameter.
        param: ParamId = ParamId(raw.param),
        /// The module that the name is in.
        module: ModuleId = ModuleId(raw.module),
        /// Among the parameter's names: 0 its FQN, else an alias.
        index: i32 = raw.index,
    }
}

info! {
    /// A module of a plan's model.
    ModuleInfo from shard_module_info as raw {
        /// Its id.
        module: ModuleId = ModuleId(raw.module),
        /// The module around it; None: the root.
        parent: Option<ModuleId> = at_least_0(raw.parent).map(ModuleId),
        /// 0: the root.
        depth: i32 = raw.depth,
        /// Whether it is ignored.
        ignored: bool = raw.ignored != 0,
        /// The first of its names, in a row.
        first_name: NameId = NameId(raw.first_name),
        /// The number of its names.
        num_names: i32 = raw.num_names,
    }
}

info! {
    /// A buffer of a plan's model, as it was declared.
    ModelBufferInfo from shard_model_buffer_info as raw {
        /// Its elements.
        numel: i64 = raw.numel,
        /// Its dimensions.
        shape: Vec<i64> = shape_of(&raw.shape, raw.ndim),
        /// The type of its elements.
        dtype: DType = DType(raw.dtype),
        /// The module that it is in.
        module: ModuleId = ModuleId(raw.module),
        /// Whether it is in checkpoints and state dicts.
        persistent: bool = raw.persistent != 0,
    }
}

impl Plan {
    /// Returns where a parameter is and how it is stored.
    pub fn param_info(&self, param: ParamId) -> Result<ParamInfo> {
        let mut info = sys::SHARD_PARAM_INFO_INIT;
        check(unsafe { sys::shard_plan_param_info(self.as_ptr(), param.0, &mut info) })?;
        Ok(ParamInfo::new(&info))
    }

    /// Returns the size and the kind of a flat buffer.
    pub fn buffer_info(&self, buffer: BufferId) -> Result<BufferInfo> {
        let mut info = sys::SHARD_BUFFER_INFO_INIT;
        check(unsafe { sys::shard_plan_buffer_info(self.as_ptr(), buffer.0, &mut info) })?;
        Ok(BufferInfo::new(&info))
    }

    /// Returns the parameter at place `index` of the buffer, by ascending offset.
    pub fn buffer_param(&self, buffer: BufferId, index: i32) -> Result<ParamId> {
        let mut param = ParamId(0);
        check(unsafe {
            sys::shard_plan_buffer_param(self.as_ptr(), buffer.0, index, &mut param.0)
        })?;
        Ok(param)
    }

    /// Returns the range of a flat buffer that a rank owns.
    pub fn rank_range(&self, buffer: BufferId, rank: i32) -> Result<Range> {
        let mut range = sys::SHARD_RANGE_INIT;
        check(unsafe { sys::shard_plan_rank_range(self.as_ptr(), buffer.0, rank, &mut range) })?;
        Ok(Range::new(&range))
    }

    /// Returns the parameter slices that intersect `numel` elements of a flat buffer
    /// from `begin` on, by ascending offset. All other elements are padding.
    pub fn slices(&self, buffer: BufferId, begin: i64, numel: i64) -> Result<Vec<Slice>> {
        let write = |slices: *mut sys::shard_slice, capacity: usize| {
            let mut count = 0;
            check(unsafe {
                let plan = self.as_ptr();
                sys::shard_plan_slices(plan, buffer.0, begin, numel, slices, capacity, &mut count)
            })?;
            Ok(count)
        };
        let mut slices = vec![sys::SHARD_SLICE_INIT; write(ptr::null_mut(), 0)?];
        if !slices.is_empty() {
            write(slices.as_mut_ptr(), slices.len())?;
        }
        Ok(slices.iter().map(Slice::new).collect())
    }

    /// Returns the parameter in the host's own copy of its whole flat buffer, with or
    /// without the padding behind the last parameter.
    pub fn param_view<'d, T: Element>(
        &self,
        param: ParamId,
        data: &'d mut [T],
    ) -> Result<&'d mut [T]> {
        let info = self.param_info(param)?;
        let what = format!("parameter {param}");
        let length = length_as::<T>(&what, info.dtype, info.numel)?;
        let numel = numel_of::<T>(&what, info.dtype, data.len())?;
        let mut view = ptr::null_mut();
        check(unsafe {
            let data = data.as_mut_ptr() as *mut c_void;
            sys::shard_plan_param_view(self.as_ptr(), param.0, data, numel, &mut view)
        })?;
        // SAFETY: the view lies within `data`, which is borrowed as long as the view is.
        unsafe { view_mut(view, length) }
    }

    /// Returns the parameter and the module of a name.
    pub fn name_info(&self, name: NameId) -> Result<NameInfo> {
        let mut info = sys::SHARD_NAME_INFO_INIT;
        check(unsafe { sys::shard_plan_name_info(self.as_ptr(), name.0, &mut info) })?;
        Ok(NameInfo::new(&info))
    }

    /// Returns the parameter's FQN, with `index` 0, or an alias.
    pub fn param_name(&self, param: ParamId, index: i32) -> Result<&str> {
        self.named(|name| unsafe {
            sys::shard_plan_param_name(self.as_ptr(), param.0, index, name)
        })
    }

    /// Finds the parameter that has this FQN or alias, an ignored one too. NOT_FOUND
    /// says where its path ends.
    pub fn find_param(&self, fqn: &str) -> Result<ParamId> {
        let fqn = c_text("the name", fqn)?;
        let mut param = ParamId(0);
        check(unsafe { sys::shard_plan_find_param(self.as_ptr(), fqn.as_ptr(), &mut param.0) })?;
        Ok(param)
    }

    /// Returns the module at place `index` of the module walk: pre-order, the root
    /// first.
    pub fn module_info(&self, index: i32) -> Result<ModuleInfo> {
        let mut info = sys::SHARD_MODULE_INFO_INIT;
        check(unsafe { sys::shard_plan_module_info(self.as_ptr(), index, &mut info) })?;
        Ok(ModuleInfo::new(&info))
    }

    /// Returns the FQN of a module; "" is the root's.
    pub fn module_name(&self, module: ModuleId) -> Result<&str> {
        self.named(|name| unsafe { sys::shard_plan_module_name(self.as_ptr(), module.0, name) })
    }

    /// Returns the class of a module.
    pub fn module_class(&self, module: ModuleId) -> Result<&str> {
        self.named(|name| unsafe { sys::shard_plan_module_class(self.as_ptr(), module.0, name) })
    }

    /// Returns the declaration of a buffer of the model.
    pub fn model_buffer_info(&self, buffer: ModelBufferId) -> Result<ModelBufferInfo> {
        let mut info = sys::SHARD_MODEL_BUFFER_INFO_INIT;
        check(unsafe { sys::shard_plan_model_buffer_info(self.as_ptr(), buffer.0, &mut info) })?;
        Ok(ModelBufferInfo::new(&info))
    }

    /// Returns the FQN of a buffer of the model.
    pub fn model_buffer_name(&self, buffer: ModelBufferId) -> Result<&str> {
        self.named(|name| unsafe {
            sys::shard_plan_model_buffer_name(self.as_ptr(), buffer.0, name)
        })
    }

    fn named(
        &self,
        get: impl FnOnce(*mut *const std::os::raw::c_char) -> *mut sys::shard_error,
    ) -> Result<&str> {
        let mut text = ptr::null();
        check(get(&mut text))?;
        // SAFETY: the text lives as long as the plan.
        unsafe { borrowed(text) }
    }
}

/// Removes from `name` the components that wrappers leave in it, such as
/// `_fsdp_wrapped_module`; with `strip_leading_module` also one leading "module.".
pub fn clean_tensor_name(name: &str, strip_leading_module: bool) -> Result<String> {
    let name = c_text("the name", name)?;
    copied(|buffer, capacity, length| unsafe {
        let strip = strip_leading_module.into();
        sys::shard_clean_tensor_name(name.as_ptr(), strip, buffer, capacity, length)
    })
}
