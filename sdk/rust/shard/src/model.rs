// SPDX-License-Identifier: Apache-2.0

//! Models: the modules, parameters and buffers that a host declares.

use std::fmt;
use std::ptr::{self, NonNull};

use shard_sys as sys;

use crate::dtype::DType;
use crate::error::{check, Result};
use crate::text::c_text;
use crate::version::check_version;

id! {
    /// A module of a model, in the order of adding; [`ModuleId::ROOT`] is the root.
    ModuleId(i32)
}
id! {
    /// A parameter of a model, in the order of adding.
    ParamId(i32)
}
id! {
    /// A param group: 0 has the plan's optimizer, those from 1 up their own.
    GroupId(i32)
}
id! {
    /// A buffer of a model ([`Model::add_buffer`]), in the order of adding.
    ModelBufferId(i32)
}

impl ModuleId {
    /// The root module.
    pub const ROOT: ModuleId = ModuleId(0);
}

/// A tree of modules with named parameters and buffers.
///
/// The fully qualified name (FQN) of a parameter or buffer joins the names on its
/// path with dots. A name has no dots and no control characters; a module uses
/// each name once. All calls are local.
pub struct Model {
    model: NonNull<sys::shard_model>,
}

// SAFETY: handles may move between threads.
unsafe impl Send for Model {}

impl Model {
    /// Creates a model whose root module has the class `class_name`, which may be "".
    pub fn create(class_name: &str) -> Result<Model> {
        check_version()?;
        let class_name = c_text("the class", class_name)?;
        let mut model = ptr::null_mut();
        check(unsafe { sys::shard_model_create(class_name.as_ptr(), &mut model) })?;
        // SAFETY: success gives a handle.
        Ok(Model {
            model: unsafe { NonNull::new_unchecked(model) },
        })
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::shard_model {
        self.model.as_ptr()
    }

    /// Adds a module within `parent`. `name` is one component of a path; wrap
    /// policies select modules by `class_name`.
    pub fn add_module(
        &mut self,
        parent: ModuleId,
        name: &str,
        class_name: &str,
    ) -> Result<ModuleId> {
        let name = c_text("the name", name)?;
        let class_name = c_text("the class", class_name)?;
        let mut module = ModuleId(0);
        check(unsafe {
            sys::shard_model_add_module(
                self.as_ptr(),
                parent.0,
                name.as_ptr(),
                class_name.as_ptr(),
                &mut module.0,
            )
        })?;
        Ok(module)
    }

    /// Adds a trainable parameter of `shape`, row-major; an empty shape is a scalar.
    /// A dimension may be 0.
    pub fn add_param(
        &mut self,
        module: ModuleId,
        name: &str,
        dtype: DType,
        shape: &[i64],
    ) -> Result<ParamId> {
        let name = c_text("the name", name)?;
        let mut param = ParamId(0);
        check(unsafe {
            sys::shard_model_add_param(
                self.as_ptr(),
                module.0,
                name.as_ptr(),
                dtype.0,
                shape.as_ptr(),
                shape.len(),
                &mut param.0,
            )
        })?;
        Ok(param)
    }

    /// Adds a buffer of `shape`: a tensor of the host that is neither stepped nor
    /// sharded, such as the running mean of a batch norm. Every rank has it whole,
    /// zero at first ([`Engine::buffer`](crate::Engine::buffer)). A `persistent` one
    /// is in checkpoints and state dicts.
    pub fn add_buffer(
        &mut self,
        module: ModuleId,
        name: &str,
        dtype: DType,
        shape: &[i64],
        persistent: bool,
    ) -> Result<ModelBufferId> {
        let name = c_text("the name", name)?;
        let mut buffer = ModelBufferId(0);
        check(unsafe {
            sys::shard_model_add_buffer(
                self.as_ptr(),
                module.0,
                name.as_ptr(),
                dtype.0,
                shape.as_ptr(),
                shape.len(),
                persistent.into(),
                &mut buffer.0,
            )
        })?;
        Ok(buffer)
    }

    /// Gives `param` another name, for tied weights. The parameter is stored,
    /// reduced and updated once, under the name that comes first in module-walk
    /// order.
    pub fn tie(&mut self, module: ModuleId, name: &str, param: ParamId) -> Result<()> {
        let name = c_text("the name", name)?;
        check(unsafe { sys::shard_model_tie(self.as_ptr(), module.0, name.as_ptr(), param.0) })
    }

    /// Freezes a parameter: it keeps its values, and has no gradient and no
    /// optimizer state.
    pub fn freeze(&mut self, param: ParamId) -> Result<()> {
        check(unsafe { sys::shard_model_freeze(self.as_ptr(), param.0) })
    }

    /// Ignores a parameter: libshard neither stores nor touches it.
    pub fn ignore_param(&mut self, param: ParamId) -> Result<()> {
        check(unsafe { sys::shard_model_ignore_param(self.as_ptr(), param.0) })
    }

    /// Ignores a module with everything below it.
    pub fn ignore_module(&mut self, module: ModuleId) -> Result<()> {
        check(unsafe { sys::shard_model_ignore_module(self.as_ptr(), module.0) })
    }

    /// Gives parameters an optimizer, or hyperparameters, of their own: a param
    /// group. `optimizer` is a text as in
    /// [`PlanOptions::optimizer`](crate::PlanOptions::optimizer), or "?key=value" for
    /// the plan's optimizer with other values, such as "?weight_decay=0", or "".
    pub fn add_param_group(&mut self, optimizer: &str, params: &[ParamId]) -> Result<GroupId> {
        let optimizer = c_text("the optimizer", optimizer)?;
        let mut group = GroupId(0);
        check(unsafe {
            sys::shard_model_add_param_group(
                self.as_ptr(),
                optimizer.as_ptr(),
                params.as_ptr() as *const i32,
                params.len(),
                &mut group.0,
            )
        })?;
        Ok(group)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        unsafe { sys::shard_model_free(self.as_ptr()) }
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Model")
    }
}
