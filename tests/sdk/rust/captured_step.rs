// SPDX-License-Identifier: Apache-2.0

//! A host that captures a step as a CUDA graph and replays it a hundred times: its
//! state has the bits of plain steps. Runs with the fake of NVIDIA's driver, which
//! complains at the program's end where work had no order or something is not freed,
//! and faults where the program uses the GPU's memory.

use std::collections::BTreeMap;
use std::mem::{size_of, transmute};
use std::os::raw::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr::{self, null_mut};

use shard::{
    DType, Engine, EngineOptions, Model, ModuleId, ParamId, Plan, PlanOptions, StateDict,
    StateDictOptions, StepOptions,
};

use crate::common::{has_gpu, local};

const STEPS: i64 = 100;
const SKIPPED: [i64; 2] = [30, 61]; // Have a gradient that is not a number.
const NUMEL: usize = 1000;
const BYTES: usize = NUMEL * size_of::<f32>();

extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, symbol: *const c_char) -> *mut c_void;
}

const RTLD_NOW: c_int = 2;

macro_rules! driver {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The driver's functions that this host calls.
        struct Driver {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Driver {
            fn load() -> Driver {
                unsafe {
                    let library = dlopen("libcuda.so.1\0".as_ptr().cast(), RTLD_NOW);
                    assert!(!library.is_null(), "no driver");
                    let find = |symbol: &str| {
                        let found = dlsym(library, symbol.as_ptr().cast());
                        assert!(!found.is_null(), "the driver lacks {symbol}");
                        found
                    };
                    Driver {
                        $($name: transmute(find(concat!($symbol, "\0"))),)*
                    }
                }
            }
        }
    };
}

type Handle = *mut c_void; // A context, a stream or a graph.

driver! {
    init = "cuInit"(c_uint);
    retain = "cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
    release = "cuDevicePrimaryCtxRelease_v2"(c_int);
    push = "cuCtxPushCurrent_v2"(Handle);
    pop = "cuCtxPopCurrent_v2"(*mut Handle);
    create_stream = "cuStreamCreate"(*mut Handle, c_uint);
    destroy_stream = "cuStreamDestroy_v2"(Handle);
    allocate_pinned = "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    free_pinned = "cuMemFreeHost"(*mut c_void);
    copy = "cuMemcpyAsync"(*mut c_void, *mut c_void, usize, Handle);
    begin_capture = "cuStreamBeginCapture_v2"(Handle, c_int);
    end_capture = "cuStreamEndCapture"(Handle, *mut Handle);
    instantiate = "cuGraphInstantiateWithFlags"(*mut Handle, Handle, c_ulonglong);
    destroy_graph = "cuGraphDestroy"(Handle);
    launch = "cuGraphLaunch"(Handle, Handle);
    destroy_launched = "cuGraphExecDestroy"(Handle);
}

const NON_BLOCKING: c_uint = 1;
const THREAD_LOCAL: c_int = 1;

/// Makes a call of the driver's, which must succeed.
macro_rules! cu {
    ($gpu:expr, $name:ident($($argument:expr),*)) => {
        assert_eq!(unsafe { ($gpu.driver.$name)($($argument),*) }, 0, stringify!($name))
    };
}

/// A stream of a GPU, and memory of the host that it copies from.
struct Gpu {
    driver: Driver,
    stream: Handle,
    pinned: *mut c_void,
}

impl Gpu {
    fn open() -> Gpu {
        let mut gpu = Gpu {
            driver: Driver::load(),
            stream: null_mut(),
            pinned: null_mut(),
        };
        let mut context = null_mut();
        cu!(gpu, init(0));
        cu!(gpu, retain(&mut context, 0));
        cu!(gpu, push(context));
        cu!(gpu, create_stream(&mut gpu.stream, NON_BLOCKING));
        cu!(gpu, allocate_pinned(&mut gpu.pinned, BYTES, 0));
        gpu
    }

    fn close(self) {
        let mut context = null_mut();
        cu!(self, free_pinned(self.pinned));
        cu!(self, destroy_stream(self.stream));
        cu!(self, pop(&mut context));
        cu!(self, release(0));
    }
}

/// The state after a training.
struct Outcome {
    steps: i64,
    tensors: BTreeMap<String, Vec<u8>>,
    numbers: BTreeMap<String, f64>,
}

struct Host<'g> {
    gpu: &'g Gpu,
    engine: Engine,
    weight: ParamId,
    options: StepOptions,
}

impl Host<'_> {
    fn new(gpu: &Gpu) -> Host<'_> {
        let mut model = Model::create("Net").unwrap();
        let weight = model
            .add_param(ModuleId::ROOT, "weight", DType::F32, &[NUMEL as i64])
            .unwrap();
        let options = PlanOptions::default().world_size(1).optimizer("adamw");
        let plan = Plan::create(&model, &options).unwrap();
        let options = EngineOptions::default().device("cuda:0");
        let mut engine = Engine::create(&plan, &local(), &options).unwrap();
        // SAFETY: the stream is destroyed after the engine.
        unsafe { engine.set_stream(gpu.stream) }.unwrap();
        engine.set_param(weight, &[1f32; NUMEL]).unwrap();
        engine.broadcast_params(None).unwrap();
        Host {
            gpu,
            engine,
            weight,
            options: StepOptions::default()
                .max_grad_norm(2.0)
                .skip_nonfinite(true),
        }
    }

    /// Captures the copy of gradients and a step.
    fn capture(&mut self) -> Handle {
        let (mut graph, mut launched) = (null_mut(), null_mut());
        cu!(self.gpu, begin_capture(self.gpu.stream, THREAD_LOCAL));
        // SAFETY: the graph is launched in `replay` alone.
        unsafe { self.engine.capture_begin() }.unwrap();
        self.copy_grad();
        self.engine.step_without_report(&self.options).unwrap();
        self.engine.capture_end().unwrap();
        cu!(self.gpu, end_capture(self.gpu.stream, &mut graph));
        cu!(self.gpu, instantiate(&mut launched, graph, 0));
        cu!(self.gpu, destroy_graph(graph));
        assert_eq!(self.engine.completed_steps().unwrap(), 0);
        launched
    }

    fn replay(&mut self, graph: Handle, number: i64) {
        self.set_lr(number);
        // The step before, which reads the pinned memory, has then ended.
        self.engine.before_replay(&self.options).unwrap();
        self.write_grad(number);
        cu!(self.gpu, launch(graph, self.gpu.stream));
    }

    fn step(&mut self, number: i64) {
        self.set_lr(number);
        self.write_grad(number);
        self.copy_grad();
        let report = self.engine.step(&self.options).unwrap();
        assert_eq!(report.skipped, SKIPPED.contains(&number));
    }

    fn outcome(&mut self) -> Outcome {
        self.engine.synchronize(None).unwrap();
        let steps = self.engine.completed_steps().unwrap();
        let state = StateDict::get_copy(&mut self.engine, &StateDictOptions::default()).unwrap();
        Outcome {
            steps,
            tensors: state
                .tensors()
                .map(|tensor| {
                    let bytes = state.local::<u8>(tensor).unwrap().data.to_vec();
                    (state.tensor_key(tensor).unwrap(), bytes)
                })
                .collect(),
            numbers: (0..state.num_numbers())
                .map(|number| state.number(number).unwrap())
                .collect(),
        }
    }

    fn set_lr(&self, number: i64) {
        self.engine
            .set_hyper(None, "lr", 0.1 / number as f64)
            .unwrap();
    }

    fn write_grad(&self, number: i64) {
        // SAFETY: no copy is on its way.
        let grad = unsafe { &mut *ptr::slice_from_raw_parts_mut(self.gpu.pinned.cast(), NUMEL) };
        for (i, g) in grad.iter_mut().enumerate() {
            *g = (i % 13) as f32 / number as f32 - 0.5;
        }
        if SKIPPED.contains(&number) {
            grad[3] = f32::NAN;
        }
    }

    /// Enqueues the copy, which reads the pinned memory when it runs.
    fn copy_grad(&self) {
        let (grad, numel) = self.engine.grad_ptr::<f32>(self.weight).unwrap();
        assert_eq!(numel, NUMEL);
        cu!(
            self.gpu,
            copy(grad.cast(), self.gpu.pinned, BYTES, self.gpu.stream)
        );
    }
}

#[test]
fn a_hundred_replays_have_the_bits_of_plain_steps() {
    if !has_gpu("captured_step::a_hundred_replays_have_the_bits_of_plain_steps") {
        return;
    }
    let gpu = Gpu::open();
    let plain = {
        let mut host = Host::new(&gpu);
        for number in 1..=STEPS {
            host.step(number);
        }
        host.outcome()
    };
    let replayed = {
        let mut host = Host::new(&gpu);
        let graph = host.capture();
        for number in 1..=STEPS {
            host.replay(graph, number);
        }
        let outcome = host.outcome();
        cu!(gpu, destroy_launched(graph));
        outcome
    };
    gpu.close();
    assert_eq!((plain.steps, replayed.steps), (STEPS - 2, STEPS - 2));
    // The parameter and its two moments.
    assert_eq!(plain.tensors.len(), 3);
    assert!(replayed.tensors == plain.tensors, "other bits");
    assert_eq!(replayed.numbers, plain.numbers);
    let mut first = [0; 4];
    first.copy_from_slice(&plain.tensors["weight"][..4]);
    let value = f32::from_le_bytes(first);
    assert!(value.is_finite() && value != 1.0, "{value}");
}
