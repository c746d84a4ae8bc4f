# SPDX-License-Identifier: Apache-2.0
"""What test programs leave out on several hosts."""

load("//tests/core/engine:devices/sixteen_bits.bzl", "SUMS_OF_16_BITS")

# By program, the tests that are left out of its run on several hosts, and why. Where
# a test has forms with and without shared memory, those without it run.
TCP = {
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
        "*JoinFormsTest.*/stage_0": "has forms without shared memory",
        "*JoinFormsTest.*/stage_3": "has forms without shared memory",
        "*JoinTest.*": "JoinFormsTest takes the same paths with fewer steps",
        "*MissingGradsTest.*/stage*": "has forms without shared memory",
        "MissingGradsRandomTest.*": "calls differ between ranks that share memory",
        "WhoHasGradientsTest.*": "MissingGradsTest takes the same paths",
    },
    "//tests/core/engine:steps_tests": dict(SUMS_OF_16_BITS, **{
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
TCP_LONG = {
    "//tests/core/engine:checkpoints_tests": [
        "*ResumeTest.*",
        "*WorldSizesTest.*/W3",
        "*WorldSizesTest.*/W5",
        "*WorldSizesTest.*/W6",
        "*WorldSizesTest.*/W7",
        "*WorldSizesTest.*/W8",
        "*WorldSizesTest.*/W9",
    ],
    "//tests/core/engine:gradients_tests": [
        "*MissingGradsTest.*/apart_stage0",
        "*MissingGradsTest.*/apart_stage2_*",
        "*MissingGradsTest.*/apart_stage3_*",
    ],
    "//tests/core/engine:steps_tests": [
        "*EnginePrecisionTest.*/f16_*",
        "*EnginePrecisionTest.*_W1",
        "*EnginePrecisionTest.Sgd*",
        "*EngineStepTest.*/W1*",
        "*EngineStepTest.*/W2*",
        "*EngineStepTest.*/W7*",
        "*InvarianceTest.*/*16*",
        "*InvarianceTest.*/*q8*",
        "*InvarianceTest.*/sgd_momentum",
        "*ShardGroupsTest.*_of_1",
        "*ShardGroupsTest.*_of_4",
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
        "TensorOptimizersTest.*",
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
TCP_CHAIN = ["//tests/core/engine:gradients_tests", "//tests/core/engine:steps_tests"]

# Each stage once.
TCP_CHAIN_LONG = {
    "//tests/core/engine:gradients_tests": TCP_LONG["//tests/core/engine:gradients_tests"],
    "//tests/core/engine:steps_tests": [
        "*InvarianceTest.*/*16*",
        "*InvarianceTest.*/*adafactor*",
        "*InvarianceTest.*/*lamb*",
        "*InvarianceTest.*/*muon*",
        "*InvarianceTest.*/*q8*",
        "*InvarianceTest.*/sgd_momentum",
        "*StagesTest.*/*apart_stage?_*",
        "*StagesTest.*/overwritten_*",
    ],
}

# By program, the tests that are left out of its run on hosts which have networks of
# their own. on_device.sh leaves out more.
NAMESPACES = dict(TCP, **{"//tests/samples/gpt:training_tests": {}})

# The one that also runs under the thread sanitizer, and in the long form under both.
TCP_SANITIZED = "//tests/core/engine:gradients_tests"
