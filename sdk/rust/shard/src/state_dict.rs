// SPDX-License-Identifier: Apache-2.0

//! State dicts: named tensors and numbers in memory, under the keys of
//! checkpoints.

use std::fmt;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::os::raw::{c_char, c_void};
use std::ptr::{self, NonNull};
use std::time::Duration;

use shard_sys as sys;

use crate::callback::{self, Caught};
use crate::checkpoint::{TensorId, TensorInfo};
use crate::device::{DeviceKind, Place};
use crate::dtype::{check_type, length_as, view, DType, Element};
use crate::engine::Engine;
use crate::error::{check, Error, Result};
use crate::save::{LoadOptions, LoadReport};
use crate::state_filter::StateFilter;
use crate::text::{borrowed, c_text, copied, seconds};
use crate::version::check_version;

options! {
    /// Options of [`StateDict::get`] and [`StateDict::gather`].
    StateDictOptions {
        /// For each wait; the engine's unless given.
        timeout: Option<Duration>,
        /// The part of the state.
        filter: StateFilter,
    }
}

impl StateDictOptions {
    fn to_c(&self, copy: bool) -> sys::shard_state_dict_options {
        let mut c = sys::SHARD_STATE_DICT_OPTIONS_INIT;
        c.timeout = seconds(self.timeout);
        c.filter = self.filter.to_c();
        c.copy = copy.into();
        c
    }
}

/// Named tensors and numbers in memory: this rank's part of an engine's state, or
/// the state that a host loads into an engine. Numbers are "state.FQN.step" and
/// "param_groups.FQN.KEY".
///
/// `'t` is how long the tensors stay where they are:
///
/// ```compile_fail
/// # fn f() -> shard::Result<()> {
/// let mut state = shard::StateDict::create()?;
/// {
///     let weight = vec![0f32; 4];
///     state.add("weight", shard::DType::F32, &[4], &weight)?;
/// }
/// println!("{}", state.num_tensors());
/// # Ok(())
/// # }
/// ```
pub struct StateDict<'t> {
    state: NonNull<sys::shard_state_dict>,
    tensors: PhantomData<&'t [u8]>,
}

// SAFETY: its functions may be called from any thread, and adding takes `&mut`.
unsafe impl Send for StateDict<'_> {}
unsafe impl Sync for StateDict<'_> {}

/// The elements of a tensor that this rank holds.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Local<'s, T> {
    /// The first one, in the tensor.
    pub begin: i64,
    /// Their values.
    pub data: &'s [T],
}

/// A tensor on its way through [`StateDict::gather`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Gathered<'g> {
    /// Its key.
    pub key: &'g str,
    /// Its type and shape.
    pub info: &'g TensorInfo,
    data: *const c_void,
}

impl<'g> Gathered<'g> {
    /// Returns its elements; none for an alias.
    pub fn data<T: Element>(&self) -> Result<&'g [T]> {
        let numel = if self.data.is_null() {
            0
        } else {
            self.info.numel
        };
        let length = length_as::<T>(
            format_args!("tensor '{}'", self.key),
            self.info.dtype,
            numel,
        )?;
        // SAFETY: the elements are there during the call, which is as long as 'g.
        unsafe { view(self.data, length) }
    }
}

impl<'t> StateDict<'t> {
    /// Returns the part of an engine's state that this rank owns, as views of the engine.
    /// Other names of tied parameters are listed as aliases, without elements. Local.
    /// FAILED_PRECONDITION unless between steps.
    pub fn get(engine: &'t mut Engine, options: &StateDictOptions) -> Result<StateDict<'t>> {
        // The dict holds `engine` for as long as 't.
        StateDict::call_get(engine, options, false)
    }

    /// Returns the same as [`get`](StateDict::get) in memory of its own.
    pub fn get_copy(engine: &mut Engine, options: &StateDictOptions) -> Result<StateDict<'static>> {
        StateDict::call_get(engine, options, true)
    }

    fn call_get<'s>(
        engine: &mut Engine,
        options: &StateDictOptions,
        copy: bool,
    ) -> Result<StateDict<'s>> {
        let options = options.to_c(copy);
        let mut state = ptr::null_mut();
        let got = engine
            .call(|engine| unsafe { sys::shard_state_dict_get(engine, &options, &mut state) });
        StateDict::own(state, got)
    }

    fn own<'s>(state: *mut sys::shard_state_dict, result: Result<()>) -> Result<StateDict<'s>> {
        match NonNull::new(state) {
            Some(state) => {
                let state = StateDict {
                    state,
                    tensors: PhantomData,
                };
                result.map(|()| state)
            }
            None => Err(result.err().unwrap_or_else(|| {
                Error::new(crate::Code::INTERNAL, "libshard gave no state dict")
            })),
        }
    }

    /// Creates an empty state dict, for the host to fill.
    pub fn create() -> Result<StateDict<'t>> {
        check_version()?;
        let mut state = ptr::null_mut();
        let created = check(unsafe { sys::shard_state_dict_create(&mut state) });
        StateDict::own(state, created)
    }

    /// Adds a whole tensor, whose elements are those of `data`. Keys that begin with
    /// "state." are optimizer states. Errors: a key that is there already; a shape, dtype
    /// and length that do not fit each other; a state dict of an engine.
    pub fn add<T: Element>(
        &mut self,
        key: &str,
        dtype: DType,
        shape: &[i64],
        data: &'t [T],
    ) -> Result<()> {
        check_type::<T>(format_args!("tensor '{key}'"), dtype)?;
        let key = c_text("the key", key)?;
        check(unsafe {
            sys::shard_state_dict_add(
                self.state.as_ptr(),
                key.as_ptr(),
                dtype.0,
                shape.as_ptr(),
                shape.len(),
                data.as_ptr() as *const c_void,
                std::mem::size_of_val(data),
            )
        })
    }

    /// Adds a number; a second one of the same key replaces the first. Errors: a key that
    /// a tensor has; a value that is not finite.
    pub fn add_number(&mut self, key: &str, value: f64) -> Result<()> {
        let key = c_text("the key", key)?;
        check(unsafe { sys::shard_state_dict_add_number(self.state.as_ptr(), key.as_ptr(), value) })
    }

    fn as_ptr(&self) -> *const sys::shard_state_dict {
        self.state.as_ptr()
    }

    /// Returns the number of tensors, aliases among them.
    pub fn num_tensors(&self) -> i64 {
        unsafe { sys::shard_state_dict_num_tensors(self.as_ptr()) }
    }

    /// Returns the ids of all tensors.
    pub fn tensors(&self) -> impl Iterator<Item = TensorId> {
        (0..self.num_tensors()).map(TensorId)
    }

    /// Returns a tensor's type and shape.
    pub fn tensor(&self, tensor: TensorId) -> Result<TensorInfo> {
        let mut info = sys::SHARD_TENSOR_INFO_INIT;
        check(unsafe { sys::shard_state_dict_tensor(self.as_ptr(), tensor.0, &mut info) })?;
        Ok(TensorInfo::new(&info))
    }

    /// Returns a tensor's key.
    pub fn tensor_key(&self, tensor: TensorId) -> Result<String> {
        copied(|buffer, capacity, length| unsafe {
            sys::shard_state_dict_tensor_key(self.as_ptr(), tensor.0, buffer, capacity, length)
        })
    }

    /// Returns the elements that this rank holds. FAILED_PRECONDITION where they are in
    /// the memory of a GPU: those of [`get`](StateDict::get), but for buffers of the model
    /// and states that the engine's device offloads.
    pub fn local<T: Element>(&self, tensor: TensorId) -> Result<Local<'_, T>> {
        let info = self.tensor(tensor)?;
        let (begin, data, length) = self.find_local::<T>(tensor, &info)?;
        Place::new(self.device(tensor)?).check_host(
            format_args!("tensor {tensor}"),
            "get the state dict by get_copy, or take the address by local_ptr",
        )?;
        // SAFETY: the tensors are in the host's memory, or there are no elements, and they
        // stay where they are as long as 't.
        Ok(Local {
            begin,
            data: unsafe { view(data.cast(), length)? },
        })
    }

    /// Returns the same as an address in the memory that the elements are in: the first
    /// one's number in the tensor, the address, and the number of elements.
    pub fn local_ptr<T: Element>(&self, tensor: TensorId) -> Result<(i64, *const T, usize)> {
        self.find_local(tensor, &self.tensor(tensor)?)
    }

    /// Gets where these elements lie: the kind of the device, and its number among those
    /// of its kind. A tensor without elements here is in the host's memory.
    pub fn device(&self, tensor: TensorId) -> Result<(DeviceKind, i32)> {
        let mut kind = 0;
        let mut ordinal = 0;
        check(unsafe {
            sys::shard_state_dict_device(self.as_ptr(), tensor.0, &mut kind, &mut ordinal)
        })?;
        Ok((DeviceKind(kind), ordinal))
    }

    fn find_local<T: Element>(
        &self,
        tensor: TensorId,
        info: &TensorInfo,
    ) -> Result<(i64, *const T, usize)> {
        let (mut begin, mut numel, mut data) = (0, 0, ptr::null());
        check(unsafe {
            let state = self.as_ptr();
            sys::shard_state_dict_local(state, tensor.0, &mut begin, &mut numel, &mut data)
        })?;
        let length = length_as::<T>(format_args!("tensor {tensor}"), info.dtype, numel)?;
        Ok((begin, data.cast(), length))
    }

    /// Finds the tensor of a key. NOT_FOUND when there is none.
    pub fn find(&self, key: &str) -> Result<TensorId> {
        let key = c_text("the key", key)?;
        let mut tensor = TensorId(0);
        check(unsafe { sys::shard_state_dict_find(self.as_ptr(), key.as_ptr(), &mut tensor.0) })?;
        Ok(tensor)
    }

    /// Returns the number of numbers.
    pub fn num_numbers(&self) -> i64 {
        unsafe { sys::shard_state_dict_num_numbers(self.as_ptr()) }
    }

    /// Returns the key and the value of a number, by ascending key.
    pub fn number(&self, number: i64) -> Result<(String, f64)> {
        let mut value = 0.0;
        let key = copied(|buffer, capacity, length| unsafe {
            let state = self.as_ptr();
            sys::shard_state_dict_number(state, number, &mut value, buffer, capacity, length)
        })?;
        Ok((key, value))
    }

    /// Calls `take` with every tensor of an engine's state, whole, on rank `rank` or, with
    /// None, on all ranks. Break ends the gathering: CANCELLED on all ranks; so does a
    /// panic, whose text is in the error. Needs memory for the largest tensor and 16 MiB.
    /// The same options and `rank` on every rank. COLLECTIVE, blocks.
    pub fn gather(
        engine: &mut Engine,
        options: &StateDictOptions,
        rank: Option<i32>,
        take: impl FnMut(Gathered<'_>) -> ControlFlow<()> + Send,
    ) -> Result<()> {
        let mut call = TakeCall {
            take,
            gate: engine.comm.gate().id(),
            caught: Caught::default(),
            error: None,
        };
        let function = function_of(&call);
        let options = options.to_c(false);
        let rank = rank.unwrap_or(-1);
        let result = engine.call(|engine| unsafe {
            let user_data = &mut call as *mut TakeCall<_> as *mut c_void;
            sys::shard_state_dict_gather(engine, &options, rank, function, user_data)
        });
        match call.error.take() {
            Some(error) => Err(error),
            None => call
                .caught
                .report("the function that takes tensors", result),
        }
    }

    /// Loads a state dict as [`Checkpoint::load`](crate::Checkpoint::load) does a
    /// checkpoint. With `from_rank0` rank 0's is loaded and sent tensor by tensor, and
    /// `state` may be None on other ranks. Else every rank gives a state dict with the same
    /// tensors, whole or with the elements that the rank owns. COLLECTIVE, blocks.
    pub fn load(
        engine: &mut Engine,
        state: Option<&StateDict<'_>>,
        options: &LoadOptions,
        from_rank0: bool,
    ) -> Result<LoadReport> {
        let state = state.map_or(ptr::null(), |state| state.as_ptr());
        engine.call_load(options, |engine, options, report| unsafe {
            sys::shard_state_dict_load(engine, state, options, from_rank0.into(), report)
        })
    }
}

impl Drop for StateDict<'_> {
    fn drop(&mut self) {
        unsafe { sys::shard_state_dict_free(self.state.as_ptr()) }
    }
}

impl fmt::Debug for StateDict<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "StateDict({} tensors, {} numbers)",
            self.num_tensors(),
            self.num_numbers()
        )
    }
}

/// The user data of a gathering's C function.
struct TakeCall<F> {
    take: F,
    gate: usize,
    caught: Caught,
    /// The error of a key that is not UTF-8.
    error: Option<Error>,
}

fn function_of<F>(_: &TakeCall<F>) -> sys::shard_tensor_fn
where
    F: FnMut(Gathered<'_>) -> ControlFlow<()>,
{
    Some(take_tensor::<F>)
}

/// # Safety
///
/// `user_data` is a TakeCall of the same type, which nobody else uses meanwhile.
unsafe extern "C" fn take_tensor<F>(
    key: *const c_char,
    info: *const sys::shard_tensor_info,
    data: *const c_void,
    user_data: *mut c_void,
) -> i32
where
    F: FnMut(Gathered<'_>) -> ControlFlow<()>,
{
    let call = unsafe { &mut *(user_data as *mut TakeCall<F>) };
    let key = match unsafe { borrowed(key) } {
        Ok(key) => key,
        Err(error) => {
            call.error = Some(error);
            return 1;
        }
    };
    let info = TensorInfo::new(unsafe { &*info });
    let take = &mut call.take;
    let gathered = Gathered {
        key,
        info: &info,
        data,
    };
    match callback::run(call.gate, || take(gathered)) {
        Ok(ControlFlow::Continue(())) => 0,
        Ok(ControlFlow::Break(())) => 1,
        Err(text) => {
            call.caught.set(text);
            1
        }
    }
}
