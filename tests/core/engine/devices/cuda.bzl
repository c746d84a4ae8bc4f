# SPDX-License-Identifier: Apache-2.0
"""What test programs leave out on the fake of CUDA's driver."""

load("//tests/core/engine:devices/sixteen_bits.bzl", "SUMS_OF_16_BITS")

# By program, the tests that are left out of its run on the fake of CUDA's driver,
# and why.
FAKE_CUDA = {
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
    "//tests/core/engine:steps_tests": dict(SUMS_OF_16_BITS, **{
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
FAKE_CUDA_LONG = {
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
        "*EnginePrecisionTest.*/f16_*",
        "*EnginePrecisionTest.Sgd*",
        "*EngineStepTest.*/W2*",
        "*EngineStepTest.*/W4*",
        "*EngineStepTest.*/W7*",
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
OFFLOADED = {
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
    "//tests/core/engine:steps_tests": dict(SUMS_OF_16_BITS, **{
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
OFFLOADED_LONG = {
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
        "*EnginePrecisionTest.*/f16_*",
        "*EnginePrecisionTest.Sgd*",
        "*EngineStepTest.*/W2*",
        "*EngineStepTest.*/W4*",
        "*EngineStepTest.*/W7*",
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
