// SPDX-License-Identifier: Apache-2.0

//! The part of a training state that a save, a load or a state dict is about.

use std::ptr;

use shard_sys as sys;

use crate::model::ModuleId;

c_enum! {
    /// The kinds of tensors that a call is about.
    Content {
        /// All of them: the default.
        ALL = SHARD_CONTENT_ALL,
        /// Parameters and buffers.
        MODEL = SHARD_CONTENT_MODEL,
        /// Optimizer states.
        OPTIMIZER = SHARD_CONTENT_OPTIMIZER,
    }
}

impl Default for Content {
    fn default() -> Content {
        Content::ALL
    }
}

options! {
    /// Selects the part of a training state; everything unless given.
    StateFilter {
        /// The kinds of tensors.
        content: Content,
        /// Without frozen parameters; a load leaves them as they are.
        ignore_frozen: bool,
        /// Only parameters with a name in these modules or below, and buffers in them.
        submodules: Vec<ModuleId>,
        /// Keys have no module path in front. One submodule only.
        strip_prefix: bool,
    }
}

impl StateFilter {
    /// Returns the filter for C, which is valid as long as this one.
    pub(crate) fn to_c(&self) -> sys::shard_state_filter {
        let submodules = self.submodules.as_ptr() as *const i32;
        sys::shard_state_filter {
            content: self.content.0,
            ignore_frozen: self.ignore_frozen.into(),
            submodules: if self.submodules.is_empty() {
                ptr::null()
            } else {
                submodules
            },
            num_submodules: self.submodules.len(),
            strip_prefix: self.strip_prefix.into(),
            reserved: 0,
        }
    }
}
