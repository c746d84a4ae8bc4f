// SPDX-License-Identifier: Apache-2.0

//! Sharded data-parallel training (ZeRO) for training engines in Rust: libshard,
//! behind types that cannot be misused from safe code.
//!
//! A host declares its parameters ([`Model`]), decides how they are sharded
//! ([`Plan`], a pure computation), meets the other ranks ([`Comm`]), and trains
//! ([`Engine`]): it reads parameters and writes gradients through views of
//! libshard's memory, and calls [`Engine::step`] once per step.
//!
//! ```
//! use shard::{Comm, CommOptions, DType, Engine, EngineOptions};
//! use shard::{Model, ModuleId, Plan, PlanOptions, StepOptions};
//!
//! # fn main() -> shard::Result<()> {
//! let comm = Comm::open("local:", &CommOptions::default())?;
//! let mut model = Model::create("Line")?;
//! let line = model.add_param(ModuleId::ROOT, "line", DType::F32, &[2])?;
//! let options = PlanOptions::default()
//!     .stage(1)
//!     .world_size(comm.world_size())
//!     .optimizer("adamw?lr=0.05&weight_decay=0");
//! let plan = Plan::create(&model, &options)?;
//! let mut engine = Engine::create(&plan, &comm, &EngineOptions::default())?;
//! engine.broadcast_params(None)?;
//! for _ in 0..2000 {
//!     engine.zero_grad()?;
//!     {
//!         let p: &[f32] = engine.param(line)?;
//!         let mut g = engine.grad::<f32>(line)?;
//!         for x in 0..8 {
//!             let x = x as f32;
//!             let miss = p[0] * x + p[1] - (2.0 * x + 1.0);
//!             g[0] += miss * x;
//!             g[1] += miss;
//!         }
//!     } // The views end before the step.
//!     engine.step(&StepOptions::default())?;
//! }
//! let p: &[f32] = engine.param(line)?;
//! assert!((p[0] - 2.0).abs() < 0.01 && (p[1] - 1.0).abs() < 0.01);
//! comm.shutdown(None)
//! # }
//! ```
//!
//! Functions have the names of the C interface, `shard_engine_set_hyper` is
//! [`Engine::set_hyper`], and its headers are the reference. The conventions:
//!
//! - **Errors.** Every call that can fail returns [`Error`]: a code, a message with
//!   the problem, the value and the remedy, the rank it is about, and a JSON detail.
//! - **Collective calls**, marked COLLECTIVE, are made by every rank in the same
//!   order. A timeout of None is the default.
//! - **Threads.** Handles are Send. [`Plan`] and [`Checkpoint`] do not change and are
//!   Sync; so is [`Comm`], whose calls wait for each other and for those of its
//!   engines. [`Engine`] is not.
//! - **Views** borrow what keeps them valid: the engine, a [`Unit`], [`FullParams`].
//!   The memory of a GPU has none: there [`Engine::param_ptr`] and its like give addresses.
//! - **Callbacks** may panic: the panic is caught, and is the error of the call that
//!   ran the callback. They cannot call back into the same communicator or engine.
//! - **Dropping** a handle is local, but for [`Unit`] and [`FullParams`], and never
//!   panics. Handles may be dropped in any order, and forgotten.

#![warn(missing_docs, unsafe_op_in_unsafe_fn)]

#[macro_use]
mod macros;

mod borrows;
mod callback;
mod checkpoint;
mod comm;
mod convert;
mod device;
mod dtype;
mod engine;
mod error;
mod full_params;
mod gate;
mod layout;
mod model;
mod plan;
mod plan_options;
mod replan;
mod save;
mod state_dict;
mod state_filter;
mod step;
mod tensors;
mod text;
mod units;
mod version;

pub use checkpoint::{
    BlobInfo, Checkpoint, CheckpointInfo, FileInfo, Format, Role, Scalar, TensorId,
    TensorInfo, TensorSlice, VerifyOptions,
};
pub use comm::{Comm, CommOptions, Counter, LogLevel};
pub use convert::ConvertOptions;
pub use device::DeviceKind;
pub use dtype::{DType, Element};
pub use engine::{devices_json, schedule_lr, Engine, EngineOptions, MissingGrads};
pub use error::{Code, Error, Result};
pub use full_params::FullParams;
pub use layout::{
    clean_tensor_name, BufferId, BufferInfo, ModelBufferInfo, ModuleInfo, NameId, NameInfo,
    ParamInfo, Range, Slice, UnitId,
};
pub use model::{GroupId, Model, ModelBufferId, ModuleId, ParamId};
pub use plan::{Memory, Plan, PlanInfo};
pub use plan_options::{Masters, Partition, Placement, PlanOptions};
pub use save::{BlobRule, LoadOptions, LoadReport, Save, SaveOptions};
pub use state_dict::{Gathered, Local, StateDict, StateDictOptions};
pub use state_filter::{Content, StateFilter};
pub use step::{StepOptions, StepReport};
pub use tensors::TensorMut;
pub use units::{Pass, Unit, UnitParam};
pub use version::{abi_version, version};
