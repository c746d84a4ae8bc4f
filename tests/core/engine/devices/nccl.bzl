# SPDX-License-Identifier: Apache-2.0
"""What test programs leave out on the fakes of CUDA's driver and of NCCL."""

load("//tests/core/engine:devices/cuda.bzl", "FAKE_CUDA")

# By program, the tests that are left out of its run on fakes of the driver and of
# NCCL beside those of FAKE_CUDA, and why. None: it is not left out here, where ranks
# share no memory in any form, and have GPUs where a form names cpu-async.
FAKE_NCCL = {
    "//tests/conformance:step_tests": {},
    "//tests/core/engine:checkpoints_tests": {
        "CheckpointOptionsTest.*": "is about errors of arguments",
        "DeviceStateTest.*": "opens the guard device itself",
        "HungRankTest.*": None,
    },
    "//tests/core/engine:gradients_tests": {
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
    },
    "//tests/fault:checkpoint_damage_test": {},
    "//tests/fault:checkpoint_fault_test": {},
    "//tests/fault:checkpoint_kill_test": {},
}

# Those of them that run in the long form alone: each stage runs in the short form,
# and each feature that forms without shared memory alone have.
FAKE_NCCL_LONG = {
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
    ],
    "//tests/core/engine:gradients_tests": [
        "*BoundMemoryTest.*",
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
        "*EnginePrecisionTest.*/f16_*",
        "*EnginePrecisionTest.Sgd*",
        "*EngineStepTest.*/W7*",
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
        "*SummonTest.*/apart_stage2_groups",
        "*SummonTest.*/stage1",
        "*SummonTest.ErrorsAre*/*_groups",
        "*SummonTest.NothingElse*/*_groups",
        "*SummonTest.UntouchedMasters*/*_groups",
        "*SummonTest.WriteBack/*",
        "*ValidProgramsTest.*",
    ],
    "//tests/fault:checkpoint_damage_test": ["DamageTest.EveryByte"],
    "//tests/fault:checkpoint_fault_test": ["*FaultTest.*FromThenOn*"],
}

# The same for sums in the order of a ring, which only deterministic plans make equal
# to sums in the order of ranks: those of StagesTest, which alone runs there.
FAKE_NCCL_RING = {
    "//tests/core/engine:steps_tests": {},
}

FAKE_NCCL_RING_LONG = {
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

def left_out_of_nccl(label):
    """Returns, by pattern, why tests of a program are left out on fakes of NCCL."""
    all = dict(FAKE_CUDA.get(label, {}), **FAKE_NCCL[label])
    return {tests: why for tests, why in all.items() if why != None}
