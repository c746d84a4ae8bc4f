# SPDX-License-Identifier: Apache-2.0
"""Test programs that run again on other devices, and tests that do not."""

load("//tools/bazel:long_forms.bzl", "long_forms")

# By program, the tests that are left out of its run on the guard device, and why.
_GUARDED = {
    "//tests/conformance:step_tests": {},
    "//tests/core/engine:checkpoints_tests": {
        "DeviceStateTest.*": "opens the guard device itself",
        "HostileNames.*": "is about names; the tensors have one element",
        "HungRankTest.*": "waits for deadlines",
    },
    "//tests/core/engine:gradients_tests": {
        "*JoinTest.*": "JoinFormsTest takes the same paths with fewer steps",
        "*MissingGradsTest.*/*stage?_*": "each stage once, apart and together",
        "MissingGradsRandomTest.*": "MissingGradsTest takes the same paths",
        "WhoHasGradientsTest.*": "MissingGradsTest takes the same paths",
    },
    "//tests/core/engine:steps_tests": {
        "*InvarianceTest.*": "is about bits; the other tests run the kernels",
        "*StagesTest.*/*stage?_*": "each stage once, apart and together",
        "*StepModelTest.*/*overwritten*": "each stage once, begun and not",
        "DesyncTest.*": "compares plans and arguments, no elements",
        "RuntimeOrderTest.*": "makes streams of its own, and no engine",
    },
    "//tests/core/engine:units_tests": {
        "*AgreementTest.*": "has no engine",
        "*CommQueue*Test.*": "has no engine",
        "*DifferentCallsTest.*": "is about calls that fail before elements move",
        "*EngineMemoryTest.*": "counts bytes, which are the same",
        "*ReplanTest.*_greedy": "each stage once, apart and together",
        "*ReplanTest.*_groups": "each stage once, apart and together",
        "*SummonTest.*_groups": "each stage once, apart and together",
        "*WrongCallsTest.*": "is about calls that fail before elements move",
        "CountersTest.*": "has no engine",
        "DecideTest.*": "has no engine",
        "SlotsTest.*": "has no engine",
        "UnitStatesTest.*": "has no engine",
    },
}

# Tests of _GUARDED's programs that run in the long form alone.
_GUARDED_LONG = {
    "//tests/core/engine:steps_tests": ["*StepModelTest.*_async_*"],
}

# By program, the tests that are left out of its run on cpu-async, and why.
_ASYNC = {
    "//tests/conformance:step_tests": {},
    "//tests/core/engine:checkpoints_tests": {
        "HostileNames.*": "is about names; the tensors have one element",
        "HungRankTest.*": "waits for deadlines",
    },
    "//tests/core/engine:gradients_tests": {
        "*BoundMemoryTest.*": "has forms on cpu-async",
        "*JoinTest.*": "JoinFormsTest takes the same paths with fewer steps",
        "*MissingGradsRandomTest.*": "has forms on cpu-async",
        "WhoHasGradientsTest.*": "MissingGradsTest takes the same paths",
    },
    "//tests/core/engine:steps_tests": {
        "*BoundOrderTest.*": "runs on cpu-async",
        "*EarlyStepTest.*": "runs on cpu-async",
        "*HostStreamTest.*": "runs on cpu-async",
        "*InvarianceTest.*": "is about bits; the other tests run the kernels",
        "*StagesTest.*": "has forms on cpu-async",
        "*StepModelTest.*": "has forms on cpu-async",
        "*StreamOrderTest.*": "runs on cpu-async",
        "DesyncTest.*": "compares plans and arguments, no elements",
        "RuntimeOrderTest.*": "makes streams of its own, and no engine",
        "UnsharedTest.*": "runs on cpu-async",
    },
    "//tests/core/engine:units_tests": {
        "*AgreementTest.*": "has no engine",
        "*CommQueue*Test.*": "has no engine",
        "*DifferentCallsTest.*": "is about calls that fail before elements move",
        "*EngineMemoryTest.*": "counts bytes, which are the same",
        "*ReplanTest.*_greedy": "each stage once, apart and together",
        "*ReplanTest.*_groups": "each stage once, apart and together",
        "*SummonTest.*_groups": "each stage once, apart and together",
        "*WrongCallsTest.*": "is about calls that fail before elements move",
        "CountersTest.*": "has no engine",
        "DecideTest.*": "has no engine",
        "SlotsTest.*": "has no engine",
        "UnitStatesTest.*": "has no engine",
    },
}

# Those of them that run in the long form of the thread sanitizer alone, and why.
_ASYNC_LONG = {
    "//tests/core/engine:steps_tests": {
        "*AccumulateTest.*WithWholeGrads/*stage1": "are whole in ShardedSumsAreNear",
        "*EnginePrecisionTest.*": "compares numbers; NarrowParamsTest has its threads",
        "*EngineStepTest.*/W1*": "one rank has nobody to race with",
        "*EngineStepTest.*/W2*": "three ranks have each pair of threads",
        "*EngineStepTest.*/W4*": "three ranks have each pair of threads",
        "*EngineStepTest.*/W7*": "three ranks have each pair of threads",
        "*NarrowParamsTest.*/sgd_*": "has adamw's threads",
        "*NarrowParamsTest.*_q8": "has adamw's threads",
        "*NarrowParamsTest.StochasticRoundingIsUnbiased/*": "is about chances",
        "*SkipTest.*/adafactor_bf16": "has lamb's meetings",
        "*SkipTest.*/adamw_*": "has adamw's threads",
        "*SkipTest.*/muon": "has muon_bf16_stochastic's threads",
        "*SkipTest.*/sgd": "has adamw's threads",
        "TensorOptimizersTest.*": "compares numbers; NarrowParamsTest has its threads",
    },
}

# Tests of 16-bit gradients that are left out where ranks share no memory: those of
# several ranks whose plan neither is deterministic nor has f32_grads.
_SUMS_OF_16_BITS = {
    "*EnginePrecisionTest.*16_%s%s_W%d" % (masters, clipped, ranks): "sums of 16 bits are rounded between ranks"
    for masters in ["masters", "nearest"]
    for clipped in ["", "_clipped"]
    for ranks in [2, 3]
}

# By program, the tests that are left out of its run on the fake of CUDA's driver,
# and why.
_FAKE_CUDA = {
    "//tests/core/engine:checkpoints_tests": {
        "HostileNames.*": "is about names; the tensors have one element",
        "HungRankTest.*": "waits for deadlines",
    },
    "//tests/core/engine:gradients_tests": {
        "*BoundMemoryTest.*/apart_*": "ranks on GPUs share no memory in either form",
        "*JoinFormsTest.*/apart_stage_0": "ranks on GPUs share no memory in either form",
        "*JoinFormsTest.*/apart_stage_3": "ranks on GPUs share no memory in either form",
        "*MissingGradsTest.*/apart_*": "ranks on GPUs share no memory in either form",
        "MissingGradsRandomTest.*": "calls differ between ranks that share memory",
    },
    "//tests/core/engine:steps_tests": dict(_SUMS_OF_16_BITS, **{
        "*/*apart_*": "ranks on GPUs share no memory in either form",
        "*HostStreamTest.*": "runs on cpu-async",
        "*InvarianceTest.*": "is about bits that ranks with shared memory have",
        "*StepModelTest.*": "has forms on cpu-async",
        "*StreamOrderTest.*": "runs on cpu-async",
        "DesyncTest.*": "compares plans and arguments, no elements",
        "RuntimeOrderTest.*": "makes streams of its own, and no engine",
    }),
    "//tests/core/engine:units_tests": {
        "*/*apart_*": "ranks on GPUs share no memory in either form",
        "*AgreementTest.*": "has no engine",
        "*CommQueue*Test.*": "has no engine",
        "*DifferentCallsTest.*": "is about calls that fail before elements move",
        "*EngineMemoryTest.*": "counts bytes, which are the same",
        "SupportedTest.*": "is about the host's memory",
        "*WrongCallsTest.*": "is about calls that fail before elements move",
        "CountersTest.*": "has no engine",
        "DecideTest.*": "has no engine",
        "SlotsTest.*": "has no engine",
        "UnitStatesTest.*": "has no engine",
    },
}

# By program, the tests that run on the fake of CUDA's driver only in the long form,
# which take minutes: each stage runs once in the short form, too.
_FAKE_CUDA_LONG = {
    "//tests/core/engine:checkpoints_tests": [
        "*ResumeTest.*",
        "*WorldSizesTest.*",
    ],
    "//tests/core/engine:gradients_tests": [
        "*JoinTest.*",
        "*MissingGradsTest.*/*stage?_*",
        "*MissingGradsTest.*/stage0",
        "*MissingGradsTest.*/stage2",
        "WhoHasGradientsTest.*",
    ],
    "//tests/core/engine:steps_tests": [
        "*NarrowParamsTest.*/lamb_*",
        "*NarrowParamsTest.*/muon_*",
        "*NarrowParamsTest.*/sgd_*",
        "*NarrowParamsTest.StochasticRoundingIsUnbiased/*",
        "*ShardGroupsTest.*",
        "*SkipTest.*/adamw_*",
        "*SkipTest.*/lamb",
        "*SkipTest.*/muon",
        "*SkipTest.*/sgd",
        "*StagesTest.*/*overwritten*",
        "*StagesTest.*/*stage?_*",
        "*StagesTest.*/begun_stage1",
        "*StagesTest.*/stage0",
        "*StagesTest.*/stage2",
    ],
    "//tests/core/engine:units_tests": [
        "*ReplanTest.*/stage1",
        "*ReplanTest.*/stage2",
        "*ReplanTest.*_greedy",
        "*SummonTest.*/stage1",
        "*SummonTest.*_groups",
    ],
}

# The same for "cuda:0?offload=states" on that fake. What no offloaded update takes
# part in is left out.
_OFFLOADED = {
    "//tests/core/engine:checkpoints_tests": {
        "CheckpointOptionsTest.*": "is about errors of arguments",
        "DeviceStateTest.*": "opens the guard device itself",
        "HostileNames.*": "is about names; the tensors have one element",
        "HungRankTest.*": "waits for deadlines",
    },
    "//tests/core/engine:gradients_tests": {
        "*JoinFormsTest.*/apart_stage_0": "ranks on GPUs share no memory in either form",
        "*JoinFormsTest.*/apart_stage_3": "ranks on GPUs share no memory in either form",
        "*MissingGradsTest.*/apart_*": "ranks on GPUs share no memory in either form",
        "*BoundMemoryTest.*": "is about memory that is not offloaded",
        "MissingGradsRandomTest.*": "calls differ between ranks that share memory",
    },
    "//tests/core/engine:steps_tests": dict(_SUMS_OF_16_BITS, **{
        "*/*apart_*": "ranks on GPUs share no memory in either form",
        "*HostStreamTest.*": "runs on cpu-async",
        "*InvarianceTest.*": "is about bits that ranks with shared memory have",
        "*StepModelTest.*": "has forms on cpu-async",
        "*StreamOrderTest.*": "runs on cpu-async",
        "DesyncTest.*": "compares plans and arguments, no elements",
        "RuntimeOrderTest.*": "makes streams of its own, and no engine",
    }),
    "//tests/core/engine:units_tests": {
        "*/*apart_*": "ranks on GPUs share no memory in either form",
        "*AgreementTest.*": "has no engine",
        "*CommQueue*Test.*": "has no engine",
        "*DifferentCallsTest.*": "is about calls that fail before elements move",
        "*EngineMemoryTest.*": "makes no memory on this device",
        "*ValidProgramsTest.*": "is about the order of calls",
        "*WrongCallsTest.*": "is about calls that fail before elements move",
        "CountersTest.*": "has no engine",
        "DecideTest.*": "has no engine",
        "SlotsTest.*": "has no engine",
        "SupportedTest.*": "is about the host's memory",
        "UnitStatesTest.*": "has no engine",
    },
}

# Those of them that run in the long form alone. fake_cuda takes the other paths.
_OFFLOADED_LONG = {
    "//tests/core/engine:checkpoints_tests": [
        "CheckpointAsyncTest.*",
        "*ResumeTest.*",
        "*WorldSizesTest.*",
    ],
    "//tests/core/engine:gradients_tests": [
        "*JoinTest.*",
        "*JoinFormsTest.*",
        "*MissingGradsTest.*/*stage?",
        "*MissingGradsTest.*/*stage?_*",
        "WhoHasGradientsTest.*",
    ],
    "//tests/core/engine:steps_tests": [
        "*AccumulateTest.*",
        "*NarrowParamsTest.*/lamb_*",
        "*NarrowParamsTest.*/muon_*",
        "*NarrowParamsTest.*/sgd_*",
        "*NarrowParamsTest.StochasticRoundingIsUnbiased/*",
        "*ShardGroupsTest.*",
        "*SkipTest.*/adafactor_bf16",
        "*SkipTest.*/adamw_*",
        "*SkipTest.*/lamb",
        "*SkipTest.*/muon",
        "*SkipTest.*/sgd",
        "*StagesTest.*/*overwritten*",
        "*StagesTest.*/*stage?_*",
        "*StagesTest.*/begun_stage1",
        "*StagesTest.*/stage0",
        "*StagesTest.*/stage1",
        "*StagesTest.*/stage2",
    ],
    "//tests/core/engine:units_tests": [
        "*ReplanTest.*/stage2",
        "*ReplanTest.*/stage3",
        "*ReplanTest.*_greedy",
        "*SummonTest.*/stage1",
        "*SummonTest.*/stage2",
        "*SummonTest.*_groups",
        "*SummonTest.UntouchedMastersStay/*",
        "*SummonTest.WriteBack/*",
    ],
}

# By program, the tests that are left out of its run on fakes of the driver and of
# NCCL beside those of _FAKE_CUDA, and why. None: it is not left out here, where ranks
# share no memory in any form, and have GPUs where a form names cpu-async.
_FAKE_NCCL = {
    "//tests/conformance:step_tests": {},
    "//tests/core/engine:checkpoints_tests": {
        "CheckpointOptionsTest.*": "is about errors of arguments",
        "DeviceStateTest.*": "opens the guard device itself",
        "HungRankTest.*": None,
    },
    "//tests/core/engine:gradients_tests": {
        "*BoundMemoryTest.*": "moves no tensors between ranks",
        "*BoundMemoryTest.*/apart_*": None,
        "*MissingGradsTest.*/apart_*": None,
        "*MissingGradsTest.*/apart_stage?": "the other forms share no memory either",
        "*MissingGradsTest.*/apart_stage2_*": "the other forms share no memory either",
        "*MissingGradsTest.*/apart_stage3_whole_grads": "the other forms share no memory either",
        "MissingGradsRandomTest.*": None,
    },
    "//tests/core/engine:steps_tests": {
        "*/*apart_*": None,
        "*HostStreamTest.*": None,
        "*InvarianceTest.*": None,
        "*StagesTest.*": "runs on fake_nccl_ring",
        "*StreamOrderTest.*": None,
        "*StepModelTest.*": None,
        "*EarlyStepTest.ALaterErrorIsThatOfTheNextCall/*": "its code may be the group's",
        "*EarlyStepTest.ALaterErrorReaches*": "its code may be the group's",
        "EarlyMeetingTest.AWrongCallOf*": "has a norm that the communicator gathers",
        "EarlyMeetingTest.OneRankWithStreams*": "one rank is on a processor",
        "GatherAheadTest.*": "counts the calls of an Exchange",
        "UnsharedTest.*": "is about processors that do not reach shared memory",
    },
    "//tests/core/engine:units_tests": {
        "*/*apart_*": None,
        "*AnnouncedMovesTest.*/apart_*": "the other forms share no memory either",
        "*DifferentCallsTest.*": None,
        "*DifferentCallsTest.*/stage*": "has forms without shared memory",
        "*ReplanTest.*/apart_stage1": "the other forms share no memory either",
        "*ReplanTest.*/apart_stage3": "the other forms share no memory either",
        "*ReplanTest.*/apart_stage3_greedy": "the other forms share no memory either",
        "*SummonTest.*/apart_stage?": "the other forms share no memory either",
        "*ValidProgramsTest.*": "is about the order of calls",
    },
    "//tests/fault:checkpoint_damage_test": {},
    "//tests/fault:checkpoint_fault_test": {},
    "//tests/fault:checkpoint_kill_test": {},
}

# Those of them that run in the long form alone: each stage runs in the short form,
# and each feature that forms without shared memory alone have.
_FAKE_NCCL_LONG = {
    "//tests/core/engine:checkpoints_tests": [
        "*ResumeTest.*/*_states",
        "*ResumeTest.*/adafactor",
        "*ResumeTest.*/amsgrad",
        "*ResumeTest.*/lamb",
        "*ResumeTest.*/momentum",
        "*WorldSizesTest.*/W3",
        "*WorldSizesTest.*/W5",
        "*WorldSizesTest.*/W6",
        "*WorldSizesTest.*/W7",
        "*WorldSizesTest.*/W8",
        "*WorldSizesTest.*/W9",
        "CheckpointAsyncTest.A*",
        "CheckpointAsyncTest.EachRank*",
        "CheckpointAsyncTest.FreeingTheEngine*",
        "CheckpointAsyncTest.KeepsTheLast*",
        "CheckpointAsyncTest.OneRankCancels*",
        "CheckpointAsyncTest.TheNextCall*",
    ],
    "//tests/core/engine:gradients_tests": [
        "*JoinFormsTest.*/*apart_*",
        "*JoinFormsTest.*/stage_0",
        "*JoinTest.*",
        "*MissingGradsTest.*/apart_stage3_async",
        "*MissingGradsTest.*/apart_stage3_prefetch",
        "*MissingGradsTest.*/stage0",
        "*MissingGradsTest.*/stage2_*",
        "*MissingGradsTest.*/stage3_*",
        "WhoHasGradientsTest.*",
    ],
    "//tests/core/engine:steps_tests": [
        "*AccumulateTest.*/*apart_*",
        "*AccumulateTest.*/stage2",
        "*InvarianceTest.*/adam_q8_amsgrad",
        "*InvarianceTest.*/adamw",
        "*InvarianceTest.*/adamw_bf16_masters",
        "*InvarianceTest.*/adamw_bf16_states",
        "*InvarianceTest.*/adamw_f16_nearest",
        "*InvarianceTest.*/lamb",
        "*InvarianceTest.*/muon*",
        "*InvarianceTest.*/sgd_momentum",
        "*NarrowParamsTest.MastersAreTheRunInFp32/*muon*",
        "*NarrowParamsTest.MastersAreTheRunInFp32/*sgd*",
        "*NarrowParamsTest.StochasticRoundingIsUnbiased/*",
        "*ShardGroupsTest.*_of_1",
        "*ShardGroupsTest.*_of_4",
        "*SkipTest.*/adafactor_bf16",
        "*SkipTest.*/adamw_*",
        "*SkipTest.*/lamb",
        "*SkipTest.*/muon",
        "*SkipTest.*/sgd",
        "*StepModelTest.*_apart_*",
        "*StepModelTest.*_cpu_*",
    ],
    "//tests/core/engine:units_tests": [
        "*ReplanTest.*_greedy",
        "*ReplanTest.ErrorsAre*/stage2",
        "*ReplanTest.ErrorsAre*/stage3",
        "*ReplanTest.NewGroups*/*_groups",
        "*ReplanTest.NewGroups*/stage2",
        "*ReplanTest.NewGroups*/stage3",
        "*SummonTest.*/apart_stage3_groups",
        "*SummonTest.*/stage1",
        "*SummonTest.ErrorsAre*/*_groups",
        "*SummonTest.NothingElse*/*_groups",
        "*SummonTest.UntouchedMasters*/*_groups",
        "*SummonTest.WriteBack/*",
    ],
    "//tests/fault:checkpoint_damage_test": ["DamageTest.EveryByte"],
    "//tests/fault:checkpoint_fault_test": ["*FaultTest.*FromThenOn*"],
}

# The same for sums in the order of a ring, which only deterministic plans make equal
# to sums in the order of ranks: those of StagesTest, which alone runs there.
_FAKE_NCCL_RING = {
    "//tests/core/engine:steps_tests": {},
}

_FAKE_NCCL_RING_LONG = {
    "//tests/core/engine:steps_tests": [
        "*StagesTest.*/*overwritten*",
        "*StagesTest.*/apart_stage?",
        "*StagesTest.*/apart_stage1_one_unit",
        "*StagesTest.*/apart_stage1_per_parameter",
        "*StagesTest.*/apart_stage2_overlap",
        "*StagesTest.*/apart_stage3_always",
        "*StagesTest.*/apart_stage3_greedy",
        "*StagesTest.*/apart_stage3_groups_of_2",
        "*StagesTest.*/apart_stage3_prefetch_none",
        "*StagesTest.*/apart_stage3_small_buffers",
        "*StagesTest.*/begun_apart_stage?",
        "*StagesTest.*/begun_stage1",
        "*StagesTest.*/begun_stage3_async",
        "*StagesTest.*/stage2_*",
        "*StagesTest.*/stage3_a*",
        "*StagesTest.*/stage3_greedy",
        "*StagesTest.*/stage3_p*",
        "*StagesTest.*/stage3_s*",
    ],
}

# By program, the tests that are left out of its run on several hosts, and why. Where
# a test has forms with and without shared memory, those without it run.
_TCP = {
    "//tests/conformance:step_tests": {},
    "//tests/core/engine:checkpoints_tests": {
        "CheckpointOptionsTest.*": "is about errors of arguments",
        "DeviceStateTest.*": "opens the guard device itself",
        "HostileNames.*": "is about names; the tensors have one element",
        "HungRankTest.*": "waits for deadlines",
        "CheckpointNumbersTest.RefusesMoreBlobs*": "is about numbers",
    },
    "//tests/core/engine:gradients_tests": {
        "*BoundMemoryTest.*/stage*": "has forms without shared memory",
        "*JoinTest.*": "JoinFormsTest takes the same paths with fewer steps",
        "*MissingGradsTest.*/stage*": "has forms without shared memory",
        "MissingGradsRandomTest.*": "calls differ between ranks that share memory",
        "WhoHasGradientsTest.*": "MissingGradsTest takes the same paths",
    },
    "//tests/core/engine:steps_tests": dict(_SUMS_OF_16_BITS, **{
        "*OrderTest.*/direct": "has forms without shared memory",
        "*EarlyStepTest.*/direct": "has forms without shared memory",
        "*HostStreamTest.*/direct": "has forms without shared memory",
        "*AccumulateTest.*/stage*": "has forms without shared memory",
        "*NarrowParamsTest.*": "has no sums of several ranks",
        "*StagesTest.*/stage?": "has forms without shared memory",
        "*StagesTest.*/stage?_async": "has forms without shared memory",
        "*StepModelTest.*/stage?_async*": "has forms without shared memory",
        "*StepModelTest.*/stage?_cpu*": "has forms without shared memory",
        "RuntimeOrderTest.*": "makes streams of its own, and no engine",
        "UnsharedTest.*": "is about ranks of one host",
    }),
    "//tests/core/engine:units_tests": {
        "*CommQueue*Test.*": "has no engine",
        "*DifferentCallsTest.*/stage*": "has forms without shared memory",
        "*EngineMemoryTest.*": "counts bytes, which are the same",
        "*ReplanTest.*/stage*": "has forms without shared memory",
        "*SummonTest.*/stage*": "has forms without shared memory",
        "*ValidProgramsTest.*": "is about the order of calls",
        "*WrongCallsTest.*": "is about calls that fail before elements move",
        "CountersTest.*": "has no engine",
        "DecideTest.*": "has no engine",
        "GatherOrderTest.*": "has no engine",
        "SlotsTest.*": "has no engine",
        "UnitStatesTest.*": "has no engine",
    },
}

# Those of them that run in the long form alone.
_TCP_LONG = {
    "//tests/core/engine:checkpoints_tests": [
        "*ResumeTest.*",
    ],
    "//tests/core/engine:gradients_tests": [
        "*MissingGradsTest.*/apart_stage0",
        "*MissingGradsTest.*/apart_stage2_*",
        "*MissingGradsTest.*/apart_stage3_*",
    ],
    "//tests/core/engine:steps_tests": [
        "*InvarianceTest.*/*16*",
        "*InvarianceTest.*/*q8*",
        "*SkipTest.*/adamw_*",
        "*SkipTest.*/lamb",
        "*SkipTest.*/muon",
        "*SkipTest.*/sgd",
        "*StagesTest.*/*_async",
        "*StagesTest.*/overwritten_*",
        "*StagesTest.*/stage3_*",
        "*StepModelTest.*/stage0_*",
        "*StepModelTest.*/stage2_*",
        "*StepModelTest.*_async_*",
    ],
    "//tests/core/engine:units_tests": [
        "*ReplanTest.*/apart_stage1",
        "*ReplanTest.*_greedy",
        "*ReplanTest.*_groups",
        "*SummonTest.*/apart_stage1",
        "*SummonTest.*_groups",
    ],
}

# The same where sums pass from host to host: the tests of on_device.sh.
_TCP_CHAIN = ["//tests/core/engine:gradients_tests", "//tests/core/engine:steps_tests"]

# Each stage once.
_TCP_CHAIN_LONG = {
    "//tests/core/engine:gradients_tests": _TCP_LONG["//tests/core/engine:gradients_tests"],
    "//tests/core/engine:steps_tests": [
        "*InvarianceTest.*/*16*",
        "*InvarianceTest.*/*adafactor*",
        "*InvarianceTest.*/*lamb*",
        "*InvarianceTest.*/*muon*",
        "*InvarianceTest.*/*q8*",
        "*StagesTest.*/*apart_stage?_*",
        "*StagesTest.*/overwritten_*",
    ],
}

# By program, the tests that are left out of its run on hosts which have networks of
# their own. on_device.sh leaves out more.
_NAMESPACES = dict(_TCP, **{"//tests/samples/gpt:training_tests": {}})

# The one that also runs under the thread sanitizer, and in the long form under both.
_TCP_SANITIZED = "//tests/core/engine:gradients_tests"

# Other programs with an engine run without the guard device:
#
#   core/engine:memory_test, many_tensors_test, state_memory_test
#       measure processes, to which staging memory would count
#   core/engine:muon_test
#       has ranks that are processes, and Muon is in step_tests and steps_tests
#   core/engine:random_models_test
#       takes the paths of steps_tests, with models that vary
#   core/engine:update_test
#       has kernels, and no engine
#   fault:...
#       lets processes and files fail; checkpoints_tests saves and loads the same
#       tensors. On fake_nccl files fail, too, and ranks are killed in saves and
#       loads; core/engine:nccl_kill_test kills them in steps
#   fault:out_of_memory_test
#       and two_faults_test in it let the process run out of memory, where the fakes
#       of the driver and of NCCL, whose allocations are the process's, would end it
#   api:..., sdk:..., samples:...
#       see the C interface alone, which does not open the guard device

_FAKE_DRIVER = ["//tests/fake_cuda:libcublasLt.so.13", "//tests/fake_cuda:libcuda.so.1"]

# By device, the libraries that the loader is to find.
_LIBRARIES = {
    "fake_cuda": _FAKE_DRIVER,
    "fake_nccl": _FAKE_DRIVER + ["//tests/fake_nccl:libnccl.so.2"],
    "fake_nccl_ring": _FAKE_DRIVER + ["//tests/fake_nccl:libnccl.so.2"],
    "namespaces": ["//sdk/network:shard-network"],
    "offloaded": _FAKE_DRIVER,
    "tcp": ["//sdk/network:shard-network"],
    "tcp_chain": ["//sdk/network:shard-network"],
}

def left_out(reasons, only_long = []):
    """Returns the `env` of a test that on_device.sh runs without some of its tests.

    Args:
      reasons: by pattern of tests (as in --gtest_filter), why they are left out.
        on_device.sh prints it.
      only_long: patterns of those that run in the long form alone.
    """
    env = {}
    if reasons:
        env["SHARD_TEST_LEFT_OUT"] = "\n".join([
            "%s: %s" % (tests, why)
            for tests, why in reasons.items()
        ])
    if only_long:
        env["SHARD_TEST_ONLY_LONG"] = "\n".join([
            "%s: runs in the long form" % tests
            for tests in only_long
        ])
    return env

def _left_out_of_nccl(label):
    all = dict(_FAKE_CUDA.get(label, {}), **_FAKE_NCCL[label])
    return {tests: why for tests, why in all.items() if why != None}

def _rerun(device, left_out_of, tags, only_long = {}, longtsan = {}):
    for label, reasons in left_out_of.items():
        package, program = label[2:].split(":")
        if package != native.package_name():
            continue
        native.sh_test(
            name = device + "_" + program,
            # Copies, or the fake's thread, take as much again as the ranks.
            size = "large",
            srcs = ["//tests/core/engine:on_device.sh"],
            args = [
                device,
                "$(location :%s)" % program,
            ],
            data = [":" + program] + _LIBRARIES.get(device, []),
            env = dict(
                long_forms(longtsan = longtsan.get(label, {})),
                **left_out(reasons, only_long.get(label, []))
            ),
            tags = tags,
        )

def on_other_devices():
    """Defines DEVICE_NAME for each program NAME of the package.

    The program runs with SHARD_TEST_DEVICE in its environment: see create_engine.h.
    The guard device runs under no sanitizer: these see the same work in the program
    itself, and copies from and to a device in the tests of core/device. cpu-async
    runs under the thread sanitizer alone, which is the one that tells whether an
    edge is there when nothing happens to go wrong: in the normal run the steps, in
    the long form all.
    """
    _rerun("guarded", _GUARDED, ["nosan"], _GUARDED_LONG)
    for label, reasons in _ASYNC.items():
        # The steps enqueue on all streams; the others use some of these.
        long = [] if label == "//tests/core/engine:steps_tests" else ["longtsan"]
        _rerun(
            "async",
            {label: reasons},
            ["tsanonly"] + long,
            longtsan = _ASYNC_LONG,
        )
    _rerun("fake_cuda", _FAKE_CUDA, ["nosan"], _FAKE_CUDA_LONG)
    _rerun("offloaded", _OFFLOADED, ["nosan"], _OFFLOADED_LONG)
    _rerun(
        "fake_nccl",
        {label: _left_out_of_nccl(label) for label in _FAKE_NCCL},
        ["nosan"],
        _FAKE_NCCL_LONG,
    )
    _rerun("fake_nccl_ring", _FAKE_NCCL_RING, ["nosan"], _FAKE_NCCL_RING_LONG)
    for label, reasons in _TCP.items():
        tags = ["longasan"] if label == _TCP_SANITIZED else ["nosan"]
        _rerun("tcp", {label: reasons}, tags, _TCP_LONG)
    _rerun(
        "tcp_chain",
        {label: _TCP[label] for label in _TCP_CHAIN},
        ["nosan"],
        _TCP_CHAIN_LONG,
    )
    _rerun("namespaces", _NAMESPACES, ["nosan"], _TCP_LONG)
