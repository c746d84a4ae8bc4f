# SPDX-License-Identifier: Apache-2.0
"""What test programs leave out on the guard device and on cpu-async."""

# By program, the tests that are left out of its run on the guard device, and why.
GUARDED = {
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

# Tests of GUARDED's programs that run in the long form alone.
GUARDED_LONG = {
    "//tests/core/engine:steps_tests": [
        "*EnginePrecisionTest.*/f16_*",
        "*EnginePrecisionTest.Sgd*",
        "*EngineStepTest.*/W2*",
        "*EngineStepTest.*/W4*",
        "*EngineStepTest.*/W7*",
        "*NarrowParamsTest.StochasticRoundingIsUnbiased/*",
        "*StepModelTest.*_async_*",
    ],
}

# By program, the tests that are left out of its run on cpu-async, and why.
ASYNC = {
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
ASYNC_LONG = {
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
